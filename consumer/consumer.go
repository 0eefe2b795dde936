package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer/internal/budget"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ready"
	"github.com/onlyonce/onlyonce/shard"
)

// Middleware is called around each call of the handler, with the handler's messages: one, or a
// batch. It must either call next once or return an error; anything else fails the messages. Its
// writes through tx commit with the handler's.
type Middleware func(ctx context.Context, tx Tx, msgs []*Message, next func(context.Context) error) error

// Consumer applies the messages of a Source, each once. Make one with [New] or
// [NewSharded], and call Run once.
type Consumer struct {
	pool    *primary.Pool // nil if there are shards: each has its own
	source  Source
	handler Handler
	batch   BatchHandler // the handler, if it takes batches; nil otherwise
	cfg     Config
	events  bool // the source is one of events (claimed.Source)

	shard   string         // name of this database, "" if only one
	shards  []*Consumer    // by name, nil if there is one database
	set     *shard.Set     // chooses the shard of a partition
	filters *inbox.Filters // of closed segments in the database's inbox
	poller  *poller        // polls this database for all partitions
	*shared
}

// shared is what the shards of a consumer have in common, because they are in one process.
type shared struct {
	partitions         ownedPartitions
	budget             budget.Budget
	stuck              atomic.Int64 // abandoned handlers that are still running
	reportedPartitions sync.Map     // topic: the number of partitions last passed to Hooks.Repartitioned
	begun              ready.Run
	behind             pace.Seldom  // log lines of messages behind parked ones
	pace               process.Pace // since Run

	// copyBytes is true if the handler changes its messages in place. It then gets full copies.
	copyBytes atomic.Bool
	// enqueues is true if a handler has asked for calls.
	enqueues atomic.Bool
}

// databases returns the consumer's shards, or the consumer itself if there are none.
func (c *Consumer) databases() []*Consumer {
	if c.shards == nil {
		return []*Consumer{c}
	}
	return c.shards
}

// shardOf returns the shard that has a partition, or an error if the set names none.
func (c *Consumer) shardOf(topic string, partition int32) (*Consumer, error) {
	if c.shards == nil {
		return c, nil
	}
	db, err := c.set.OfPartition(topic, partition)
	if err != nil {
		return nil, err
	}
	return c.shards[slices.IndexFunc(c.shards, func(one *Consumer) bool { return one.shard == db.Name })], nil
}

// describeDatabase describes the database, without its password.
func (c *Consumer) describeDatabase() string {
	cc := c.pool.Raw().Config().ConnConfig
	name := ""
	if c.shard != "" {
		name = fmt.Sprintf("shard %q, ", c.shard)
	}
	return fmt.Sprintf("%spostgres at %s:%d, database %q", name, cc.Host, cc.Port, cc.Database)
}

// parkedKind is the kind that this consumer's parked rows have.
func (c *Consumer) parkedKind() string {
	if c.events {
		return "event"
	}
	return "message"
}

// queryTimeout bounds queries to other shards, so that a server that does not answer is reported,
// and asked again.
const queryTimeout = 10 * time.Second

// These are the bounds of all that the consumer asks of a database. A server may be gone without
// notice: for example, its host has lost power, or a firewall has dropped the connection. TCP finds
// out after minutes or hours. Without a bound the partition would wait for as long, while
// heartbeats to Kafka continue, so that no other process takes over. A handler's statements are
// bounded by the handler's context, see (*engine).run. All bounds follow from Config, so that a
// test with a silent server takes no longer than it configures.

// bounded is for the engine's own statements: those outside of a transaction, and those in a
// transaction before the handler. If the server is alive, it ends them earlier, by Timeouts.Lock
// and Timeouts.Statement (T7).
func (c *Consumer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.answerPatience())
}

// queryRow runs one statement of the engine within these bounds.
func (c *Consumer) queryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.queryRowWithin(ctx, c.answerPatience(), sql, args...)
}

// queryRowWithin is queryRow for a statement that waits for others as long as they may last.
func (c *Consumer) queryRowWithin(ctx context.Context, bound time.Duration, sql string, args ...any) pgx.Row {
	ctx, cancel := context.WithTimeout(ctx, bound)
	return &boundedRow{c.pool.QueryRow(ctx, sql, args...), cancel}
}

type boundedRow struct {
	row    pgx.Row
	cancel context.CancelFunc
}

func (r *boundedRow) Scan(into ...any) error {
	defer r.cancel()
	return r.row.Scan(into...)
}

// exec is queryRow for a statement without an answer.
func (c *Consumer) exec(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.pool.Exec(ctx, sql, args...)
	return err
}

// detached is for writes that are needed although the work has ended.
func (c *Consumer) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.cfg.Timeouts.Lock)
}

// boundedQuery is for queries to other shards.
func (c *Consumer) boundedQuery(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(queryTimeout, c.answerPatience()))
}

// answerPatience is how long a server may take to answer before that is a fault.
func (c *Consumer) answerPatience() time.Duration {
	return c.cfg.Timeouts.Lock + c.cfg.Timeouts.Statement
}

// longestWait is how far ahead a due time can be: the policy's waits are random around Backoff.Max,
// and a handler may ask for maxRetryAfter.
func (c *Consumer) longestWait() time.Duration {
	return max(2*c.cfg.Backoff.Max, maxRetryAfter+time.Minute)
}

// needsSlots reports whether transactions of the partition run side by side under its next owner,
// or what an owner that let them do so has left open is to be finished (C7).
func (c *Consumer) needsSlots(cur *cursor) bool {
	return c.cfg.Concurrency > 1 || cur.doneUntil != nil
}

func newBackoff(cfg Config) backoff.BackOff { return pace.Backoff(cfg.Backoff.Min, cfg.Backoff.Max) }

func backoffFor(cfg Config, n int) time.Duration {
	return pace.BackoffAfter(cfg.Backoff.Min, cfg.Backoff.Max, n)
}
