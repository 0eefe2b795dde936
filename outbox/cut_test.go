package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
)

// If a COMMIT is not answered, its outcome is unknown. A journal then counts for nothing, and a
// settlement is made again. No row is lost, and a relay that lives calls none twice (O2).
func TestUnknownCommits(t *testing.T) {
	t.Parallel()
	for _, forward := range []bool{false, true} {
		t.Run(fmt.Sprintf("forwarded=%v", forward), func(t *testing.T) {
			r := newRig(t)
			how := cutBefore
			if forward {
				how = cutBehind
			}
			commits, judge := atCommit("", func(n int64) cut {
				if n%3 == 2 {
					return how
				}
				return notCut
			})
			pool := r.cutPool(pgx.QueryExecModeExec, judge)
			const n = 10
			for i := range n {
				r.enqueue(charge(fmt.Sprint(i)))
			}
			sink := newScripted(accept)
			relayConfig := testConfig(sink)
			relayConfig.LeaseTTL = 3 * time.Second
			relayConfig.Concurrency = 4
			var x *running
			r.through(pool, func() { x = r.start(relayConfig) })
			r.states("delivered")
			x.stop()
			seen := map[string]int{}
			for _, d := range sink.calls() {
				seen[d.Key]++
			}
			if len(seen) != n || (len(sink.calls()) != n && !r.lost()) {
				t.Errorf("%d calls of %d keys, want %d of each", len(sink.calls()), len(seen), n)
			}
			if commits.Load() < 3 {
				t.Errorf("%d commits passed the cutter: none was cut", commits.Load())
			}
			t.Logf("%d commits, %d calls, lease lost: %v", commits.Load(), len(sink.calls()), r.lost())
		})
	}
}

// A completion whose COMMIT is not answered has settled its call: calls that it blocked go on.
func TestUnknownCommitOfACompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var completing, done atomic.Bool
	_, judge := atCommit("", func(int64) cut {
		if !completing.Swap(false) {
			return notCut
		}
		done.Store(true)
		return cutBehind
	})
	pool := r.cutPool(pgx.QueryExecModeExec, judge)
	first := keyed("k", 0)
	second := keyed("k", 1)
	first.Capture = true
	r.enqueue(first, second)
	relay := testConfig(newScripted(accept))
	relay.PollInterval = time.Second // others commit rarely
	relay.LeaseTTL = 3 * time.Second
	relay.Complete = func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error {
		completing.Store(!done.Load())
		return nil
	}
	var x *running
	r.through(pool, func() { x = r.start(relay) })
	r.states("delivered")
	x.stop()
	if !done.Load() {
		t.Error("no commit was cut")
	}
}

// While it is unknown whether a chunk's end is committed, no more calls of it are begun: if it is
// committed, they are read again.
func TestUnknownCommitBeginsNoMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, judge := atCommit("insert into onlyonce.parked", func(n int64) cut {
		if n == 1 {
			return cutBehind
		}
		return notCut
	})
	pool := r.cutPool(pgx.QueryExecModeExec, judge)
	first := charge("first")
	calls := []outbox.Call{}
	for i := range 3 {
		calls = append(calls, charge(r.sameLane(first, fmt.Sprint("n", i))))
	}
	r.enqueue(calls...)
	g := r.gate()
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if a.Number == 1 && a.Key == outbox.Identity(origin.Origin{Scope: calls[0].Scope}, false, calls[0]) {
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	relay := testConfig(sink)
	relay.Concurrency = 1
	var x *running
	r.through(pool, func() { x = r.start(relay) })
	g.wait()
	until(t, "the chunk goes on without it", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	g.release()
	until(t, "the others are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) >= 2
	})
	x.stop()
	seen := map[string]int{}
	for _, d := range sink.calls() {
		seen[d.Key]++
	}
	for _, d := range sink.calls() {
		if seen[d.Key] > 1 {
			t.Errorf("call %d was made %d times", d.ID, seen[d.Key])
		}
	}
}
