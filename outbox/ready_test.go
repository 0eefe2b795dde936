package outbox_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// While a sink is held no pass is begun and no parked row is picked: no attempt is counted, and no
// window begins.
func TestO6RowsOfASinkThatIsHeldAreLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	no := newScripted(func(context.Context, *outbox.Attempt) outbox.Result { return outbox.Failure("no", nil) })
	for i := range 10 {
		r.enqueue(charge(fmt.Sprint("parked ", i)))
	}
	x := r.start(testConfig(no))
	r.states("retrying")
	x.stop()
	r.exec(`update onlyonce.parked set attempts = 0, first_attempt_at = null, next_attempt_at = clock_timestamp()`)
	r.exec(`insert into onlyonce.rates (sink, calls_of, held_until) values ('payments', '', clock_timestamp() + interval '50 min')`)
	passes := one[int](r, `select sum(version) from onlyonce.lanes`)

	s := newScripted(accept)
	for i := range 30 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	relay := r.relay(testConfig(s))
	r.run(relay)
	r.holds(32) // both relays
	for range 100 {
		relay.Wake()
		_ = one[int](r, `select 1`)
	}
	if n := one[int](r, `select count(*) from onlyonce.parked where attempts = 0 and first_attempt_at is null`); n != 10 ||
		len(s.calls()) > 0 {
		t.Errorf("%d parked rows of 10 were left alone, %d calls", n, len(s.calls()))
	}
	if n := one[int](r, `select sum(version) from onlyonce.lanes`); n != passes {
		t.Errorf("%d passes were begun", n-passes)
	}
	r.exec(`update onlyonce.rates set held_until = null`)
	r.states("delivered")
	if len(s.calls()) != 40 {
		t.Errorf("%d calls", len(s.calls()))
	}
}

// After a remote wanted no calls, one call at a time finds out whether it is back.
func TestO6OneCallAtATimeAfterAnOutage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var down atomic.Bool
	var under, most atomic.Int64
	s := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		defer under.Add(-1)
		if n := under.Add(1); down.Load() {
			most.Store(max(most.Load(), n))
			_ = one[int](r, `select 1`) // long enough for another one
			return outbox.Result{Outcome: outbox.Retry, Reason: "down", RetryAfter: time.Millisecond, RetryScope: outbox.RetrySink}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	down.Store(true)
	r.enqueue(charge("first"))
	r.start(testConfig(s))
	until(t, "it knows of the outage", func() bool { return len(s.calls()) > 1 })
	most.Store(0)
	for i := range 100 {
		r.enqueue(charge(fmt.Sprint(i)))
	}
	begun := len(s.calls())
	until(t, "it was tried", func() bool { return len(s.calls()) > begun+20 })
	if n := most.Load(); n > 1 {
		t.Errorf("%d calls at once", n)
	}
	down.Store(false)
	r.states("delivered")
}
