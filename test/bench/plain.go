package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// apply writes the effects of some messages, the first at an offset, in one transaction of its own,
// as a user without dedupe does.
type apply func(ctx context.Context, pool *pgxpool.Pool, first int64, bodies [][]byte) error

// applyWaiting is the plain BEGIN, effects, COMMIT that waits for each answer.
func applyWaiting(ctx context.Context, pool *pgxpool.Pool, first int64, bodies [][]byte) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	for i, b := range bodies {
		if _, err := tx.Exec(ctx, effectSQL, first+int64(i), b); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// applyPipelined sends the whole transaction at once.
func applyPipelined(ctx context.Context, pool *pgxpool.Pool, first int64, bodies [][]byte) error {
	b := &pgx.Batch{}
	b.Queue("begin")
	for i, body := range bodies {
		b.Queue(effectSQL, first+int64(i), body)
	}
	b.Queue("commit")
	return pool.SendBatch(ctx, b).Close()
}

// plainSide runs a goroutine for each connection, each of which applies one batch after another out
// of memory.
func plainSide(connections, batch int, do apply) side {
	all := newBodies(rand.NewChaCha8([32]byte{2}))
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, connections)
		if err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		var stopped atomic.Bool
		failed := make(chan error, connections)
		var workers sync.WaitGroup
		for c := range connections {
			workers.Go(func() {
				for at := c * len(all) / connections; !stopped.Load(); at += batch {
					i := at % (len(all) - batch)
					if err := do(ctx, pool, int64(at), all[i:i+batch]); err != nil {
						failed <- err
						return
					}
					count.Add(int64(batch))
				}
			})
		}
		got, err := w.watch(ctx, db, count.Load, nil, failed)
		stopped.Store(true)
		workers.Wait()
		if err != nil {
			return got, err
		}
		return got, db.verify(ctx, count.Load())
	}
}
