//go:build unix

package devenv_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// Each of three brokers, the leader of the quorum among them, can be killed and paused, and no
// acknowledged record is lost.
func TestKafkaClusterOutlivesEachBroker(t *testing.T) {
	t.Parallel()
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindLocal, Brokers: 3})
	if err != nil {
		unreachable(t, err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	if len(k.Nodes) != 3 || len(k.Brokers) != 3 {
		t.Fatalf("%+v", k)
	}
	for name, want := range map[string]string{
		"default.replication.factor":       "3",
		"min.insync.replicas":              "2",
		"offsets.topic.replication.factor": "3",
	} {
		if got := brokerConfig(t, k.Brokers, name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(k.Brokers...),
		kgo.DefaultProduceTopic("kept"),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ConsumeTopics("kept"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.MetadataMinAge(100*time.Millisecond),
		// A broker that comes back does not know the topic until it has read what it missed.
		kgo.UnknownTopicRetries(-1),
		// A suspended broker answers nothing: do not wait long for it.
		kgo.RequestTimeoutOverhead(time.Second),
		kgo.ProduceRequestTimeout(2*time.Second),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// Three JVMs start over on a machine that runs other tests, too.
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, 3, -1, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	var want []string
	write := func(value string) {
		t.Helper()
		begin := time.Now()
		defer func() { t.Logf("written %q in %v", value, time.Since(begin).Round(time.Millisecond)) }()
		for _, copy := range []string{"-0", "-1", "-2"} { // to a partition each
			if err := cl.ProduceSync(ctx, kgo.StringRecord(value+copy)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			want = append(want, value+copy)
		}
	}
	for _, n := range k.Nodes {
		if err := n.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		write("without " + n.Addr)
		begin := time.Now()
		if err := n.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("broker %d in sync again after %v", n.ID, time.Since(begin).Round(time.Millisecond))
	}
	if err := k.Nodes[1].Pause(ctx); err != nil {
		t.Fatal(err)
	}
	write("paused")
	if err := k.Nodes[1].Continue(ctx); err != nil {
		t.Fatal(err)
	}
	// All of them at once, as when the power fails.
	if err := k.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := k.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	write("after all")
	var got []string
	for len(got) < len(want) && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

func TestKafkaClusterIsNotHadEverywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    devenv.Options
		want string
	}{
		{devenv.Options{Brokers: 2}, "Options.Brokers is 2; it can be 1 or 3"},
		{devenv.Options{Brokers: 3, Force: devenv.KindEmbedded, AllowFake: true}, "starts one broker, and 3 are asked for"},
	} {
		if _, err := devenv.StartKafka(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
