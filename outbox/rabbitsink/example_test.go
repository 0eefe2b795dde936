package rabbitsink_test

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/rabbitsink"
)

// docs/guide/queues.md shows this code; package test/docs compares them.

func publish(ctx context.Context, pool *pgxpool.Pool, url string) error {
	events, err := rabbitsink.New(url, rabbitsink.Config{Name: "events", Exchange: "orders", KeyWindow: 6 * 24 * time.Hour})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
	if err != nil {
		return err
	}
	return errors.Join(relay.Run(ctx), events.Close())
}

func Example() {
	var pool *pgxpool.Pool // of your database
	if pool != nil {
		_ = publish(context.Background(), pool, "amqps://shop:secret@rabbit/")
	}
	// Output:
}
