// Command receiver stores each message of a NATS stream once, acknowledges it, and applies it once.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/natsqueue"
)

func hold(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(`insert into held (order_id, body) values ($1, $2)`, m.ID(), m.Value)
	return nil
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
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	orders, err := queue.New(pool, natsqueue.New(js, natsqueue.Config{Stream: "ORDERS", Durable: "stock"}), queue.Config{
		Name: "orders", CopiesWithin: 72 * time.Hour, // how long producers repeat: the stream's MaxAge
	})
	if err != nil {
		return err
	}
	stock, err := consumer.New(pool, orders, consumer.HandlerFunc(hold), consumer.Config{Scope: "stock"})
	if err != nil {
		return err
	}
	return stock.Run(ctx) // receives and applies
}
