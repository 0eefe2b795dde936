package kafkasource_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The commit of a member of an older generation is refused. The member is held up by a drain that
// lasts until the others have continued without it (F7).
func TestCommitAfterAnotherJoined(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.RebalanceTimeout = time.Second
		draining := make(chan *memlog.Held, 1)
		drain := make(chan struct{})
		first := memlog.NewMember(t)
		var late atomic.Bool
		first.Drain = func(h *memlog.Held) {
			if late.CompareAndSwap(false, true) {
				draining <- h
				<-drain
			}
		}
		first.Start(kafkasource.New(cfg))
		first.Holds(topic, 0)
		second := join(t, cfg)
		h := <-draining
		ctx := context.WithoutCancel(h.Ctx)
		if err := h.Commit(ctx, 1, "while the group waits"); err != nil {
			t.Errorf("commit during the rebalance, with heartbeats: %v", err)
		}
		owner := second.Holds(topic, 0) // the coordinator has waited long enough for the first
		err := h.Commit(ctx, 2, "stale")
		if !errors.Is(err, source.ErrOwnershipLost) {
			t.Errorf("commit in a generation that is over: %v", err)
		}
		var code kafka.Error
		if !errors.As(err, &code) {
			t.Errorf("%v does not name Kafka's error", err)
		}
		if offset, _, err := owner.Committed(ctx); offset != 1 || err != nil {
			t.Errorf("committed offset is %d, %v; want 1", offset, err)
		}
		close(drain)
		if err := first.Leave(); err != nil {
			t.Error(err)
		}
	})
}

// A member whose drain outlasts the session timeout stays in the group: heartbeats continue until
// own returns.
func TestDrainOutlivesSession(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		m := memlog.NewMember(t)
		var err error
		m.Drain = func(h *memlog.Held) {
			ctx := context.WithoutCancel(h.Ctx)
			for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); {
				// Fetches wait half a second and are no sign of life for the group; commits would
				// be.
				if _, err := h.Fetch(ctx, 0, 1<<20); err != nil {
					t.Error(err)
				}
			}
			err = h.Commit(ctx, 3, "the last")
		}
		m.Start(kafkasource.New(quick(brokers, topic)))
		m.Holds(topic, 0)
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Errorf("commit after a drain of 2.5 s in a session of 1 s: %v", err)
		}
	})
}

// An own that returns without a reason is a mistake and must not end Run silently.
func TestOwnReturnsTooEarly(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		m := memlog.NewMember(t)
		m.Start(kafkasource.New(quick(brokers, topic)))
		m.HoldsExactly(2)
		m.Holds(topic, 0).GiveUp(nil)
		if err := m.Wait(); err == nil {
			t.Error("Run returned no error")
		}
	})
}

func TestNewPartitionsAreOwned(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		first := join(t, cfg)
		second := join(t, cfg)
		both := func(n int) func() bool {
			return func() bool {
				return len(first.Keys())+len(second.Keys()) == n
			}
		}
		eventually(t, "one partition", both(1))
		if _, err := kafkatest.Admin(t, brokers).UpdatePartitions(t.Context(), 4, topic); err != nil {
			t.Fatal(err)
		}
		eventually(t, "four partitions", both(4))
	})
}

// Several topics in one group, one of which has fewer partitions than the group members.
func TestSeveralTopics(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	a := kafkatest.Topic(t, brokers, 2, nil)
	b := kafkatest.Topic(t, brokers, 1, nil)
	cfg := quick(brokers, a, b)
	kafkatest.Write(t, kafkatest.Client(t, brokers), b, "x")
	m := join(t, cfg)
	m.HoldsExactly(3)
	if got := values(m.Holds(b, 0).ReadTo(t, 0, 1)); !slices.Equal(got, []string{"x"}) {
		t.Errorf("read %v", got)
	}
}
