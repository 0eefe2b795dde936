package kafkasource_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
)

func TestCommitRoundTrip(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		cfg := quick(brokers, topic)
		h := join(t, cfg).holds(topic, 1)
		if offset, metadata, err := h.Committed(h.ctx); offset != -1 || metadata != "" || err != nil {
			t.Errorf("before any commit: %d %q %v", offset, metadata, err)
		}
		for _, c := range []struct {
			offset   int64
			metadata string
		}{{5, "onlyonce/1 stock 5"}, {9, ""}, {7, "back, with ünicode"}} {
			if err := h.Commit(h.ctx, c.offset, c.metadata); err != nil {
				t.Fatal(err)
			}
			if offset, metadata, err := h.Committed(h.ctx); offset != c.offset || metadata != c.metadata || err != nil {
				t.Errorf("committed %d %q, found %d %q %v", c.offset, c.metadata, offset, metadata, err)
			}
		}
		// Beside a fetch that waits.
		fetched := make(chan error, 1)
		go func() {
			_, err := h.Fetch(h.ctx, 0)
			fetched <- err
		}()
		if err := h.Commit(h.ctx, 11, "x"); err != nil {
			t.Error(err)
		}
		if err := <-fetched; err != nil {
			t.Error(err)
		}
	})
}

func TestIdentity(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 3, nil)
		h := join(t, quick(brokers, topic)).holds(topic, 0)
		adm := admin(t, brokers)
		topics, err := adm.ListTopics(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		meta, err := adm.BrokerMetadata(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := consumer.Identity{ClusterID: meta.Cluster, TopicID: topics[topic].ID, Topic: topic, Partitions: 3}
		if h.id != want || h.id.ClusterID == "" || h.id.TopicID == [16]byte{} {
			t.Errorf("identity is %+v, want %+v", h.id, want)
		}
	})
}

// The member of an older generation is told so by its commit. It is held up by a drain that lasts until the others have gone on without it.
func TestCommitAfterAnotherJoined(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.RebalanceTimeout = time.Second
		draining, drain := make(chan *held, 1), make(chan struct{})
		first := newMember(t)
		var late atomic.Bool
		first.drain = func(h *held) {
			if late.CompareAndSwap(false, true) {
				draining <- h
				<-drain
			}
		}
		first.run(cfg)
		first.holds(topic, 0)
		second := join(t, cfg)
		h := <-draining
		ctx := context.WithoutCancel(h.ctx)
		if err := h.Commit(ctx, 1, "while the group waits"); err != nil {
			t.Errorf("commit during the rebalance, with heartbeats: %v", err)
		}
		owner := second.holds(topic, 0) // the coordinator has waited for the first long enough
		err := h.Commit(ctx, 2, "stale")
		if !errors.Is(err, consumer.ErrOwnershipLost) {
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
		if err := first.leave(); err != nil {
			t.Error(err)
		}
	})
}

// A drain that outlasts the session timeout stays a member's: heartbeats go on until own returns.
func TestDrainOutlivesSession(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		m := newMember(t)
		var err error
		m.drain = func(h *held) {
			ctx := context.WithoutCancel(h.ctx)
			for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); {
				// Fetches wait half a second and tell the group nothing; commits would.
				if _, err := h.Fetch(ctx, 0); err != nil {
					t.Error(err)
				}
			}
			err = h.Commit(ctx, 3, "the last")
		}
		m.run(quick(brokers, topic))
		m.holds(topic, 0)
		if err := m.leave(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Errorf("commit after a drain of 2.5 s in a session of 1 s: %v", err)
		}
	})
}

func TestRebalance(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 4, nil)
		cfg := quick(brokers, topic)
		first := join(t, cfg)
		first.holdsExactly(4)
		second := join(t, cfg)
		second.holdsExactly(2)
		first.holdsExactly(2)
		var all []string
		for _, m := range []*member{first, second} {
			m.mu.Lock()
			for k := range m.has {
				all = append(all, k)
			}
			m.mu.Unlock()
		}
		slices.Sort(all)
		if want := []string{key(topic, 0), key(topic, 1), key(topic, 2), key(topic, 3)}; !slices.Equal(all, want) {
			t.Errorf("together they hold %v", all)
		}
		if err := second.leave(); err != nil {
			t.Error(err)
		}
		first.holdsExactly(4)
	})
}

// own says that the database has another owner: the process joins anew, and is given the partition again in another generation.
func TestOwnershipLostJoinsAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		m := join(t, quick(brokers, topic))
		m.holdsExactly(2)
		other := m.holds(topic, 0)
		old := m.holds(topic, 1)
		old.giveUp(fmt.Errorf("fenced: %w", consumer.ErrOwnershipLost))
		m.until("both partitions again", func(has map[string]*held, seen int) bool { return seen == 4 && len(has) == 2 })
		if other.ctx.Err() == nil {
			t.Error("the other partition's context did not end with the generation")
		}
		ctx := context.Background()
		if err := old.Commit(ctx, 1, ""); !errors.Is(err, consumer.ErrOwnershipLost) {
			t.Errorf("commit in the old generation: %v", err)
		}
		if err := m.holds(topic, 1).Commit(ctx, 1, ""); err != nil {
			t.Errorf("commit in the new generation: %v", err)
		}
	})
}

func TestOwnErrorEndsRun(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		boom := errors.New("boom")
		for name, c := range map[string]struct {
			give error
			want func(error) bool
		}{
			"an error":  {boom, func(err error) bool { return errors.Is(err, boom) }},
			"too early": {nil, func(err error) bool { return err != nil }},
		} {
			m := newMember(t)
			m.run(quick(brokers, topic))
			m.holdsExactly(2)
			m.holds(topic, 0).giveUp(c.give)
			if err := m.wait(); !c.want(err) {
				t.Errorf("%s: Run returned %v", name, err)
			}
			m.mu.Lock()
			if len(m.has) != 0 {
				t.Errorf("%s: Run returned while %d partitions were held", name, len(m.has))
			}
			m.mu.Unlock()
		}
	})
}

func TestNewPartitionsAreOwned(t *testing.T) {
	onBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.PartitionWatchInterval = 100 * time.Millisecond
		first, second := join(t, cfg), join(t, cfg)
		both := func(n int) func() bool {
			return func() bool {
				count := 0
				for _, m := range []*member{first, second} {
					m.mu.Lock()
					count += len(m.has)
					m.mu.Unlock()
				}
				return count == n
			}
		}
		eventually(t, "one partition", both(1))
		if _, err := admin(t, brokers).UpdatePartitions(t.Context(), 4, topic); err != nil {
			t.Fatal(err)
		}
		eventually(t, "four partitions", both(4))
	})
}

// Several topics in one group, one of which has fewer partitions than the group members.
func TestSeveralTopics(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	a, b := kafkatest.Topic(t, brokers, 2, nil), kafkatest.Topic(t, brokers, 1, nil)
	cfg := quick(brokers, a, b)
	write(t, producer(t, brokers), b, "x")
	m := join(t, cfg)
	m.holdsExactly(3)
	if got := values(m.holds(b, 0).readTo(t, 0, 1)); !slices.Equal(got, []string{"x"}) {
		t.Errorf("read %v", got)
	}
}
