package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// noPass makes the database refuse every move of a cursor, until the function that it returns is
// called. Calls that are made meanwhile are made ahead of their pass: a relay tries again, and the
// first time others' transactions may not be flushed. The sequence tries counts the moves.
func (r *rig) noPass() (undo func()) {
	r.t.Helper()
	r.exec(`create sequence tries`)
	r.exec(`create function refused() returns trigger language plpgsql as $$
		begin perform nextval('tries'); raise exception using errcode = 'lock_not_available', message = 'no pass is stored'; end $$`)
	r.exec(`create trigger refused before update on onlyonce.lanes for each row execute function refused()`)
	return func() { r.exec(`drop trigger refused on onlyonce.lanes; drop function refused(); drop sequence tries`) }
}

// mayCallAhead waits until all lanes may call ahead: their owners have stored a pass, and nothing
// is left.
func (r *rig) mayCallAhead() {
	r.t.Helper()
	r.lanesHeld()
	until(r.t, "every lane has a window", func() bool {
		return one[int](r, `select count(*) from onlyonce.lanes where ahead_until > clock_timestamp() and target is not null`) == 16
	})
}

// O6: the first call of an idle lane is made before the COMMIT that stores its pass. The pass takes
// it in: it is made once, and settled.
func TestO6CalledAheadOfThePass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	x := r.start(testConfig(sink))
	r.mayCallAhead()
	undo := r.noPass()
	r.enqueue(charge("1"))
	g.wait()
	if n := one[int](r, `select count(*) from onlyonce.calls where state = 'pending'`); n != 1 {
		t.Errorf("%d calls are pending", n)
	}
	undo()
	g.release()
	r.states("delivered")
	x.stop()
	if n := len(sink.calls()); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	if n := one[int](r, `select count(*) from onlyonce.lanes where pass_ahead_until is not null and version > 3`); n != 0 {
		t.Errorf("%d lanes still suspect calls of a pass, although their owner knew which it made", n)
	}
}

// O4, O6: a call that was made ahead and failed is parked by the pass that follows, with the calls
// of its ordering key behind it, and its age counts from when it can first have been made.
func TestO6CallAheadThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var at atomic.Pointer[time.Time]
	var failed atomic.Bool
	sink := newScripted(func(_ context.Context, d *outbox.Delivery) outbox.Result {
		if failed.Swap(true) {
			return outbox.Result{Outcome: outbox.Delivered}
		}
		now := one[time.Time](r, `select clock_timestamp()`)
		at.Store(&now)
		return outbox.RetryLater("not today", nil)
	})
	cfg := testConfig(sink)
	cfg.RetryMin, cfg.RetryMax = time.Hour, time.Hour
	x := r.start(cfg)
	r.mayCallAhead()
	undo := r.noPass()
	first, second := charge("1"), charge("2")
	first.OrderingKey, second.OrderingKey = "k", "k"
	r.enqueue(first, second)
	until(t, "the first call has failed", func() bool { return at.Load() != nil })
	undo()
	r.states("retrying", "blocked")
	if !one[bool](r, `select first_attempt_at <= $1 from onlyonce.parked where state = 'retrying'`, *at.Load()) {
		t.Error("the age of the call counts from after it was made")
	}
	if n := one[int](r, `select attempts from onlyonce.parked where state = 'retrying'`); n != 1 {
		t.Errorf("%d attempts are counted", n)
	}
	r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where state = 'retrying'`)
	r.states("delivered")
	x.stop()
	if got := sink.bodies(); got != "1 1 2" {
		t.Errorf("sent %s", got)
	}
}

// O6: a relay ends after it has made a call ahead, before the pass is stored. Its successor counts
// the call's age from when the window was opened, and makes the call no more once the remote may
// have forgotten its key. A call that was written after the window had ended cannot have been made.
// The successor itself calls nothing before it has stored a pass.
func TestO6OwnerThatCalledAheadEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	x := r.start(testConfig(sink))
	r.mayCallAhead()
	undo := r.noPass()
	suspect := charge("1")
	r.enqueue(suspect)
	g.wait()
	r.exec(`create or replace function refused() returns trigger language plpgsql as $$ begin raise exception using errcode = 'OO007', message = 'it ends'; end $$`)
	g.release()
	if err := x.wait(); !errors.Is(err, outbox.ErrRebase) {
		t.Fatalf("the relay ended with %v", err)
	}
	x.once.Do(func() {})
	if n := one[int](r, `select count(*) from onlyonce.calls where state = 'pending'`); n != 1 {
		t.Fatalf("%d calls are pending", n)
	}

	// Much later.
	undo()
	r.exec(`update onlyonce.lanes set ahead_from = ahead_from - interval '2 hours', ahead_until = clock_timestamp()`)
	other := charge("2")
	other.ID = r.sameLane(suspect, "2")
	other.Body = []byte(`{"order":"2"}`)
	r.enqueue(other)
	next := newScripted(accept)
	next.limits.KeyWindow = time.Hour
	undo = r.noPass()
	r.start(testConfig(next))
	until(t, "the successor has tried to store its first pass", func() bool { return one[bool](r, `select is_called from tries`) })
	if n := len(next.calls()); n != 0 {
		t.Errorf("%d calls were made before the first pass was stored", n)
	}
	undo()
	r.states("delivered", "reconcile")
	if got := one[string](r, `select string_agg(state, ' ' order by id) from onlyonce.calls`); got != "reconcile delivered" {
		t.Errorf("the call that may have been made, and the other one, are %s", got)
	}
	if got := next.bodies(); got != "2" {
		t.Errorf("sent %s, want 2", got)
	}
}

// O6: the owner that opened the window knows which calls it made. The others of the pass are not
// aged from the window.
func TestO6OwnCallsAreNotSuspect(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.gate()
	sink := newScripted(g.accept)
	sink.limits.KeyWindow = time.Hour
	cfg := testConfig(sink)
	cfg.Concurrency = 1
	r.start(cfg)
	r.mayCallAhead()
	r.exec(`update onlyonce.lanes set ahead_from = ahead_from - interval '2 hours'`)
	undo := r.noPass()
	var calls []outbox.Call
	for i := range 5 {
		calls = append(calls, charge(fmt.Sprint(i)))
	}
	r.enqueue(calls...)
	g.wait()
	undo()
	g.release()
	r.states("delivered")
	if n := len(sink.calls()); n != 5 {
		t.Errorf("%d calls, want 5", n)
	}
}

// O6: the window of an idle lane moves with the leases.
func TestO6WindowMovesWhileIdle(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cfg := testConfig(newScripted(accept))
	cfg.LeaseTTL = time.Second
	r.start(cfg)
	r.mayCallAhead()
	type window struct {
		from    time.Time
		version int64
	}
	read := func() (all []window) {
		rows, err := r.pool.Query(t.Context(), `select ahead_from, version from onlyonce.lanes order by id`)
		if err != nil {
			t.Fatal(err)
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w window, err error) {
			err = row.Scan(&w.from, &w.version)
			return w, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := read()
	until(t, "each window has moved", func() bool {
		for i, w := range read() {
			if w.version == before[i].version && !w.from.After(before[i].from) {
				return false
			}
		}
		return true
	})
}

// O6: what makes a sink's calls wait for their pass.
func TestO6NotAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	sink.limits = outbox.Limits{KeyWindow: 5 * time.Minute, Timeout: time.Second}
	r.start(testConfig(sink))
	r.lanesHeld()
	r.enqueue(charge("1"))
	r.states("delivered")
	if n := one[int](r, `select count(*) from onlyonce.lanes where ahead_until is not null`); n != 0 {
		t.Errorf("%d lanes have a window, although the remote forgets keys after 5 minutes", n)
	}
}

// O3, O6: readAheadSQL reads nothing if one of its conditions does not hold.
func TestO6ReadAhead(t *testing.T) {
	t.Parallel()
	// A server of its own: elsewhere another test's COMMIT flushes what this one has not flushed.
	r := &rig{t: t, pool: pgtest.Pool(t, pgtest.Server(t, map[string]string{"wal_writer_delay": "10s", "autovacuum": "off"}))}
	x := r.start(testConfig(newScripted(accept)))
	r.mayCallAhead()
	x.stop()
	const nonce = "11111111-1111-1111-1111-111111111111"
	call := charge("1")
	var id, version, epoch int64
	var target string
	if err := r.pool.QueryRow(t.Context(), `
select a.id, a.version, l.epoch, a.target::text from onlyonce.lanes a join onlyonce.leases l on l.id = a.id where a.lane = $1`, laneOf(call)).
		Scan(&id, &version, &epoch, &target); err != nil {
		t.Fatal(err)
	}
	r.enqueue(call)
	reset := func() {
		t.Helper()
		r.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour', epoch = $2, nonce = $3 where id = $1`, id, epoch, nonce)
		r.exec(`update onlyonce.lanes set ahead_from = clock_timestamp() - interval '1 hour', ahead_until = clock_timestamp() + interval '1 hour', version = $2,
			server = pg_postmaster_start_time(), target = $3::text::pg_snapshot where id = $1`, id, version, target)
		r.exec(`update onlyonce.batches set created_at = clock_timestamp()`)
	}
	found := func(r interface {
		Query(context.Context, string, ...any) (pgx.Rows, error)
	}) (n int) {
		t.Helper()
		rows, err := r.Query(t.Context(), outbox.Statements["read ahead"], id, version, epoch, nonce)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			all, err := rows.Values()
			if err != nil {
				t.Fatal(err)
			}
			n += int(all[len(all)-1].(int64))
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		return n
	}
	// The server itself may write into the log at any moment.
	reads := func() bool {
		for range 100 {
			if found(r.pool) == 1 {
				return true
			}
			r.exec(`update onlyonce.sinks set pause_reason = null`) // its COMMIT flushes
		}
		return false
	}
	reset()
	if !reads() {
		t.Fatal("nothing is read although all conditions hold")
	}
	for _, c := range []struct{ name, change string }{
		{"another version", `update onlyonce.lanes set version = version + 1`},
		{"another epoch", `update onlyonce.leases set epoch = epoch + 1`},
		{"another nonce", `update onlyonce.leases set nonce = gen_random_uuid()`},
		{"a lease that has ended", `update onlyonce.leases set until = clock_timestamp()`},
		{"a window that has ended", `update onlyonce.lanes set ahead_until = clock_timestamp()`},
		{"a window that begins later", `update onlyonce.lanes set ahead_from = clock_timestamp() + interval '1 minute'`},
		{"no window", `update onlyonce.lanes set ahead_from = null, ahead_until = null`},
		{"another start of the server", `update onlyonce.lanes set server = server - interval '1 second'`},
		{"a cursor that was not moved on this server", `update onlyonce.lanes set server = null`},
		{"a batch that was written by a clock that was ahead", `update onlyonce.batches set created_at = created_at + interval '2 hours'`},
		{"a batch that a pass holds", `update onlyonce.lanes set target = pg_current_snapshot()`},
	} {
		reset()
		r.exec(c.change)
		if reads() {
			t.Errorf("%s: calls are read to be made ahead", c.name)
		}
	}

	reset()
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `set synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `update onlyonce.batches set created_at = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	position := found(conn)
	if position <= 1 {
		t.Fatalf("a batch is read whose transaction is not flushed, with %d", position)
	}
	xids, ids := []string{one[string](r, `select xid::text from onlyonce.batches`)}, []int64{one[int64](r, `select id from onlyonce.batches`)}
	flushed := func() (is bool) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), outbox.Statements["flushed"], position, "payments", int16(laneOf(call)), xids, ids).Scan(&is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	if flushed() {
		t.Error("it counts as flushed: a crash would lose it")
	}
	r.exec(`update onlyonce.sinks set pause_reason = null`)
	if !flushed() || !reads() {
		t.Error("it does not count as flushed after another session's COMMIT")
	}
	if xids[0] = "3"; flushed() {
		t.Error("a batch that the log has lost counts as flushed")
	}
}

// O3: a call is made ahead only once its batch is flushed: a crash of the server would lose the
// batch of a producer that does not wait for that.
func TestO3CallAheadIsFlushed(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: pgtest.Pool(t, pgtest.Server(t, map[string]string{"wal_writer_delay": "10s", "autovacuum": "off"}))}
	var position atomic.Int64
	known := make(chan struct{})
	sink := newScripted(func(context.Context, *outbox.Delivery) outbox.Result {
		<-known
		if !one[bool](r, `select pg_current_wal_flush_lsn() - '0/0' >= $1`, position.Load()) {
			t.Error("a call was made of a transaction that a crash would lose")
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	cfg := testConfig(sink)
	cfg.LeaseTTL = 10 * time.Minute // a renewal writes too, and what it has not flushed would count
	r.start(cfg)
	r.mayCallAhead()
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `set synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // other sessions flush now and then
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return outbox.Enqueue(t.Context(), tx, charge(fmt.Sprint(i))) })
		if err != nil {
			t.Fatal(err)
		}
		var at int64
		if err := conn.QueryRow(t.Context(), `select (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		position.Store(at)
		select {
		case known <- struct{}{}:
		case <-time.After(patience):
			pgtest.GaveUp(t, patience, "the call")
		}
		r.states("delivered")
	}
}

// laneOf is the lane of a call without an ordering key; see ownLanes.
func laneOf(c outbox.Call) byte {
	key := uuid.MustParse(outbox.Identity(origin.Origin{Tenant: c.Tenant, Scope: c.Scope}, false, c))
	return key[15] & 15
}

// O6: a pass of several chunks that another owner may have called ahead. All of its calls are
// suspect until the pass is done, because the new owner does not know which were made.
func TestO6SuspectPassOfSeveralChunks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.start(testConfig(newScripted(accept)))
	r.mayCallAhead()
	x.stop()
	var calls []outbox.Call
	for i := range 1030 {
		calls = append(calls, charge(fmt.Sprint(i)))
	}
	r.enqueue(calls...)
	r.exec(`update onlyonce.batches set lane = 3`)
	r.exec(`update onlyonce.lanes set ahead_from = clock_timestamp() - interval '2 hours', ahead_until = clock_timestamp()`)
	next := newScripted(accept)
	next.limits.KeyWindow = time.Hour
	r.start(testConfig(next))
	r.states("delivered", "reconcile")
	if n := len(next.calls()); n != 0 {
		t.Errorf("%d calls were made whose keys the remote may have forgotten", n)
	}
}

// O6: moveAheadSQL moves the window only of the lane, the lease and the version that it was asked
// for.
func TestO6MoveAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.start(testConfig(newScripted(accept)))
	r.mayCallAhead()
	x.stop()
	const nonce = "11111111-1111-1111-1111-111111111111"
	r.exec(`update onlyonce.leases set until = clock_timestamp() + interval '1 hour', nonce = $1`, nonce)
	r.exec(`update onlyonce.lanes set ahead_from = clock_timestamp(), ahead_until = clock_timestamp()`)
	var id, version, epoch int64
	if err := r.pool.QueryRow(t.Context(), `select a.id, a.version, l.epoch from onlyonce.lanes a join onlyonce.leases l on l.id = a.id where a.lane = 3`).Scan(&id, &version, &epoch); err != nil {
		t.Fatal(err)
	}
	moves := func(version, epoch int64, nonce string) bool {
		t.Helper()
		before := one[time.Time](r, `select ahead_from from onlyonce.lanes where id = $1`, id)
		r.exec(outbox.Statements["move ahead"], []int64{id}, []int64{version}, []int64{epoch}, []string{nonce}, time.Minute)
		return one[time.Time](r, `select ahead_from from onlyonce.lanes where id = $1`, id).After(before)
	}
	for _, c := range []struct {
		name  string
		moves bool
		want  bool
	}{
		{"as it is", moves(version, epoch, nonce), true},
		{"another version", moves(version+1, epoch, nonce), false},
		{"another epoch", moves(version, epoch+1, nonce), false},
		{"another nonce", moves(version, epoch, "22222222-2222-2222-2222-222222222222"), false},
	} {
		if c.moves != c.want {
			t.Errorf("%s: moved %v, want %v", c.name, c.moves, c.want)
		}
	}
	// A lane that is locked, for example by an operator, costs no other, and no wait.
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select from onlyonce.lanes where id = $1 for update`, id); err != nil {
		t.Fatal(err)
	}
	if moves(version, epoch, nonce) {
		t.Error("the window of a locked lane is moved")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`update onlyonce.leases set until = clock_timestamp()`)
	if moves(version, epoch, nonce) {
		t.Error("the window of a lane is moved whose lease has ended")
	}
}

// O3: a call was made ahead, and a failover has lost its batch. The message is handled again, and
// its call has the same key and, by chance, the same id, in another transaction. The attempt is not
// taken for that call's: the call would not be found in the log when it is parked, and be lost.
func TestO3CallAheadOfALostBatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var n atomic.Int32
	sink := newScripted(func(context.Context, *outbox.Delivery) outbox.Result {
		if n.Add(1) == 1 {
			return outbox.RetryLater("not today", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.start(testConfig(sink))
	r.mayCallAhead()
	undo := r.noPass()
	r.enqueue(charge("1"))
	until(t, "the call has failed, and a pass was refused since", func() bool {
		return n.Load() == 1 && one[int64](r, `select last_value from tries`) >= 2
	})
	r.exec(`update onlyonce.batches set xid = pg_current_xact_id()`)
	undo()
	until(t, "the call is made again", func() bool { return n.Load() == 2 })
	r.states("delivered")
}

// O3: a call was made ahead, and a failover has lost its batch: no pass holds it. The lane is at
// rest then, and can be given back.
func TestO3CallAheadThatNoPassHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	x := r.start(testConfig(sink))
	r.mayCallAhead()
	undo := r.noPass()
	r.enqueue(charge("1"))
	until(t, "the call is made", func() bool { return len(sink.calls()) == 1 })
	r.exec(`delete from onlyonce.batches`)
	undo()
	var version int64
	same := 0
	until(t, "no more passes are stored", func() bool {
		before := version
		version = one[int64](r, `select sum(version)::bigint from onlyonce.lanes`)
		if same++; version != before {
			same = 0
		}
		return same == 40 // a relay that goes on stores some in between
	})
	x.stop()
}

// O6: if calls cannot be read ahead, they wait for their pass.
func TestO6ReadAheadThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create schema shadow`)
	r.exec(`create function shadow.pg_current_wal_flush_lsn() returns pg_lsn language plpgsql as $$ begin raise exception using errcode = 'query_canceled', message = 'it fails'; end $$`)
	r.exec(`do $$ begin execute format('alter database %I set search_path = shadow, pg_catalog, public', current_database()); end $$`)
	r.pool.Reset()
	sink := newScripted(accept)
	var failed atomic.Int32
	cfg := testConfig(sink)
	cfg.Hooks.Failed = func(f outbox.Failed) {
		if strings.Contains(f.Err.Error(), "ahead of their pass") {
			failed.Add(1)
		}
	}
	r.start(cfg)
	r.mayCallAhead()
	undo := r.noPass()
	r.enqueue(charge("1"))
	until(t, "a read has failed, and two passes were refused since", func() bool {
		return failed.Load() > 0 && one[int64](r, `select last_value from tries`) >= 3
	})
	undo()
	r.states("delivered")
	if n := failed.Load(); n != 1 {
		t.Errorf("%d reads failed before the pass was stored, want 1", n)
	}
}

// O6: a sink is paused, and its calls wait for longer than their window. None of them was made: if
// the first attempt fails, its age counts from the pass.
func TestO6AgeAfterAPause(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var n atomic.Int32
	sink := newScripted(func(context.Context, *outbox.Delivery) outbox.Result {
		if n.Add(1) == 1 {
			return outbox.RetryLater("not today", nil)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	sink.limits.KeyWindow = time.Hour
	r.start(testConfig(sink))
	r.mayCallAhead()
	r.exec(`update onlyonce.sinks set paused_at = clock_timestamp(), paused_by = 'x', pause_reason = 'y'`)
	until(t, "the sink is paused", r.paused.Load)
	r.enqueue(charge("1"))
	r.exec(`update onlyonce.lanes set ahead_from = ahead_from - interval '2 hours', ahead_until = clock_timestamp()`)
	r.exec(`update onlyonce.sinks set paused_at = null, paused_by = null, pause_reason = null`)
	r.states("delivered", "reconcile")
	if got := one[string](r, `select state from onlyonce.calls`); got != "delivered" {
		t.Errorf("the call is %s after %d attempts", got, n.Load())
	}
}

// A relay that is stopped settles what it has made ahead, and makes no other call of the pass: also
// if one with a lower id was committed since. Then it closes the lanes' windows.
func TestO6StopSettlesCallsMadeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	x := r.start(testConfig(sink))
	r.mayCallAhead()
	first, second := charge("1"), charge("2")
	second.ID = r.sameLane(first, "2")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := outbox.Enqueue(t.Context(), tx, first); err != nil {
		t.Fatal(err)
	}
	if err := ownLanes(tx); err != nil {
		t.Fatal(err)
	}
	undo := r.noPass()
	r.enqueue(second)
	until(t, "the second call is made", func() bool { return len(sink.calls()) == 1 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.cancel()
	undo()
	x.stop()
	if one[bool](r, `select ahead_until is not null or pass_ahead_until is not null from onlyonce.lanes where lane = $1`, laneOf(first)) {
		t.Error("the lane has a window after the relay was stopped")
	}
	r.start(testConfig(sink))
	r.states("delivered")
	if got := sink.bodies(); got != "2 1" {
		t.Errorf("sent %s, want 2 1", got)
	}
}
