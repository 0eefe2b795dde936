package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/dedupe"
)

// loop is a team's own kafka-go loop. It calls nothing of onlyonce but dedupe's Do, in apply.
func loop(ctx context.Context, pool *pgxpool.Pool, reader *kafka.Reader) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return unlessStopped(ctx, err)
		}
		if _, err := apply(ctx, pool, m); err != nil {
			// Not acknowledged, so it is delivered again, and the claim then shows whether it was
			// applied.
			return unlessStopped(ctx, fmt.Errorf("partition %d, offset %d: %w", m.Partition, m.Offset, err))
		}
		// Only now. After a crash before this line, or an error (for example because of a
		// rebalance), the message is delivered again, and then it is a duplicate.
		if err := reader.CommitMessages(ctx, m); err != nil && ctx.Err() == nil {
			slog.Warn("own-loop: offset not committed", "partition", m.Partition, "offset", m.Offset, "error", err)
		}
	}
}

func unlessStopped(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

const (
	effectSQL = `insert into applied (order_id, body) values ($1, $2)`
	asideSQL  = `insert into set_aside ("partition", "offset", order_id, body) values ($1, $2, $3, $4) on conflict do nothing`
)

// apply is the loop's transaction. Do claims the message's id, runs the function and commits; it
// repeats what the database asks to be repeated, and finds out about a COMMIT whose answer was
// lost.
func apply(ctx context.Context, pool *pgxpool.Pool, m kafka.Message) (dedupe.Outcome, error) {
	id := ""
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			id = string(h.Value)
		}
	}
	cfg := dedupe.DoConfig{
		MaxAttempts: 20, // if another transaction holds this id, Do waits and asks again, because that one may roll back
		OnConflict: func(ctx context.Context, tx dedupe.GuardedTx) error { // another payload under this id: skipping it would lose it
			_, err := tx.Exec(ctx, asideSQL, m.Partition, m.Offset, id, m.Value)
			return err
		},
	}
	key := dedupe.Key{Scope: "own-loop", ID: id, Fingerprint: dedupe.FingerprintOf(m.Value)}
	return cfg.Do(ctx, pool, key, func(ctx context.Context, tx dedupe.GuardedTx) error {
		_, err := tx.Exec(ctx, effectSQL, id, m.Value)
		return err
	})
}
