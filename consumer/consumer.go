package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/preflight"
)

// Handler applies one message: its writes go through tx, and commit together with the record that the message was
// processed. Nil means done. An error rolls back; the message is tried again, and parked when it is [Permanent] or its attempts
// are used up. The context ends when the partition must be given up at once.
//
// A handler may run more than once for one message; only one run's transaction commits. So what it does outside
// tx may happen more than once: send calls through package outbox instead. What a run assigns to m is not seen by the next one.
type Handler func(ctx context.Context, tx Tx, m *Message) error

// BatchHandler applies a batch of messages in one transaction, for writes that are made of sets (unnest, COPY). The messages are
// in order of offset, each of them new: duplicates are taken out before. What holds for a [Handler] holds here too. An error
// rolls the whole batch back, which is then divided until the message that fails stands alone; [FailMessage] says at
// once which it is. Calls are enqueued through [For], which says which message they are for.
type BatchHandler func(ctx context.Context, tx Tx, msgs []*Message) error

// Middleware is called around each call of the handler, with the messages that it is for: one, or a batch. It calls next once,
// or returns an error instead; anything else fails the messages. Its writes through tx commit with the handler's.
type Middleware func(ctx context.Context, tx Tx, msgs []*Message, next func(context.Context) error) error

// Consumer applies the messages of a Source, each once. Make one with [New] or [NewBatch], or with [NewSharded] where effects live in
// several databases; it is for one Run.
type Consumer struct {
	pool    *pgxpool.Pool // nil where there are shards, each of which has one
	source  Source
	handler Handler      // or
	batch   BatchHandler // the other one is nil
	cfg     Config
	events  bool // the source is an EventSource

	shard   string                                     // name of this database, "" where there is one
	shards  []*Consumer                                // by name, nil where there is one database
	of      func(topic string, partition int32) string // which of them
	filters *inbox.Filters                             // of the closed segments of its inbox
	poller  *poller                                    // asks this database for all partitions at once
	*shared
}

// New checks everything it can without a server, and returns every fault at once, each naming its field. The
// pool needs a connection for each partition that this process is to work on at the same time, and one more for each
// whose parked messages are tried again meanwhile, and two for what goes on in the background (rotation and filters of the inbox).
func New(pool *pgxpool.Pool, source Source, handler Handler, cfg Config) (*Consumer, error) {
	return build(&Consumer{pool: pool, source: source, handler: handler, cfg: cfg}, nil, handler == nil)
}

// NewBatch is New for a handler of batches.
func NewBatch(pool *pgxpool.Pool, source Source, handler BatchHandler, cfg Config) (*Consumer, error) {
	return build(&Consumer{pool: pool, source: source, batch: handler, cfg: cfg}, nil, handler == nil)
}

func build(c *Consumer, shards *Shards, noHandler bool) (*Consumer, error) {
	source := c.source
	_, c.events = source.(EventSource)
	faults := []error{c.cfg.faults(c.events)}
	if shards == nil {
		faults = append(faults, poolFault(c.pool, "pool"))
	} else {
		faults = append(faults, shards.faults(c.events))
	}
	faults = append(faults, c.cfg.copiesFault(c.events, sourceTopics(source)))
	if source == nil {
		faults = append(faults, fmt.Errorf("%w: source: must not be nil", ErrConfig))
	} else if v, ok := source.(interface{ Validate() error }); ok {
		faults = append(faults, v.Validate())
	}
	if noHandler {
		faults = append(faults, fmt.Errorf("%w: handler: must not be nil", ErrConfig))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	c.cfg = c.cfg.withDefaults()
	c.shared = &shared{turns: turnsOf()}
	c.budget.limit = int64(c.cfg.PrefetchBytes)
	c.filters = c.filtersOf(c.pool)
	c.poller = newPoller(c)
	if shards != nil {
		c.split(shards)
	}
	return c, nil
}

// kind is what parked rows of this consumer are.
func (c *Consumer) kind() string {
	if c.events {
		return "event"
	}
	return "message"
}

// Run consumes until ctx is done. Then it stops taking messages, lets the batch in hand of each partition finish (its context ends after
// DrainTimeout), commits offsets, leaves the group and returns nil, when nothing of it is left. A handler that does not
// return within HangTimeout of the end of its context is left behind, and Run returns [ErrHandlerStuck]. Any other return is
// an error that a restart alone may not mend: the first connection failed, the schema does not fit, the topic does not exist.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.ready(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return err
	}
	side, stop := context.WithCancel(ctx)
	var rotating sync.WaitGroup
	for _, d := range c.databases() {
		rotating.Go(func() { inbox.Rotate(side, d.pool, c.cfg.Logger, c.needs()...) })
		rotating.Go(func() { d.poller.run(side) })
		if c.cfg.Key != nil {
			rotating.Go(func() { d.filters.Run(side) })
		}
	}
	err := c.source.Run(ctx, c.own)
	stop()
	rotating.Wait()
	return errors.Join(err, c.Live())
}

// ready checks the database before the group is joined, so that a process that cannot work does not take partitions
// away from those that can. With shards it looks at each of them: it may be given a partition of any.
func (c *Consumer) ready(ctx context.Context) error {
	ctx, cancel := c.asking(ctx)
	defer cancel()
	var faults []error
	for _, d := range c.databases() {
		warnings, err := preflight.Check(ctx, d.pool, preflight.App)
		for _, w := range warnings {
			c.cfg.Logger.Warn("onlyonce: "+w, "shard", d.shard)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("consumer: %s: %w", d.server(), err))
			continue
		}
		for _, n := range c.needs() {
			if err := inbox.Holds(ctx, d.pool, n); err != nil {
				faults = append(faults, fmt.Errorf("consumer: %s: %s: %w", d.server(), n.Whose, err))
			}
		}
	}
	return errors.Join(faults...)
}

// filtersOf are the filters of a database's inbox.
func (c *Consumer) filtersOf(pool *pgxpool.Pool) *inbox.Filters {
	f := inbox.NewFilters(pool, "consumer_keys", c.cfg.Logger)
	f.Timeout = c.cfg.LockTimeout + c.cfg.StatementTimeout
	return f
}

// needs is what is declared of how long copies may come.
func (c *Consumer) needs() []inbox.Need {
	if c.cfg.CopiesWithin == 0 {
		return nil
	}
	return []inbox.Need{{Ring: "consumer_keys", Copies: c.cfg.CopiesWithin, Whose: "Config.CopiesWithin"}}
}

// server names the database without its password.
func (c *Consumer) server() string {
	cc, shard := c.pool.Config().ConnConfig, ""
	if c.shard != "" {
		shard = fmt.Sprintf("shard %q, ", c.shard)
	}
	return fmt.Sprintf("%spostgres at %s:%d, database %q", shard, cc.Host, cc.Port, cc.Database)
}
