package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// order is what a call's body names.
func order(a *outbox.Attempt) string {
	return strings.TrimSuffix(strings.TrimPrefix(string(a.Body), `{"order":"`), `"}`)
}

// A call that an operator makes due is tried at once, even if the lane's next retry is an hour
// away.
func TestRedrivenCallDoesNotWaitForTheLanesNextRetry(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ok atomic.Bool
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		switch {
		case order(a) == "later":
			res := outbox.Failure("busy", nil)
			res.RetryAfter = time.Hour
			return res
		case !ok.Load():
			return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	later := charge("later")
	rejected := later
	rejected.ID = r.sameLane(later, "rejected")
	rejected.Body = []byte(`{"order":"rejected"}`)
	r.start(testConfig(sink))
	r.enqueue(later, rejected)
	until(t, "parked", func() bool {
		return one[int](
			r,
			`
select count(*)
  from onlyonce.parked where state = 'waiting' or state = 'retrying' and next_attempt_at > now() + interval '30 min'`,
		) == 2
	})
	ok.Store(true)
	r.exec(`
update onlyonce.parked
   set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = 0, first_attempt_at = null
 where state = 'waiting'`)
	until(t, "it is sent again", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1
	})
}

// No call is started after a sink was paused, not even one that waits for another of its ordering
// key.
func TestPauseStopsCallsThatWaitBehindAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if order(a) == "k0" {
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	paused := make(chan bool, 10)
	cfg := testConfig(sink)
	cfg.Hooks.Paused = func(p outbox.PausedEvent) { paused <- p.Paused }
	relay, err := outbox.NewRelay(r.pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.enqueue(keyed("k", 0), keyed("k", 1), keyed("k", 2))
	r.run(relay)
	g.wait()
	r.exec(`update onlyonce.sinks set paused_at = clock_timestamp()`)
	pgtest.Receive(t, patience, "the pause is seen", paused)
	g.release()
	until(t, "the first is delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) >= 1
	})
	if got := sink.bodies(); got != "k0" {
		t.Errorf("sent while paused: %s", got)
	}
	r.exec(`update onlyonce.sinks set paused_at = null`)
	r.states("delivered")
	if got := sink.bodies(); got != "k0 k1 k2" {
		t.Errorf("sent: %s", got)
	}
}

// An operator's decision while Reconcile runs is final.
func TestOperatorDecidesDuringReconcile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Backoff = dedupe.Backoff{Min: time.Hour, Max: time.Hour}
	cfg.Reconcile = func(ctx context.Context, a *outbox.Attempt) (bool, error) {
		g.pass(a)
		return false, errors.New("not known yet")
	}
	c := charge("a")
	c.NotBefore = time.Now().Add(time.Hour)
	r.enqueue(c)
	r.start(cfg)
	until(t, "parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	r.exec(`
update onlyonce.parked set state = 'reconcile',
                           reason = 'window',
                           first_attempt_at = clock_timestamp() - interval '30 h',
                           attempts = 3,
                           next_attempt_at = clock_timestamp()`)
	g.wait()
	r.exec(`
update onlyonce.parked
   set state = 'retrying', next_attempt_at = clock_timestamp(), attempts = 0, first_attempt_at = null`)
	g.release()
	r.states("delivered")
}

// The remote may still accept a call that an operator discards while it is under way: later calls
// of its key wait until it has returned (O4).
func TestOrderBehindACallDiscardedWhileUnderWay(t *testing.T) {
	t.Parallel()
	for _, retried := range []bool{false, true} {
		t.Run(fmt.Sprint(retried), func(t *testing.T) {
			r := newRig(t)
			g := r.gate()
			keys := r.neighbours(2)
			key := keys[0]
			behind := keys[1]
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				switch order(a) {
				case key + "0":
					if retried && a.Number == 1 {
						return outbox.Failure("again", nil)
					}
					g.pass(a)
				case behind + "0":
					if a.Number == 1 {
						return outbox.Failure("again", nil)
					}
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			r.enqueue(keyed(key, 0), keyed(key, 1))
			cfg := testConfig(sink)
			// The first call has one slot: all others are made one after another.
			cfg.Concurrency = 2
			r.start(cfg)
			g.wait()
			until(t, "the second is parked", func() bool {
				return one[int](r, `select count(*) from onlyonce.parked where state = 'blocked'`) == 1
			})
			r.exec(`
update onlyonce.parked
   set state = 'discarded', settled_at = clock_timestamp(), next_attempt_at = null where state = 'retrying'`)
			r.exec(`select onlyonce.promote(order_key) from onlyonce.parked`)
			// In the log after the third, and due as a retry after the second: when it is tried
			// again, the lane has passed both.
			r.enqueue(keyed(key, 2), keyed(behind, 0))
			until(t, "the lane has come past them", func() bool { return ofKey(sink, behind) == "0 0" })
			if got := ofKey(sink, key); strings.ContainsAny(got, "12") {
				t.Errorf("sent while the first is under way: %s", got)
			}
			g.release()
			r.states("delivered", "discarded")
			if got := strings.TrimPrefix(strings.TrimPrefix(ofKey(sink, key), "0 "), "0 "); got != "1 2" {
				t.Errorf("sent: %s", sink.bodies())
			}
		})
	}
}

// A process may settle a call and die before it promotes the calls that it blocked. Lanes look for
// such calls, which no unsettled call precedes.
func TestBlockedBehindNothingIsFoundByALaneThatIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if order(a) == "k0" {
			return outbox.Result{Outcome: outbox.Rejected, Reason: "no"}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.LeaseTTL = time.Second
	r.enqueue(keyed("k", 0), keyed("k", 1))
	often := process.With(context.Background(), &process.Process{Pace: process.Pace{Promote: 50 * time.Millisecond}})
	r.runIn(often, r.relay(cfg))
	until(t, "k1 is parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'blocked'`) == 1 })
	r.exec(`update onlyonce.parked set state = 'discarded', settled_at = clock_timestamp() where state = 'waiting'`)
	r.states("delivered", "discarded")
}

// A lane looks for them when it begins, and then now and again: not at each turn, in which it would
// do nothing else.
func TestBlockedBehindNothingIsNotLookedForAtEachTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := &pgtest.Wire{Statement: "with recursive keys (", At: func(int32) pgtest.Cut { return pgtest.Pass }}
	r.through(pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheDescribe, w, nil), func() { r.start(testConfig(newScripted(accept))) })
	r.idle()
	for i := range 3 {
		r.enqueue(charge(fmt.Sprint(i)))
		r.states("delivered")
	}
	if n := w.Seen.Load(); n == 0 || n > 5*16 { // a lane that was lost meanwhile, and is held again, looks again
		t.Errorf("16 lanes looked %d times", n)
	}
}

// T13: however many ordering keys wait, each gets its turn, a number of them in a statement.
func TestT13KeysArePromotedInPortions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(blockedKeysSQL, 2100)
	r.start(testConfig(newScripted(accept)))
	until(t, "all are delivered", r.allSettled)
}

// T13: a database that stands nearly still promotes them too, because a portion is small.
func TestT13SlowDatabasePromotesKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(blockedKeysSQL, 300)
	r.exec(`create function public.slow() returns trigger language plpgsql as $$
begin
  perform pg_sleep(0.01);
  return new;
end $$`)
	r.exec(`create trigger slow before update on onlyonce.parked
  for each row when (old.state = 'blocked') execute function public.slow()`)
	r.start(testConfig(newScripted(accept))) // each statement has 1.7 s: 300 keys take 3 s
	until(t, "all are delivered", r.allSettled)
}

// What is wrong with the calls of a lane does not hide that an operator pauses the sink (O5).
func TestO5PauseWhileNoWorkCanBeLookedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.LeaseTTL = 3 * time.Second // its third bounds a look
	r.start(cfg)
	r.idle()
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `lock table onlyonce.parked in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	r.exec(`update onlyonce.sinks set paused_at = clock_timestamp() where name = 'payments'`)
	until(t, "the pause is seen", r.paused.Load)
}

// blockedKeysSQL parks calls that wait behind calls which are settled, each with an ordering key of
// its own. In: how many.
const blockedKeysSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  scope,
  key,
  order_key,
  sink,
  lane,
  partition,
  "offset",
  row_id,
  call_name,
  method,
  target,
  body
)
  select 'call',
         'blocked',
         'behind',
         '',
         gen_random_uuid(),
         gen_random_uuid(),
         'payments',
         3,
         3,
         n,
         n,
         'charge',
         'POST',
         '/',
         '{}'
    from generate_series(1, $1::int) n`

func (r *rig) allSettled() bool {
	return one[int](r, `select count(*) from onlyonce.parked where settled_at is null`) == 0
}

// T13: thousands of due calls of a tenant that has a rate do not keep others waiting.
func TestT13CallsBehindThoseOfATenantWithARate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`insert into onlyonce.parked (
  kind,
  state,
  reason,
  scope,
  tenant,
  key,
  sink,
  lane,
  partition,
  "offset",
  row_id,
  call_name,
  method,
  target,
  body,
  next_attempt_at
)
  select 'call',
         'retrying',
         'failed',
         '',
         case when n <= 2500 then 'slow' else 'other' end,
         gen_random_uuid(),
         'payments',
         3,
         3,
         n,
         n,
         'charge',
         'POST',
         '/',
         '{}',
         clock_timestamp() + (n - 3000) * interval '1 ms'
    from generate_series(1, 2510) n`)
	cfg := testConfig(newScripted(accept))
	cfg.Rates = []outbox.Rate{{Sink: "payments", Tenant: "slow", PerSecond: 0.001}}
	r.start(cfg)
	until(t, "those of the other tenant are delivered", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where tenant = 'other' and settled_at is null`) == 0
	})
}

// T13: batches of an ordering key are read without all the calls that wait behind its first one.
func TestT13BatchesBehindManyParkedCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const parked, batches = 20_000, 200
	r.exec(`set session_replication_role = replica;
		insert into onlyonce.parked (kind, state, reason, scope, key, order_key, sink, lane, partition, "offset", row_id, call_name,
		method, target, body)
		select 'call', 'blocked', 'behind', '', gen_random_uuid(), md5('one')::uuid, 'payments', 3, 3, n, n, 'charge', 'POST', '/', '{}'
		from generate_series(1, `+fmt.Sprint(parked)+`) n;
		set session_replication_role = origin;
		analyze onlyonce.parked`, pgx.QueryExecModeSimpleProtocol)
	r.exec(outbox.Statements["make lanes"], "payments", nil, names.Lanes("payments").List(16))
	r.exec(`update onlyonce.lane_cursors set target = pg_current_snapshot()`)
	r.exec(
		`insert into onlyonce.batches (
  slot,
  lane,
  n,
  bytes,
  keys,
  order_key,
  sink,
  tenant,
  scope,
  name,
  method,
  target,
  header,
  body
)
  select 0,
         3,
         1,
         2,
         array[gen_random_uuid()],
         md5('one')::uuid,
         'payments',
         'a',
         'c',
         'n',
         'POST',
         '/',
         '',
         '\x7b7d'
    from generate_series(1, $1::int)`,
		batches,
	)
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `set plan_cache_mode = force_generic_plan; prepare read_batches as `+outbox.Statements["fetch"])
	if err != nil {
		t.Fatal(err)
	}
	var plan []struct {
		Plan struct {
			Rows float64 `json:"Actual Rows"`
			Hit  int     `json:"Shared Hit Blocks"`
			Read int     `json:"Shared Read Blocks"`
		}
	}
	fetch := fmt.Sprintf(
		`explain (analyze, buffers, format json) execute read_batches(%d, 0, '%s')`,
		one[int64](r, `select id from onlyonce.lanes where lane = 3`),
		one[string](r, `select array_agg(ctid)::text from onlyonce.batches`),
	)
	if err := conn.QueryRow(t.Context(), fetch).Scan(&plan); err != nil {
		t.Fatal(err)
	}
	if p := plan[0].Plan; p.Rows != batches || p.Hit+p.Read > batches*20 {
		t.Errorf("%v rows of %d batches, and %d pages, were read beside %d parked calls", p.Rows, batches, p.Hit+p.Read, parked)
	}
}

// T9: a call whose due time was written while the clock was ahead is due. One that its program has
// scheduled for then is not.
func TestT9CallDueInTheFuture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ok atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if !ok.Load() {
			res := outbox.Failure("busy", nil)
			res.RetryAfter = time.Hour
			return res
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	scheduled := charge("scheduled")
	scheduled.NotBefore = time.Now().Add(6 * 24 * time.Hour)
	r.start(testConfig(sink))
	r.enqueue(charge("waits"), scheduled)
	until(t, "both wait", func() bool {
		return one[int](
			r,
			`select count(*) from onlyonce.parked where state = 'retrying' and next_attempt_at > now() + interval '30 min'`,
		) == 2
	})
	ok.Store(true)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '6 days' where reason <> 'scheduled'`)
	until(t, "the one is sent", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	if n := one[int](r, `select count(*) from onlyonce.parked where state = 'retrying' and reason = 'scheduled'`); n != 1 {
		t.Error("the scheduled one did not wait")
	}
}

// T9: the clock was a day ahead when a call failed. It is right again: the call waits its own wait.
// One that its program has scheduled for a day later still waits.
func TestT9WaitCountedWhileTheClockWasAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(charge("waits"))
	var ok atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if !ok.Load() {
			return outbox.Failure("busy", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	relay := r.start(testConfig(sink))
	until(t, "it waits", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'retrying'`) == 1 })
	scheduled := charge("scheduled")
	scheduled.NotBefore = time.Now().Add(24 * time.Hour)
	r.enqueue(scheduled)
	until(t, "the other one is parked", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where reason = 'scheduled'`) == 1
	})
	relay.stop()
	ok.Store(true)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '1 day 1 second' where reason <> 'scheduled'`)
	r.exec(`update onlyonce.parked set timed_at = clock_timestamp() + interval '1 day' where reason <> 'scheduled'`)
	r.start(testConfig(sink))
	until(t, "the one is sent", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
	if n := one[int](
		r,
		`select count(*) from onlyonce.parked where state = 'retrying' and reason = 'scheduled' and timed_at is null`,
	); n != 1 {
		t.Error("the scheduled one did not wait")
	}
}

// T9: so is one of a tenant with a rate, which is set aside then.
func TestT9CallOfATenantWithARateDueInTheFuture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var ok atomic.Bool
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if !ok.Load() {
			return outbox.Result{Outcome: outbox.Retry, RetryAfter: time.Hour}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.Rates = []outbox.Rate{{Sink: "payments", EachTenant: true, PerSecond: 1000}}
	r.start(cfg)
	r.enqueue(chargeOf("acme", "waits"))
	until(t, "it waits", func() bool {
		return one[int](r, `select count(*) from onlyonce.parked where next_attempt_at > now() + interval '30 min'`) == 1
	})
	ok.Store(true)
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() + interval '6 days'`)
	until(t, "it is sent", func() bool { return one[int](r, `select count(*) from onlyonce.parked where state = 'resolved'`) == 1 })
}
