package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

const (
	pacedPartitions = 4
	pacedEvery      = pacedPartitions * time.Millisecond // a batch of each partition: a thousand a second
	pacedShort      = 10 * time.Second
	pacedLong       = time.Minute
)

// pinned compares the fence with a snapshot pinned elsewhere with the fence alone.
func pinned(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	length := pacedShort
	if o.long {
		length = pacedLong
	}
	return pacedSide(length, true), pacedSide(length, false), nil
}

// slowdown is how much longer a batch takes.
func slowdown(wrapped, plain sample) (float64, bool) {
	return wrapped.p50.Seconds() / plain.p50.Seconds(), true
}

// pacedSide runs batches of one message whose handler does nothing, a thousand a second, for the
// length and not for the window's.
func pacedSide(length time.Duration, pin bool) side {
	return func(ctx context.Context, db *database, w *window) (got sample, err error) {
		if pin {
			release, pinErr := db.pin(ctx)
			if pinErr != nil {
				return sample{}, pinErr
			}
			defer func() { err = errors.Join(err, release()) }()
		}
		pool, err := db.open(ctx, pacedPartitions)
		if err != nil {
			return sample{}, err
		}
		perPartition := int((length+settle)/pacedEvery) + 2*fetchLimit
		t := newTape(pacedPartitions, perPartition, randomID)
		var mu sync.Mutex
		var took []time.Duration
		failed := make(chan error, 1)
		fail := func(err error) {
			select {
			case failed <- err:
			default:
			}
		}
		c, err := consumer.New(pool, taped{&memlog.Source{Log: t.log, GroupID: group}, t.paced(pacedEvery)},
			consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error { return nil }),
			consumer.Config{Scope: "bench", BatchSize: 1, PositionsOnly: true, Hooks: consumer.Hooks{
				Batch: func(b consumer.BatchResult) {
					mu.Lock()
					took = append(took, b.Duration)
					mu.Unlock()
				},
				Retry:  func(r consumer.RetryEvent) { fail(r.Err) },
				Halted: func(h *consumer.HaltError) { fail(h) },
			}})
		if err != nil {
			return sample{}, err
		}
		running, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(running) }()
		count := func() int64 { mu.Lock(); defer mu.Unlock(); return int64(len(took)) }
		w.length = length
		got, err = w.watch(ctx, db, count, nil, failed)
		stop()
		if err := errors.Join(err, <-ended); err != nil {
			return got, err
		}
		if due := int64(length / pacedEvery * pacedPartitions); got.messages < due*9/10 {
			return got, fmt.Errorf("%d of %d batches in %v: this machine is too busy", got.messages, due, length)
		}
		last := slices.Sorted(slices.Values(took[len(took)*4/5:]))
		got.p50, got.p99 = last[len(last)/2], last[len(last)*99/100]
		return got, nil
	}
}

// pin takes a snapshot on a connection of its own and keeps it.
func (d *database) pin(ctx context.Context) (release func() error, err error) {
	return d.hold(ctx, "begin isolation level repeatable read", "select count(*) from effects")
}

// hold begins a transaction on a connection of its own and leaves it open.
func (d *database) hold(ctx context.Context, statements ...string) (release func() error, err error) {
	conn, err := pgx.Connect(ctx, d.srv.address(d.name))
	if err != nil {
		return nil, err
	}
	release = func() error { return conn.Close(context.WithoutCancel(ctx)) }
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}
