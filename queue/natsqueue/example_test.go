package natsqueue_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func applyOrders(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream, hold consumer.HandlerFunc) error {
	broker := natsqueue.New(js, natsqueue.Config{Stream: "ORDERS", Durable: "stock"})
	orders, err := queue.New(pool, broker, queue.Config{
		Name: "orders", CopiesWithin: 7 * 24 * time.Hour, // the stream's MaxAge
		Ordered: true,
		Identify: func(d *queue.Delivery) error {
			d.Key = []byte(d.Header(natsqueue.HeaderSubject)) // one subject for each order
			return nil
		},
	})
	if err != nil {
		return err
	}
	stock, err := consumer.New(pool, orders, hold, consumer.Config{Scope: "stock"})
	if err != nil {
		return err
	}
	return stock.Run(ctx)
}

func Example() {
	var pool *pgxpool.Pool     // of your database
	var js jetstream.JetStream // of your connection
	if pool != nil {
		_ = applyOrders(context.Background(), pool, js, nil)
	}
	// Output:
}
