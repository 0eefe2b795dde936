package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// newCluster returns a database with the schema in a cluster of its own.
func newCluster(t *testing.T) *fixture {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Server(t, nil))
	return &fixture{session{t: t, url: pool.Config().ConnString()}, pool}
}

// fresh returns the calls that a relay finds in its next pass, in the order of that pass, lane by
// lane. The query is the relay's own.
func (f *fixture) fresh(sink string) string {
	f.t.Helper()
	return one[string](f, `
		select coalesce(string_agg(r.name, ' ' order by r.lane, r.id), '') from onlyonce.lanes l
		join onlyonce.outbox_log r on r.sink = l.sink and r.lane = l.lane
		 where l.sink = $1 and (r.xid >= pg_snapshot_xmax(l.prev) or r.xid in (select pg_snapshot_xip(l.prev)))
		   and pg_visible_in_snapshot(r.xid, pg_current_snapshot())`, sink)
}

// history makes calls in every state. Those of ordering key k are in one lane, in the order of
// their names.
func (f *fixture) history() {
	f.lists("payments")
	f.enqueues("payments", "k", "d1", "d2", "d3", "d4")
	f.delivers("payments", f.logID("d4"))
	f.park("d3", "discarded", "rejected") // the cursor has passed it
	f.exec(`update onlyonce.parked set settled_at = now() where state = 'discarded'`)
	f.exec(`update onlyonce.batches set body = '', bytes = 0, erased = array[now()] where name = 'd2'`)
	f.enqueues("payments", "k", "e1", "e2", "parked", "p1", "p2")
	f.delivers("payments", f.logID("parked")) // of this pass p1 and p2 are left
	f.park("parked", "blocked", "behind")
	f.enqueues("payments", "k", "q1", "q2")
	f.enqueues("unlisted", "", "u1")
	f.exec(`update onlyonce.batches set not_before = array[clock_timestamp() + interval '1 hour'] where name = 'q2'`)
	f.exec(`update onlyonce.batches set redo = array[true] where name = 'u1'`) // of a message whose time is not known
	f.exec(`update onlyonce.batches set created_at = created_at - interval '1 hour'`)
	f.exec(`update onlyonce.segments
		set bound = (select bound from (select pg_snapshot_xmax(pg_current_snapshot()) as bound) b), closed_at = now()
		where ring = 'outbox' and slot = 1`)
}

// A dump is restored into another cluster, whose transaction ids are lower, or higher. The calls
// that were not delivered are sent, in order, and no others.
func TestO3RebaseInAnotherCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		old, new func(*testing.T) *fixture
		burn     func(old, new *fixture)
	}{
		{"lower ids", newFixture, newCluster, func(old, _ *fixture) { old.burn(500) }},
		{"higher ids", newCluster, newFixture, func(_, new *fixture) { new.burn(500) }},
		{"ids about the same", newCluster, newCluster, func(_, _ *fixture) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			old := c.old(t)
			f := c.new(t)
			c.burn(old, f)
			old.history()
			old.copyTo(f)
			f.t = t
			if got := one[int](
				f,
				`select count(*) from pg_control_system() c, onlyonce.lanes where system_id = c.system_identifier`,
			); got != 0 {
				t.Fatal("one cluster")
			}
			if _, err := f.pool.Exec(t.Context(), `select onlyonce.advance(id, version, 0, true, false) from onlyonce.lanes`); err == nil ||
				!strings.Contains(err.Error(), "OO007") {
				t.Fatalf("a relay does not halt: %v", err)
			}
			// Meanwhile applications have enqueued more, one of them within a savepoint.
			f.enqueues("payments", "k", "n1")
			f.exec(`do $$ begin begin
				perform onlyonce.enqueue_calls(array[0::smallint], array[gen_random_uuid()], array[onlyonce.key('', 'order', 'k')],
				array['payments'], array[''], array['shop'], array['n2'], array['POST'], array['/'], array[''], array[null::text],
				array[''::bytea],
				array[null::timestamptz], array[null::timestamptz], array[false], array[false], array[false]);
				exception when division_by_zero then null; end; end $$`)
			// One of them has not committed yet.
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := tx.Exec(t.Context(), enqueueSQL, "payments", "other", "n3"); err != nil {
				t.Fatal(err)
			}

			r := f.run("outbox", "rebase", "-reason", "restored", "-yes").want(
				t,
				statusGood,
				"payments  yes",
				"unlisted  no",
				"Done: 7 calls are to be sent",
			)
			t.Log("\n" + r.out)
			if got := f.fresh("payments"); got != "p1 p2 q1 q2 n1 n2" {
				t.Errorf("found in the next pass: %s", got)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := f.states(); got != "d1:delivered d2:delivered d3:discarded d4:delivered e1:delivered "+
				"e2:delivered n1:pending n2:pending n3:pending "+
				"p1:pending p2:pending parked:blocked q1:pending q2:pending u1:pending" {
				t.Errorf("states: %s", got)
			}
			// The restored calls may have been made since they were enqueued, except for the one
			// that is not due, and u1, which may have been made at any time. The new ones have not.
			if got := one[string](
				f,
				`select string_agg(name || ':' || (origin_time = created_at)::text, ' ' order by name) from onlyonce.outbox_log where redo`,
			); got !=
				"n1:true n2:true p1:true p2:true q1:true u1:false" {
				t.Errorf("redone: %s", got)
			}
			if n := one[int](f, `select count(*) from onlyonce.parked where state = 'blocked' and first_attempt_at = parked_at`); n != 1 {
				t.Error("the key of a call that was parked before the dump counts from its next attempt")
			}
			if n := one[int](
				f,
				`select count(*) from onlyonce.segments s
					where ring = 'outbox' and slot = 1
					and bound > (select xid from onlyonce.outbox_log where redo order by xid desc limit 1)`,
			); n != 1 {
				t.Error("a closed segment is emptied under calls that are to be sent")
			}
			if n := one[int](
				f,
				`select count(*) from onlyonce.rings
					where name = 'outbox' and version = (select last_value from onlyonce.outbox_version) and version > 1`,
			); n != 1 {
				t.Error("the ring's version")
			}
			// Relays go on.
			f.delivers("payments", 1<<40)
			if got := f.states(); strings.Count(got, "pending") != 1 {
				t.Errorf("states: %s", got)
			}
			if n := one[int](
				f,
				`select count(*) from onlyonce.audit
					where action = 'outbox rebase' and reason = 'restored' and (detail->>'pending')::int = 7`,
			); n != 1 {
				t.Error("audit row")
			}
			// A second rebase changes nothing.
			f.run("outbox", "rebase", "-reason", "again", "-yes").want(t, statusGood, "Done: 1 calls are to be sent")
		})
	}
}

// burn uses up n transaction ids.
func (f *fixture) burn(n int) {
	f.t.Helper()
	f.exec(`create procedure burn(n integer) language plpgsql as $$ begin for i in 1 .. n loop perform pg_current_xact_id();
		commit;
		end loop;
		end $$`)
	f.exec(`call burn($1::integer)`, n)
}

// states returns the states of all calls of the log, by name.
func (f *fixture) states() string {
	f.t.Helper()
	return one[string](f, `select coalesce(string_agg(name || ':' || state, ' ' order by name), '') from onlyonce.calls`)
}

// If the numbers and the times fit, a call of this cluster cannot be distinguished from one of
// another cluster: then it is sent again.
func TestO3RebaseWhenInDoubt(t *testing.T) {
	t.Parallel()
	old := newCluster(t)
	f := newCluster(t)
	f.burn(500)
	old.lists("payments")
	old.enqueues("payments", "k", "d1", "d2")
	old.delivers("payments", 1<<40)
	old.park("d1", "waiting", "rejected") // for a parked call there is no doubt
	old.copyTo(f)
	f.enqueues("payments", "k", "n1")
	f.run("outbox", "rebase", "-reason", "restored", "-yes").want(t, statusGood, "Done: 2 calls are to be sent")
	if got := f.fresh("payments"); got != "d2 n1" {
		t.Errorf("found in the next pass: %s", got)
	}
	if n := one[int](f, `select count(*) from onlyonce.outbox_log where redo and origin_time = created_at`); n != 2 {
		t.Error("their keys count anew")
	}
}

// Numbers that are far above this cluster's work as well.
func TestO3RebaseFromLargeNumbers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.history()
	f.exec(`update onlyonce.batches set xid = (xid::text::bigint + 5000000000)::text::xid8`)
	const moved = `(pg_snapshot_xmin(%[1]s)::text::bigint + 5000000000) || ':' ||
		(pg_snapshot_xmax(%[1]s)::text::bigint + 5000000000) || ':' ||
		coalesce((select string_agg((x::text::bigint + 5000000000)::text, ',') from pg_snapshot_xip(%[1]s) x), '')`
	f.exec(`update onlyonce.lane_cursors set system_id = 1,
		prev = (` + strings.ReplaceAll(moved, "%[1]s", "prev") + `)::pg_snapshot, target = (` +
		strings.ReplaceAll(moved, "%[1]s", "target") + `)::pg_snapshot`)
	before := f.states()
	f.enqueues("payments", "k", "n1")
	if got := one[string](f, `select state from onlyonce.calls where name = 'n1'`); got != "delivered" {
		t.Fatalf("the old cursor does not mislead: %s", got)
	}
	f.run("outbox", "rebase", "-sink", "payments", "-reason", "restored", "-yes").want(t, statusGood, "Done: 5 calls")
	if got := f.fresh("payments"); got != "p1 p2 q1 q2 n1" {
		t.Errorf("found in the next pass: %s", got)
	}
	if got := f.states(); strings.Replace(got, "n1:pending ", "", 1) != before {
		t.Errorf("states: %s\nwere:   %s", got, before)
	}
}

// After a rebase, no relay of before works on a lane.
func TestO5RebaseFencesRelaysOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("outbox", "rebase", "-reason", "x", "-yes").want(t, statusGood, "nothing was changed")
	f.run("outbox", "rebase", "-sink", "payments", "-reason", "x", "-yes").want(
		t,
		statusEnvironment,
		`no relay has listed a sink "payments"`,
	)
	f.history()
	f.exec(`update onlyonce.leases set epoch = 3, nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 hour'
		where name = 'relay/payments/4'`)
	f.run("outbox", "rebase", "-reason", "x", "-yes").want(t, statusFailed, "relays hold 1 lanes (payments/4 until", "-force").lines(t, 1)
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	f.run("outbox", "rebase", "-reason", "x", "-force").want(t, statusFailed, "the answer was no")
	f.stdin = &reader{func() {
		f.exec(`update onlyonce.lane_cursors set version = version + 1
		where id in (select id from onlyonce.sink_lanes where lane = 2)`)
	}, strings.NewReader("y\n")}
	f.run("outbox", "rebase", "-reason", "x", "-force").want(t, statusFailed, "changed while you were asked")
	if n := one[int](f, `select count(*) from onlyonce.audit`); n != 0 {
		t.Error("an audit row for nothing")
	}
	f.stdin = strings.NewReader("y\n")
	f.run("outbox", "rebase", "-reason", "x", "-force").want(t, statusGood, "Done: 5 calls")
	if n := one[int](
		f,
		`select count(*) from onlyonce.leases where name = 'relay/payments/4' and epoch = 4 and nonce is null and until is null`,
	); n != 1 {
		t.Error("the relay is not fenced out")
	}
	// A rebase waits for a running settle.
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select 1 from onlyonce.leases where name = 'relay/payments/4' for share`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan result, 1)
	go func() { ended <- f.run("outbox", "rebase", "-reason", "x", "-yes") }()
	f.until(`select count(*) = 1 from pg_stat_activity
		where datname = current_database() and wait_event_type = 'Lock' and query like '%onlyonce.lock_owner(l.id)%'`)
	select {
	case r := <-ended:
		t.Errorf("it did not wait: %+v", r)
	case <-time.After(time.Millisecond):
	}
	f.enqueues("payments", "k", "meanwhile") // after the snapshot, and before calls are judged
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-ended).want(t, statusGood, "Done: 6 calls")
	if got := f.fresh("payments"); got != "p1 p2 q1 q2 meanwhile" {
		t.Errorf("found in the next pass: %s", got)
	}
}

// A batch of which a part is done is divided where the two parts meet: what was delivered, parked
// or erased is not sent again with the others. Calls keep their ids.
func TestO3RebaseDividesBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.exec(`select onlyonce.enqueue_calls(array_agg(0::smallint), array_agg(onlyonce.key('', 's', n)),
		array_agg(onlyonce.key('', 'order', 'k')), array_agg('payments'::text),
		array_agg(''::text), array_agg('shop'::text), array_agg(n), array_agg('POST'::text), array_agg('/'::text), array_agg(''::text),
		array_agg(null::text),
		array_agg(convert_to('body of ' || n, 'UTF8')), array_agg(null::timestamptz), array_agg(null::timestamptz), array_agg(false),
		array_agg(false), array_agg(false),
		order_prefixes => array_agg(ascii(n)))
		from unnest('{a,b,c,d,e,f,g}'::text[]) n`)
	if n := one[int](f, `select count(*) from onlyonce.batches`); n != 1 {
		t.Fatalf("%d batches", n)
	}
	contents := func() string {
		return one[string](
			f,
			`select string_agg(concat_ws(' ', id, key, name, convert_from(body, 'UTF8'), order_key, order_prefix), '\n' order by id)
				from onlyonce.outbox_log`,
		)
	}
	before := contents()
	f.delivers("payments", f.logID("b"))
	f.park("d", "waiting", "rejected")
	f.exec(`update onlyonce.batches set erased = array[null, null, null, null, null, now(), null]`)
	f.run("outbox", "rebase", "-reason", "restored", "-yes").want(t, statusGood, "Done: 3 calls are to be sent")
	if got := f.fresh("payments"); got != "c e g" {
		t.Errorf("found in the next pass: %s", got)
	}
	if got := f.states(); got != "a:delivered b:delivered c:pending d:waiting e:pending f:delivered g:pending" {
		t.Errorf("states: %s", got)
	}
	if after := contents(); after != before {
		t.Errorf("the calls have changed:\n%s\n%s", before, after)
	}
	if n := one[int](
		f,
		`select count(*) from onlyonce.batches where keys[1] = onlyonce.key('', 's', 'a') and n = 2 and bytes = 18`,
	); n != 1 {
		t.Error("the delivered calls are not in a batch of their own")
	}
}
