package rabbitqueue_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/rabbitqueue"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func applyOrders(ctx context.Context, pool *pgxpool.Pool, url string, hold consumer.HandlerFunc) error {
	broker := rabbitqueue.New(url, rabbitqueue.Config{Queue: "orders", Arguments: amqp.Table{"x-single-active-consumer": true}})
	orders, err := queue.New(pool, broker, queue.Config{
		Name: "orders", CopiesWithin: 7 * 24 * time.Hour, // the producer's longest retry
		Ordered: true,
		Identify: func(d *queue.Delivery) error {
			d.Key = []byte(d.Header(rabbitqueue.HeaderRoutingKey)) // one routing key for each order
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
	var pool *pgxpool.Pool // of your database
	if pool != nil {
		_ = applyOrders(context.Background(), pool, "amqps://stock:secret@rabbit/", nil)
	}
	// Output:
}
