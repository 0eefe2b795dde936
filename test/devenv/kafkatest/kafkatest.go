// Package kafkatest gives tests a Kafka broker.
//
// [Brokers] is a real one and nothing else: if none is available, the test is skipped with the
// reason, or fails if CI=true. [Fake] is franz-go's kfake, for tests that say so.
package kafkatest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// startTimeout bounds the start of a broker, the first fetch of one included.
const startTimeout = 3 * time.Minute

// topicTimeout bounds the creation of a topic.
const topicTimeout = 30 * time.Second

// Brokers returns the addresses of a real broker: those in
// ONLYONCE_KAFKA_BROKERS, or of one that is started for this test process and
// ends with it.
func Brokers(t testing.TB) []string {
	t.Helper()
	brokers, err := broker()
	switch {
	case err == nil:
		return brokers
	case os.Getenv("CI") == "true":
		t.Fatalf("kafkatest: no real Kafka broker: %v", err)
	default:
		t.Skipf("kafkatest: no real Kafka broker: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

var broker = sync.OnceValues(func() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	k, err := devenv.StartKafka(ctx, devenv.Options{})
	if err != nil {
		return nil, err
	}
	return k.Brokers, nil
})

// Fake returns the address of a kfake broker of this test's own, which is closed
// when the test ends.
func Fake(t testing.TB) []string {
	t.Helper()
	return FakeCluster(t).ListenAddrs()
}

// FakeCluster is Fake for tests that inject faults into it.
func FakeCluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1),
		kfake.GroupMinSessionTimeout(time.Second), // as on our real broker
	}, opts...)...)
	if err != nil {
		t.Fatalf("kafkatest: kfake: %v", err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// Topic creates a topic of a new name and waits until every partition has a
// leader that answers: before that a first produce or fetch may be refused. The
// topic stays; a broker of tests does not live long.
//
// kafka-go's DefaultTransport may still not know it: it keeps what it learned of a
// cluster for six seconds. Give a kafka-go Writer or Client a Transport of its own.
func Topic(t testing.TB, brokers []string, partitions int, configs map[string]string) string {
	t.Helper()
	name := TopicName(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...),
		// The client repeats what a new leader refuses, after a quarter of a
		// second; the leader is ready after some milliseconds.
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
		kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), topicTimeout)
	defer cancel()
	settings := make(map[string]*string, len(configs))
	for k, v := range configs {
		settings[k] = &v
	}
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(ctx, int32(partitions), 1, settings, name); err != nil {
		t.Fatalf("kafkatest: create topic %s: %v", name, err)
	}
	if err := untilLed(ctx, adm, name, partitions); err != nil {
		t.Fatalf("kafkatest: topic %s: %v", name, err)
	}
	return name
}

// TopicName returns a name that no other topic has, and that shows which test it belongs to.
func TopicName(t testing.TB) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '-' // never '.' or '_', which collide in metric names
	}, t.Name())
	return strings.ToLower(fmt.Sprintf("%.60s-%.10s", clean, rand.Text()))
}

// untilLed waits until the leader of every partition answers for it. What the
// metadata says is not enough: it names the leader a moment before that broker
// has taken the partition on, and answers Not Leader For Partition.
func untilLed(ctx context.Context, adm *kadm.Client, topic string, partitions int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		offsets, err := adm.ListEndOffsets(ctx, topic)
		if err == nil {
			err = offsets.Error()
		}
		if n := len(offsets[topic]); err == nil && n != partitions {
			err = fmt.Errorf("%d of %d partitions are known", n, partitions)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Cluster returns three real brokers of this test's own, each of which it may kill and pause. They
// end with the test.
func Cluster(t testing.TB) *devenv.Kafka {
	t.Helper()
	return Own(t, 3)
}

// Own is Cluster with so many brokers.
func Own(t testing.TB, brokers int) *devenv.Kafka {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	k, err := devenv.StartKafka(ctx, devenv.Options{Own: true, Brokers: brokers})
	if err == nil && len(k.Nodes) == 0 {
		err = errors.Join(fmt.Errorf("%s is none that a test may pause", k.How), k.Stop())
	}
	switch {
	case err == nil:
		t.Cleanup(func() {
			if err := k.Stop(); err != nil {
				t.Errorf("kafkatest: %v", err)
			}
		})
		return k
	case os.Getenv("CI") == "true":
		t.Fatalf("kafkatest: no cluster of %d Kafka brokers: %v", brokers, err)
	default:
		t.Skipf("kafkatest: no cluster of %d Kafka brokers: %s", brokers, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// TopicOn creates a topic of one partition that has its replicas on these brokers, the first of
// which is to lead, and waits until it does and all are in sync.
func TopicOn(t testing.TB, brokers []string, configs map[string]string, replicas ...int32) string {
	t.Helper()
	name := TopicName(t)
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic = name
	rt.NumPartitions = -1
	rt.ReplicationFactor = -1
	ra := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	ra.Partition = 0
	ra.Replicas = replicas
	rt.ReplicaAssignment = append(rt.ReplicaAssignment, ra)
	for k, v := range configs {
		rc := kmsg.NewCreateTopicsRequestTopicConfig()
		rc.Name = k
		rc.Value = &v
		rt.Configs = append(rt.Configs, rc)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, rt)
	ctx, cancel := context.WithTimeout(context.Background(), topicTimeout)
	defer cancel()
	resp, err := req.RequestWith(ctx, Client(t, brokers))
	if err == nil && len(resp.Topics) == 1 {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("kafkatest: create topic %s: %v", name, err)
	}
	Led(t, brokers, name, replicas[0], replicas...)
	return name
}

// Led waits until a broker leads partition 0 of a topic, and answers for it, and exactly these are
// in sync.
func Led(t testing.TB, brokers []string, topic string, leader int32, inSync ...int32) {
	t.Helper()
	adm := Admin(t, brokers)
	// Sessions of brokers have to end.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	want := slices.Sorted(slices.Values(inSync))
	for {
		topics, err := adm.ListTopics(ctx, topic)
		p := topics[topic].Partitions[0]
		if err == nil && p.Leader == leader && slices.Equal(slices.Sorted(slices.Values(p.ISR)), want) {
			if ends, err := adm.ListEndOffsets(ctx, topic); err == nil && ends.Error() == nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("kafkatest: %s: broker %d leads and %v are in sync, want %d and %v: %v", topic, p.Leader, p.ISR, leader, want, err)
		case <-tick.C:
		}
	}
}
