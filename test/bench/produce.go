package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// handlerEnqueued writes the effect and a call.
func handlerEnqueued(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(effectSQL, m.Offset, m.Value)
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: sinkName, Name: "event", Target: "/event", Body: m.Value})
}

// produced compares a handler that enqueues a call for each message with one that does not.
type produced struct{ connections, batch int }

func (p produced) open(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
	trial, err := runSide(ctx, srv, plainSide(p.connections, p.batch, applyPipelined), trialWindow())
	if err != nil {
		return nil, nil, err
	}
	t := newTape(p.connections, int(3*trial.rate()*(o.window+settle).Seconds())/p.connections+4*fetchLimit, orderedID)
	cfg := consumer.Config{Scope: "bench", BatchSize: p.batch, Key: consumer.HeaderKey(idHeader)}
	return enqueues(wrappedSide(t, handlerEnqueued, cfg)), wrappedSide(t, handlerQueued, cfg), nil
}

// producedByHand compares the plain transaction with a call in it with the one without.
func producedByHand(connections int) func(context.Context, *server, options) (side, side, error) {
	return func(context.Context, *server, options) (wrapped, plain side, err error) {
		var calls atomic.Int64
		return enqueues(plainSide(connections, 1, func(ctx context.Context, pool *pgxpool.Pool, _ int64, bodies [][]byte) error {
			return applyEnqueued(ctx, pool, int(calls.Add(1)), bodies[0])
		})), plainSide(connections, 1, applyWaiting), nil
	}
}

// enqueues compares the calls in the log with the effects.
func enqueues(s side) side {
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		got, err := s(ctx, db, w)
		if err != nil {
			return got, err
		}
		var effects, calls int64
		if err := db.pool.QueryRow(ctx, `select (select count(*) from effects), (select count(*) from onlyonce.outbox_log)`).Scan(
			&effects,
			&calls,
		); err != nil {
			return got, err
		}
		if effects != calls {
			return got, fmt.Errorf("%d effects and %d calls", effects, calls)
		}
		return got, nil
	}
}
