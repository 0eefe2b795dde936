package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The latest time that can be written is far in the future, and does not overflow.
func TestNotBeforeFarAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	for _, y := range []int{2300, 2400, 2500, 2700, 2900, 3000, 5000, 9999} {
		c := charge(fmt.Sprint(y))
		c.NotBefore = time.Date(y, 12, 31, 0, 0, 0, 0, time.UTC)
		r.enqueue(c)
	}
	until(t, "all are parked", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'pending'`) == 0 })
	if got := sink.bodies(); got != "" {
		t.Errorf("sent before their time: %s", got)
	}
}

// A key's age counts from the row if the database has lost history since: a relay may have called
// then.
func TestO6WindowAfterLostHistory(t *testing.T) {
	t.Parallel()
	for name, managed := range map[string]string{
		"false":               "",
		"true":                "",
		"true, as on Aurora":  "55000",
		"false, as on Aurora": "55000",
		"true, revoked":       "42501",
	} {
		parked := strings.HasPrefix(name, "true")
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if managed != "" {
				pgtest.Refuse(t, r.pool, managed, "pg_current_wal_insert_lsn()")
			}
			sink := newScripted(accept)
			x := r.start(testConfig(sink))
			r.holds(16)
			r.enqueue(charge("before"))
			r.states("delivered")
			if parked {
				c := charge("a")
				c.NotBefore = time.Now().Add(time.Hour)
				r.enqueue(c)
				until(t, "parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
			}
			x.stop()
			if !parked {
				r.enqueue(charge("a"))
			}
			r.exec(`update onlyonce.batches set created_at = created_at - interval '30 h'`)
			r.exec(`
update onlyonce.parked
   set parked_at = parked_at - interval '30 h', next_attempt_at = clock_timestamp() - interval '28 h'`)
			// A failover, or a base backup that was restored.
			if got := one[bool](
				r,
				`select bool_and(timeline like 'started %') from onlyonce.lanes where timeline is not null`,
			); got != (managed != "") {
				t.Fatalf("the history is named by the server's start: %v", got)
			}
			r.exec(`
update onlyonce.lane_cursors
   set server = null, timeline = case when timeline like 'started %' then 'started 1' else 'FFFFFFFF' end`)
			r.start(testConfig(sink))
			r.states("delivered", "reconcile")
			if got := sink.bodies(); got != "before" {
				t.Errorf("sent: %s", got)
			}
		})
	}
}

// first_attempt_at is not later than the call, however long the transaction that writes it waits
// for the lease.
func TestO6FirstAttemptIsNotAfterTheCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		g.pass(a)
		return outbox.Failure("again", nil)
	})
	cfg := testConfig(sink)
	cfg.Backoff = dedupe.Backoff{Min: time.Hour, Max: time.Hour}
	cfg.LeaseTTL = 10 * time.Minute // it waits for a third of that, and the lease does not end meanwhile
	r.enqueue(charge("a"))
	r.start(cfg)
	g.wait()
	called := one[time.Time](r, `select clock_timestamp()`)
	tx, err := r.pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(
		context.Background(),
		`select 1 from onlyonce.leases l join onlyonce.lanes using (id) join onlyonce.calls using (lane) for no key update of l`,
	); err != nil {
		t.Fatal(err)
	}
	g.release()
	until(t, "a transaction of the lane waits for its lease", func() bool {
		return one[bool](
			r,
			`
select exists (select from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock' and query like '%onlyonce.hold%')`,
		)
	})
	_ = tx.Rollback(context.Background())
	until(t, "parked", func() bool { return one[int](r, `select count(*) from onlyonce.parked`) == 1 })
	if first := one[time.Time](r, `select first_attempt_at from onlyonce.parked`); first.After(called) {
		t.Errorf("it was called at %v; the key counts from %v", called, first)
	}
}

// A call that a completion asks for may have been made in a history that the database has lost, and
// not before the call that it completes.
func TestO6CallsOfACompletionHaveATime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.Complete = func(ctx context.Context, tx dedupe.GuardedTx, _ *outbox.Attempt, answer *outbox.Response) error {
		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "receipt", Target: "/receipts"})
	}
	c := charge("a")
	c.Capture = true
	r.enqueue(c)
	r.start(cfg)
	until(t, "both are delivered", func() bool { return one[int](r, `select count(*) from onlyonce.calls where state = 'delivered'`) == 2 })
	if !one[bool](r, `select coalesce(bool_or(abs(extract(epoch from r.origin_time - p.first_attempt_at)) < 1), false)
		from onlyonce.outbox_log r, onlyonce.parked p where r.name = 'receipt'`) {
		t.Error("the receipt's origin_time is not when its charge was first called")
	}
}
