package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func hold(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(`insert into held (order_id, body) values ($1, $2)`, m.ID(), m.Value) // commits once
	return nil
}

func apply(ctx context.Context, pool *pgxpool.Pool, broker queue.Broker) error {
	orders, err := queue.New(pool, broker, queue.Config{Name: "orders", CopiesWithin: 72 * time.Hour})
	if err != nil {
		return err
	}
	stock, err := consumer.New(pool, orders, consumer.HandlerFunc(hold), consumer.Config{Scope: "stock"})
	if err != nil {
		return err
	}
	return stock.Run(ctx) // receives and applies
}

func byID(pool *pgxpool.Pool, broker queue.Broker) (*queue.Queue, error) {
	orders, err := queue.New(pool, broker, queue.Config{
		Name: "orders", CopiesWithin: 72 * time.Hour,
		Fingerprint: queue.IDAlone, // the producer never gives two messages one id
	})
	return orders, err
}

// They do what the guide says.
func TestReadmeQueues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table held (order_id text, body bytea)`)
	stop := r.runs(func(ctx context.Context) error { return apply(ctx, r.pool, r.broker.Connect()) })
	r.broker.Publish(message("a"), message("b"), message("a"))
	r.until("they are applied", func() bool { return r.count("held") == 2 && r.broker.Left() == 0 })
	stop()
	r.broker.Publish(message("a", "rendered anew"))
	orders, err := byID(r.pool, r.broker.Connect())
	if err != nil {
		t.Fatal(err)
	}
	r.runs(orders.Receive)
	r.until("the copy is acknowledged", func() bool { return r.broker.Left() == 0 })
	if n := r.count("onlyonce.parked"); n != 0 { // although the first one was compared
		t.Errorf("%d are parked", n)
	}
}
