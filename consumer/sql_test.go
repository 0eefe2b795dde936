package consumer

import (
	"context"
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
		fenceSQL, pruneSQL, claimSQL, claimFreshSQL, parkSQL, pollSQL, leaveSQL, takeSQL, settleSQL, failSQL, promoteSQL, sweepSQL,
		endReplaySQL, endReplayHeldSQL, passSQL, blockedSQL, parkedSQL, pauseSQL, resumeSQL, firstPartitionsSQL, parkedCountSQL, redoSQL, elsewhereSQL} {
		if _, err := conn.Conn().Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", sql, err)
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
insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy) select id, 'stock', 'orders', 0, 0, 0, 'earliest' from l
returning id, (select epoch from l)`, nonce).Scan(&id, &epoch)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(pool, noSource{}, func(context.Context, Tx, *Message) error { return nil }, Config{Scope: "stock", PositionsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	member := &polling{id: Identity{Topic: "orders"}, cur: &cursor{id: id, epoch: epoch, nonce: nonce}, state: &partitionState{}}
	for _, frontier := range []struct {
		ahead time.Duration
		noted bool
	}{{-time.Hour, true}, {time.Hour, false}} {
		at := time.Now().Add(frontier.ahead)
		member.note(&at)
		answers, err := c.poller.ask(t.Context(), []*polling{member}, nil)
		if err != nil || answers[0].noted != frontier.noted {
			t.Errorf("%v ahead of the clock: %+v, %v", frontier.ahead, answers, err)
		}
	}
}

type noSource struct{ Source }
