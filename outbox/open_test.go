package outbox_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// openCall shows the parked call: its state, its reason, and whether the remote may have applied
// it.
const openCall = `select concat_ws(' ', state, reason, case when open then 'open' else 'closed' end) from onlyonce.parked`

// O6: a relay dies while its call is under way. The next one sends the call again, and that attempt
// is refused: the first one stays open, whether it came from the log or from the parked table, and
// if the clock has gone back since.
func TestO6AttemptOfARelayThatDied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ picked, back bool }{
		"from the log": {}, "picked": {picked: true}, "picked, and the clock goes back": {picked: true, back: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			g := r.gate()
			dying := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
				if c.picked && a.Number == 1 {
					return outbox.Result{Outcome: outbox.Postponed}
				}
				return g.accept(t.Context(), a)
			})
			cfg := testConfig(dying)
			cfg.LeaseTTL = time.Minute
			r.enqueue(charge("1"))
			x := r.start(cfg)
			g.wait()
			r.seizeAll()
			g.release()
			until(t, "the lease is lost", r.lost)
			x.stop()
			r.giveBack()
			r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()`)
			if c.back {
				r.exec(`update onlyonce.parked set first_attempt_at = clock_timestamp() + interval '40 seconds'`)
			}
			r.start(testConfig(newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				return outbox.Result{Outcome: outbox.Rejected, Reason: "a gateway's 404"}
			})))
			r.states("waiting")
			if got := one[string](r, openCall); got != "waiting rejected open" {
				t.Errorf("the call is %s", got)
			}
		})
	}
}

// O6: what each outcome leaves of a call without an earlier attempt, and of one with an open
// attempt.
func TestO6WhatAnOutcomeLeavesOpen(t *testing.T) {
	t.Parallel()
	results := map[string]outbox.Result{
		"rejected":   {Outcome: outbox.Rejected},
		"never":      {Outcome: outbox.Never},
		"unsafe":     {Outcome: outbox.Unsafe},
		"not begun":  outbox.Failure("no", outbox.ErrNotStarted),
		"permanent":  outbox.Failure("no", outbox.Permanent(errors.New("no"))),
		"no outcome": {Outcome: 99},
	}
	for name, want := range map[string][2]string{
		"rejected":   {"waiting rejected closed", "waiting rejected open"},
		"never":      {"waiting rejected closed", "waiting rejected closed"},
		"unsafe":     {"reconcile unsafe open", "reconcile unsafe open"},
		"not begun":  {"retrying postponed closed", "retrying failed open"},
		"permanent":  {"waiting rejected closed", "waiting rejected open"},
		"no outcome": {"retrying failed open", "retrying failed open"},
	} {
		for i, lost := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				var ended atomic.Int32
				sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
					if lost && a.Number == 1 {
						return outbox.Failure("no answer", nil)
					}
					result := results[name]
					result.RetryAfter = time.Hour
					ended.Add(1)
					return result
				})
				r.enqueue(charge("1"))
				r.start(testConfig(sink))
				until(t, "its end is known", func() bool { return ended.Load() > 0 })
				until(t, "it is "+want[i], func() bool {
					return one[string](r, `select coalesce(max(c), '') from (`+openCall+`) p (c)`) == want[i]
				})
			})
		}
	}
}

// O6: a call that was postponed has no open attempt. If the database has lost a history since, an
// attempt of that may be open: the key's age counts from when the call was parked. Not so if a
// person has said since that it was not applied.
func TestO6PostponedInALostHistory(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{"postponed": "reconcile", "rejected": "reconcile", "failed": "delivered"} {
		t.Run(reason, func(t *testing.T) {
			r := newRig(t)
			busy := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				return outbox.Result{Outcome: outbox.Postponed, RetryAfter: time.Hour}
			})
			r.enqueue(charge("1"))
			x := r.start(testConfig(busy))
			r.states("retrying")
			x.stop()
			r.exec(
				`update onlyonce.parked set reason = $1, parked_at = parked_at - interval '30 hours', next_attempt_at = clock_timestamp()`,
				reason,
			)
			r.exec(`update onlyonce.lane_cursors set history_at = clock_timestamp() - interval '1 hour'`)
			sink := newScripted(accept)
			r.start(testConfig(sink))
			r.states(want)
			if n := len(sink.calls()); (n > 0) != (want == "delivered") {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// O6: a remote may know a key by an attempt that it has refused, and forget it a window after that.
// A call of which no attempt is open is made however old its key is; if that attempt stays without
// an answer, no other follows. What the remote cannot have seen begins no window.
func TestO6AgeOfAKeyCountsFromARefusedAttempt(t *testing.T) {
	t.Parallel()
	refused := outbox.Result{Outcome: outbox.Postponed, Reason: "status 429", RetryAfter: time.Hour}
	unseen := refused
	unseen.Unseen = true
	rejected := outbox.Result{Outcome: outbox.Rejected, Reason: "status 422"}
	notStarted := outbox.Failure("no time", outbox.ErrNotStarted)
	notStarted.RetryAfter = time.Hour
	for name, c := range map[string]struct {
		first   []outbox.Result
		newKey  bool
		want    string
		calls   int
		counted int // 0: not compared
	}{
		"postponed":                         {first: []outbox.Result{refused}, want: "reconcile window", calls: 2, counted: 2},
		"postponed, and then unseen":        {first: []outbox.Result{refused, unseen}, want: "reconcile window", calls: 3},
		"postponed, and then not started":   {first: []outbox.Result{refused, notStarted}, want: "reconcile window", calls: 3},
		"unseen, and then postponed":        {first: []outbox.Result{unseen, refused}, want: "reconcile window", calls: 3},
		"rejected, and redriven":            {first: []outbox.Result{rejected}, want: "reconcile window", calls: 2},
		"rejected, and then postponed":      {first: []outbox.Result{rejected, refused}, want: "reconcile window", calls: 3},
		"rejected, and sent by another key": {first: []outbox.Result{rejected}, newKey: true, want: "resolved", calls: 3},
		"unseen":                            {first: []outbox.Result{unseen}, want: "resolved", calls: 3},
		"not started":                       {first: []outbox.Result{notStarted}, want: "resolved", calls: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var n atomic.Int32
			sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				switch i := int(n.Add(1)); {
				case i <= len(c.first):
					return c.first[i-1]
				case i == len(c.first)+1:
					return outbox.Failure("no answer", nil)
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			r.enqueue(charge("1"))
			x := r.start(testConfig(sink))
			for i := range c.first {
				until(t, "the refusal is settled", func() bool {
					return int(n.Load()) == i+1 &&
						one[int](
							r,
							`
select count(*)
  from onlyonce.parked where not open and coalesce(next_attempt_at > clock_timestamp() + interval '30 minutes', true)`,
						) == 1
				})
				if i == 0 {
					r.exec(`update onlyonce.parked
						set parked_at = parked_at - interval '30 hours', record_time = record_time - interval '30 hours'`)
				}
				r.exec(`
update onlyonce.parked
   set first_attempt_at = first_attempt_at - interval '30 hours'
 where first_attempt_at > clock_timestamp() - interval '1 hour'`)
				if i < len(c.first)-1 || c.first[i].Outcome != outbox.Rejected {
					r.exec(`update onlyonce.parked set state = 'retrying', next_attempt_at = clock_timestamp()`)
				} else if err := r.redrive(ops.ParkedInput{NewKey: c.newKey}); err != nil {
					t.Fatal(err)
				}
			}
			r.states("delivered", "reconcile")
			x.stop()
			got := one[string](r, `select state || case when state = 'reconcile' then ' ' || reason else '' end from onlyonce.parked`)
			if attempts := one[int](r, `select attempts from onlyonce.parked`); c.counted > 0 && attempts != c.counted {
				t.Errorf("%d attempts count, want %d", attempts, c.counted)
			}
			if got != c.want || len(sink.calls()) != c.calls {
				t.Errorf("%s after %d calls, want %s after %d", got, len(sink.calls()), c.want, c.calls)
			}
		})
	}
}

// O6: an outage that is longer than the key's window ends no call that has never left.
func TestO6CallThatNeverLeftOutlivesItsWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var up atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if !up.Load() {
			return outbox.Result{Outcome: outbox.Postponed, Reason: "connection refused"}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.enqueue(charge("1"))
	r.start(testConfig(sink))
	r.states("retrying")
	r.exec(`update onlyonce.parked set parked_at = parked_at - interval '30 hours', record_time = record_time - interval '30 hours'`)
	up.Store(true)
	r.states("delivered", "reconcile")
	if got := one[string](r, `select state from onlyonce.calls`); got != "delivered" {
		t.Errorf("it is %s", got)
	}
}

// O14: a tenant's credentials have expired. Its calls wait, and are made once they are valid; those
// of another tenant go on. A call that has no tenant is rejected.
func TestO14ExpiredCredentialsHoldTheirTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var renewed atomic.Bool
	m := newRemote(t)
	m.script = make([]http.HandlerFunc, 1000)
	for i := range m.script {
		m.script[i] = func(w http.ResponseWriter, req *http.Request) {
			if !strings.HasSuffix(req.URL.Path, "/acme") || renewed.Load() {
				w.WriteHeader(http.StatusOK)
				return
			}
			status := http.StatusUnauthorized
			if i%2 == 1 {
				status = http.StatusForbidden
			}
			w.WriteHeader(status)
		}
	}
	sink := m.sink(func(c *httpsink.Config) { c.Breaker.OpenFor = 100 * time.Millisecond })
	r.start(testConfig(sink))
	call := func(tenant, path, id string) outbox.Call {
		c := chargeOf(tenant, id)
		c.Target = path
		return c
	}
	r.enqueue(call("acme", "/acme", "1"), call("acme", "/acme", "2"), call("", "/acme", "of nobody"), call("globex", "/globex", "3"))
	until(t, "the others are through", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 1 &&
			one[int](r, `select count(*) from onlyonce.calls where state = 'waiting'`) == 1
	})
	until(t, "acme has tried several times", func() bool { return len(m.calls()) > 8 })
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.parked
 where tenant = 'acme' and state = 'retrying' and not open or tenant = 'acme' and next_attempt_at > clock_timestamp()`,
	); n != 2 {
		t.Errorf("%d of acme's calls wait without an open attempt", n)
	}
	renewed.Store(true)
	r.states("delivered", "waiting")
	if n := one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`); n != 3 {
		t.Errorf("%d are delivered", n)
	}
}
