package outbox_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

func chargeOf(tenant, id string) outbox.Call {
	c := charge(id)
	c.Tenant = tenant
	return c
}

// enqueueMany commits n calls of a tenant, spread over the lanes.
func (r *rig) enqueueMany(tenant string, n int) {
	r.t.Helper()
	const at = 5000
	for from := 0; from < n; from += at {
		calls := make([]outbox.Call, 0, at)
		for i := from; i < min(from+at, n); i++ {
			calls = append(calls, chargeOf(tenant, fmt.Sprint("n", i)))
		}
		if err := pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
			return outbox.EnqueueAll(r.t.Context(), tx, calls...)
		}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// sentOf counts the calls of a tenant that reached a remote.
func sentOf(s *scripted, tenant string) (n int) {
	for _, d := range s.calls() {
		if d.Tenant == tenant {
			n++
		}
	}
	return n
}

// A tenant that is far over its rate holds up no other one, and its own calls go out at the rate.
func TestO14TenantOverItsRateHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	many := 100_000
	if testing.Short() {
		many = 5_000
	}
	r.enqueueMany("slow", many)
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", Tenant: "slow", PerSecond: 10}}
	began := time.Now()
	r.start(cfg)
	r.enqueue(chargeOf("other", "a"))
	until(t, "the other tenant's call is sent", func() bool { return sentOf(sink, "other") == 1 })
	t.Logf("the other tenant's call was sent %v after the relay began, beside %d calls", time.Since(began), many)
	until(t, "the tenant's calls go on", func() bool { return sentOf(sink, "slow") >= 30 })
	sent := sentOf(sink, "slow")
	most := int(10 * (time.Since(began).Seconds() + 2))
	if sent > most {
		t.Errorf("%d calls in %v: more than %d", sent, time.Since(began), most)
	}
	until(t, "all are set aside", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where reason = 'rate'`) > many-1000
	})
	// A relay that loses a lane leaves calls that it may have made, and their windows have begun.
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.parked
 where waits_for is not null and next_attempt_at is null and (attempts > 0 or first_attempt_at is not null)`,
	); n > 0 &&
		!r.lost() {
		t.Errorf("%d calls that wait have an attempt, a window or a due time", n)
	}
	// New ones wait behind the old, but nobody else's do.
	began = time.Now()
	r.enqueue(chargeOf("other", "b"))
	until(t, "another call of the other tenant", func() bool { return sentOf(sink, "other") == 2 })
	t.Logf("another one %v after its commit", time.Since(began))
}

// EachTenant: a tenant that nobody has named holds up no other one, in the order of its keys, and
// with no more buckets than tenants that have calls. One with a rate of its own has that, and calls
// without a tenant have none.
func TestO14EachTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", EachTenant: true, PerSecond: 10}, {Sink: "payments", Tenant: "quick", PerSecond: 1000}}
	for i := range 20 {
		var calls []outbox.Call
		for k := range 100 {
			c := keyed(fmt.Sprint("k", k, "."), i)
			c.Tenant = "slow"
			calls = append(calls, c)
		}
		r.enqueueAll(calls...)
	}
	r.enqueueMany("quick", 100)
	r.enqueueMany("", 100)
	for i := range 20 {
		r.enqueue(chargeOf(fmt.Sprint("small", i), "a"))
	}
	began := time.Now()
	r.start(cfg)
	r.start(cfg)
	until(t, "those of the others are sent", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where tenant <> 'slow' and state <> 'delivered'`) == 0
	})
	until(t, "the tenant's calls go on", func() bool { return sentOf(sink, "slow") >= 30 })
	sent := sentOf(sink, "slow")
	most := int(10 * (time.Since(began).Seconds() + 2))
	if sent > most {
		t.Errorf("%d calls in %v: more than %d", sent, time.Since(began), most)
	}
	if s := one[string](
		r,
		`select string_agg(distinct calls_of, ',' order by calls_of) from onlyonce.rates where calls_of !~ '^tenant small'`,
	); s != "tenant quick,tenant slow,tenants" {
		t.Errorf("rates of %s", s)
	}
	var rates []reports.SinkRate
	if err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) (err error) {
		rates, err = reports.Rates(t.Context(), tx, nil, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(rates) != 2 || !rates[1].EachTenant || rates[1].Waiting < 50 {
		t.Errorf("reported: %+v", rates)
	}
	// Without it they go out at once, in the order of their keys.
	cfg.Rates = nil
	r.start(cfg)
	r.states("delivered")
	last := map[string]int{}
	for _, d := range sink.calls() {
		if d.Tenant != "slow" {
			continue
		}
		var n int
		key, at, _ := strings.Cut(order(&d), ".")
		if _, err := fmt.Sscan(at, &n); err != nil {
			t.Fatal(err)
		}
		if n < last[key] {
			t.Fatalf("%s: %d after %d", key, n, last[key])
		}
		last[key] = n
	}
}

// The bucket of a tenant without a rate of its own fills at the rate of each tenant. It is deleted
// once it is full, and not before: a new one would have a permit at once.
func TestO14BucketOfEachTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	take := func(tenant string, wanted int) int {
		return one[int](
			r,
			`
select granted from onlyonce.take_permits(
  's',
  gen_random_uuid(),
  1,
  array['tenant ' || $1],
  array[$2::int],
  '{0}',
  '{0}'
)`,
			tenant,
			wanted,
		)
	}
	r.exec(`insert into onlyonce.rates (sink, calls_of, per_second) values ('s', 'tenants', 0.0001), ('s', 'tenant own', 100)`)
	a := take("a", 5)
	b := take("a", 5)
	c := take("b", 5)
	if a != 1 || b != 0 || c != 1 {
		t.Errorf("took %d and %d of one tenant, and %d of another", a, b, c)
	}
	r.exec(`update onlyonce.rates set filled_at = clock_timestamp() - interval '1 hour' where calls_of = 'tenant own'`)
	if n := take("own", 1000); n != 50 {
		t.Errorf("took %d by a rate of its own of 100", n)
	}
	// The remote wanted no calls of the tenant, an hour ago: its bucket is not full yet.
	r.exec(`update onlyonce.rates set held_until = clock_timestamp() - interval '2 hours' where calls_of = 'tenant a'`)
	for _, after := range []struct {
		age  string
		want int
	}{{"2 hours", 4}, {"4 hours", 2}} { // 10,000 s a call
		r.exec(`update onlyonce.rates set filled_at = clock_timestamp() - $1::interval`, after.age)
		r.exec(outbox.Statements["forget rates"], "s")
		if n := one[int](r, `select count(*) from onlyonce.rates`); n != after.want {
			t.Errorf("%d rates %s later, want %d", n, after.age, after.want)
		}
	}
}

// A rate near 0 stops its tenant, and no other one.
func TestO14RateNearZero(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.rates (sink, calls_of, per_second) values ('s', 'tenant a', 5e-324), ('s', 'tenant b', 1)`)
	for _, want := range []string{"1,1", "0,0"} {
		if n := one[string](
			r,
			`
select string_agg(granted::text, ',' order by calls_of) from onlyonce.take_permits(
  's',
  gen_random_uuid(),
  1,
  '{tenant a,tenant b}',
  '{9,50}',
  '{0,0}',
  '{0,0}'
)`,
		); n != want {
			t.Errorf("took %s of two tenants, want %s", n, want)
		}
		r.exec(`update onlyonce.rates set permits = 0, filled_at = clock_timestamp() + interval '50 seconds'`)
	}
}

// Calls that wait hold no times: they follow the rate that is set now.
func TestO14RateChangedAndRemovedWhileCallsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.enqueueMany("slow", 2000)
	r.exec(`insert into onlyonce.rates (sink, calls_of, per_second) values ('payments', 'tenant slow', 0.01)`)
	r.start(testConfig(sink))
	until(t, "all wait", func() bool { return r.waitingFor("tenant slow") >= 1999 })
	if n := sentOf(sink, "slow"); n > 1 {
		t.Fatalf("%d were sent", n)
	}
	r.exec(`update onlyonce.rates set per_second = 500`)
	until(t, "they go on", func() bool { return sentOf(sink, "slow") > 300 })
	r.exec(`delete from onlyonce.rates`)
	r.states("delivered")
	if n := sentOf(sink, "slow"); n != 2000 {
		t.Errorf("%d calls of 2000", n)
	}
}

// callsWith returns n calls of a tenant, each with an ordering key of its own that begins with a
// prefix.
func callsWith(tenant, prefix string, n int) []outbox.Call {
	calls := make([]outbox.Call, n)
	for i := range calls {
		calls[i] = chargeOf(tenant, fmt.Sprint(prefix, i))
		calls[i].OrderingKey = fmt.Sprint(prefix, i)
	}
	return calls
}

// waitingFor counts the calls that wait for a rate.
func (r *rig) waitingFor(callsOf string) int {
	r.t.Helper()
	return one[int](r, `select count(*) from onlyonce.parked where waits_for = $1 and state = 'retrying' and next_attempt_at is null`,
		callsOf)
}

// A prefix of ordering keys that is over its rate holds up no other calls, of its tenant neither.
func TestO14PrefixOverItsRateHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.enqueue(callsWith("acme", "account-17:", 200)...)
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", OrderingKeyPrefix: "account-17:", PerSecond: 10}}
	began := time.Now()
	r.start(cfg)
	r.enqueue(callsWith("acme", "account-18:", 1)...)
	r.enqueue(callsWith("acme", "account-17", 1)...) // it has no prefix
	until(t, "the other calls are sent", func() bool { return sentWith(sink, "account-18:") == 1 && sentWith(sink, "account-170") == 1 })
	until(t, "the others are set aside", func() bool { return r.waitingFor("key account-17:") > 100 })
	until(t, "they go on", func() bool { return sentWith(sink, "account-17:") >= 30 })
	sent := sentWith(sink, "account-17:")
	most := int(10 * (time.Since(began).Seconds() + 2))
	if sent > most {
		t.Errorf("%d calls in %v: more than %d", sent, time.Since(began), most)
	}
	if r.waitingFor("tenant acme") > 0 {
		t.Error("calls wait for the tenant, which has no rate")
	}
}

// sentWith counts the calls that reached a remote, by the beginnings of their ordering keys.
func sentWith(s *scripted, prefix string) (n int) {
	for _, d := range s.calls() {
		if strings.HasPrefix(order(&d), prefix) {
			n++
		}
	}
	return n
}

// A call that waits for one rate while another is set that it counts for, or is taken back, is made
// when the one that it counts for now has a permit. Neither rate is exceeded in between.
func TestO14RateOfAPrefixSetAndTakenBackWhileCallsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	fast := 2000.0
	slow := 0.001
	single := int32(1)
	rate := func(of string, in ops.SetRateInput) {
		t.Helper()
		in.Sink = "payments"
		if of == "acme" {
			in.Tenant = of
		} else {
			in.OrderingKeyPrefix = of
		}
		if _, err := ops.SetRate(t.Context(), r.pool, ops.By{Reason: "test"}, in); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the relay lists its sink", func() bool { return one[int](r, `select count(*) from onlyonce.lanes`) == 16 })
	rate("acme", ops.SetRateInput{PerSecond: &slow})
	r.enqueue(callsWith("acme", "a:", 300)...)
	r.enqueue(callsWith("acme", "b:", 300)...)
	r.enqueue(callsWith("", "a:x", 2)...)
	until(t, "the tenant's wait", func() bool { return r.waitingFor("tenant acme") >= 590 })
	until(t, "calls without a tenant do not", func() bool { return sentOf(sink, "") == 2 })
	extra := 0
	known := func(prefix, waitsFor string) { // waits until the relay knows the rate
		t.Helper()
		until(t, "the relay knows the rate", func() bool {
			extra++
			r.enqueue(callsWith("acme", fmt.Sprint(prefix, "extra", extra, "-"), 1)...)
			return r.waitingFor(waitsFor) > 0
		})
	}
	rate("a:", ops.SetRateInput{PerSecond: &slow})
	known("a:", "key a:")
	before := sentWith(sink, "a:")
	rate("acme", ops.SetRateInput{PerSecond: &fast})
	until(t, "the tenant's other calls go on, and those of the prefix wait for it", func() bool {
		return sentWith(sink, "b:") == 300 && r.waitingFor("tenant acme") == 0 && r.waitingFor("key a:") > 280
	})
	if n := sentWith(sink, "a:"); n > before+1 { // a bucket begins with a permit
		t.Errorf("%d calls of the prefix were sent", n-before)
	}
	if n := one[int](
		r,
		`
select count(*)
  from onlyonce.parked
 where waits_for is not null
   and state = 'retrying'
   and next_attempt_at is null
   and (attempts > 0 or first_attempt_at is not null or reason <> 'rate')`,
	); n > 0 {
		t.Errorf("%d calls that wait have an attempt, a window or another reason", n)
	}
	rate("acme", ops.SetRateInput{PerSecond: &slow})
	known("c:", "tenant acme")
	before = sentWith(sink, "a:")
	rate("a:", ops.SetRateInput{Unset: true})
	until(t, "they wait for the tenant again", func() bool { return r.waitingFor("key a:") == 0 && r.waitingFor("tenant acme") > 280 })
	if n := sentWith(sink, "a:"); n > before+2 {
		t.Errorf("%d calls of the prefix were sent", n-before)
	}
	rate("acme", ops.SetRateInput{Unset: true})
	rate("a:", ops.SetRateInput{InFlight: &single})
	r.states("delivered")
}

// The sink's rate holds for all relays together, and leaves its calls in the log.
func TestO14RateOfTheSinkIsShared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", PerSecond: 50}}
	r.enqueueMany("a", 200)
	began := time.Now()
	r.start(cfg)
	r.start(cfg)
	r.enqueueMany("b", 200)
	r.states("delivered")
	if took := time.Since(began); took < 6*time.Second {
		t.Errorf("400 calls at 50 a second took %v", took)
	}
	if n := one[int](r, `select count(*) from onlyonce.parked where waits_for is not null or reason = 'rate'`); n > 0 {
		t.Errorf("%d calls wait outside of the log", n)
	}
}

// No later call of an ordering key overtakes one that waits for its rate.
func TestO14OrderOfCallsThatWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", Tenant: "slow", PerSecond: 20}}
	r.start(cfg)
	for i := range 40 {
		var calls []outbox.Call
		for _, k := range []string{"k", "l"} {
			c := keyed(k, i)
			c.Tenant = "slow"
			calls = append(calls, c)
		}
		r.enqueue(calls...)
	}
	r.states("delivered")
	last := map[byte]int{'k': -1, 'l': -1}
	for _, d := range sink.calls() {
		var n int
		id := order(&d)
		if _, err := fmt.Sscan(id[1:], &n); err != nil {
			t.Fatal(err)
		}
		if n != last[id[0]]+1 {
			t.Fatalf("%s after %c%d", id, id[0], last[id[0]])
		}
		last[id[0]] = n
	}
}

// Retries count against the rate, too.
func TestO14RetriesNeedPermits(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]outbox.Rate{
		"tenant": {Sink: "payments", Tenant: "slow", PerSecond: 5},
		"prefix": {Sink: "payments", OrderingKeyPrefix: "a:", PerSecond: 5},
		"each":   {Sink: "payments", EachTenant: true, PerSecond: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var up atomic.Bool
			sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
				if up.Load() {
					return outbox.Result{Outcome: outbox.Delivered}
				}
				return outbox.Failure("down", nil)
			})
			cfg := testConfig(sink)
			cfg.Rates = []outbox.Rate{rate}
			began := time.Now()
			r.start(cfg)
			for _, c := range callsWith("slow", "a:", 5) {
				r.enqueue(c)
			}
			until(t, "attempts", func() bool { return sentOf(sink, "slow") >= 25 })
			if took := time.Since(began); took < 3*time.Second { // at least 4 s
				t.Errorf("25 attempts at 5 a second took %v", took)
			}
			// A call that is picked without a permit is put back, and picked once more.
			picks := one[int](r, `select coalesce(sum(picks), 0) from onlyonce.parked`)
			if n := sentOf(sink, "slow"); picks > n {
				t.Errorf("%d picks for %d attempts, of which 5 were made from the log", picks, n)
			}
			up.Store(true)
			r.states("delivered")
		})
	}
}

// Retry-After holds for the sink or for the tenant, in all relays, and the attempt is not counted.
func TestO14RetryAfter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holds  outbox.RetryScope
		tenant string
		other  bool // another tenant's call is sent meanwhile
	}{
		"sink":                    {outbox.RetryAuto, "", false},
		"sink, of one tenant":     {outbox.RetryAuto, "acme", true},
		"tenant":                  {outbox.RetryTenant, "acme", true},
		"tenant, but it has none": {outbox.RetryTenant, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
				if a.Number == 1 && order(a) == "first" && one[int](r, `select count(*) from onlyonce.rates`) == 0 {
					return outbox.Result{Outcome: outbox.Retry, Reason: "not now", RetryAfter: 1000 * time.Hour, RetryScope: c.holds}
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			r.start(testConfig(sink))
			r.enqueue(chargeOf(c.tenant, "first"))
			until(t, "the hold is known", func() bool {
				return one[int](
					r,
					`
select count(*)
  from onlyonce.rates
 where held_until between clock_timestamp() + interval '50 min' and clock_timestamp() + interval '1 hour'`,
				) == 1
			})
			until(t, "it is parked", func() bool {
				return one[int](r, `select count(*) from onlyonce.parked where attempts = 0 and first_attempt_at is not null`) == 1
			})
			second := newScripted(accept)
			r.start(testConfig(second)) // shares the lanes
			r.holds(24)
			r.enqueue(chargeOf(c.tenant, "held"), chargeOf("other", "b"))
			if c.other {
				until(t, "the other tenant's call is sent", func() bool { return sentOf(sink, "other")+sentOf(second, "other") == 1 })
				until(t, "the tenant's call waits", func() bool {
					return one[int](
						r,
						`
select count(*)
  from onlyonce.parked where waits_for = 'tenant ' || $1::text and attempts = 0 and first_attempt_at is null`,
						c.tenant,
					) == 1
				})
			} else {
				for range 20 { // polls
					if n := len(sink.calls()) + len(second.calls()); n > 1 {
						t.Fatalf("%d calls", n)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			r.exec(`update onlyonce.rates set held_until = null`)
			r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp()
				where next_attempt_at is not null and settled_at is null`)
			r.states("delivered")
		})
	}
}

// Calls of one tenant that fail each time hold up no other one's, however they fail: with an answer
// that any call can bring about, with answers and broken connections as of a host that is down, and
// with Retry-After.
func TestO14PoisonOfOneTenant(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]http.HandlerFunc{
		"500":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"503":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"broken off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"Retry-After": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(503)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var delivered, failed atomic.Int64
			remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.HasSuffix(req.URL.Path, "/poison") {
					failed.Add(1)
					fail(w, req)
					return
				}
				delivered.Add(1)
			}))
			t.Cleanup(remote.Close)
			sink, err := httpsink.New(httpsink.Config{
				Name:         "payments",
				BaseURL:      remote.URL,
				KeyWindow:    24 * time.Hour,
				AllowPrivate: true,
				Breaker:      httpsink.Breaker{OpenFor: time.Hour},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(sink.Close)
			const poison, genuine = 150, 120
			var calls []outbox.Call
			for i := range poison {
				c := chargeOf("greedy", fmt.Sprint("p", i))
				c.Target = "/poison"
				calls = append(calls, c)
			}
			r.enqueue(calls...)
			r.start(testConfig(sink))
			until(t, "poison was tried", func() bool {
				return failed.Load() >= poison ||
					one[int](r, `select count(*) from onlyonce.rates where held_until > clock_timestamp()`) > 0
			})
			calls = nil
			for i := range genuine {
				calls = append(calls, chargeOf("other", fmt.Sprint("g", i)))
			}
			r.enqueue(calls...)
			until(t, "the other tenant's calls are delivered", func() bool { return delivered.Load() >= genuine })
			t.Logf("%d of %d calls of the other tenant were delivered, beside %d attempts at %d",
				delivered.Load(), genuine, failed.Load(), poison)
		})
	}
}

// After 429 the tenant's calls wait, whichever other rate they count for.
func TestO14RetryAfterOfACallWithAPrefix(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var held atomic.Bool
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if !held.Swap(true) {
			return outbox.Result{Outcome: outbox.Retry, Reason: "not now", RetryAfter: time.Hour, RetryScope: outbox.RetryTenant}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", OrderingKeyPrefix: "a:", PerSecond: 1000}}
	r.start(cfg)
	r.enqueue(callsWith("acme", "c:", 1)...)
	until(t, "the hold is known", func() bool {
		return one[int](r, `select count(*) from onlyonce.rates where calls_of = 'tenant acme' and held_until > clock_timestamp()`) == 1
	})
	r.enqueue(callsWith("acme", "a:", 1)...)
	r.enqueue(callsWith("acme", "b:", 1)...)
	r.enqueue(callsWith("other", "a:", 1)...)
	until(t, "the other tenant's call is sent", func() bool { return sentOf(sink, "other") == 1 })
	until(t, "the others wait", func() bool { return r.waitingFor("tenant acme") == 2 })
	r.exec(`update onlyonce.rates set held_until = null`)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where next_attempt_at is not null and settled_at is null`)
	r.states("delivered")
}

// Permits are taken out of one bucket: it fills at the rate, holds half a second's worth, and goes
// on if the clock is set back.
func TestO14Bucket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	take := func(wanted int) int {
		return one[int](
			r,
			`
select granted from onlyonce.take_permits(
  's',
  gen_random_uuid(),
  1,
  '{"",tenant a}',
  array[9, $1::int],
  '{0,0}',
  '{0,0}'
) where calls_of = 'tenant a'`,
			wanted,
		)
	}
	r.exec(`insert into onlyonce.rates (sink, calls_of, per_second, permits) values ('s', 'tenant a', 0.001, 1)`)
	a := take(5)
	b := take(5)
	if a != 1 || b != 0 {
		t.Errorf("took %d and %d of one permit", a, b)
	}
	r.exec(`update onlyonce.rates set per_second = 100, permits = 0, filled_at = clock_timestamp() - interval '1 hour'`)
	if n := take(1000); n != 50 {
		t.Errorf("took %d after an hour, of half a second's 50", n)
	}
	r.exec(`update onlyonce.rates set per_second = 0.001, permits = 1, filled_at = clock_timestamp() + interval '1 day'`)
	if n := take(5); n != 1 {
		t.Errorf("took %d after the clock was set back", n)
	}
	if one[bool](r, `select filled_at > clock_timestamp() from onlyonce.rates`) {
		t.Error("the bucket does not fill for a day")
	}
	r.exec(`update onlyonce.rates set permits = 1, held_until = clock_timestamp() + interval '1 minute'`)
	if n := take(5); n != 0 {
		t.Errorf("took %d while the remote wants none", n)
	}
	r.exec(`update onlyonce.rates set held_until = clock_timestamp() + interval '1 day'`)
	if n := take(5); n != 1 {
		t.Errorf("took %d, although the hold was written while the clock was ahead", n)
	}
}

// No call is left for reconciliation because it waited for the sink's rate: its key's window has
// not begun.
func TestO14RateOfTheSinkBeginsNoWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	sink.limits = outbox.Limits{KeyWindow: 4 * time.Second, Timeout: time.Second}
	calls := make([]outbox.Call, 20)
	for i := range calls {
		calls[i] = chargeOf("acme", fmt.Sprint("n", i))
	}
	r.enqueue(calls...) // one lane
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", PerSecond: 3}}
	r.start(cfg)
	r.states("delivered")
	if n := one[int](r, `select count(*) from onlyonce.parked`); n > 0 {
		t.Errorf("%d were parked", n)
	}
}
