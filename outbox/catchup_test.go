package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

// After an outage parked calls are sent as fast as slots become free.
func TestRetriesAreCaughtUpWithAsSlotsBecomeFree(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var up atomic.Bool
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if !up.Load() {
			return outbox.Failure("down", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	cfg.PollInterval = time.Second
	cfg.Backoff = dedupe.Backoff{Min: 2 * time.Second, Max: 2 * time.Second}
	const n = 100
	var calls []outbox.Call
	first := charge("first")
	for i := range n {
		c := charge(r.sameLane(first, fmt.Sprint("n", i)))
		calls = append(calls, c)
	}
	r.enqueue(calls...)
	r.start(cfg)
	r.told(n)
	up.Store(true)
	begun := time.Now()
	r.states("delivered")
	t.Logf("%d calls in %v", n, time.Since(begun))
}

// A retry gets its turn while new calls take every slot.
func TestRetriesGetSlotsBesideNewCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var n, at atomic.Int64
	due := make(chan struct{})
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if n.Add(1) == 200 { // in the middle of new calls
			<-due
		}
		if order(a) == "first" {
			if a.Number == 1 {
				return outbox.Failure("again", nil)
			}
			at.Store(n.Load())
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	cfg.Backoff = dedupe.Backoff{Min: 300 * time.Millisecond, Max: 300 * time.Millisecond}
	var calls []outbox.Call
	for i := range 3000 {
		calls = append(calls, charge(fmt.Sprint(i)))
	}
	r.enqueue(charge("first"))
	r.start(cfg)
	r.told(1)
	r.enqueue(calls...)
	r.parkedIsDue()
	close(due)
	until(t, "it is tried again", func() bool { return at.Load() > 0 })
	if got := at.Load(); got > 2500 {
		t.Errorf("tried again behind %d calls", got)
	}
}

// parkedIsDue waits until the one parked call is due, or was tried again.
func (r *rig) parkedIsDue() {
	r.t.Helper()
	until(r.t, "the parked call is due", func() bool {
		return one[bool](
			r,
			`select coalesce((select next_attempt_at <= clock_timestamp() from onlyonce.parked where state = 'retrying'), true)`,
		)
	})
}
