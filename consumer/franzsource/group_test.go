package franzsource_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// A partition that stays is not interrupted when another member joins or leaves. Its context does
// not end, and it commits throughout, in generation after generation (F7).
func TestPartitionThatStaysIsNotInterrupted(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 4, nil)
		cfg := quick(brokers, topic)
		first := join(t, cfg)
		first.HoldsExactly(4)
		before := first.All()

		ctx, stop := context.WithCancel(t.Context())
		committing := make(chan struct{})
		var commits atomic.Int64
		go func() {
			defer close(committing)
			for n := int64(0); ctx.Err() == nil; n++ {
				for _, h := range before {
					if err := h.Commit(context.WithoutCancel(h.Ctx), n, ""); err != nil && h.Ctx.Err() == nil {
						t.Errorf("commit %d of a partition that stays: %v", n, err)
						return
					}
				}
				commits.Add(1)
			}
		}()
		second := join(t, cfg)
		second.HoldsExactly(2)
		first.HoldsExactly(2)
		for _, h := range first.All() {
			if h.Ctx.Err() != nil || !slices.Contains(before, h) {
				t.Errorf("partition %d, which stays, was handed over anew", h.ID.Partition)
			}
		}
		stayed := first.All()
		third := join(t, cfg)
		third.HoldsExactly(1)
		if err := third.Leave(); err != nil {
			t.Error(err)
		}
		if err := second.Leave(); err != nil {
			t.Error(err)
		}
		first.HoldsExactly(4)
		kept := 0
		for _, h := range stayed {
			if h.Ctx.Err() == nil {
				kept++
			}
		}
		if kept == 0 {
			t.Error("no partition stayed through four rebalances")
		}
		was := commits.Load()
		eventually(t, "commits", func() bool { return commits.Load() > was })
		stop()
		<-committing
	})
}

// A partition that is not let go within the rebalance timeout goes to another member. The other
// partitions of its member stay and continue (F7).
func TestOverdueDrain(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		cfg := quick(brokers, topic)
		cfg.RebalanceTimeout = time.Second
		release := make(chan struct{})
		first := memlog.NewMember(t)
		first.Drain = func(*memlog.Held) { <-release }
		first.Start(franzsource.New(cfg))
		first.StopAtEnd()
		defer close(release)
		first.HoldsExactly(2)
		all := first.All()
		second := join(t, cfg)
		second.HoldsExactly(1)
		taken := second.All()[0].ID.Partition
		for _, h := range all {
			err := h.Commit(context.WithoutCancel(h.Ctx), 5, "")
			switch {
			case h.ID.Partition == taken && !errors.Is(err, source.ErrOwnershipLost):
				t.Errorf("commit of the partition that another has: %v", err)
			case h.ID.Partition != taken && (err != nil || h.Ctx.Err() != nil):
				t.Errorf("the partition that stays: %v, %v", err, h.Ctx.Err())
			}
		}
	})
}

// A member whose drain outlasts the session timeout stays in the group: heartbeats continue until
// own returns (F7).
func TestDrainOutlivesSession(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		m := memlog.NewMember(t)
		m.Drain = func(h *memlog.Held) {
			ctx := context.WithoutCancel(h.Ctx)
			for until := time.Now().Add(2500 * time.Millisecond); time.Now().Before(until); {
				// Fetches wait half a second and are no sign of life for the group; commits would
				// be.
				if _, err := h.Fetch(ctx, 0, 1<<20); err != nil {
					t.Error(err)
				}
			}
			if err := h.Commit(ctx, 3, "the last"); err != nil {
				t.Errorf("commit after a drain of 2.5 s in a session of 1 s: %v", err)
			}
		}
		m.Start(franzsource.New(quick(brokers, topic)))
		m.Holds(topic, 0)
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
	})
}

// A static member that ends and comes back within the session has its partitions again, in the same
// generation, and others notice nothing.
func TestStaticMemberRestarts(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 4, nil)
		as := func(id string) franzsource.Config {
			cfg := quick(brokers, topic)
			cfg.SessionTimeout = 20 * time.Second
			cfg.InstanceID = id
			return cfg
		}
		for _, restarts := range []string{"a", "b"} { // one of them leads the group
			other := "a"
			if restarts == "a" {
				other = "b"
			}
			stays := join(t, as(other))
			comesBack := join(t, as(restarts))
			stays.HoldsExactly(2)
			comesBack.HoldsExactly(2)
			had := comesBack.Keys()
			untouched := stays.All()
			if err := comesBack.Leave(); err != nil {
				t.Fatal(err)
			}
			again := join(t, as(restarts))
			again.HoldsExactly(2)
			if got := again.Keys(); !slices.Equal(got, had) {
				t.Errorf("after its restart %s holds %v, and had %v", restarts, got, had)
			}
			for _, h := range again.All() {
				if err := h.Commit(h.Ctx, 1, ""); err != nil {
					t.Errorf("commit after the restart: %v", err)
				}
			}
			for _, h := range untouched {
				if err := h.Commit(h.Ctx, 1, ""); err != nil || h.Ctx.Err() != nil {
					t.Errorf("the other member was disturbed: %v, %v", err, h.Ctx.Err())
				}
			}
			if err := errors.Join(again.Leave(), stays.Leave()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Two processes with one InstanceID do not fence each other in turns: the first one fails with an
// error that says so.
func TestInstanceIDTwice(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		cfg.InstanceID = "only-one"
		first := memlog.NewMember(t)
		first.Start(franzsource.New(cfg))
		old := first.Holds(topic, 0)
		second := join(t, cfg)
		if err := first.Wait(); err == nil {
			t.Error("Run of the first returned no error")
		} else {
			kafkatest.WantAll(t, err.Error(), cfg.GroupID, "FENCED_INSTANCE_ID")
		}
		if err := old.Commit(t.Context(), 1, ""); err == nil {
			t.Error("the first committed")
		}
		h := second.Holds(topic, 0)
		if err := h.Commit(h.Ctx, 1, ""); err != nil {
			t.Error(err)
		}
	})
}

// A member that does not report which partitions it holds would be given others' at once: such a
// group is not joined.
func TestGroupWithAnotherProtocol(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.Brokers(t)
	topic := kafkatest.Topic(t, brokers, 1, nil)
	cfg := quick(brokers, topic)
	eager, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: cfg.GroupID, Brokers: brokers, Topics: cfg.Topics})
	if err != nil {
		t.Fatal(err)
	}
	defer eager.Close()
	if _, err := eager.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	kafkatest.WantAll(t, kafkatest.RunFails(t, franzsource.New(cfg)), cfg.GroupID, "INCONSISTENT_GROUP_PROTOCOL")
}

// A member that the group has lost, here because a coordinator forgot it, gives everything up and
// joins again.
func TestExpelled(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		cfg := quick(brokers, topic)
		m := join(t, cfg)
		m.HoldsExactly(2)
		old := m.All()
		adm := kafkatest.Admin(t, brokers)
		groups, err := adm.DescribeGroups(t.Context(), cfg.GroupID)
		if err != nil || len(groups[cfg.GroupID].Members) != 1 {
			t.Fatalf("%v, %v", groups, err)
		}
		kafkatest.Expel(t, brokers, cfg.GroupID, groups[cfg.GroupID].Members[0].MemberID)
		m.Until("both partitions anew", func(has map[string]*memlog.Held, seen int) bool { return seen == 4 && len(has) == 2 })
		for _, h := range old {
			if err := h.Commit(t.Context(), 1, ""); h.Ctx.Err() == nil || !errors.Is(err, source.ErrOwnershipLost) {
				t.Errorf("what was held before: %v, %v", h.Ctx.Err(), err)
			}
		}
		for _, h := range m.All() {
			if err := h.Commit(h.Ctx, 1, ""); err != nil {
				t.Error(err)
			}
		}
	})
}

// A coordinator that was away for longer than the session still has the member when it is back, and
// would wait a whole session for it. So the member joins under its old id, and under a new one only
// if the group does not know it.
func TestMemberComesBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	c := kafkatest.FakeCluster(t)
	brokers := c.ListenAddrs()
	topic := kafkatest.Topic(t, brokers, 1, nil)
	cfg := quick(brokers, topic)
	cfg.SessionTimeout = 2 * time.Second
	m := join(t, cfg)
	old := m.Holds(topic, 0)
	groups, err := kafkatest.Admin(t, brokers).DescribeGroups(t.Context(), cfg.GroupID)
	if err != nil || len(groups[cfg.GroupID].Members) != 1 {
		t.Fatalf("%v, %v", groups, err)
	}
	member := groups[cfg.GroupID].Members[0].MemberID

	var away atomic.Bool
	var mu sync.Mutex
	var came []string // the ids under which it joined after the outage
	away.Store(true)
	c.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		came = append(came, r.(*kmsg.JoinGroupRequest).MemberID)
		away.Store(false)
		return nil, nil, false
	})
	m.Until("the partition again", func(has map[string]*memlog.Held, seen int) bool { return seen == 2 && len(has) == 1 })
	mu.Lock()
	defer mu.Unlock()
	if old.Ctx.Err() == nil || len(came) == 0 || came[0] != member {
		t.Errorf("it joined as %q, want first as %q, which it was; what it held before: %v", came, member, old.Ctx.Err())
	}
	h := m.Holds(topic, 0)
	if err := h.Commit(h.Ctx, 1, ""); err != nil {
		t.Error(err)
	}
}

func TestNewPartitionsAreOwned(t *testing.T) {
	kafkatest.OnBoth(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		first := join(t, cfg)
		second := join(t, cfg)
		both := func(n int) func() bool {
			return func() bool { return len(first.Keys())+len(second.Keys()) == n }
		}
		eventually(t, "one partition", both(1))
		if _, err := kafkatest.Admin(t, brokers).UpdatePartitions(t.Context(), 4, topic); err != nil {
			t.Fatal(err)
		}
		eventually(t, "four partitions", both(4))
	})
}
