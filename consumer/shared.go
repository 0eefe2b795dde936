package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// SharedSource is a Source of topics whose messages the broker also delivers, one by one, to any
// member of a share group (KIP-932). No process owns a delivered message; Deliver hands them over
// wherever they arrive. The partition's owner is its keeper: it reads the same log through
// [Source], moves the position over what was done, and handles what the broker has given up.
// Package sharesource has one for twmb/franz-go. See docs/guarantees.md, rules G1 to G7.
//
// Group is the name of the keepers' consumer group.
type SharedSource interface {
	Source

	// Deliver joins the share group and calls apply with what the broker delivers, from at most
	// atOnce goroutines, with at most most messages each. It acknowledges the messages that apply
	// returns as done, and no others: it gives those back to the broker. It never acknowledges a
	// message because a later one is fetched.
	//
	// When ctx is done, it waits for the calls under way, acknowledges, leaves the group and
	// returns nil. If brokers cannot be reached, it retries without end. An error is one that a
	// person has to correct, for example a share group that also delivers aborted records.
	Deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d Delivery) Applied) error

	// Settled returns the offset below which the broker will deliver no message of the partition
	// any more: each was acknowledged, or given up. It may return a lower one, for example 0 if the
	// share group has not begun. It asks the cluster at each call.
	Settled(ctx context.Context, topic string, partition int32) (int64, error)
}

// Delivery is what a broker has delivered of one partition.
type Delivery struct {
	// ClusterID, Topic, TopicID and Partition are those of [Identity].
	ClusterID string
	Topic     string
	TopicID   [16]byte
	Partition int32

	// Messages are the records, in order of offset, with gaps. No other call has one of them. If
	// there are none, the source asks whether the partition takes messages now, after a rest.
	Messages []*Message

	// Again means that all of them were delivered before. The process that had them may have died
	// of one, so each is handled alone.
	Again bool

	// Until is when the broker may deliver them to another member. No new attempt begins after it.
	Until time.Time
}

// Applied is what became of a Delivery.
type Applied struct {
	// Done are the offsets whose effects are committed, here or elsewhere, or which are parked.
	Done []int64

	// Rest is how long the source fetches nothing of the partition, for example because an operator
	// has paused it. Then it asks with a Delivery without messages, because the broker counts each
	// delivery. 0: it goes on.
	Rest time.Duration
}

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
