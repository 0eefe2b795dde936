package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/ring"
)

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
	began := c.announceStop(ctx)
	err := c.runSource(ctx)
	stop()
	rotating.Wait()
	if at := began(); !at.IsZero() {
		c.cfg.Logger.Info("onlyonce: consumer stopped", "scope", c.cfg.Scope, "after", time.Since(at).Round(time.Millisecond))
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
		c.cfg.Logger.Info("onlyonce: consumer drains: the batches under way may still end", "scope", c.cfg.Scope, "drain_timeout", c.cfg.DrainTimeout)
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
// because it may get a partition of any.
func (c *Consumer) checkDatabases(ctx context.Context) error {
	ctx, cancel := c.boundedQuery(ctx)
	defer cancel()
	var faults []error
	for _, d := range c.databases() {
		warnings, err := preflight.Check(ctx, d.pool.Raw(), preflight.App)
		for _, w := range warnings {
			c.cfg.Logger.Warn("onlyonce: "+w, "shard", d.shard)
		}
		if most := d.pool.MaxConns(); c.cfg.Concurrency > 1 && most <= c.cfg.Concurrency {
			c.cfg.Logger.Warn("onlyonce: the transactions of one partition may take every connection of the pool, and the engine's own statements wait: raise pool_max_conns above Config.Concurrency",
				"shard", d.shard, "pool_max_conns", most, "concurrency", c.cfg.Concurrency)
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
	return []inbox.Need{{Ring: ring.ConsumerClass(c.cfg.Horizon.class()).Name, Copies: c.cfg.CopiesWithin, Whose: "Config.CopiesWithin"}}
}

// runSource runs the source, and what it delivers.
func (c *Consumer) runSource(ctx context.Context) error {
	if c.shares == nil {
		return c.source.Run(ctx, c.ownPartition)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed error
	var delivering sync.WaitGroup
	delivering.Go(func() {
		defer stop()
		d := newDeliveries(c)
		defer d.end()
		failed = c.shares.Deliver(ctx, c.cfg.Concurrency, c.cfg.BatchSize, d.apply)
	})
	err := c.source.Run(ctx, c.ownPartition)
	stop()
	delivering.Wait()
	return errors.Join(err, failed)
}
