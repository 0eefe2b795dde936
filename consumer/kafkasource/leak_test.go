package kafkasource_test

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/goleak"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The tests of this file do not run beside others, because they count goroutines.

// leaks returns a function that fails the test if goroutines are left that did not exist before.
// Each connection has one.
func leaks(t *testing.T) (check func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		goleak.VerifyNone(t, before,
			// kfake's side of other clients' connections: a new one for each request.
			goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read.func1"))
	}
}

func onBothInTurn(t *testing.T, f func(t *testing.T, brokers []string)) {
	t.Run("real", func(t *testing.T) { f(t, kafkatest.Brokers(t)) })
	t.Run("kfake", func(t *testing.T) { f(t, kafkatest.Fake(t)) })
}

// Whatever Run is doing when ctx ends, it returns nil soon and leaves nothing running.
func TestCancelLeavesNothing(t *testing.T) {
	onBothInTurn(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 3, nil)
		for name, after := range map[string]time.Duration{
			"at once":             0,
			"while connecting":    time.Millisecond,
			"while joining":       8 * time.Millisecond,
			"while joining still": 30 * time.Millisecond,
			"while reading":       400 * time.Millisecond,
		} {
			check := leaks(t)
			// With a deadline, connections would end by themselves.
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(after, cancel)
			cfg := quick(brokers, topic)
			// The broker keeps a fetch that has no reader any more, for longer than the test waits.
			cfg.FetchMaxWait = 10 * patience
			done := make(chan error, 1)
			go func() {
				done <- kafkasource.New(cfg).Run(ctx, untilCanceled)
			}()
			<-ctx.Done()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("%s: Run returned %v", name, err)
				}
			case <-time.After(patience):
				t.Fatalf("%s: Run does not end", name)
			}
			timer.Stop()
			check()
		}
	})
}

// untilCanceled owns a partition: it reads until its context ends.
func untilCanceled(ctx context.Context, p source.Partition[*consumer.Message]) error {
	for from := int64(0); ctx.Err() == nil; {
		f, err := p.Fetch(ctx, from, 1<<20)
		if err == nil {
			from = f.Next
		} else if ctx.Err() == nil {
			return err
		}
	}
	return p.Commit(context.WithoutCancel(ctx), 0, "bye")
}

func TestFailureLeavesNothing(t *testing.T) {
	onBothInTurn(t, func(t *testing.T, brokers []string) {
		check := leaks(t)
		kafkatest.RunFails(t, kafkasource.New(quick(brokers, kafkatest.TopicName(t))))
		check()
	})
}

// Another member does not let go, so the rebalance does not end, nor does the JoinGroup in which
// this process waits. kafka-go cannot interrupt that, but Run must return.
func TestCancelWhileTheGroupRebalances(t *testing.T) {
	onBothInTurn(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 1, nil)
		cfg := quick(brokers, topic)
		other := stuckMember(t, brokers, cfg)
		<-other.joined
		check := leaks(t)
		m := memlog.NewMember(t)
		m.Start(kafkasource.New(cfg))
		<-other.asked // it is asked to let go, because another member has begun to join
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
		check()
		close(other.release)
	})
}

// The same for a member that the group knows. It also leaves the group, so that its partitions are
// not assigned to a process that is gone.
func TestCancelWhileTheGroupRebalancesAgain(t *testing.T) {
	onBothInTurn(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		cfg := quick(brokers, topic)
		cfg.SessionTimeout = 4 * time.Minute
		cfg.RebalanceTimeout = stuckFor
		m := memlog.NewMember(t)
		m.Start(kafkasource.New(cfg))
		m.HoldsExactly(2)
		stuck := stuckMember(t, brokers, cfg)
		<-stuck.joined
		m.HoldsExactly(1)
		third := stuckMember(t, brokers, cfg) // causes a rebalance, which the stuck member prevents
		<-stuck.asked
		m.HoldsExactly(0)
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
		groups, err := kafkatest.Admin(t, brokers).DescribeGroups(t.Context(), cfg.GroupID)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(groups[cfg.GroupID].Members); n != 2 {
			t.Errorf("the group has %d members, want the two that are left", n)
		}
		close(stuck.release)
		<-third.joined
		close(third.release)
	})
}

// stuckFor is how long a stuck member may hold a rebalance up: longer than any test waits.
const stuckFor = 20 * time.Minute

// stuck is a member that keeps its partitions until it is released.
type stuck struct {
	joined, asked, release chan struct{}
}

func stuckMember(t *testing.T, brokers []string, cfg kafkasource.Config) *stuck {
	t.Helper()
	s := &stuck{joined: make(chan struct{}), asked: make(chan struct{}), release: make(chan struct{})}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{ID: cfg.GroupID, Brokers: brokers, Topics: cfg.Topics,
		SessionTimeout: 4 * time.Minute, RebalanceTimeout: stuckFor, HeartbeatInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		gen, err := group.Next(t.Context())
		if err != nil {
			t.Errorf("the stuck member: %v", err)
			close(s.joined)
			close(s.asked)
			return
		}
		gen.Start(func(ctx context.Context) {
			<-ctx.Done()
			close(s.asked)
			<-s.release
		})
		close(s.joined)
	}()
	t.Cleanup(func() {
		<-done
		_ = group.Close()
	})
	return s
}
