package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"

	"time"
)

// processedSQL makes the table that two of the loops keep beside their handler's.
const processedSQL = `create table processed_messages (id text primary key, at timestamptz not null default now())`

func withProcessed(ctx context.Context, p *play) error {
	_, err := p.pool.Exec(ctx, processedSQL)
	return err
}

// commitBefore is the first example of many clients: ReadMessage commits the offset before the
// handler runs.
func commitBefore(ctx context.Context, w *worker) error {
	r := w.reader()
	defer func() { _ = r.Close() }() // leaves the group
	for {
		m, err := r.ReadMessage(ctx)
		if err == nil {
			err = apply(ctx, w.pool, m.Value, recordOf(m.Partition, m.Offset))
		}
		if err != nil {
			return err
		}
	}
}

// commitAfter commits the offset once the effect is in the database.
func commitAfter(ctx context.Context, w *worker) error {
	return w.each(ctx, func(ctx context.Context, m kafka.Message) error {
		return apply(ctx, w.pool, m.Value, recordOf(m.Partition, m.Offset))
	})
}

// tableBeside skips an id that is in a table, and writes it there when the handler has returned.
func tableBeside(ctx context.Context, w *worker) error {
	return w.each(ctx, func(ctx context.Context, m kafka.Message) error {
		known := false
		const query = `select exists (select from processed_messages where id = $1)`
		if err := w.pool.QueryRow(ctx, query, idOf(m)).Scan(&known); err != nil || known {
			return err
		}
		if err := apply(ctx, w.pool, m.Value, recordOf(m.Partition, m.Offset)); err != nil {
			return err
		}
		_, err := w.pool.Exec(ctx, `insert into processed_messages (id) values ($1)`, idOf(m))
		return err
	})
}

// tableInside writes the id in the handler's transaction.
func tableInside(ctx context.Context, w *worker) error {
	return w.each(ctx, func(ctx context.Context, m kafka.Message) error {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `insert into processed_messages (id) values ($1) on conflict do nothing`, idOf(m))
			if err != nil || tag.RowsAffected() == 0 {
				return err
			}
			return apply(ctx, tx, m.Value, recordOf(m.Partition, m.Offset))
		})
	})
}

// redisSetNX is the middleware that claims an id before the handler, for a day, and gives it back
// if the handler fails.
func redisSetNX(ctx context.Context, w *worker) error {
	client := redis.NewClient(&redis.Options{Addr: w.redis})
	defer func() { _ = client.Close() }() // at the end of the process
	return w.each(ctx, func(ctx context.Context, m kafka.Message) error {
		key := w.topic + ":" + idOf(m)
		fresh, err := client.SetNX(ctx, key, 1, 24*time.Hour).Result()
		if err != nil || !fresh {
			return err
		}
		if err = apply(ctx, w.pool, m.Value, recordOf(m.Partition, m.Offset)); err != nil {
			_ = client.Del(context.WithoutCancel(ctx), key).Err() // the error of the handler counts
		}
		return err
	})
}
