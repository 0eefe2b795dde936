package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// sharedSlots is how many rows of onlyonce.lease_slots the transactions of a share group spread
// over, in all processes together. Two that share a row need a multixact, so they are some more
// than there are transactions at once in most deployments.
const sharedSlots = 32

// sharedSlots returns how many slots the transactions of a share group need in a cursor.
func (c *Consumer) sharedSlots() int32 {
	if c.shares == nil {
		return 0
	}
	return sharedSlots
}

// sharedFaults returns what a consumer of a share group cannot have.
func (c *Consumer) sharedFaults(sharded bool) error {
	if c.shares == nil {
		return nil
	}
	var faults []error
	refuse := func(wrong bool, field, rule string) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, rule))
		}
	}
	refuse(c.cfg.OnFailure != ParkMessage, "Config.OnFailure", "must be ParkMessage: a share group has no order that a message could hold up")
	refuse(c.cfg.OrderingKey != nil, "Config.OrderingKey", "must not be set: a share group has no order")
	refuse(c.cfg.TooOld != 0, "Config.TooOld", "must not be set, nor a TimedKey: a share group has no frontier of times")
	refuse(sharded, "db", "must be one pool: a share group delivers to one database")
	return errors.Join(faults...)
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
