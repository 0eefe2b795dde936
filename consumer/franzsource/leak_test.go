package franzsource_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
)

// The tests of this file do not run beside others, because they count goroutines.

// leaks returns a function that fails the test if goroutines are left that did not exist before.
// Each connection has some.
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
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(after, cancel)
			cfg := quick(brokers, topic)
			// The broker keeps a fetch that has no reader any more.
			cfg.FetchMaxWait = 20 * time.Second
			err := franzsource.New(cfg).Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
				for from := int64(0); ctx.Err() == nil; {
					f, err := p.Fetch(ctx, from, 1<<20)
					if err == nil {
						from = f.Next
					} else if ctx.Err() == nil {
						return err
					}
				}
				return p.Commit(context.WithoutCancel(ctx), 0, "bye")
			})
			timer.Stop()
			if err != nil {
				t.Errorf("%s: Run returned %v", name, err)
			}
			check()
		}
	})
}

// Another member holds the rebalance up. Run returns nevertheless, and leaves the group.
func TestCancelWhileTheGroupRebalances(t *testing.T) {
	onBothInTurn(t, func(t *testing.T, brokers []string) {
		topic := kafkatest.Topic(t, brokers, 2, nil)
		cfg := quick(brokers, topic)
		cfg.SessionTimeout = 30 * time.Second
		cfg.RebalanceTimeout = 30 * time.Second
		cfg.HeartbeatInterval = 20 * time.Second
		check := leaks(t)
		deaf := memlog.NewMember(t) // it learns of a rebalance after 20 seconds
		deaf.Start(franzsource.New(cfg))
		deaf.HoldsExactly(2)
		m := memlog.NewMember(t)
		m.Start(franzsource.New(cfg))
		adm := kafkatest.Admin(t, brokers)
		eventually(t, "a rebalance", func() bool {
			groups, err := adm.DescribeGroups(t.Context(), cfg.GroupID)
			return err == nil && groups[cfg.GroupID].State == "PreparingRebalance"
		})
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
		eventually(t, "its departure", func() bool {
			groups, err := adm.DescribeGroups(t.Context(), cfg.GroupID)
			return err == nil && len(groups[cfg.GroupID].Members) <= 1
		})
		if err := deaf.Leave(); err != nil {
			t.Error(err)
		}
		adm.Close()
		check()
	})
}
