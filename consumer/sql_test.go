package consumer

import (
	"math"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
)

// Every statement is one that the real server understands.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.DB(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{readCursorSQL, createCursorSQL, ownCursorSQL, releaseCursorSQL, countAttemptSQL, takeBackSQL,
		fenceSQL, openSQL, pruneSQL, claimSQL, claimFreshSQL, parkSQL, tendSQL, takeSQL, settleSQL, failSQL, promoteSQL, sweepSQL,
		endReplaySQL, endReplayHeldSQL, passSQL, blockedSQL, parkedSQL, pauseSQL, resumeSQL, pausedSQL, firstPartitionsSQL, parkedCountSQL, frontierSQL, redoSQL, elsewhereSQL, readScopeSQL, makeScopeSQL, joinScopeSQL} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// K6: no frontier is noted that lies ahead of the clock: it was asked for before that went back.
func TestK6FrontierAheadOfTheClock(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	var cursor, epoch int64
	nonce := newNonce()
	err := pool.QueryRow(t.Context(), `
with l as (insert into onlyonce.leases (name, epoch, nonce) values ('cursor/stock/orders/0', 7, $1) returning id, epoch)
insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy) select id, 'stock', 'orders', 0, 0, 0, 'earliest' from l
returning id, (select epoch from l)`, nonce).Scan(&cursor, &epoch)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ahead time.Duration
		noted int64
	}{{-time.Hour, 1}, {time.Hour, 0}} {
		if tag, err := pool.Exec(t.Context(), frontierSQL, cursor, epoch, nonce, 0, time.Now().Add(c.ahead)); err != nil || tag.RowsAffected() != c.noted {
			t.Errorf("%v ahead of the clock: %v, %v", c.ahead, tag, err)
		}
	}
}

// F1: of a cursor's rows of progress the newest is never deleted, nor anything while what is to stay is not there: a failover may have lost it.
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
select 7, r, o, o + 10 from (values (0, 0), (0, 50), (1, 0), (1, 10), (1, 20), (1, 30)) v(r, o) union all select 8, 0, 0, 10`); err != nil {
			t.Fatal(err)
		}
		var n, run, last, other int
		var left string
		if err := tx.QueryRow(t.Context(), pruneSQL, 7, 0, int64(math.MinInt64), c.run, c.last, c.most).Scan(&n, &run, &last); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), `
select string_agg(run || ':' || from_offset, ' ' order by run, from_offset) filter (where cursor_id = 7), count(*) filter (where cursor_id = 8) from onlyonce.progress`).Scan(&left, &other); err != nil {
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

// K6: only a fetch that began behind the look at the clock says where the log ended then: of what was appended between an earlier fetch and that look, the
// fetch knows nothing.
func TestK6FrontierWantsALaterFetch(t *testing.T) {
	t.Parallel()
	r := &retrier{}
	r.c = &Consumer{pool: pgtest.DB(t), cfg: Config{Scope: "stock"}.withDefaults()}
	r.state = &partitionState{}
	r.cur = &cursor{epoch: 7, nonce: newNonce()}
	err := r.c.pool.QueryRow(t.Context(), `
with l as (insert into onlyonce.leases (name, epoch, nonce) values ('cursor/stock/orders/0', 7, $1) returning id)
insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy) select id, 'stock', 'orders', 0, 5, 5, 'earliest' from l returning id`,
		r.cur.nonce).Scan(&r.cur.id)
	if err != nil {
		t.Fatal(err)
	}
	noted := func(step string, want int) {
		t.Helper()
		if err := r.mark(t.Context()); err != nil {
			t.Fatal(err)
		}
		var n int
		if err := r.c.pool.QueryRow(t.Context(), `select count(*) from onlyonce.frontiers where frontier = $1`, r.sample.at).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d frontiers, want %d; %v", step, n, want, err)
		}
	}
	r.state.position.Store(5)
	early := time.Now()
	r.state.fetched(seen{began: early, end: 5})
	noted("asks for the clock", 0)
	noted("the fetch before is here", 0)
	r.state.fetched(seen{began: early, end: 5})
	noted("a fetch that began before comes back", 0)
	for !time.Now().After(r.sample.asked) {
	}
	r.state.fetched(seen{began: time.Now(), end: 7}) // two were appended in between
	noted("a later fetch shows what is still to be handled", 0)
	r.state.position.Store(6)
	noted("one of two is handled", 0)
	r.state.position.Store(7)
	noted("all is handled", 1)
}
