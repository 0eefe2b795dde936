package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

// deliveryEvery is the pause between two calls: the relay is done with one before the next commits.
const deliveryEvery = 2 * time.Millisecond

// commitToDelivery compares the time from a commit to the call with the time of a round trip that
// reads the row.
func commitToDelivery(context.Context, *server, options) (wrapped, plain side, err error) {
	return timedSide(deliver, false), timedSide(readBack, false), nil
}

// besideWriter compares deliveries during another session's open transaction that has written with
// deliveries alone.
func besideWriter(context.Context, *server, options) (wrapped, plain side, err error) {
	return timedSide(deliver, true), timedSide(deliver, false), nil
}

// delays are how much longer the median and the 99th percentile take. The latter is judged if it
// has a bar.
func delays(name string, bar, late float64) []metric {
	return []metric{
		{name: name + "a", bar: bar, atMost: true, of: slowdown},
		{
			name:   name + "b",
			bar:    late,
			atMost: true,
			shown:  late == 0,
			of:     func(w, p sample) (float64, bool) { return w.p99.Seconds() / p.p99.Seconds(), true },
		},
	}
}

// timed prepares an action that is run once each time, and returns how long the measured part of it
// took.
type timed func(
	ctx context.Context,
	pool *pgxpool.Pool,
) (once func(ctx context.Context, n int, body []byte) (time.Duration, error), stop func() error, err error)

// timedSide does it at a pace, one at a time, and takes the percentiles of all but the first fifth.
func timedSide(ready timed, writer bool) side {
	bodies := newBodies(rand.NewChaCha8([32]byte{6}))
	return func(ctx context.Context, db *database, w *window) (got sample, err error) {
		pool, err := db.open(ctx, relayConnections)
		if err != nil {
			return sample{}, err
		}
		if writer {
			release, openErr := db.write(ctx)
			if openErr != nil {
				return sample{}, openErr
			}
			defer func() { err = errors.Join(err, release()) }()
		}
		once, stop, err := ready(ctx, pool)
		if err != nil {
			return sample{}, err
		}
		var mu sync.Mutex
		var took []time.Duration
		failed, ended := make(chan error, 1), make(chan struct{})
		working, cancel := context.WithCancel(ctx)
		go func() {
			defer close(ended)
			tick := time.NewTicker(deliveryEvery)
			defer tick.Stop()
			for n := 0; working.Err() == nil; n++ {
				d, err := once(working, n, bodies[n%len(bodies)])
				if err != nil {
					if working.Err() == nil {
						failed <- err
					}
					return
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
				<-tick.C
			}
		}()
		count := func() int64 { mu.Lock(); defer mu.Unlock(); return int64(len(took)) }
		got, err = w.watch(ctx, db, count, nil, failed)
		cancel()
		<-ended
		if err := errors.Join(err, stop()); err != nil {
			return got, err
		}
		last := slices.Sorted(slices.Values(took[len(took)/5:]))
		got.p50, got.p99 = last[len(last)/2], last[len(last)*99/100]
		return got, nil
	}
}

// deliver commits a call with an effect, wakes the relay, and measures the time from the return of
// COMMIT to the call of the sink.
func deliver(ctx context.Context, pool *pgxpool.Pool) (func(context.Context, int, []byte) (time.Duration, error), func() error, error) {
	arrived := make(chan time.Time, 1)
	r, err := startRelay(ctx, pool, remote{func() { arrived <- time.Now() }}, relayConcurrency, func() {})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, n int, body []byte) (time.Duration, error) {
		if err := applyEnqueued(ctx, pool, n, body); err != nil {
			return 0, err
		}
		committed := time.Now()
		r.relay.Wake()
		select {
		case t := <-arrived:
			return t.Sub(committed), nil
		case err := <-r.failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(drainLimit):
			return 0, fmt.Errorf("call %d was not made in %v", n, drainLimit)
		}
	}, r.stop, nil
}

// readBack commits a row and takes the time of a select by its primary key.
func readBack(ctx context.Context, pool *pgxpool.Pool) (func(context.Context, int, []byte) (time.Duration, error), func() error, error) {
	if _, err := pool.Exec(ctx, queueSQL); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, n int, body []byte) (time.Duration, error) {
		var id int64
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, effectSQL, n, body); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `insert into queue (body) values ($1) returning id`, body).Scan(&id)
		}); err != nil {
			return 0, err
		}
		committed := time.Now()
		var r queued
		err := pool.QueryRow(ctx, `
select id,
       key,
       sink,
       name,
       method,
       target,
       headers,
       body
  from queue where id = $1`, id).
			Scan(&r.id, &r.key, &r.sink, &r.name, &r.method, &r.target, &r.headers, &r.body)
		return time.Since(committed), err
	}, func() error { return nil }, nil
}

// applyEnqueued is an effect with its call in a transaction, as a user writes it.
func applyEnqueued(ctx context.Context, pool *pgxpool.Pool, n int, body []byte) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	if _, err := tx.Exec(ctx, effectSQL, n, body); err != nil {
		return err
	}
	if err := outbox.Enqueue(ctx, tx, outbox.Call{
		Sink:   sinkName,
		Name:   "event",
		Scope:  "bench",
		ID:     fmt.Sprintf("order-%d", n),
		Target: "/event",
		Body:   body,
	}); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// write writes in a transaction on a connection of its own and leaves it open.
func (d *database) write(ctx context.Context) (release func() error, err error) {
	return d.hold(ctx, "begin", "insert into effects (account, payload) values (-1, '')")
}
