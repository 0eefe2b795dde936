package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/shard"
)

// New makes a Consumer whose effects live in the pool's database. The handler is for example a
// [HandlerFunc], or a [BatchHandlerFunc]. New checks everything it can without a server, and
// returns all faults at once, each naming its field.
//
// The pool needs one connection for each partition that this process works on at the same time, one
// more for each partition whose parked messages are retried meanwhile, and two for background work
// (rotation and filters of the inbox).
func New(pool *pgxpool.Pool, source Source, handler Handler, cfg Config) (*Consumer, error) {
	c := newConsumer(source, handler, cfg)
	if err := c.complete(pool, primary.CheckPool(ErrConfig, pool)); err != nil {
		return nil, err
	}
	c.setPool(pool)
	return c, nil
}

// NewSharded is [New] for several databases, each with the effects of its own partitions. Each
// pool needs the connections that New names.
func NewSharded(set *shard.Set, source Source, handler Handler, cfg Config) (*Consumer, error) {
	c := newConsumer(source, handler, cfg)
	if err := c.complete(nil, setFault(set, c.events)); err != nil {
		return nil, err
	}
	c.makeShards(set)
	return c, nil
}

// newConsumer makes a Consumer that is neither checked nor complete.
func newConsumer(source Source, handler Handler, cfg Config) *Consumer {
	c := &Consumer{source: source, handler: handler, cfg: cfg}
	c.batch, _ = handler.(BatchHandler)
	_, c.events = source.(claimed.Source)
	return c
}

// complete checks a Consumer and completes all but its databases, whose fault is fault. The pool is
// nil if there are several.
func (c *Consumer) complete(pool *pgxpool.Pool, fault error) error {
	source := c.source
	faults := []error{c.cfg.faults(c.events)}
	if _, rehearses := source.(claimed.Rehearsal); !c.events && !rehearses {
		faults = append(faults, c.cfg.scopeFault())
	}
	faults = append(faults, fault, c.cfg.copiesFault(c.events, sourceTopics(source)))
	if source == nil {
		faults = append(faults, fmt.Errorf("%w: source: must not be nil", ErrConfig))
	} else if v, ok := source.(SourceValidate); ok {
		faults = append(faults, v.Validate())
	}
	given := fields.List{Sentinel: ErrConfig}
	given.Part("handler", c.handler)
	if err := errors.Join(append(faults, given.Err())...); err != nil {
		return err
	}
	if events, ok := source.(claimed.Source); ok {
		if err := events.ServeScope(c.cfg.Scope, claimed.Mark{}); err != nil {
			return fmt.Errorf("%w: source: %w", ErrConfig, err)
		}
	}
	c.cfg.Logger = process.Logger(pool, c.cfg.Logger)
	c.cfg = c.cfg.withDefaults()
	c.cfg.Hooks = c.cfg.Hooks.guarded(c.cfg.Logger)
	c.shared = &shared{}
	c.budget.Limit = int64(c.cfg.PrefetchBytes)
	return nil
}

// setPool sets the database, and what is made for it.
func (c *Consumer) setPool(pool *pgxpool.Pool) {
	c.pool = primary.Of(pool, c.cfg.Logger)
	c.filters = c.filtersOf(pool)
	c.poller = newPoller(c)
}

// makeShards makes a consumer's shards: each is the consumer with one database.
func (c *Consumer) makeShards(set *shard.Set) {
	c.set = set
	c.poller = newPoller(c) // for partitions of no shard: it has nothing to ask, and never runs
	for _, db := range set.Databases() {
		one := *c
		one.shard = db.Name
		one.setPool(db.Pool)
		c.shards = append(c.shards, &one)
	}
	for _, one := range c.shards {
		one.shards = c.shards
	}
}

// filtersOf returns the filters of the ring that Config.Horizon names. While the scope's class
// changes, the other ring is asked by SQL alone.
func (c *Consumer) filtersOf(pool *pgxpool.Pool) *inbox.Filters {
	f := inbox.NewFilters(pool, ring.ConsumerClass(c.cfg.Horizon.class()).Name, c.cfg.Logger)
	f.Timeout = c.answerPatience()
	return f
}

// Run consumes until ctx is done. Then it takes no more messages, lets the current batch of each
// partition finish (its context ends after DrainTimeout), commits offsets, leaves the group and
// returns nil. By then all its work has ended. If a handler does not return within HangTimeout
// after its context has ended, Run abandons it and returns [ErrHandlerHung].
//
// A restart alone may not repair other errors: for example, the first connection failed, the schema
// does not fit, or the topic does not exist.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.checkDatabases(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return err
	}
	if err := c.checkGroup(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // as above
		}
		return err
	}
	c.pace = process.PaceOf(ctx)
	defer c.begun.Begin(ctx)()
	side, stop := context.WithCancel(ctx)
	var rotating sync.WaitGroup
	for _, d := range c.databases() {
		rotating.Go(func() { inbox.Rotate(side, d.pool.Raw(), c.cfg.Logger, c.horizonNeeds()...) })
		rotating.Go(func() { d.poller.pollUntilDone(side) })
		if c.cfg.Key != nil {
			rotating.Go(func() { d.filters.Run(side) })
		}
	}
	c.cfg.Logger.Info("onlyonce: consumer starts",
		"scope", c.cfg.Scope, "group", c.source.Group(), "topics", sourceTopics(c.source))
	began := c.announceStop(ctx)
	err := c.source.Run(ctx, c.ownPartition)
	stop()
	rotating.Wait()
	if at := began(); !at.IsZero() {
		c.cfg.Logger.Info("onlyonce: consumer stopped",
			"scope", c.cfg.Scope, "after", time.Since(at).Round(time.Millisecond))
	}
	return errors.Join(err, c.Live())
}

// announceStop logs that the consumer drains when ctx ends. The function that it returns ends the
// wait for that, and returns when the stop began, or the zero time if ctx has not ended.
func (c *Consumer) announceStop(ctx context.Context) (began func() time.Time) {
	var at time.Time
	logged := make(chan struct{})
	quiet := context.AfterFunc(ctx, func() {
		defer close(logged)
		at = time.Now()
		c.cfg.Logger.Info("onlyonce: consumer drains: the batches under way may still end",
			"scope", c.cfg.Scope, "drain_timeout", c.cfg.DrainTimeout)
	})
	return func() time.Time {
		if !quiet() {
			<-logged
		}
		return at
	}
}

// checkDatabases checks the database before the consumer joins the group, so that a process that
// cannot work takes no partitions away from those that can. With shards it checks each of them,
// because it may get a partition of any (S1).
func (c *Consumer) checkDatabases(ctx context.Context) error {
	ctx, cancel := process.AtStart(ctx)
	defer cancel()
	var faults []error
	for _, d := range c.databases() {
		warnings, err := preflight.Check(ctx, d.pool.Raw(), preflight.App)
		log := c.cfg.Logger
		if d.shard != "" {
			log = log.With("shard", d.shard)
		}
		for _, w := range warnings {
			log.Warn("onlyonce: " + w)
		}
		if most := d.pool.MaxConns(); c.cfg.Concurrency > 1 && most <= c.cfg.Concurrency {
			log.Warn("onlyonce: the transactions of one partition may take every connection of the pool, "+
				"and the engine's own statements wait: raise pool_max_conns above Config.Concurrency",
				"pool_max_conns", most, "concurrency", c.cfg.Concurrency)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("consumer: %s: %w", d.describeDatabase(), err))
			continue
		}
		for _, n := range c.horizonNeeds() {
			if err := inbox.CheckHorizon(ctx, d.pool.Raw(), n); err != nil {
				faults = append(faults, fmt.Errorf("consumer: %s: %s: %w", d.describeDatabase(), n.Whose, err))
			}
		}
	}
	return errors.Join(faults...)
}

// horizonNeeds returns how long the inbox must remember keys, by what the user has declared.
func (c *Consumer) horizonNeeds() []inbox.Need {
	if c.cfg.CopiesWithin == 0 {
		return nil
	}
	return []inbox.Need{{
		Ring:   ring.ConsumerClass(c.cfg.Horizon.class()).Name,
		Copies: c.cfg.CopiesWithin,
		Whose:  "Config.CopiesWithin",
	}}
}
