package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T14: completions of a lane overlap without a gap, for several times the lease. The lane's lease
// is renewed beside them.
func TestT14RenewalBesideCompletions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.completions()
	cfg := testConfig(answering())
	cfg.LeaseTTL = 6 * time.Second // also a busy machine renews it in time
	const calls = 40
	var mu sync.Mutex
	n := 0
	var begun [calls + 1]chan struct{}
	for i := range begun {
		begun[i] = make(chan struct{})
	}
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, _ *outbox.Response) error {
		if _, err := tx.Exec(ctx, complete, a.Key, "a"); err != nil {
			return err
		}
		mu.Lock()
		mine := n
		n = min(n+1, calls-1) // one that is tried again does not count
		if mine < calls-1 {
			close(begun[mine])
		}
		mu.Unlock()
		if mine+1 < calls-1 {
			select { // it ends a moment after the next one has begun
			case <-begun[mine+1]:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case <-time.After(cfg.LeaseTTL / 10):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	var all []outbox.Call
	for i := range calls {
		c := charge(fmt.Sprint(i))
		c.Capture = true
		all = append(all, c)
	}
	r.enqueueAll(all...)
	r.start(cfg)
	until(t, "all are completed", func() bool { return one[int](r, `select count(*) from completions`) == calls })
	if lanes := one[int](r, `select count(distinct lane) from onlyonce.outbox_log`); lanes != 1 {
		t.Fatalf("the calls are in %d lanes", lanes)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.leases {
		if l.Err != nil {
			t.Errorf("lane %d was lost: %v", l.Lane, l.Err)
		}
	}
}

// T14: a take-over of a lane waits for a completion whose transaction has begun, so that it commits
// under its own lease or not at all (O5).
func TestT14TakeOverWaitsForACompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.completions()
	g := r.gate()
	cfg := testConfig(answering())
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, a *outbox.Attempt, _ *outbox.Response) error {
		_, err := tx.Exec(ctx, complete, a.Key, "a")
		g.pass(nil)
		return err
	}
	capture := charge("1")
	capture.Capture = true
	r.enqueue(capture)
	r.start(cfg)
	g.wait()
	lane := one[int](r, `select lane from onlyonce.calls`)
	seized := make(chan struct{})
	go func() {
		defer close(seized)
		r.seize(lane)
	}()
	until(t, "the take-over waits", func() bool {
		return one[int](
			r,
			`
select count(*)
  from pg_locks k
  join pg_stat_activity a using (pid) where a.datname = current_database() and k.locktype = 'advisory' and not k.granted`,
		) == 1
	})
	g.release()
	pgtest.Receive(t, patience, "the take-over", seized)
	if n := one[int](r, `select count(*) from completions`); n != 1 {
		t.Errorf("%d completions", n)
	}
}
