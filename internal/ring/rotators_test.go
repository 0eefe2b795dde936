package ring_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// turn is one turn of the ring's states, each step with what makes it due.
var turn = []ring.Action{ring.Announced, ring.Closed, ring.Retired, ring.Truncated}

func (r *rig) due(action ring.Action) {
	r.t.Helper()
	switch action {
	case ring.Announced:
		r.enqueue(r.pool, "payments")
	case ring.Retired:
		r.done()
	}
}

// The next rotator goes on from the row alone.
func TestReplacedAfterEachStep(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	for i := range 8 * len(turn) { // more than once round the ring
		action := turn[i%len(turn)]
		r.due(action)
		x := r.rotator(quick())
		r.until(x, action)
		r.expire()
	}
	r.expect("cur 2 draining - closed [] retired -")
}

// If a rotator is killed in a step, the row and the segment are as before. The sequence is ahead,
// and is made equal again before any other step (O8).
func TestKilledInEachStep(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	r.exec(`create function killed() returns trigger language plpgsql as $$ begin perform pg_terminate_backend(pg_backend_pid());
		return null;
		end $$`)
	for _, action := range turn {
		r.due(action)
		before := r.row()
		r.exec(`create trigger killed after update on onlyonce.rings execute function killed()`)
		x := r.rotator(quick())
		killed := false
		// Others may write to this server.
		for deadline := time.Now().Add(patience); !killed && time.Now().Before(deadline); {
			_, err := x.Step(t.Context())
			killed = err != nil
		}
		r.exec(`drop trigger killed on onlyonce.rings`)
		if !killed {
			t.Fatalf("%s: no step was begun", action)
		}
		after := r.row()
		if after.String() != before.String() || after.Version != before.Version || after.Sequence <= before.Sequence {
			t.Fatalf("%s: %v %+v, was %v %+v", action, after, after, before, before)
		}
		old := r.begin(pgx.RepeatableRead)
		if _, err := old.Exec(t.Context(), enqueueSQL, uuid.NewString(), "payments"); guard.SQLState(err) != "40001" {
			t.Errorf("%s: %v", action, err)
		}
		_ = old.Rollback(t.Context())
		r.expire()
		y := r.rotator(quick())
		r.until(y, ring.Repaired)
		r.expect(before.String())
		r.until(y, action)
		r.expire()
	}
}

// R1: a rotator that was replaced and does not know it changes nothing, whichever step is due (O8).
func TestR1RotatorThatWasReplaced(t *testing.T) {
	for i, action := range turn {
		t.Run(string(action), func(t *testing.T) {
			r := newRig(t)
			r.sink("payments")
			x := r.rotator(quick())
			for _, a := range turn[:i] {
				r.due(a)
				r.until(x, a)
			}
			open := r.begin(pgx.ReadCommitted)
			if _, err := open.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
				t.Fatal(err)
			}
			// It has the lease, and has taken the id that it waits by, if any.
			if out := r.step(x); out.Changed() {
				t.Fatalf("%+v", out)
			}
			r.commit(open)
			r.due(action)
			heir := r.takeOver()
			before := r.row()
			told := func() ring.LeaseEvent { return x.leases[len(x.leases)-1] }
			pgtest.Until(t, patience, "the rotator is told that it was replaced", func() bool {
				// It may have an id to wait by, while others write to this server.
				if out := r.step(x); out.Changed() {
					t.Fatalf("the rotator that was replaced: %+v", out)
				}
				return !told().Held
			})
			if after := r.row(); after.String() != before.String() || after.Version != before.Version || after.Sequence != before.Sequence {
				t.Fatalf("%+v, was %+v", after, before)
			}
			if told().Err == nil {
				t.Errorf("told %+v", told())
			}
			if err := heir.Release(t.Context(), r.pool); err != nil {
				t.Fatal(err)
			}
			r.until(x, action) // its turn again
		})
	}
}

// R2: while a segment drains, the next one is not announced, however large it is (O8).
func TestR2AnnouncedWhileDraining(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	writer := r.begin(pgx.ReadCommitted)
	r.enqueue(writer, "payments")
	r.until(x, ring.Announced)
	r.enqueue(r.pool, "payments")
	r.never(x, ring.Announced)
	r.expire()
	r.never(r.rotator(quick()), ring.Announced) // one that has just begun
	r.expect("cur 1 draining 0 closed [] retired -")
}

// The row under a rotator's hands is changed by hand: it gives up, and begins again.
func TestRowChangedByHand(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	r.enqueue(r.pool, "payments")
	r.exec(`create function moved() returns trigger language plpgsql as $$ begin return null; end $$`)
	r.exec(`create trigger moved before update on onlyonce.rings for each row execute function moved()`)
	if _, err := x.Step(t.Context()); !errors.Is(err, ring.ErrMoved) {
		t.Fatalf("%v", err)
	}
	if last := x.leases[len(x.leases)-1]; last.Held {
		t.Error("it kept the lease")
	}
	r.exec(`drop trigger moved on onlyonce.rings`)
	r.until(x, ring.Repaired)
	r.until(x, ring.Announced)
}

// After a restore the sequence may be lower than the row's version.
func TestSequenceBehindTheRow(t *testing.T) {
	r := newRig(t)
	x := r.rotator(quick())
	r.exec(`update onlyonce.rings set version = 100`)
	r.until(x, ring.Repaired)
	r.expect("cur 0 draining - closed [] retired -")
	if got := r.row(); got.Version != 101 {
		t.Errorf("version %d", got.Version)
	}
}

func TestRoleWithoutRights(t *testing.T) {
	r := newRig(t)
	role := "ring_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	r.exec(`create role ` + role)
	t.Cleanup(func() { r.exec(`drop owned by ` + role); r.exec(`drop role ` + role) })
	r.exec(`grant usage on schema onlyonce, onlyonce_segments to ` + role)
	r.exec(`grant select, update on onlyonce.rings, onlyonce.segments, onlyonce.watched to ` + role)
	r.exec(`grant select, insert, update on onlyonce.leases to ` + role)
	r.exec(`grant select, update on onlyonce.outbox_version to ` + role)
	r.exec(`grant select on onlyonce.lanes to ` + role)
	for n := range 6 {
		r.exec(fmt.Sprintf(`grant select on onlyonce_segments.batches_%[1]d, onlyonce_segments.call_keys_%[1]d to %[2]s`, n, role))
	}
	cfg, err := pgxpool.ParseConfig(r.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	restricted := &rig{t: t, pool: pool}
	r.enqueue(r.pool, "payments")

	x := restricted.rotator(quick())
	if err := x.Run(t.Context()); !errors.Is(err, ring.ErrRights) ||
		!strings.Contains(err.Error(), "TRUNCATE on onlyonce_segments.batches_3") {
		t.Fatalf("Run: %v", err)
	}
	if out := r.step(x); out.Action != ring.Standby {
		t.Fatalf("told twice, or worked: %+v", out)
	}
	if one[bool](r, `select exists (select from onlyonce.leases where name = 'ring/outbox')`) {
		t.Error("it took the lease")
	}
	// All that is missing is named, before anything else of a ring is tried.
	for _, lacks := range []string{
		"TRUNCATE on onlyonce_segments.consumer_keys_3",
		"UPDATE on onlyonce.frontiers",
		"SELECT on onlyonce.cursors",
	} {
		if _, err := restricted.keyRotator(ring.ConsumerKeys()).Step(t.Context()); !errors.Is(err, ring.ErrRights) ||
			!strings.Contains(err.Error(), lacks) {
			t.Errorf("nothing says %q: %v", lacks, err)
		}
	}
	for n := range 6 {
		r.exec(fmt.Sprintf(`grant truncate on onlyonce_segments.batches_%[1]d, onlyonce_segments.call_keys_%[1]d to %[2]s`, n, role))
	}
	// These rights are enough for a whole turn.
	r.sink("payments")
	for _, action := range turn {
		if action == ring.Retired {
			r.done()
		}
		r.until(x, action)
	}
}

// A sequential scan under the lock would keep all other sessions waiting.
func TestPlanOfNeeded(t *testing.T) {
	r := newRig(t)
	r.sink("payments")
	r.exec(`insert into onlyonce.batches (slot, lane, n, bytes, keys, sink, tenant, scope, name, method, target, header, body)
	  select 0, n % 16, 1, 0, array[gen_random_uuid()], 'payments', '', '', '', '', '', '', '' from generate_series(1, 5000) n`)
	tx := r.begin(pgx.ReadCommitted)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			r.exec(`analyze onlyonce_segments.batches_0`)
		}
		if _, err := tx.Exec(
			t.Context(),
			`select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
				set_config('enable_sort', 'off', true)`,
		); err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Query(t.Context(), "explain "+strings.ReplaceAll(ring.Outbox().Needed, "SEGMENT", "onlyonce_segments.batches_0"))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan on batches") || strings.Contains(plan, "Sort") || strings.Count(plan, "on batches_0") != 4 {
			t.Errorf("plan:\n%s", plan)
		}
		t.Log(plan)
	}
}
