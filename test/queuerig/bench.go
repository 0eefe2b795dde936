package queuerig

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const (
	benchBody  = 200 // bytes
	benchBatch = 100
)

// effectSQL is what a message does.
const effectSQL = `insert into effects (body) values ($1)`

// Bench measures how many messages of a full queue a process receives and stores, receives and
// applies, and applies in a loop by hand. filled makes a queue, publishes messages to it, each
// under an id of its own, and returns the adapter to it. All three use that adapter as their
// client, and batches of one size; the loop by hand has a table of ids, written with the effects.
func Bench(b *testing.B, filled func(b *testing.B, messages []queue.Delivery) queue.Broker) {
	for _, side := range []struct {
		name string
		run  func(b *testing.B, pool *pgxpool.Pool, broker queue.Broker)
	}{{"stored", storesAll}, {"applied", appliesAll}, {"by hand", byHand}} {
		b.Run(side.name, func(b *testing.B) {
			pool := pgtest.DB(b)
			if _, err := pool.Exec(
				b.Context(),
				`create table effects (id bigint generated always as identity primary key, body bytea not null)`,
			); err != nil {
				b.Fatal(err)
			}
			messages := make([]queue.Delivery, b.N)
			for n := range messages {
				messages[n] = queue.Delivery{ID: fmt.Sprint("m", n), Body: make([]byte, benchBody)}
			}
			broker := filled(b, messages)
			b.ResetTimer()
			side.run(b, pool, broker)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			b.StopTimer()
			if side.name == "stored" {
				return
			}
			var effects int
			if err := pool.QueryRow(b.Context(), `select count(*) from effects`).Scan(&effects); err != nil || effects != b.N {
				b.Fatalf("%d effects of %d messages, %v", effects, b.N, err)
			}
		})
	}
}

// storesAll ends when all messages are stored and acknowledged.
func storesAll(b *testing.B, pool *pgxpool.Pool, broker queue.Broker) {
	ctx, stop := context.WithCancel(b.Context())
	stored := 0
	q := benchQueue(b, pool, broker, func(s queue.StoredEvent) {
		if stored += s.Fresh; stored >= b.N {
			stop()
		}
	})
	if err := q.Receive(ctx); err != nil {
		b.Fatal(err)
	}
}

// appliesAll ends when all messages are applied.
func appliesAll(b *testing.B, pool *pgxpool.Pool, broker queue.Broker) {
	ctx, stop := context.WithCancel(b.Context())
	var left atomic.Int64
	left.Store(int64(b.N))
	c, err := consumer.New(
		pool,
		benchQueue(b, pool, broker, nil),
		consumer.HandlerFunc(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
			tx.Queue(effectSQL, m.Value)
			return nil
		}),
		consumer.Config{Scope: "q", BatchSize: benchBatch, Hooks: consumer.Hooks{Batch: func(d consumer.BatchResult) {
			if left.Add(int64(-d.Handled)) == 0 {
				stop()
			}
		}}},
	)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		b.Fatal(err)
	}
}

func benchQueue(b *testing.B, pool *pgxpool.Pool, broker queue.Broker, stored func(queue.StoredEvent)) *queue.Queue {
	q, err := queue.New(pool, broker, queue.Config{Name: "q", CopiesWithin: time.Hour, Partitions: 4, Batch: benchBatch, OnStored: stored})
	if err != nil {
		b.Fatal(err)
	}
	return q
}

// byHand is the loop that one writes: in one transaction the ids that are new and their effects,
// then the acknowledgement.
func byHand(b *testing.B, pool *pgxpool.Pool, broker queue.Broker) {
	ctx := b.Context()
	if _, err := pool.Exec(ctx, `create table processed_messages (id text primary key)`); err != nil {
		b.Fatal(err)
	}
	if err := broker.Begin(ctx, false); err != nil {
		b.Fatal(err)
	}
	for left := b.N; left > 0; {
		got, err := broker.Receive(ctx, benchBatch)
		if err != nil {
			b.Fatal(err)
		}
		var fresh int
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) { fresh, err = applyNew(ctx, tx, got); return err }); err != nil {
			b.Fatal(err)
		}
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		err = broker.Ack(bounded, got)
		cancel()
		if err != nil {
			b.Fatal(err)
		}
		left -= fresh
	}
	if e, is := broker.(queue.BrokerEnd); is {
		e.End()
	}
}

// applyNew returns how many of the messages were new.
func applyNew(ctx context.Context, tx pgx.Tx, all []*queue.Delivery) (n int, err error) {
	ids := make([]string, len(all))
	for i, d := range all {
		ids[i] = d.ID
	}
	rows, err := tx.Query(ctx, `insert into processed_messages select unnest($1::text[]) on conflict do nothing returning id`, ids)
	if err != nil {
		return 0, err
	}
	fresh := map[string]bool{}
	var id string
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { fresh[id] = true; return nil }); err != nil {
		return 0, err
	}
	effects := &pgx.Batch{}
	for _, d := range all {
		if fresh[d.ID] {
			effects.Queue(effectSQL, d.Body)
			delete(fresh, d.ID)
		}
	}
	return effects.Len(), tx.SendBatch(ctx, effects).Close()
}
