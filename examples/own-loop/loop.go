package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/dedupe"
)

// loop is a team's own kafka-go loop. It uses one function of onlyonce, dedupe.Claim, in apply.
// tell is only for the example's table.
func loop(ctx context.Context, pool *pgxpool.Pool, reader *kafka.Reader, scope string, tell func(dedupe.Outcome)) error {
	for {
		m, err := reader.FetchMessage(ctx)
		if err != nil {
			return unlessStopped(ctx, err)
		}
		// Repeat until it is done: committing the offset of a later message would skip this one.
		var outcome dedupe.Outcome
		err = backoff.Retry(func() (err error) {
			outcome, err = apply(ctx, pool, m, scope)
			return err
		}, backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(time.Minute)), ctx))
		if err != nil {
			// Not acknowledged, so it is delivered again, and the claim then shows whether it was
			// applied.
			return unlessStopped(ctx, fmt.Errorf("partition %d, offset %d: %w", m.Partition, m.Offset, err))
		}
		// Only now. After a crash before this line, or an error (for example because of a
		// rebalance), the message is delivered again, and then it is a duplicate.
		if err := reader.CommitMessages(ctx, m); err != nil && ctx.Err() == nil {
			slog.Warn("own-loop: offset not committed", "partition", m.Partition, "offset", m.Offset, "error", err)
		}
		tell(outcome)
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
	effectSQL = `insert into onlyonce_own_loop.effects (scope, order_id, body) values ($1, $2, $3)`
	asideSQL  = `insert into onlyonce_own_loop.set_aside (scope, "partition", "offset", order_id, body) values ($1, $2, $3, $4, $5) on conflict do nothing`
)

// apply is the loop's transaction: the claim first, then the work for its outcome.
func apply(ctx context.Context, pool *pgxpool.Pool, m kafka.Message, scope string) (outcome dedupe.Outcome, err error) {
	id := ""
	for _, h := range m.Headers {
		if h.Key == "message-id" {
			id = string(h.Value)
		}
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// If another transaction holds this id and has not committed, Claim waits, because that one
		// may roll back. This bounds the wait; then the message is tried again.
		if _, err := tx.Exec(ctx, `set local lock_timeout = '5s'`); err != nil {
			return err
		}
		outcome, err = dedupe.Claim(ctx, tx, dedupe.Key{Scope: scope, ID: id, Fingerprint: dedupe.FingerprintOf(m.Value)})
		switch {
		case err != nil:
			return err
		case outcome == dedupe.Fresh:
			_, err = tx.Exec(ctx, effectSQL, scope, id, m.Value)
		case outcome == dedupe.Conflict: // another payload under this id: skipping it would lose it
			_, err = tx.Exec(ctx, asideSQL, scope, m.Partition, m.Offset, id, m.Value)
		}
		return err
	})
	return outcome, err
}
