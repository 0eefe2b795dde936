package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/consumertest"
)

// fetchLimit is how many messages a fetch returns: what Kafka's fetches of some 100 KB hold.
const fetchLimit = 500

// handlerQueued writes the effect without waiting for the answer.
func handlerQueued(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(effectSQL, m.Offset, m.Value)
	return nil
}

// handlerWaiting writes the effect the plain way.
func handlerWaiting(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, effectSQL, m.Offset, m.Value)
	return err
}

// wrappedSide runs a consumer over a tape, with a connection for each partition. The tape is read anew in each run.
func wrappedSide(t *tape, h consumer.Handler, cfg consumer.Config) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		partitions := len(t.ids)
		pool, err := db.open(ctx, partitions)
		if err != nil {
			return sample{}, err
		}
		empty, err := db.disk(ctx)
		if err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		dry, failed := make(chan struct{}), make(chan error, 1)
		var drained sync.Once
		fail := func(err error) {
			select {
			case failed <- err:
			default:
			}
		}
		end := int64(len(t.ids[0])/idBytes - fetchLimit) // a last batch that is not full does not count
		cfg.Hooks = consumer.Hooks{
			Batch: func(b consumer.BatchDone) {
				count.Add(int64(b.Handled))
				if b.Handled != b.Messages || b.Fallback {
					fail(fmt.Errorf("%d of %d messages handled, fallback %v: these are all new", b.Handled, b.Messages, b.Fallback))
				}
				if b.Next >= end {
					drained.Do(func() { close(dry) })
				}
			},
			Retry:  func(r consumer.Retry) { fail(r.Err) },
			Parked: func(p consumer.Parked) { fail(p.Err) },
			Halted: func(h *consumer.HaltError) { fail(h) },
		}
		t.log.ClearCommitted(group)
		c, err := consumer.New(pool, source{&consumertest.Source{Log: t.log, GroupID: group}, t}, h, cfg)
		if err != nil {
			return sample{}, err
		}
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		got, err := w.watch(ctx, db, count.Load, dry, failed)
		stop()
		if err := errors.Join(err, <-ended); err != nil {
			return got, err
		}
		if err := db.verify(ctx, count.Load()); err != nil {
			return got, err
		}
		full, err := db.disk(ctx)
		got.disk = float64(full-empty) / float64(count.Load())
		return got, err
	}
}

const group = "bench"
