//go:build unix

package devenv_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/devenv"
)

func TestKafkaJVM(t *testing.T) {
	t.Parallel()
	k, err := devenv.StartKafka(t.Context(), devenv.Options{
		Force:         devenv.KindLocal,
		KafkaSettings: map[string]string{"message.max.bytes": "2000000"},
	})
	if err != nil {
		unreachable(t, err)
	}
	if !k.Real || k.Kind != devenv.KindLocal || k.PID() == 0 {
		t.Errorf("%+v", k)
	}
	for name, want := range map[string]string{
		"message.max.bytes":            "2000000",
		"group.min.session.timeout.ms": "1000",
		"auto.create.topics.enable":    "false",
	} {
		if got := brokerConfig(t, k.Brokers, name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	survivesKill(t, k)
	stops(t, k)
}

func TestKafkaFake(t *testing.T) {
	t.Parallel()
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindEmbedded, AllowFake: true})
	if err != nil {
		t.Fatal(err)
	}
	if k.Real || k.Kind != devenv.KindEmbedded || k.PID() != 0 {
		t.Errorf("%+v", k)
	}
	survivesKill(t, k)
	stops(t, k)
}

func TestKafkaGoesWithItsProgram(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{devenv.KindLocal, devenv.KindEmbedded} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, "kafka", nil, devenv.EnvForce+"="+kind)
			if p.Error != "" {
				unreachable(t, errors.New(p.Error))
			}
			p.killAndSee(t)
		})
	}
}

// survivesKill shows that the same address and the same records are there after
// a kill.
func survivesKill(t *testing.T, k *devenv.Kafka) {
	t.Helper()
	before := k.PID()
	if err := produce(k.Brokers, "kept", "one"); err != nil {
		t.Fatal(err)
	}
	if err := k.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if listens(k.Brokers[0]) {
		t.Error("the killed broker takes connections")
	}
	begin := time.Now()
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("restarted in %v", time.Since(begin).Round(time.Millisecond))
	if before != 0 && k.PID() == before {
		t.Error("the same process after a restart")
	}
	if err := produce(k.Brokers, "kept", "two"); err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.ConsumeTopics("kept"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var got []string
	for len(got) < 2 && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	if fmt.Sprint(got) != "[one two]" {
		t.Errorf("records %q", got)
	}
}

func stops(t *testing.T, k *devenv.Kafka) {
	t.Helper()
	pid := k.PID()
	for range 2 {
		if err := k.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if exists(k.Dir) || (pid != 0 && alive(pid)) {
		t.Errorf("after Stop: directory there: %t, broker alive: %t", exists(k.Dir), alive(pid))
	}
	if listens(k.Brokers[0]) {
		t.Error("the stopped broker takes connections")
	}
}

func listens(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// produce writes one record, and makes the topic when it is not there.
func produce(brokers []string, topic, value string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RetryTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return err
	}
	if !topics.Has(topic) {
		if _, err := adm.CreateTopic(ctx, 1, 1, nil, topic); err != nil {
			return err
		}
	}
	return cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr()
}

func brokerConfig(t *testing.T, brokers []string, name string) string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	configs, err := kadm.NewClient(cl).DescribeBrokerConfigs(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs[0].Configs {
		if c.Key == name && c.Value != nil {
			return *c.Value
		}
	}
	return ""
}
