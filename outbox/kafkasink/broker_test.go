package kafkasink_test

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The broker is away while a call is due. The call is put off, and delivered when the broker is
// back.
func TestBrokerAway(t *testing.T) {
	k, err := devenv.StartKafka(t.Context(), devenv.Options{Force: devenv.KindEmbedded, Own: true, AllowFake: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
	})
	topic := kafkatest.Topic(t, k.Brokers, 1, nil)
	s := newSink(t, k.Brokers, nil, topic)
	wantOutcome(t, send(t, s, delivery("a", "/"+topic, "v")), outbox.Delivered)
	if err := k.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(t, s, delivery("b", "/"+topic, "v")), outbox.Retry)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is delivered", func() bool {
		r := send(t, s, delivery("b", "/"+topic, "v"))
		if r.Outcome == outbox.Rejected {
			t.Fatalf("rejected: %s", r.Reason)
		}
		return r.Outcome == outbox.Delivered
	})
}

// The leader moves between brokers. No call is rejected, and each is delivered in the end.
func TestLeaderMoves(t *testing.T) {
	c := kafkatest.FakeCluster(t, kfake.NumBrokers(3))
	topic := kafkatest.Topic(t, c.ListenAddrs(), 1, nil)
	s := newSink(t, c.ListenAddrs(), nil, topic)
	for i := range 4 {
		until(t, "it is delivered", func() bool {
			r := send(t, s, delivery(fmt.Sprint(i), "/"+topic, "v"))
			if r.Outcome == outbox.Rejected {
				t.Fatalf("rejected: %s", r.Reason)
			}
			return r.Outcome == outbox.Delivered
		})
		if err := c.MoveTopicPartition(topic, 0, int32(i%3)); err != nil {
			t.Fatal(err)
		}
	}
}
