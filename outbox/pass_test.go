package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// many are calls of one ordering key, so of one lane.
func many(from, to int) (all []outbox.Call) {
	for i := from; i < to; i++ {
		c := charge(fmt.Sprint(i))
		c.OrderingKey = "one"
		all = append(all, c)
	}
	return all
}

func (r *rig) enqueueAll(calls ...outbox.Call) {
	r.t.Helper()
	if err := pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
		return outbox.EnqueueAll(context.Background(), tx, calls...)
	}); err != nil {
		r.t.Fatal(err)
	}
}

// O2: a transaction took a lower id and commits after higher ones were sent: a cursor on ids would
// skip it. It is in the same lane, and a pass begins while it is open.
func TestO2LateCommitWithALowerId(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	low := charge("low id")
	long, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback(context.Background())
	if err := outbox.Enqueue(t.Context(), long, low); err != nil {
		t.Fatal(err)
	}
	if err := ownLanes(long); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		high := charge("high id")
		high.ID = r.sameLane(low, fmt.Sprint(i))
		r.enqueue(high)
	}
	r.states("delivered")
	if n := len(sink.calls()); n != 20 {
		t.Fatalf("%d calls, want 20", n)
	}
	if err := long.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the late one is sent", func() bool { return len(sink.calls()) == 21 })
	if got := sink.calls()[20]; string(got.Body) != `{"order":"low id"}` || got.ID != one[int64](r, `select min(id) from onlyonce.calls`) {
		t.Errorf("sent %s, row %d", got.Body, got.ID)
	}
	r.states("delivered")
}

// O2: many transactions are open at once in one lane, in an order of their own: each row is sent
// once.
func TestO2CommitsInAnyOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	first := charge("0")
	var open []pgx.Tx
	conns := r.namedPool("writers")
	for round := range 30 {
		tx, err := conns.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := charge("0")
		c.ID = r.sameLane(first, fmt.Sprint(round))
		if err := outbox.Enqueue(t.Context(), tx, c); err != nil {
			t.Fatal(err)
		}
		if err := ownLanes(tx); err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
		if len(open) == 3 { // the last one first, then the first: the one in between stays
			for _, i := range []int{2, 0} {
				if err := open[i].Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				open = slices.Delete(open, i, i+1)
			}
			r.states("delivered")
		}
	}
	for _, tx := range open {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all are sent", func() bool { return len(sink.calls()) >= 30 })
	r.states("delivered")
	seen := map[int64]int{}
	for _, d := range sink.calls() {
		seen[d.ID]++
	}
	if len(seen) != 30 || len(sink.calls()) != 30 {
		t.Errorf("%d calls of %d rows, want 30", len(sink.calls()), len(seen))
	}
}

// O2: passes of every kind of length (in one bite; by chunks of 1,024 rows) are sent whole, once
// each, and in the order of ids within a key.
func TestO2LongPasses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{63, 64, 65, 1088, 2500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := newRig(t)
			r.enqueueAll(many(0, n)...)
			sink := newScripted(accept)
			r.start(testConfig(sink))
			r.states("delivered")
			inOrder(t, sink.calls(), n, false)
			// Once more, now that the lanes have seen how little comes: the first rows are read
			// whole.
			r.enqueueAll(many(n, n+1)...)
			r.states("delivered")
			r.enqueueAll(many(n+1, 2*n+1)...)
			r.states("delivered")
			inOrder(t, sink.calls(), 2*n+1, false)
		})
	}
}

// O4: a pass has more batches than one statement reads places of, and the last ones that it reads
// have the lowest ids: their transaction began later. They are sent first, whether the pass begins
// with its first batches or with the list of its places.
func TestO4PassOfManyPortions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := 0
	insert := func(rows, firstID int) pgx.Tx {
		tx, err := r.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(
			t.Context(),
			`insert into onlyonce.batches (
  slot,
  lane,
  n,
  id,
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
   select (select cur from onlyonce.rings where name = 'outbox'),
          3,
          1,
          $2::bigint + i,
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
     from generate_series(1, $1::int) i`,
			rows,
			firstID,
		)
		if err != nil {
			t.Fatal(err)
		}
		n += rows
		return tx
	}
	commit := func(all ...pgx.Tx) {
		for _, tx := range all {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The one that began later commits first: no pass has the other one alone.
	burst := func() {
		first := one[int](r, `select setval('onlyonce.outbox_id', nextval('onlyonce.outbox_id') + 20000)`) - 20000
		many := insert(9000, first+1000)
		commit(insert(100, first), many)
	}
	g := r.gate()
	var alone atomic.Int64
	sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
		if alone.CompareAndSwap(a.ID, 0) {
			g.pass(a)
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	// On a busy machine a call takes longer than its chunk waits. Then it and the later ones of its
	// key are parked, and are sent one by one.
	delivered := func() {
		t.Helper()
		for left := n + 1; left > 0; {
			until(t, fmt.Sprintf("fewer than %d calls are left", left), func() bool {
				now := one[int](r, `select count(*) from onlyonce.calls where state <> 'delivered'`)
				fewer := now < left
				left = min(left, now)
				return fewer
			})
		}
		inOrder(t, sink.calls(), n, true)
	}
	burst()
	r.start(testConfig(sink))
	delivered()
	// A pass of one, during which the next burst commits: that pass begins with its first batches.
	alone.Store(int64(one[int](r, `select nextval('onlyonce.outbox_id')`)) + 1)
	commit(insert(1, int(alone.Load())-1))
	g.wait()
	burst()
	g.release()
	delivered()
}

// inOrder fails unless n rows were sent in the order of ids; again allows calls that are made
// again, in the order of ids too.
func inOrder(t *testing.T, calls []outbox.Attempt, n int, again bool) {
	t.Helper()
	var ids []int64
	for _, d := range calls {
		if !slices.Contains(ids, d.ID) {
			ids = append(ids, d.ID)
		}
	}
	if len(ids) != n || !again && len(calls) != n {
		t.Errorf("%d calls of %d rows, want %d", len(calls), len(ids), n)
	}
	for i := 1; i < len(ids); i++ {
		if ids[i] < ids[i-1] {
			t.Fatalf("not in the order of ids: at %d of %d: %d", i, len(ids), ids[max(i-5, 0):min(i+5, len(ids))])
		}
	}
}

// O2: a relay dies when it has settled part of a pass. The next one sends the rest of that pass, by
// its frozen bounds, and then what committed meanwhile, with lower ids too.
func TestO2RelayDiesWithinAPass(t *testing.T) {
	t.Parallel()
	// In the first bite, in the first chunk, in the second one.
	for _, at := range []int{10, 100, 1500} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			r := newRig(t)
			const n = 1600
			low := charge("low id")
			long, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer long.Rollback(context.Background())
			if err := outbox.Enqueue(t.Context(), long, low); err != nil {
				t.Fatal(err)
			}
			r.enqueueAll(many(0, n)...)
			lane := one[int](r, `select lane from onlyonce.calls limit 1`)
			g := r.gate()
			var calls int
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				if strings.Contains(string(a.Body), "low id") { // in a lane of its own
					return outbox.Result{Outcome: outbox.Delivered}
				}
				if calls++; calls == at { // one at a time: they are of one key
					g.pass(a)
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			x := r.start(testConfig(sink))
			g.wait()
			r.seize(lane)
			r.enqueueAll(many(n, n+10)...)
			if err := long.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			g.release()
			x.stop()
			r.giveBack()
			// Of the relay that died.
			r.exec(`update onlyonce.parked set next_attempt_at = clock_timestamp() where state = 'retrying'`)
			next := newScripted(accept)
			r.start(testConfig(next))
			r.states("delivered")
			var all []outbox.Attempt
			for _, d := range append(sink.calls(), next.calls()...) {
				if !strings.Contains(string(d.Body), "low id") {
					all = append(all, d)
				}
			}
			inOrder(t, all, n+10, true)
			if len(all) > n+10+1024 {
				t.Errorf("%d calls: more than a chunk was made again", len(all))
			}
			sent := 0
			for _, d := range append(sink.calls(), next.calls()...) {
				if strings.Contains(string(d.Body), "low id") {
					sent++
				}
			}
			if sent == 0 {
				t.Error("the row with the low id was not sent")
			}
		})
	}
}

// O2: if a row of the pass is missing when its chunk is fetched, or another one is in its place,
// the relay ends: it is unknown whether the row was sent.
func TestO2MissingRowEndsTheRelay(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"gone":        `delete from onlyonce.batches where id = (select max(id) from onlyonce.batches)`,
		"another one": `update onlyonce.batches set id = id + 1024000 where id = (select max(id) from onlyonce.batches)`,
		"same place": `create temp table kept as select * from onlyonce.batches;
			update kept set id = id + 1024000;
			truncate onlyonce.batches;
			insert into onlyonce.batches select * from kept order by id`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.enqueueAll(many(0, 1200)...)
			g := r.gate()
			sink := newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
				// In the first chunk after the bite: the ids of all chunks are known by now.
				if string(a.Body) == `{"order":"70"}` {
					g.pass(a)
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			t.Cleanup(g.release)
			relay := r.relay(testConfig(sink))
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			go func() { ended <- relay.Run(ctx) }()
			g.wait()
			r.exec(sql)
			g.release()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "rows of the log that were not sent are gone") {
				t.Errorf("%v, want the rows that are gone", err)
			}
			if n := len(sink.calls()); n >= 1200 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// O3: the cursor's numbers mean nothing in another cluster. The lanes halt: no call is made, even
// of a pass that was begun before, and Healthy names the command. Other sinks go on, and so do the
// lanes once they are rebased. (A relay that runs has lost its connections by then, and looks
// again.)
func TestO3AnotherCluster(t *testing.T) {
	t.Parallel()
	const ofPayments = ` from onlyonce.sink_lanes l where l.id = c.id and l.sink = 'payments'`
	for name, sql := range map[string]string{
		"restored into another cluster": `update onlyonce.lane_cursors c set system_id = system_id + 1` + ofPayments,
		"target of a larger cluster": `
update onlyonce.lane_cursors c
   set target = (pg_snapshot_xmin(target)::text || ':999999999999:')::pg_snapshot` + ofPayments,
		"prev of a larger cluster": `
update onlyonce.lane_cursors c set target = null, prev = '999999999998:999999999999:'` + ofPayments,
		"rows of a larger cluster": `update onlyonce.batches set xid = '999999999999'`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			sink := newScripted(accept)
			mail := newScripted(accept)
			mail.name = "mail"
			r.enqueue(charge("1"))
			x := r.start(testConfig(sink))
			r.states("delivered")
			x.stop()
			r.exec(sql)
			again := charge("1")
			again.ID = r.sameLane(again, "2")
			letter := charge("letter")
			letter.Sink = "mail"
			r.enqueue(again)
			r.enqueue(letter)
			relay := r.relay(testConfig(sink, mail))
			r.run(relay)
			until(t, "the other sink's call is made", func() bool { return len(mail.calls()) == 1 })
			until(t, "the lane has halted", func() bool { return relay.Healthy() != nil })
			err := relay.Healthy()
			if !errors.Is(err, outbox.ErrRebase) ||
				!strings.Contains(err.Error(), "onlyonce outbox rebase") ||
				!strings.Contains(err.Error(), "of sink payments") {
				t.Errorf("%v, want ErrRebase that names the command", err)
			}
			if n := len(sink.calls()); n != 1 {
				t.Errorf("%d calls", n)
			}
			if _, err := ops.Rebase(
				t.Context(),
				r.pool,
				ops.By{Reason: "restored"},
				ops.RebaseInput{Sink: "payments", Force: true},
			); err != nil {
				t.Fatal(err)
			}
			until(t, "the lanes are well", func() bool { return relay.Healthy() == nil })
			last := charge("3")
			last.ID = r.sameLane(again, "3")
			r.enqueue(last)
			until(t, "the lanes go on", func() bool {
				return slices.ContainsFunc(sink.calls(), func(d outbox.Attempt) bool { return string(d.Body) == string(last.Body) })
			})
		})
	}
}

// O3: after pg_upgrade the cluster is another one, and transaction ids go on: the row of a cursor
// names the transaction that wrote it here. Nothing halts, and no call is sent again. History may
// be lost, because who upgrades may do so from a copy.
func TestO3TransactionIDsGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.enqueue(charge("1"))
	x := r.start(testConfig(sink))
	r.states("delivered")
	x.stop()
	r.exec(`
update onlyonce.lane_cursors
   set system_id = system_id + 1,
       server = null,
       history_at = null,
       written = pg_current_xact_id(),
       timeline = replace(timeline, system_id::text, (system_id + 1)::text)`)
	r.enqueue(charge("2"))
	relay := r.relay(testConfig(sink))
	r.run(relay)
	r.states("delivered", "delivered")
	if n := len(sink.calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
	if err := relay.Healthy(); err != nil {
		t.Error(err)
	}
	const moved = `
select count(*)
  from onlyonce.lanes l, pg_control_system() c where l.system_id = c.system_identifier and l.history_at is not null`
	if one[int](r, moved) == 0 {
		t.Error("the cursor that was moved is not of this cluster, or has the history of the other")
	}
}

// O3: a row of a transaction that this server has not begun is in no pass, so it wakes no lane.
// Otherwise the lane's cursor would be moved at each poll, for ever.
func TestO3RowAheadOfTheServerWakesNoLane(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.start(testConfig(newScripted(accept)))
	r.enqueue(charge("1"))
	r.states("delivered")
	x.stop()
	woken := func() (lanes []int16) {
		t.Helper()
		rows, err := r.pool.Query(t.Context(), `with m as (select array_agg(l.lane order by l.lane) lanes,
			array_agg(l.version order by l.lane) versions
                                                             from onlyonce.lanes l)
   select w.lane from m, lateral (`+strings.NewReplacer("$1",
			"'payments'", "$2::smallint[]", "m.lanes", "$3", "false", "$4::bigint[]", "m.versions").Replace(
			outbox.Statements["poll work"],
		)+`) w`)
		if err != nil {
			t.Fatal(err)
		}
		if lanes, err = pgx.CollectRows(rows, pgx.RowTo[int16]); err != nil {
			t.Fatal(err)
		}
		return lanes
	}
	const insert = `insert into onlyonce.batches (
  slot,
  lane,
  n,
  bytes,
  xid,
  sink,
  keys,
  tenant,
  scope,
  name,
  method,
  target,
  header,
  body
)
  select cur,
         3,
         1,
         1,
         %s,
         'payments',
         array[gen_random_uuid()],
         '',
         's',
         'n',
         'POST',
         '/x',
         '',
         'x'
    from onlyonce.rings where name = 'outbox'`
	r.exec(fmt.Sprintf(insert, `'999999999999'`))
	if got := woken(); len(got) != 0 {
		t.Errorf("lanes %v are woken", got)
	}
	r.exec(fmt.Sprintf(insert, `pg_current_xact_id()`))
	if got := woken(); len(got) != 1 || got[0] != 3 {
		t.Errorf("lanes %v are woken, want lane 3 for a row of this server's", got)
	}
}

// O3: a relay keeps no snapshot across its sessions: it uses the row's when a pass begins.
func TestO3PrevIsReadInTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sink := newScripted(accept)
	r.start(testConfig(sink))
	r.enqueue(charge("1"))
	r.states("delivered")
	// As after `outbox rebase`: everything is new again.
	r.exec(`update onlyonce.lane_cursors set target = null, prev = '1:1:', version = version + 1`)
	second := charge("2")
	second.ID = r.sameLane(charge("1"), "2")
	r.enqueue(second)
	until(t, "both are sent", func() bool { return len(sink.calls()) >= 3 })
	r.states("delivered")
	sent := strings.Fields(sink.bodies())
	slices.Sort(sent)
	if got := strings.Join(sent, " "); got != "1 1 2" {
		t.Errorf("sent %s", got)
	}
}

// O3: calls are made only once their batch is flushed, although no session waits for its commits: a
// crash of the server would lose the batch.
func TestO3PassIsFlushed(t *testing.T) {
	t.Parallel()
	// A server of its own: elsewhere another test's COMMIT flushes what this one has not flushed.
	r := &rig{
		t: t,
		pool: pgtest.Pool(
			t,
			pgtest.Server(t, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"}),
		),
	}
	var position atomic.Int64 // in the WAL, after the batch
	sink := newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if !one[bool](r, `select pg_current_wal_flush_lsn() - '0/0' >= $1`, position.Load()) {
			t.Error("a call was made of a transaction that a crash would lose")
		}
		return outbox.Result{Outcome: outbox.Delivered}
	})
	r.start(testConfig(sink))
	r.lanesHeld()
	for i := range 20 { // the server itself flushes now and then
		err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			if err := outbox.Enqueue(t.Context(), tx, charge(fmt.Sprint(i))); err != nil {
				return err
			}
			var at int64
			err := tx.QueryRow(t.Context(), `select (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&at)
			position.Store(at)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r.states("delivered")
	}
}

// A chunk does not wait for calls that take long. Those that have returned are told of meanwhile,
// and the others, each of them, when they return.
func TestChunkThatLeavesCallsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := charge("slow-0")
	other := charge(r.sameLane(slow, "slow-1"))
	quick := charge(r.sameLane(slow, "quick"))
	g := r.gate()
	r.enqueue(slow, other, quick)
	r.start(testConfig(newScripted(func(ctx context.Context, a *outbox.Attempt) outbox.Result {
		if strings.HasPrefix(order(a), "slow") {
			return g.accept(ctx, a)
		}
		return accept(ctx, a)
	})))
	r.told(1)
	g.release()
	r.states("delivered")
	r.told(3)
}

// O2: the remote asks for a pause with the last call of a chunk. What the pass holds after the
// chunk is read when the pause is over.
func TestO2ChunkThatEndsWhileItsSinkIsHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := charge("0")
	for i := range 12 { // of 1 MiB, of which a chunk has four
		c := charge("0")
		c.ID = r.sameLane(first, fmt.Sprint(i))
		c.Body = make([]byte, outbox.MaxBody)
		r.enqueue(c)
	}
	var made atomic.Int32
	cfg := testConfig(newScripted(func(context.Context, *outbox.Attempt) outbox.Result {
		if made.Add(1) == 4 {
			return outbox.Result{Outcome: outbox.Retry, Reason: "not now", RetryAfter: 300 * time.Millisecond, RetryScope: outbox.RetrySink}
		}
		return outbox.Result{Outcome: outbox.Delivered}
	}))
	cfg.Concurrency = 1
	r.start(cfg)
	until(t, "each call is made", func() bool { return made.Load() == 13 })
	r.states("delivered")
}
