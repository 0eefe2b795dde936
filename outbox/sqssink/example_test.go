package sqssink_test

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/sqssink"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func send(ctx context.Context, pool *pgxpool.Pool, client *sqs.Client) error {
	events, err := sqssink.New(client, sqssink.Config{
		Name:      "events",
		Queues:    []string{"https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"},
		KeyWindow: 6 * 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func Example() {
	var pool *pgxpool.Pool // of your database
	var client *sqs.Client // of your account
	if pool != nil {
		_ = send(context.Background(), pool, client)
	}
	// Output:
}
