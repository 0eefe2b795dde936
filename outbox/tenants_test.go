package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// enqueueOf commits n calls of a tenant in one transaction.
func (r *rig) enqueueOf(tenant string, n int) {
	r.t.Helper()
	calls := make([]outbox.Call, 0, n)
	for i := range n {
		calls = append(calls, chargeOf(tenant, fmt.Sprint("n", i)))
	}
	r.enqueue(calls...)
}

// The calls of a tenant whose remote does not answer hold up no others, whether they were read from
// the log or wait for another try, and also if there are two such tenants. Those that wait count no
// attempt.
func TestO16HangingRemoteOfATenantHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		switch {
		case a.Tenant == "good":
			return outbox.Result{Outcome: outbox.Delivered}
		case a.Number == 1 && a.Tenant == "second":
			return outbox.Failure("not now", nil)
		}
		return g.accept(ctx, a)
	})
	r.enqueueOf("first", 200)
	r.enqueueOf("second", 200)
	cfg := testConfig(sink)
	r.start(cfg)
	for range 6 { // of 8 slots
		g.wait()
	}
	for i := range 50 {
		r.enqueue(chargeOf("good", fmt.Sprint("g", i)))
	}
	until(t, "the others' calls are sent", func() bool { return sentOf(sink, "good") == 50 })
	until(t, "the tenants' calls wait", func() bool { return r.waitingFor("tenant first") > 180 && r.waitingFor("tenant second") > 180 })
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.parked
 where waits_for = 'tenant first' and next_attempt_at is null and (attempts > 0 or first_attempt_at is not null)`,
	); n > 0 &&
		!r.lost() {
		t.Errorf("%d calls that wait have an attempt or a window", n)
	}
	g.release()
	r.states("delivered")
}

// Two tenants, who may be one person, hold up no others, whatever the remote asks for in its
// answers to them.
func TestO14TwoAccountsHoldNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if a.Tenant == "good" {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		return outbox.Result{Outcome: outbox.Retry, Reason: "503", RetryAfter: time.Hour, RetryScope: outbox.RetryAuto}
	})
	r.start(testConfig(sink))
	for i := range 4 {
		r.enqueue(chargeOf("account-1", fmt.Sprint(i)), chargeOf("account-2", fmt.Sprint(i)))
	}
	const held = `select count(*) from onlyonce.rates where held_until is not null and calls_of like $1`
	until(t, "both accounts are held", func() bool { return one[int](r, held, "tenant account%") == 2 })
	r.enqueueOf("good", 60)
	until(t, "the others' calls are sent", func() bool { return sentOf(sink, "good") == 60 })
	if n := one[int](r, held, ""); n > 0 {
		t.Error("the sink is held")
	}
}

// The call that is under way of a tenant that the remote wants no calls of is not awaited by the
// calls of others (O14).
func TestO14CallOfAHeldTenantFindsNothingOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		switch {
		case a.Tenant == "good":
			return outbox.Result{Outcome: outbox.Delivered}
		case string(a.Body) == string(charge("hangs").Body):
			return g.accept(ctx, a)
		}
		return outbox.Result{Outcome: outbox.Retry, Reason: "down", RetryAfter: time.Hour, RetryScope: outbox.RetryAuto}
	})
	r.start(testConfig(sink))
	r.enqueue(chargeOf("bad", "hangs"))
	g.wait()
	r.enqueue(chargeOf("bad", "fails"))
	until(t, "the tenant is held", func() bool {
		return one[int](r, `select count(*) from onlyonce.rates where calls_of = 'tenant bad' and held_until > clock_timestamp()`) == 1
	})
	r.enqueueOf("good", 50)
	until(t, "the others' calls are sent", func() bool { return sentOf(sink, "good") == 50 })
	g.release()
}
