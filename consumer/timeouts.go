package consumer

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// queryTimeout bounds queries to other shards and those at the start, so that a server that does
// not answer is reported, and asked again.
const queryTimeout = 10 * time.Second

// These are the bounds of all that the consumer asks of a database. A server may be gone without
// notice: for example, its host has lost power, or a firewall has dropped the connection. TCP finds
// out after minutes or hours. Without a bound the partition would wait for as long, while
// heartbeats to Kafka continue, so that no other process takes over. A handler's statements are
// bounded by the handler's context, see (*engine).run. All bounds follow from Config, so that a
// test with a silent server takes no longer than it configures.

// bounded is for the engine's own statements: those outside of a transaction, and those in a
// transaction before the handler. If the server is alive, it ends them earlier, by Timeouts.Lock
// and Timeouts.Statement.
func (c *Consumer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.Timeouts.Lock+c.cfg.Timeouts.Statement)
}

// detached is for writes that are needed although the work has ended.
func (c *Consumer) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.cfg.Timeouts.Lock)
}

// boundedQuery is for queries to other shards.
func (c *Consumer) boundedQuery(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(queryTimeout, c.cfg.Timeouts.Lock+c.cfg.Timeouts.Statement))
}

// commit and rollback end a transaction, detached from any request (T5).
func (c *Consumer) commit(tx *guard.Tx) error { return tx.Commit(c.cfg.Timeouts.Commit) }
func (c *Consumer) rollback(tx *guard.Tx)     { tx.Rollback(c.cfg.Timeouts.Commit) }
