// Command consumer applies each message of a Kafka topic once, and enqueues a call to another
// service, which a relay in the same process sends under one Idempotency-Key.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

// pay runs in the transaction that commits the message's position and id. It must do nothing that
// the transaction cannot take back: what leaves the database is a call.
func pay(ctx context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
	tx.Queue(`insert into orders (id, amount) values ($1, $2)`, o.ID, o.Amount)
	return outbox.Enqueue(ctx, tx, outbox.Call{
		Sink: "payments", Name: "charge", Target: "/charges", OrderingKey: o.ID,
		Body: []byte(`{"order":"` + o.ID + `"}`),
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	payments, err := httpsink.New(httpsink.Config{
		Name: "payments", BaseURL: "https://payments.example/v1", KeyWindow: 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
	if err != nil {
		return err
	}
	source := kafkasource.New(kafkasource.Config{
		Brokers: []string{os.Getenv("ONLYONCE_KAFKA_BROKERS")}, GroupID: "billing", Topics: []string{"orders"},
	})
	c, err := consumer.New(pool, source, consumer.Decode(consumer.JSON, pay), consumer.Config{
		Scope: "billing", Key: consumer.HeaderKey("message-id"), OnFailure: consumer.ParkOrderingKey,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return relay.Run(ctx) })
	return g.Wait()
}
