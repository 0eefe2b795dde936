// Command minimal holds stock for orders from Kafka: each order once, however often it arrives.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		log.Fatal(err)
	}
	source := kafkasource.New(kafkasource.Config{
		Brokers: []string{os.Getenv("ONLYONCE_KAFKA_BROKERS")}, GroupID: "stock", Topics: []string{"orders"},
	})
	c, err := consumer.New(pool, source, consumer.Decode(consumer.JSON, hold), consumer.Config{
		Scope: "stock",                          // the consumer's name: positions and ids belong to it
		Key:   consumer.HeaderKey("message-id"), // the header that holds a message's id
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil { // until Ctrl-C or SIGTERM; then it finishes its batch and returns nil
		log.Fatal(err)
	}
}

type order struct {
	SKU string `json:"sku"`
	Qty int    `json:"qty"`
}

// hold's writes commit with the message's id and position. A message that is no order is parked.
func hold(ctx context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
	_, err := tx.Exec(ctx, `update stock set held = held + $1 where sku = $2`, o.Qty, o.SKU)
	return err
}
