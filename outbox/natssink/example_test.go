package natssink_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/natssink"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func publish(ctx context.Context, pool *pgxpool.Pool, js jetstream.JetStream) error {
	events, err := natssink.New(js, natssink.Config{Name: "events", Subjects: []string{"orders.>"}, KeyWindow: 6 * 24 * time.Hour})
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
	var pool *pgxpool.Pool     // of your database
	var js jetstream.JetStream // of your connection
	if pool != nil {
		_ = publish(context.Background(), pool, js)
	}
	// Output:
}
