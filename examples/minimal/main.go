// Command minimal holds stock for orders from Kafka: each order once, however often it arrives.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		log.Fatal(err)
	}
	source := kafkasource.New(kafkasource.Config{
		Brokers: []string{os.Getenv("ONLYONCE_KAFKA_BROKERS")}, GroupID: "stock", Topics: []string{"orders"},
	})
	c, err := consumer.New(pool, source, hold, consumer.Config{
		Scope: "stock",                          // the consumer's name: positions and ids belong to it
		Key:   consumer.HeaderKey("message-id"), // the header that holds a message's id
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil { // until Ctrl-C; then it finishes its batch and returns nil
		log.Fatal(err)
	}
}

// hold runs in a transaction. Its writes commit together with the message's id and position.
func hold(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	var order struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	if err := json.Unmarshal(m.Value, &order); err != nil {
		return consumer.Permanent(err) // parked for an operator: a retry cannot help
	}
	_, err := tx.Exec(ctx, `update stock set held = held + $1 where sku = $2`, order.Qty, order.SKU)
	return err
}
