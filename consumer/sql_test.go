package consumer

import (
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
	for _, sql := range []string{readCursorSQL, createCursorSQL, ownCursorSQL, releaseCursorSQL, countAttemptSQL, takeBackSQL, forgetAttemptsSQL,
		fenceSQL, pruneSQL, claimSQL, claimFreshSQL, parkSQL, tendSQL, takeSQL, settleSQL, failSQL, promoteSQL, sweepSQL,
		endReplaySQL, endReplayHeldSQL, passSQL, blockedSQL, parkedSQL, pauseSQL, resumeSQL, pausedSQL, firstPartitionsSQL, parkedCountSQL, frontierSQL, redoSQL, elsewhereSQL} {
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
