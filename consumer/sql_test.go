package consumer

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Every statement is one that the real server understands.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		readCursorSQL,
		takeCursorSQL,
		releaseCursorSQL,
		countAttemptSQL,
		takeBackSQL,
		forgetAttemptsSQL,
		fenceSQL,
		indexCallsSQL,
		openTransactionsSQL,
		pruneSQL,
		claimSQL[ring.Standard],
		claimSQL[ring.Short],
		claimSQL[ring.Long],
		claimFreshSQL[ring.Standard],
		claimFreshSQL[ring.Short],
		claimFreshSQL[ring.Long],
		claimBothSQL,
		pollSQL,
		deleteOwnerSQL,
		takeParkedSQL,
		settleParkedSQL,
		failParkedSQL,
		failParkedInTxSQL,
		promoteAllSQL,
		endReplaySQL,
		endReplayHeldSQL,
		resumeDoneSQL,
		fenceSlotSQL,
		stillDoneSQL,
		sweepSQL,
		pruneDoneSQL,
		readDoneSQL,
		refuseBlockedSQL,
		blockedSQL,
		unsettledSQL,
		firstPartitionsSQL,
		parkedCountSQL,
		otherShardSQL,
		readScopeSQL,
		makeScopeSQL,
		joinScopeSQL,
	} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// settleSQL is how onlyonce.settle settles a row.
const settleSQL = `update onlyonce.parked p set state = 'resolved' where p.id = $1 and p.state = 'retrying' and p.attempts = $2`

// T13: what is done for each parked row finds it by an index, even in a session that planned the
// statement while nothing was parked.
func TestT13PlansOfAnEmptyTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for sql, args := range map[string]string{
		takeParkedSQL: `1, 1, gen_random_uuid(), 'stock', 'orders', 0, 1, 1`,
		failParkedSQL: `1, 1, gen_random_uuid(), 1, 'retrying', 'failed', '', 0, 1, 1, 1`,
		settleSQL:     `1, 1`,
	} {
		if plan := pgtest.GenericPlan(t, pool, sql, args); pgtest.ReadsAll(plan, "parked") {
			t.Errorf("%s\n%s", sql, plan)
		}
	}
}

// K6: no frontier is noted that lies ahead of the clock: it was asked for before that went back.
func TestK6FrontierAheadOfTheClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var id, epoch int64
	nonce := newNonce()
	err := pool.QueryRow(t.Context(), `
with l as (insert into onlyonce.leases (name, epoch, nonce) values ('cursor/stock/orders/0', 7, $1) returning id, epoch)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  run_start,
  start_policy
)
  select id,
         'stock',
         'orders',
         0,
         0,
         0,
         'earliest'
    from l
returning id, (select epoch from l)`, nonce).Scan(&id, &epoch)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(pool, noSource{}, HandlerFunc(func(context.Context, Tx, *Message) error { return nil }), Config{
		Scope:         "stock",
		PositionsOnly: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	member := &polledPartition{
		id:    source.Identity{TopicPartition: source.TopicPartition{Topic: "orders"}},
		cur:   &cursor{id: id, epoch: epoch, nonce: nonce},
		state: &partitionState{},
	}
	for _, frontier := range []struct {
		ahead time.Duration
		noted bool
	}{{-time.Hour, true}, {time.Hour, false}} {
		at := time.Now().Add(frontier.ahead)
		member.setFrontier(&at)
		answers, err := c.poller.query(t.Context(), []*polledPartition{member}, nil)
		if err != nil || answers[0].frontierRecorded != frontier.noted {
			t.Errorf("%v ahead of the clock: %+v, %v", frontier.ahead, answers, err)
		}
	}
}

// F1: the newest of a cursor's rows of progress is never deleted. If the row that is to stay is
// missing, nothing is deleted: a failover may have lost it (T4).
func TestF1PruningKeepsTheNewestRow(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for _, c := range []struct {
		name      string
		run, last int // below which the rows go
		most      int
		deleted   int
		left      string
	}{
		{"older ones", 1, 20, 100, 4, "1:20 1:30"},
		{"the newest stays", 1, 30, 100, 5, "1:30"},
		{"between two", 1, 25, 100, 5, "1:30"},
		{"lost in a failover", 1, 40, 100, 0, "0:0 0:50 1:0 1:10 1:20 1:30"},
		{"of another run", 2, 0, 100, 0, "0:0 0:50 1:0 1:10 1:20 1:30"},
		{"some at a time", 1, 30, 3, 3, "1:10 1:20 1:30"},
	} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `
insert into onlyonce.progress (cursor_id, run, from_offset, next_offset)
select 7, r, o, o + 10
  from (values (0, 0), (0, 50), (1, 0), (1, 10), (1, 20), (1, 30)) v(r, o) union all select 8, 0, 0, 10`); err != nil {
			t.Fatal(err)
		}
		var n, run, last, other int
		var left string
		if err := tx.QueryRow(t.Context(), pruneSQL, 7, 0, int64(math.MinInt64), c.run, c.last, c.most).Scan(&n, &run, &last); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), `
select string_agg(run || ':' || from_offset, ' ' order by run, from_offset) filter (where cursor_id = 7),
       count(*) filter (where cursor_id = 8)
  from onlyonce.progress`).Scan(
			&left,
			&other,
		); err != nil {
			t.Fatal(err)
		}
		if n != c.deleted || left != c.left || other != 1 {
			t.Errorf("%s: deleted %d, want %d; left %s, want %s; of another cursor %d", c.name, n, c.deleted, left, c.left, other)
		}
		if c.name == "some at a time" && (run != 1 || last != 0) {
			t.Errorf("the last one deleted is %d:%d, want 1:0", run, last)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// K6: only a fetch that began after the clock was read shows where the log ended at that time. An
// earlier fetch knows nothing of records that were appended in between.
func TestK6FrontierWantsALaterFetch(t *testing.T) {
	t.Parallel()
	r := &retrier{polled: &polledPartition{}}
	r.c = &Consumer{}
	r.state = &partitionState{}
	now := time.Now()
	answer := func(step string, want bool) {
		t.Helper()
		now = now.Add(time.Second)
		r.sampleFrontier(pollAnswer{clock: now, arrived: now})
		if got := r.polled.frontier != nil; got != want {
			t.Errorf("%s: frontier %v, want one: %t", step, r.polled.frontier, want)
		}
	}
	r.state.position.Store(5)
	early := now
	r.state.fetchReturned(logEnd{began: early, end: 5}, 5)
	answer("the clock is known", false)
	sampled := now
	answer("the fetch before is here", false)
	r.state.fetchReturned(logEnd{began: early, end: 5}, 5)
	answer("a fetch that began before comes back", false)
	r.state.fetchReturned(logEnd{began: now, end: 7}, 7) // two were appended in between
	answer("a later fetch shows what is still to be handled", false)
	r.state.position.Store(6)
	answer("one of two is handled", false)
	r.state.position.Store(7)
	answer("all is handled", true)
	if f := r.polled.frontier; f != nil && !f.Equal(sampled) {
		t.Errorf("the frontier is %v, want %v: when the clock was looked at", f, sampled)
	}
	now = now.Add(-time.Hour)
	answer("the clock went back before it was noted", false)
	answer("a sample of the clock as it is now", false)
	r.state.fetchReturned(logEnd{began: now, end: 7}, 7)
	r.state.fetchReturned(logEnd{began: now.Add(time.Millisecond), end: 7}, 7)
	answer("and what a later fetch shows is handled", true)
}

type noSource struct{ Source }

// C5: a failover has set the position back since the owner noted what to prune. Nothing at or above
// the position is deleted.
func TestC5PruningKeepsWhatIsAhead(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var id int64
	nonce := newNonce()
	err := pool.QueryRow(t.Context(), `
with l as (insert into onlyonce.leases (name, epoch, nonce) values ('cursor/stock/orders/0', 7, $1) returning id),
c as (insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  run_start,
  start_policy
)
  select id,
         'stock',
         'orders',
         0,
         10,
         10,
         'earliest'
    from l returning id),
d as (insert into onlyonce.done (
  cursor_id,
  "offset",
  hash,
  run,
  last
)
  select id,
         o,
         0,
         0,
         false
    from l, generate_series(5, 14) o)
select id from c`, nonce).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ below, left int64 }{{12, 10}, {10, 5}} {
		if _, err := pool.Exec(
			t.Context(),
			pruneDoneSQL,
			id,
			int64(7),
			nonce,
			int32(0),
			int64(math.MinInt64),
			int32(0),
			x.below,
			100,
		); err != nil {
			t.Fatal(err)
		}
		var left int64
		if err := pool.QueryRow(t.Context(), `select count(*) from onlyonce.done`).Scan(&left); err != nil || left != x.left {
			t.Errorf("below %d: %d rows are left, want %d, %v", x.below, left, x.left, err)
		}
	}
}
