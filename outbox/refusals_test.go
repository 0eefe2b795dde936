package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/outbox"
)

// O17: a remote refuses every call alike, because its path has moved. The calls wait and are not
// parked; Healthy says so. Once the remote takes calls again, they go on by themselves.
func TestO17CallsThatAreRefusedAlikeWait(t *testing.T) {
	t.Parallel()
	for name, tenants := range map[string]int{"without a tenant": 0, "of many tenants": 200} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var repaired atomic.Bool
			sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				if repaired.Load() {
					return outbox.Result{Outcome: outbox.Delivered}
				}
				return outbox.Result{Outcome: outbox.Rejected, Reason: "status 404"}
			})
			cfg := testConfig(sink)
			cfg.Brake.ProbeInterval = 50 * time.Millisecond
			relay := r.relay(cfg)
			r.run(relay)
			var calls []outbox.Call
			for i := range 200 {
				tenant := ""
				if tenants > 0 {
					tenant = fmt.Sprint("tenant-", i)
				}
				calls = append(calls, chargeOf(tenant, fmt.Sprint(i)))
			}
			r.enqueue(calls...)
			until(t, "the sink is not healthy", func() bool { return relay.Healthy() != nil })
			if err := relay.Healthy(); !strings.Contains(err.Error(), "status 404") {
				t.Error(err)
			}
			tried := len(sink.calls())
			until(t, "some calls are tried", func() bool { return len(sink.calls()) > tried+3 })
			var rejected int // the relay knows its answers before the database does
			until(t, "some are parked as rejected", func() bool {
				rejected = one[int](r, `select count(*) from onlyonce.parked where state = 'waiting'`)
				return rejected > 0
			})
			if rejected >= 20 {
				t.Errorf("%d are parked as rejected", rejected)
			}
			repaired.Store(true)
			until(t, "the others are delivered", func() bool {
				return one[int](r, `select count(*) from onlyonce.calls where state <> 'delivered'`) < 20
			})
			until(t, "the sink is healthy", func() bool { return relay.Healthy() == nil })
		})
	}
}

// O17: the endpoints of two tenants are gone. Their calls wait; those of a third go on, and the
// sink is healthy.
func TestO17TenantWhoseCallsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if a.Tenant != "globex" {
			return outbox.Result{Outcome: outbox.Rejected, Reason: "status 410"}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Brake.ProbeInterval = time.Hour
	relay := r.relay(cfg)
	r.run(relay)
	const rejected = `select count(*) from onlyonce.parked where tenant = $1 and state = 'waiting'`
	for _, gone := range []string{"acme", "initech"} {
		for i := range 100 {
			r.enqueue(chargeOf(gone, fmt.Sprint(gone, i)))
		}
		until(t, "the calls of "+gone+" wait", func() bool {
			return one[int](r, `select count(*) from onlyonce.parked where tenant = $1 and state = 'retrying'`, gone) > 80
		})
		if n := one[int](r, rejected, gone); n != 19 {
			t.Errorf("%d of %s are parked as rejected, want 19", n, gone)
		}
	}
	for i := range 100 {
		r.enqueue(chargeOf("globex", fmt.Sprint("g", i)))
	}
	until(t, "globex's are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 100
	})
	if err := relay.Healthy(); err != nil {
		t.Error(err)
	}
}

// O17: refusals of many kinds, or among deliveries, hold nothing; nor does anything if the brake is
// off.
func TestO17RefusalsThatHoldNothing(t *testing.T) {
	t.Parallel()
	oneInFive := []string{"", "a", "a", "a", "a"}
	for name, c := range map[string]struct {
		reason func(i int64) string // empty: it is delivered
		off    bool
	}{
		"of ten kinds":       {func(i int64) string { return fmt.Sprint("status ", 400+i%10) }, false},
		"one in five passes": {func(i int64) string { return oneInFive[i%5] }, false},
		"off":                {func(int64) string { return "a" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var sent atomic.Int64
			sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				reason := c.reason(sent.Add(1))
				if reason == "" {
					return outbox.Result{Outcome: outbox.Delivered}
				}
				return outbox.Result{Outcome: outbox.Rejected, Reason: reason}
			})
			cfg := testConfig(sink)
			cfg.Brake = outbox.Brake{Off: c.off, ProbeInterval: time.Hour}
			r.start(cfg)
			for i := range 100 {
				r.enqueue(charge(fmt.Sprint(i)))
			}
			r.states("delivered", "waiting")
		})
	}
}
