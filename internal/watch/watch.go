// Package watch keeps watched time, by which no row is deleted and no key forgotten because the
// database's clock was ahead (T11).
//
// # Concept
//
// Watched time is one row, onlyonce.watched. It follows the database's clock, but never slower than
// half as fast, and never faster than twice as fast, as the monotonic clocks of the processes that
// watch it. While no process watches, it stops, and afterwards it catches up at twice the pace.
// What has a retention is forgotten when the retention has passed by the clock and by watched time.
//
// # Protocol
//
// A process reads watched time (w) and then its own monotonic clock (m). At its next look, it sends
// w and the time e that has passed since m, and onlyonce.watch moves the row to
//
//	the database's clock, at least w + e/2, at most w + 2e
//
// unless the row is there already: it never goes back. The first look of a process only reads.
//
// Rows are compared with watched time in one of two ways:
//
//   - An HTTP record and an operation have the watched time at their completion. They expire when
//     their TTL has passed since then in watched time, and since their completion by the clock. So
//     in steady state they expire on time, however far watched time lags behind the clock.
//   - All else that is old (settled calls, ids and bodies of webhooks, segments of rings) has the
//     clock's time only. It is compared with the earlier of the clock and watched time, so it is
//     kept longer while watched time lags.
//
// # What it defends against
//
// Let d be the time for which the clock is wrong, r a retention, and t the time that passes.
//
//   - The clock is a week ahead for d = 25 s, then right. Watched time runs at 2 for 25 s: nothing
//     is forgotten more than 25 s early. Then it runs at 1/2 until the clock has caught up with it:
//     a key that is first used meanwhile looks up to 25 s too young to a remote, and by an interval
//     more, because watched time stops between two looks.
//   - The clock is ahead for an hour: in the same way, an hour at most. If nobody corrects it, r
//     has passed by watched time after r/2: nothing is ever forgotten before half of its retention.
//   - The clock is a week back, then right. Watched time never goes back, and runs at 1/2
//     meanwhile: it is at most d/2 late, and the record of a request that completes in d, whose
//     expires_at is a week too early, is kept by watched_at. Settled calls and ids of webhooks of
//     that time are dated by watched time (onlyonce.steady_clock), so at most d/2 too early. By it
//     the ages of keys are counted too that a remote forgets.
//   - A failover to a server with another clock: as a jump. The row comes with the database; if the
//     failover loses its last moves, a process that looked before moves it there again, rightly,
//     because that time has passed.
//   - A process starts while the clock is ahead. It reads the row and not the clock, so it begins
//     where the others are. A process that took the clock as it found it would forget everything.
//   - Two processes look in turn. Their moves do not add up: each is bounded by a row that it has
//     read itself, plus twice the time since.
//   - A process is paused between its look and the statement. It has sent an e that is too small,
//     which is late and never early: m is read after w has arrived, e before the statement leaves.
//
// A record is stamped with a row that is up to one interval old ([Often], or the layer's
// PurgeInterval). So while the clock is wrong, it may be forgotten that much earlier than is said
// above.
package watch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Often is how often a process moves watched time on, if it has no reason to do so more often.
const Often = 10 * time.Second

// lookSQL moves watched time on. In: what it was at the last look, how long ago that was; nulls at
// the first look. Out: watched time. Locks the row of onlyonce.watched for the statement.
const lookSQL = `select onlyonce.watch($1, $2)`

// querier is a pool, for example a primary.Pool.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Clock is one process's share in watched time. It is safe for concurrent use: who looks while
// another goroutine does waits for it, and need not look again.
type Clock struct {
	pool  querier
	every time.Duration

	mu     sync.Mutex
	seen   pgtype.Timestamptz // watched time at the last look; invalid before the first one
	seenAt time.Time          // when it had arrived, with this process's monotonic clock
}

// New returns a Clock that moves watched time on every so often.
func New(pool querier, every time.Duration) *Clock { return &Clock{pool: pool, every: every} }

// Look moves watched time on, if that is due.
func (c *Clock) Look(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var elapsed *time.Duration
	if c.seen.Valid {
		e := time.Since(c.seenAt)
		if e < c.every {
			return nil
		}
		elapsed = &e
	}
	if err := c.pool.QueryRow(ctx, lookSQL, c.seen, elapsed).Scan(&c.seen); err != nil {
		c.seen = pgtype.Timestamptz{}
		return fmt.Errorf("moving watched time on: %w", err)
	}
	c.seenAt = time.Now()
	return nil
}
