package sqsqueue_test

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/sqsqueue"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func applyFIFO(ctx context.Context, pool *pgxpool.Pool, client *sqs.Client, hold consumer.HandlerFunc) error {
	broker := sqsqueue.New(client, sqsqueue.Config{
		QueueURL: "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo",
		ID:       sqsqueue.DeduplicationID, // or an attribute that the producer sets
	})
	orders, err := queue.New(pool, broker, queue.Config{
		Name: "orders", CopiesWithin: 4 * 24 * time.Hour, // the queue's MessageRetentionPeriod
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
	var client *sqs.Client // of your account
	if pool != nil {
		_ = applyFIFO(context.Background(), pool, client, nil)
	}
	// Output:
}
