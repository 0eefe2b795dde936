package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
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

// wrappedSide runs a consumer over a tape, with a connection for each partition. The tape is read
// anew in each run.
func wrappedSide(t *tape, h consumer.HandlerFunc, cfg consumer.Config) side {
	end := int64(len(t.ids[0])/idBytes - fetchLimit) // a last batch that is not full does not count
	return consumerSide(len(t.ids), end, h, cfg, func(context.Context) (consumer.Source, error) {
		t.log.ClearCommitted(group)
		return taped{&memlog.Source{Log: t.log, GroupID: group}, t}, nil
	})
}

// consumerSide runs a consumer over a source that is made anew in each run. It is watched from its
// first batch on, and has run dry when a partition has reached end. All messages are new, and none
// fails, except under ParkOrderingKey.
func consumerSide(
	partitions int,
	end int64,
	h consumer.HandlerFunc,
	cfg consumer.Config,
	from func(context.Context) (consumer.Source, error),
) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, partitions*max(cfg.Concurrency, 1))
		if err != nil {
			return sample{}, err
		}
		empty, err := db.disk(ctx)
		if err != nil {
			return sample{}, err
		}
		src, err := from(ctx)
		if err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		begun := make(chan struct{})
		dry := make(chan struct{})
		failed := make(chan error, 1)
		var began, drained sync.Once
		fail := func(err error) {
			select {
			case failed <- err:
			default:
			}
		}
		cfg := cfg
		parks := cfg.OnFailure == consumer.ParkOrderingKey
		cfg.Hooks = cfg.Hooks.Join(consumer.Hooks{
			Batch: func(b consumer.BatchResult) {
				count.Add(int64(b.Handled))
				began.Do(func() { close(begun) })
				if (b.Handled != b.Messages || b.Fallback) && !parks {
					fail(fmt.Errorf("%d of %d messages handled, fallback %v: these are all new", b.Handled, b.Messages, b.Fallback))
				}
				if b.Next >= end {
					drained.Do(func() { close(dry) })
				}
			},
			Retry: func(r consumer.RetryEvent) {
				if !parks {
					fail(r.Err)
				}
			},
			Parked: func(p consumer.ParkedEvent) {
				if !parks {
					fail(p.Err)
				}
			},
			Halted: func(h *consumer.HaltError) { fail(h) },
		})
		c, err := consumer.New(pool, src, h, cfg)
		if err != nil {
			return sample{}, err
		}
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		var got sample
		if err = first(ctx, begun, failed); err == nil {
			got, err = w.watch(ctx, db, count.Load, dry, failed)
		}
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

// startLimit is how long a side may take to its first effects; joining a Kafka group is part of
// that.
const startLimit = time.Minute

// first waits for a side to begin.
func first(ctx context.Context, begun <-chan struct{}, failed <-chan error) error {
	select {
	case <-begun:
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startLimit):
		return fmt.Errorf("nothing was done in %v", startLimit)
	}
}

const group = "bench"
