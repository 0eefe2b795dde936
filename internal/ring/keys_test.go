package ring_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// keyRig is a database in which a ring of keys rotates as soon as there is anything to rotate.
type keyRig struct {
	*rig
	*rotator
}

func newKeyRig(t *testing.T, which ring.Ring) *keyRig {
	t.Helper()
	r := newRig(t)
	r.exec(`update onlyonce.rings set horizon = '1 millisecond' where name = $1`, which.Name)
	return &keyRig{rig: r, rotator: r.keyRotator(which)}
}

func (r *rig) keyRotator(which ring.Ring, change ...func(*ring.Config)) *rotator {
	r.t.Helper()
	x := &rotator{}
	cfg := quick()
	for _, c := range change {
		c(&cfg)
	}
	cfg.Hooks = ring.Hooks{Failed: func(err error) { r.t.Logf("failed: %v", err) }}
	var err error
	if x.Rotator, err = ring.New(r.pool, which, cfg); err != nil {
		r.t.Fatal(err)
	}
	return x
}

// ask claims keys of consumer_keys and returns what became of them.
func (r *rig) ask(db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, function string, keys ...uuid.UUID) (outcomes []int16, err error) {
	prints := make([]int64, len(keys))
	for i := range prints {
		prints[i] = 7
	}
	err = db.QueryRow(context.Background(), `select onlyonce.`+function+`($1, $2)`, keys, prints).Scan(&outcomes)
	return outcomes, err
}

// is fails unless a claim of one key comes to that.
func (r *rig) is(db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, function string, key uuid.UUID, want int16) {
	r.t.Helper()
	if got, err := r.ask(db, function, key); err != nil || len(got) != 1 || got[0] != want {
		r.t.Fatalf("%s came to %v, %v, and not to %d", function, got, err, want)
	}
}

// segments returns the segments that hold a key.
func (r *rig) segments(key uuid.UUID) string {
	r.t.Helper()
	return one[string](r, `select coalesce(string_agg(segment, ' ' order by segment), '') from onlyonce.inbox where key = $1`, key)
}

// freshly claims by the function that raises if a key is not new.
func (r *rig) freshly(db execer, keys ...uuid.UUID) error {
	prints := make([]int64, len(keys))
	_, err := db.Exec(context.Background(), `select onlyonce.claim_consumer_fresh($1, $2)`, keys, prints)
	return err
}

// K3: a key is found in every segment, by both forms of the claim, until its segment is emptied.
// Then it is new.
func TestK3KeyIsFoundInEverySegment(t *testing.T) {
	r := newKeyRig(t, ring.ConsumerKeys())
	a := uuid.New()
	r.is(r.pool, "claim_consumer", a, 0)
	duplicate := func() {
		t.Helper()
		r.is(r.pool, "claim_consumer", a, 1)
		if err := r.freshly(r.pool, a); guard.SQLState(err) != "23505" {
			t.Fatalf("%v", err)
		}
	}
	duplicate()
	r.until(r.rotator, ring.Announced)
	duplicate()
	b := uuid.New()
	if err := r.freshly(r.pool, b); err != nil {
		t.Fatal(err)
	}
	if a, b := r.segments(a), r.segments(b); a != "consumer_keys_0" || b != "consumer_keys_0 consumer_keys_1" {
		t.Fatalf("%s, %s", a, b)
	}
	r.until(r.rotator, ring.Closed)
	duplicate()
	r.until(r.rotator, ring.Announced)
	r.until(r.rotator, ring.Closed)
	duplicate()
	got, err := r.ask(r.pool, "claim_consumer", b, a, uuid.New(), a)
	good := err == nil &&
		len(got) == 4 &&
		got[0] == 1 &&
		got[1] == 1 &&
		got[2] == 0 &&
		got[3] == 1
	if !good {
		t.Fatalf("%v, %v", got, err)
	}
	for r.segments(a) != "" {
		r.step(r.rotator)
	}
	r.is(r.pool, "claim_consumer", a, 0)
}

// K3: another payload under a key is a conflict, whichever segment holds the key.
func TestK3ConflictWithAClosedSegment(t *testing.T) {
	r := newKeyRig(t, ring.ConsumerKeys())
	a := uuid.New()
	r.is(r.pool, "claim_consumer", a, 0)
	other := func() {
		t.Helper()
		var got []int16
		if err := r.pool.QueryRow(t.Context(), `select onlyonce.claim_consumer($1, $2)`,
			[]uuid.UUID{a, a}, []int64{8, 0}).Scan(&got); err != nil ||
			got[0] != 2 ||
			got[1] != 1 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	other()
	r.until(r.rotator, ring.Announced)
	other()
	r.until(r.rotator, ring.Closed)
	other()
}

// K4: between the announcement and the close a claim asks the draining segment too, because
// transactions that have read the row before insert there.
func TestK4ClaimWaitsForACopyInTheDrainingSegment(t *testing.T) {
	for i, commit := range []bool{true, false, true, false} {
		form := "claim_consumer"
		if i >= 2 {
			form = "claim_consumer_fresh"
		}
		r := newKeyRig(t, ring.ConsumerKeys())
		a := uuid.New()
		r.is(r.pool, "claim_consumer", uuid.New(), 0)
		first := r.begin(pgx.ReadCommitted)
		r.is(first, "claim_consumer", a, 0)
		r.until(r.rotator, ring.Announced)
		r.never(r.rotator, ring.Closed)
		told := make(chan string, 1)
		go func() {
			if form == "claim_consumer" {
				got, err := r.ask(r.pool, form, a)
				told <- fmt.Sprint(got, guard.SQLState(err))
			} else {
				told <- guard.SQLState(r.freshly(r.pool, a))
			}
		}()
		r.blocked("%" + form + "($1%")
		if commit {
			r.commit(first)
		} else {
			_ = first.Rollback(t.Context())
		}
		want := map[string]string{
			"claim_consumer true":        "[1]",
			"claim_consumer false":       "[0]",
			"claim_consumer_fresh true":  "23505",
			"claim_consumer_fresh false": "",
		}
		if got := <-told; got != want[fmt.Sprint(form, " ", commit)] {
			t.Errorf("%s, commit %v: %q", form, commit, got)
		}
	}
}

// K4: a claim has its id before it reads the row: a rotator that announces in between waits for it.
func TestK4ClaimThatHasReadTheRing(t *testing.T) {
	for _, form := range []string{"claim_consumer", "claim_consumer_fresh"} {
		t.Run(form, func(t *testing.T) {
			r := newKeyRig(t, ring.ConsumerKeys())
			r.is(r.pool, "claim_consumer", uuid.New(), 0)
			gate := r.begin(pgx.ReadCommitted)
			// This takes no id.
			if _, err := gate.Exec(t.Context(), `lock table onlyonce_segments.consumer_keys_0 in share mode`); err != nil {
				t.Fatal(err)
			}
			late := uuid.New()
			written := make(chan error, 1)
			go func() {
				if form == "claim_consumer" {
					_, err := r.ask(r.pool, form, late)
					written <- err
				} else {
					written <- r.freshly(r.pool, late)
				}
			}()
			r.blocked("%" + form + "($1%")
			r.until(r.rotator, ring.Announced)
			r.never(r.rotator, ring.Closed)
			r.commit(gate)
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			r.is(r.pool, "claim_consumer", late, 1)
		})
	}
}

// K4: the rotator does not wait for a claim that got its id after the rotator's own. Such a claim
// has read that the segment drains. Transactions that read the row after the close do not find what
// it inserts there, but they find what it inserts into the current segment.
func TestK4ClaimBehindTheRotatorsId(t *testing.T) {
	r := newKeyRig(t, ring.ConsumerKeys())
	r.is(r.pool, "claim_consumer", uuid.New(), 0)
	r.until(r.rotator, ring.Announced)
	before := r.begin(pgx.ReadCommitted)
	if _, err := before.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	r.until(r.rotator, ring.Waiting)
	late := r.begin(pgx.ReadCommitted)
	a := uuid.New()
	r.is(late, "claim_consumer", a, 0)
	r.commit(before)
	r.until(r.rotator, ring.Closed)
	told := make(chan []int16, 1)
	go func() {
		got, _ := r.ask(r.pool, "claim_consumer", a)
		told <- got
	}()
	r.blocked("%claim_consumer($1%")
	r.commit(late)
	if got := pgtest.Receive(t, patience, "told", told); len(got) != 1 || got[0] != 1 {
		t.Fatalf("%v", got)
	}
}

// K4: after each step, a transaction whose snapshot is older than the ring's row must run again.
func TestK4OldSnapshotIsRefused(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		r := newKeyRig(t, ring.ConsumerKeys())
		r.is(r.pool, "claim_consumer", uuid.New(), 0)
		for _, action := range []ring.Action{ring.Announced, ring.Closed, ring.Retired, ring.Truncated} {
			old := r.begin(level)
			older := r.begin(level)
			for _, tx := range []pgx.Tx{old, older} {
				if _, err := tx.Exec(t.Context(), `select 1`); err != nil {
					t.Fatal(err)
				}
			}
			r.reach(r.rotator, action)
			if _, err := r.ask(old, "claim_consumer", uuid.New()); guard.SQLState(err) != "40001" {
				t.Fatalf("behind %s: %v", action, err)
			}
			if err := r.freshly(older, uuid.New()); guard.SQLState(err) != "40001" {
				t.Fatalf("behind %s: %v", action, err)
			}
			_ = old.Rollback(t.Context())
			_ = older.Rollback(t.Context())
			again := r.begin(level)
			r.is(again, "claim_consumer", uuid.New(), 0)
			_ = again.Rollback(t.Context())
		}
	}
}

// K6: a segment is kept until every cursor has passed what was appended until its closing and the
// horizon.
func TestK6FrontierHoldsBackRetention(t *testing.T) {
	r := newKeyRig(t, ring.ConsumerKeys())
	cursor := func(topic, cluster string) int64 {
		return one[int64](r.rig, `with l as (insert into onlyonce.leases (name) values ('cursor/stock/' || $1::text || '/0') returning id)
		  insert into onlyonce.cursors (id, scope, topic, partition, cluster_id, start_offset, run_start, start_policy)
		  select id, 'stock', $1, 0, $2, 0, 0, 'earliest' from l returning id`, topic, cluster)
	}
	orders := cursor("orders", "k")
	returns := cursor("returns", "k")
	cursor("events", "postgres")
	a := uuid.New()
	r.is(r.pool, "claim_consumer", a, 0)
	r.until(r.rotator, ring.Announced)
	r.until(r.rotator, ring.Closed)
	kept := func(why string) {
		t.Helper()
		for range 3 {
			if out := r.rig.until(r.rotator, ring.Needed); !strings.Contains(out.Why, why) {
				t.Fatalf("%+v", out)
			}
		}
		r.is(r.pool, "claim_consumer", a, 1)
	}
	kept("has not said yet how far it is")
	r.exec(`insert into onlyonce.frontiers (cursor_id, run, frontier) select $1, 0, clock_timestamp() + interval '1 hour'`, orders)
	kept("has not said yet how far it is")
	if run := one[int32](r.rig, `select run from onlyonce.frontiers`); run != -1 {
		t.Fatal("a frontier that was noted while the clock was ahead counts when the clock has caught up")
	}
	r.exec(`update onlyonce.frontiers set run = 0, frontier = clock_timestamp()`)
	kept("returns, partition 0")
	r.exec(`insert into onlyonce.frontiers (cursor_id, run, frontier)
	  select $1, 0, closed_at from onlyonce.segments where ring = 'consumer_keys' and slot = 0`, returns)
	kept("at what was appended until")
	r.exec(`update onlyonce.frontiers set run = 1, frontier = clock_timestamp() where cursor_id = $1`, returns)
	// Said of another run.
	kept("returns, partition 0")
	// Less than a horizon ago, however short that is.
	r.exec(`update onlyonce.cursors set retired_at = now() + interval '1 hour' where id = $1`, returns)
	// It may be moved to another database, with its keys.
	kept("returns, partition 0")
	r.exec(`update onlyonce.cursors set retired_at = now() - interval '1 hour' where id = $1`, returns)
	r.until(r.rotator, ring.Retired)
	r.until(r.rotator, ring.Truncated)
	r.is(r.pool, "claim_consumer", a, 0)
}

// K6: frontiers that were noted while the clock was ahead are void, although the clock, which went
// back, halts everything else.
func TestK6FrontierOfAHaltedRing(t *testing.T) {
	r := newKeyRig(t, ring.ConsumerKeys())
	r.exec(`with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id),
	  c as (insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy)
	  select id, 'stock', 'orders', 0, 0, 0, 'earliest' from l returning id)
	  insert into onlyonce.frontiers (cursor_id, run, frontier) select id, 0, clock_timestamp() + interval '1 hour' from c`)
	r.exec(`update onlyonce.segments set opened_at = clock_timestamp() + interval '1 hour' where ring = 'consumer_keys' and slot = 0`)
	if _, err := r.rotator.Step(t.Context()); !errors.Is(err, ring.ErrClock) {
		t.Fatalf("%v, want that the clock went back", err)
	}
	if run := one[int32](r.rig, `select run from onlyonce.frontiers`); run != -1 {
		t.Error("it counts when the clock has caught up")
	}
}

// K6: the key of a call that is still to be sent outlives its segment, also if no relay has listed
// its sink, if its batch is half done, and over several turns of the ring. It is forgotten with the
// first turn after the call was sent. Another key is forgotten as ever.
func TestK6KeysOfCallsToBeSent(t *testing.T) {
	r := newKeyRig(t, ring.StandardKeys())
	r.sink("payments")
	keys := make([]uuid.UUID, 3)
	names := []string{"a", "b", "c"}
	for i := range keys {
		keys[i] = uuid.New()
	}
	r.exec(
		`select onlyonce.enqueue_batch(null, '{2,2,2}', '{7,7,7}', 3::smallint, 'payments', $1, null, null, null, null, '', null, 's',
			null, null, $2, 'POST', null, '/', null,
	  '', null, null, null, null, $3, null, null, null, null, null, null)`,
		keys,
		names,
		[][]byte{{'x'}, {'x'}, {'x'}},
	)
	unlisted := uuid.New()
	r.exec(`select onlyonce.enqueue($1, '', 's', 'mail', 'n', 'POST', '/', '{}', '{}', '')`, unlisted)
	print := one[int64](r.rig, `select fingerprint from onlyonce.inbox where key = $1`, unlisted)
	count := func(key uuid.UUID) int {
		return one[int](r.rig, `select count(*) from onlyonce.inbox where key = $1`, key)
	}
	// turn rotates until a key that is claimed now is forgotten, and so all that is older.
	turn := func() {
		t.Helper()
		key := uuid.New()
		r.is(r.pool, "claim", key, 0)
		pgtest.Until(t, patience, "the key is forgotten", func() bool {
			r.step(r.rotator)
			return count(key) == 0
		})
	}
	for range 3 {
		turn()
	}
	for _, key := range append(slices.Clone(keys), unlisted) {
		if count(key) == 0 {
			t.Fatal("the key of a call that is to be sent is forgotten")
		}
	}
	if got := one[int64](r.rig, `select min(fingerprint) from onlyonce.inbox where key = $1`, unlisted); got != print {
		t.Error("the fingerprint is another one")
	}

	// A relay has sent two of the batch's calls.
	r.exec(`select onlyonce.advance(id, version, 0, true, false) from onlyonce.lanes where sink = 'payments' and lane = 3`)
	r.exec(`select onlyonce.advance(l.id, l.version, b.id + 1, false, false) from onlyonce.lanes l, onlyonce.batches b
		where l.sink = 'payments' and l.lane = 3 and b.sink = l.sink`)
	turn()
	for i, key := range keys {
		if n := count(key); (n == 0) != (i < 2) {
			t.Errorf("the key of call %s is in %d segments", names[i], n)
		}
	}
	r.done()
	turn()
	if count(keys[2]) != 0 {
		t.Error("the key of a call that was sent is kept for ever")
	}
}

// enqueueMany writes batches of 1,000 calls each to two lanes of a sink.
func (r *rig) enqueueMany(sink string, batches int) {
	r.t.Helper()
	r.exec(`
		select count(onlyonce.enqueue_batch(null, array_fill(2::smallint, array[1000]), array_fill(7::bigint, array[1000]),
		(b % 2 * 15)::smallint, $1,
		         k.keys, null, null, null, null, '', null, 's', null, 'n', null, 'POST', null, '/', null, '', null, null, null, null,
		         array_fill(''::bytea, array[1000]),
		         null, null, null, null, null, null))
		  from generate_series(1, $2) b
		 cross join lateral (select array_agg(gen_random_uuid()) as keys from generate_series(1, 1000) where b > 0) k`, sink, batches)
}

// callsWithKeys counts the calls of the log whose keys are remembered.
func (r *rig) callsWithKeys() int {
	r.t.Helper()
	return one[int](r, `select count(distinct i.key) from onlyonce.inbox i join onlyonce.outbox_log l on l.key = i.key`)
}

// K6: however many calls are to be sent, a step reads a bounded portion of them, also if the ring
// turns on in between, and no key is forgotten.
func TestK6KeysAreCarriedInPortions(t *testing.T) {
	r := newKeyRig(t, ring.StandardKeys())
	r.sink("payments")
	r.enqueueMany("mail", 15)
	r.enqueueMany("payments", 15)
	const calls, most = 30 * 1000, 10_000 + 1023
	if n := r.callsWithKeys(); n != calls {
		t.Fatalf("%d keys are claimed", n)
	}
	last := uuid.New()
	r.is(r.pool, "claim", last, 0)
	carried := 0
	pgtest.Until(t, patience, "the key is forgotten", func() bool {
		before := one[int](r.rig, `select count(*) from onlyonce.inbox`)
		out := r.step(r.rotator)
		if n := one[int](r.rig, `select count(*) from onlyonce.inbox`) - before; n > most {
			t.Fatalf("a step has written %d keys", n)
		}
		if out.Action == ring.Carried {
			carried++
		}
		return r.segments(last) == ""
	})
	if carried < 2 {
		t.Errorf("%d steps have carried keys over", carried)
	}
	if n := r.callsWithKeys(); n != calls {
		t.Errorf("%d of %d keys are left", n, calls)
	}
}

// K6: on a server that started meanwhile the carry-over begins anew, because one that was promoted
// may lack what was carried.
func TestK6CarryBeginsAnewOnAnotherServer(t *testing.T) {
	p, err := devenv.StartPostgres(t.Context(), devenv.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Stop() })
	r := &keyRig{rig: &rig{t: t, pool: pgtest.Pool(t, p.URL)}}
	if err := r.pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		_, err := migrations.Apply(t.Context(), c.Conn())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.exec(`update onlyonce.rings set horizon = '1 millisecond' where name = 'standard_keys'`)
	r.rotator = r.keyRotator(ring.StandardKeys())
	r.enqueueMany("mail", 15)
	last := uuid.New()
	r.is(r.pool, "claim", last, 0)
	r.reach(r.rotator, ring.Carried)
	if n := one[int64](
		r.rig,
		`with lost as (delete from onlyonce_segments.standard_keys_1 returning 1) select count(*) from lost`,
	); n < 10_000 {
		t.Fatalf("%d keys were carried", n)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Until(t, patience, "the key is forgotten", func() bool {
		_, _ = r.Step(t.Context()) // fails while connections of the old server are closed
		n, err := r.remembered(last)
		return err == nil && n == 0
	})
	if n := r.callsWithKeys(); n != 15_000 {
		t.Errorf("%d of 15000 keys are left", n)
	}
}

// remembered counts the segments that hold a key.
func (r *rig) remembered(key uuid.UUID) (n int, err error) {
	err = r.pool.QueryRow(r.t.Context(), `select count(*) from onlyonce.inbox where key = $1`, key).Scan(&n)
	return n, err
}

// Without a horizon nothing is rotated.
func TestK6NoHorizon(t *testing.T) {
	r := newKeyRig(t, ring.StandardKeys())
	r.exec(`update onlyonce.rings set horizon = null where name = 'standard_keys'`)
	r.is(r.pool, "claim", uuid.New(), 0)
	for range 3 {
		if out := r.step(r.rotator); out.Action != ring.Idle {
			t.Fatalf("%+v", out)
		}
	}
}

// K6, T11: by a clock that is ahead no key is forgotten: not by a rotator that ran when it jumped,
// and not by one that is started after that. When the horizon has passed by watched time too, it
// is.
func TestK6ClockJumps(t *testing.T) {
	r := newKeyRig(t, ring.StandardKeys())
	r.exec(`update onlyonce.rings set horizon = '7 hours' where name = 'standard_keys'`)
	r.exec(`update onlyonce.watched set at = clock_timestamp()`)
	clock := pgtest.ShiftClock(t, r.pool)
	key := uuid.New()
	r.is(r.pool, "claim", key, 0)
	r.until(r.rotator, ring.Announced)
	r.until(r.rotator, ring.Closed)
	stays := func() {
		t.Helper()
		for _, x := range []*rotator{r.rotator, r.keyRotator(ring.StandardKeys())} {
			if out := r.step(x); out.Action != ring.Idle {
				t.Fatalf("%+v", out)
			}
			if err := x.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		r.is(r.pool, "claim", key, 1)
	}
	clock("8 hours")
	stays()
	r.exec(`update onlyonce.watched set at = at + interval '6 hours'`)
	stays()
	r.exec(`update onlyonce.watched set at = at + interval '2 hours'`)
	r.until(r.rotator, ring.Retired)
	r.until(r.rotator, ring.Truncated)
	r.is(r.pool, "claim", key, 0)
}

// K6: the horizon is made longer while a segment is being retired. The longer one holds.
func TestK6HorizonThatGrowsMeanwhile(t *testing.T) {
	r := newKeyRig(t, ring.StandardKeys())
	r.rotator = r.keyRotator(ring.StandardKeys(), func(c *ring.Config) { c.LockTimeout = patience })
	key := uuid.New()
	r.is(r.pool, "claim", key, 0)
	r.until(r.rotator, ring.Announced)
	r.until(r.rotator, ring.Closed)
	longer := r.begin(pgx.ReadCommitted)
	if _, err := longer.Exec(t.Context(), `update onlyonce.rings set horizon = '7 days' where name = 'standard_keys'`); err != nil {
		t.Fatal(err)
	}
	stepped := make(chan error, 1)
	go func() {
		out, err := r.Step(t.Context())
		if err == nil {
			err = fmt.Errorf("%+v", out)
		}
		stepped <- err
	}()
	pgtest.Until(t, patience, "the rotator waits for the row", func() bool {
		if len(stepped) > 0 {
			t.Fatal(<-stepped)
		}
		return one[bool](
			r.rig,
			`select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`,
		)
	})
	r.commit(longer)
	if err := pgtest.Receive(t, patience, "the step ends", stepped); !errors.Is(err, ring.ErrMoved) {
		t.Errorf("%v", err)
	}
	r.until(r.rotator, ring.Repaired) // the sequence was advanced
	for range 3 {
		if out := r.step(r.rotator); out.Action != ring.Idle {
			t.Errorf("%+v", out)
		}
	}
	r.is(r.pool, "claim", key, 1)
}
