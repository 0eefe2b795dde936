package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// queueSQL is an outbox table as one writes it by hand, with what a call holds.
const queueSQL = `
create table queue (
  id bigint generated always as identity primary key,
  key uuid not null default gen_random_uuid(),
  sink text not null default 'bench',
  name text not null default 'event',
  method text not null default 'POST',
  target text not null default '/event',
  headers text not null default '',
  created_at timestamptz not null default clock_timestamp(),
  body bytea not null
)`

// queueTakeSQL takes the next rows. $1 the last id that was taken, $2 how many. Rows are deleted by
// their ctid, which needs no second search of the index. Starting after the last id avoids the
// entries of deleted rows, which the index keeps until vacuum.
const queueTakeSQL = `
delete from queue
 where ctid = any (array(select ctid from queue where id > $1 order by id limit $2 for update skip locked))
returning id,
          key,
          sink,
          name,
          method,
          target,
          headers,
          body`

const queueConnections = 2

// queueDrain is a queue by hand: take a thousand, handle them, commit. The commit shares a round
// trip with the next taking. If a taking finds too few, it begins at the first id again, because
// rows may have been committed late.
func queueDrain() drain {
	return drain{
		connections: queueConnections,
		fill: func(ctx context.Context, pool *pgxpool.Pool, rows int) error {
			if _, err := pool.Exec(ctx, queueSQL); err != nil {
				return err
			}
			return inBatches(rows, func(bodies [][]byte) error {
				_, err := pool.Exec(ctx, `insert into queue (body) select unnest($1::bytea[])`, bodies)
				return err
			})
		},
		run: func(ctx context.Context, pool *pgxpool.Pool, m *meter) error {
			failed := make(chan error, queueConnections)
			ctx, stop := context.WithCancel(ctx)
			var workers sync.WaitGroup
			for range queueConnections {
				workers.Go(func() {
					if err := queueWork(ctx, pool, m); err != nil && ctx.Err() == nil {
						failed <- err
					}
				})
			}
			err := m.wait(ctx, failed)
			stop()
			workers.Wait()
			return err
		},
		check: func(ctx context.Context, pool *pgxpool.Pool, _ int) error {
			var left int
			if err := pool.QueryRow(ctx, `select count(*) from queue`).Scan(&left); err != nil {
				return err
			}
			if left != 0 {
				return fmt.Errorf("%d rows are left in the queue", left)
			}
			return nil
		},
	}
}

// queued is a row of the queue.
type queued struct {
	id                                  int64
	key                                 [16]byte
	sink, name, method, target, headers string
	body                                []byte
}

func queueWork(ctx context.Context, pool *pgxpool.Pool, m *meter) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	rows := make([]queued, 0, fillBatch)
	last, open := int64(0), false
	for {
		b := &pgx.Batch{}
		if open {
			b.Queue("commit")
		}
		b.Queue("begin")
		b.Queue(queueTakeSQL, last, fillBatch)
		results := conn.SendBatch(ctx, b)
		if open {
			if _, err := results.Exec(); err != nil {
				return err
			}
			m.done(len(rows))
		}
		if _, err := results.Exec(); err != nil {
			return err
		}
		rows = rows[:0]
		got, err := results.Query()
		if err != nil {
			return err
		}
		for got.Next() {
			var r queued
			if err := got.Scan(&r.id, &r.key, &r.sink, &r.name, &r.method, &r.target, &r.headers, &r.body); err != nil {
				return err
			}
			rows = append(rows, r)
			last = max(last, r.id)
		}
		if err := got.Err(); err != nil {
			return err
		}
		if err := results.Close(); err != nil {
			return err
		}
		open = true
		if len(rows) < fillBatch {
			if _, err := conn.Exec(ctx, "commit"); err != nil {
				return err
			}
			if m.done(len(rows)); len(rows) == 0 && last == 0 {
				return nil
			}
			last, open = 0, false
		}
	}
}
