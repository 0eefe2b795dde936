package ring_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// lateRow is the end of each test here: the writer's row in slot 0 is committed late, and emptied
// only after it was sent.
func (r *rig) lateRow(x *rotator, key string) {
	r.t.Helper()
	if got := r.stands(key); got != 0 {
		r.t.Fatalf("the late row is in slot %d", got)
	}
	r.until(x, ring.Closed)
	r.until(x, ring.Needed)
	if got := r.stands(key); got != 0 {
		r.t.Fatalf("the late row is in slot %d", got)
	}
	r.done()
	r.until(x, ring.Retired)
	r.until(x, ring.Truncated)
}

func TestO8OpenWriterKeepsTheSegmentFromClosing(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			r := newRig(t)
			r.sink("payments")
			x := r.rotator(quick())
			r.enqueue(r.pool, "payments")
			writer := r.begin(level)
			late := r.enqueue(writer, "payments")
			r.done()
			r.until(x, ring.Announced)
			r.never(x, ring.Closed)
			r.expect("cur 1 draining 0 closed [] retired -")
			r.commit(writer)
			r.lateRow(x, late)
		})
	}
}

// A writer may get its transaction id after the announcement got its own. It is then above every id
// that has ended when the announcement commits: no snapshot's xmax covers it. On a server of its
// own, on which nothing else commits meanwhile: another transaction's end would raise xmax above
// it.
func TestO8WriterBetweenAnnouncementAndItsCommit(t *testing.T) {
	r := rigOn(t, pgtest.Server(t, map[string]string{"fsync": "off", "autovacuum": "off"}))
	r.sink("payments")
	cfg := quick()
	cfg.LockTimeout = patience
	x := r.rotator(cfg)
	r.enqueue(r.pool, "payments")
	r.done()
	// The announcement has its id, by holding the lease, and waits for the row.
	before := r.begin(pgx.ReadCommitted)
	if _, err := before.Exec(t.Context(), `select from onlyonce.rings for update`); err != nil {
		t.Fatal(err)
	}
	announced := make(chan error, 1)
	go func() {
		out, err := x.Step(context.Background())
		if err == nil && out.Action != ring.Announced {
			err = errors.New("the step came to " + string(out.Action))
		}
		announced <- err
	}()
	r.blocked("%update onlyonce.rings%")
	writer := r.begin(pgx.ReadCommitted)
	late := r.enqueue(writer, "payments")
	if err := before.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, patience, "announced", announced); err != nil {
		t.Fatal(err)
	}
	r.never(x, ring.Closed)
	r.expect("cur 1 draining 0 closed [] retired -")
	r.commit(writer)
	r.lateRow(x, late)
}

// A writer has its transaction id before it reads which segment is current; here it is stopped
// after both.
func TestO8WriterThatHasReadTheRing(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.done()
	// The INSERT waits for this lock on the segment. It takes no transaction id, so only the
	// writer's own keeps the segment open.
	gate := r.begin(pgx.ReadCommitted)
	if _, err := gate.Exec(t.Context(), `lock table onlyonce_segments.batches_0 in share mode`); err != nil {
		t.Fatal(err)
	}
	late := uuid.NewString()
	written := make(chan error, 1)
	go func() {
		_, err := r.pool.Exec(context.Background(), enqueueSQL, late, "payments")
		written <- err
	}()
	r.blocked("%enqueue_calls%")
	r.until(x, ring.Announced)
	r.never(x, ring.Closed)
	r.expect("cur 1 draining 0 closed [] retired -")
	r.commit(gate)
	if err := pgtest.Receive(t, patience, "written", written); err != nil {
		t.Fatal(err)
	}
	r.lateRow(x, late)
}

// blocked waits until a statement waits for a lock.
func (r *rig) blocked(like string) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if one[bool](
			r,
			`select exists (select from pg_stat_activity
				where datname = current_database() and wait_event_type = 'Lock' and query like $1)`,
			like,
		) {
			return
		}
		if time.Now().After(deadline) {
			pgtest.GaveUp(r.t, patience, "a session that waits for a lock in "+like)
		}
	}
}

// A transaction whose snapshot is older than the announcement would read the old row, so it must
// run again. The same holds after each step.
func TestO8OldSnapshotIsRefused(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			r := newRig(t)
			r.sink("payments")
			x := r.rotator(quick())
			r.enqueue(r.pool, "payments")
			for _, action := range []ring.Action{ring.Announced, ring.Closed, ring.Retired, ring.Truncated} {
				if action == ring.Retired {
					r.done()
				}
				old := r.begin(level)
				if _, err := old.Exec(t.Context(), `select 1`); err != nil {
					t.Fatal(err)
				}
				r.reach(x, action)
				if _, err := old.Exec(t.Context(), enqueueSQL, uuid.NewString(), "payments"); guard.SQLState(err) != "40001" {
					t.Fatalf("behind %s: %v", action, err)
				}
				_ = old.Rollback(t.Context())
				again := r.begin(level)
				r.enqueue(again, "payments")
				_ = again.Rollback(t.Context())
			}
		})
	}
}

// Calls to a sink that no relay has listed yet are kept, and so are those that their lane has not
// passed. Rows that were rolled back keep nothing.
func TestWhoNeedsASegment(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	r.sink("quiet")
	x := r.rotator(quick())
	sent := r.enqueue(r.pool, "payments")
	unlisted := r.enqueue(r.pool, "later")
	gone := r.begin(pgx.ReadCommitted)
	r.enqueue(gone, "never")
	_ = gone.Rollback(t.Context())
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.done()
	if out := r.until(x, ring.Needed); out.Why != "calls to sink later, which no relay has listed yet" {
		t.Errorf("%+v", out)
	}
	r.sink("later")
	r.until(x, ring.Needed)
	if _, err := r.pass(); err != nil { // begun, not done
		t.Fatal(err)
	}
	r.until(x, ring.Needed)
	r.never(x, ring.Retired)
	if r.stands(sent) != 0 || r.stands(unlisted) != 0 {
		t.Error("the segment is gone")
	}
	r.done()
	r.until(x, ring.Retired)
	r.until(x, ring.Truncated)
}

// A lane that has nothing in the segment does not keep it: a sink without calls need not move for
// it.
func TestLaneWithoutCallsKeepsNothing(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.done()
	r.sink("quiet") // its cursor is at the very beginning
	r.until(x, ring.Retired)
	r.until(x, ring.Truncated)
}

// A row below xmax of its lane's cursor is not done if its transaction was in progress then.
func TestRowInProgressInItsLanesCursor(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	writer := r.begin(pgx.ReadCommitted)
	late := r.enqueue(writer, "payments")
	r.enqueue(r.pool, "payments") // so that the cursor's xmax is above the writer
	r.done()
	r.until(x, ring.Announced)
	r.commit(writer)
	r.lateRow(x, late)
}

// The rows in the segment under the lock decide, whatever was found before. Here a row got in that
// no rule allows.
func TestO8LookedAtAgainUnderTheLock(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	r.until(x, ring.Closed)
	r.done()
	r.until(x, ring.Retired)
	stray := one[string](
		r,
		`insert into onlyonce.batches (slot, lane, n, bytes, keys, sink, tenant, scope, name, method, target, header, body)
	  values (0, 3, 1, 0, array[gen_random_uuid()], 'payments', '', '', '', '', '', '', '') returning keys[1]::text`,
	)
	r.until(x, ring.Needed)
	r.never(x, ring.Truncated)
	if got := r.stands(stray); got != 0 {
		t.Fatalf("the stray row is in slot %d", got)
	}
	r.expect("cur 1 draining - closed [] retired 0")
	r.done()
	r.until(x, ring.Truncated)
}

// A transaction's default isolation must not give the look under the lock a snapshot from before
// it.
func TestServerDefaultsToSerializable(t *testing.T) {
	r := newRig(t)
	r.exec(`do $$ begin execute format('alter database %I set default_transaction_isolation = serializable', current_database()); end $$`)
	r.pool.Reset()
	r.sink("payments")
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.until(x, ring.Announced)
	writer := r.begin(pgx.ReadCommitted)
	if _, err := writer.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	r.never(x, ring.Closed)
	r.commit(writer)
	r.until(x, ring.Closed)
	r.done()
	r.reach(x, ring.Retired)
	r.reach(x, ring.Truncated)
}
