// Own-loop shows how little of onlyonce a team can use. The team keeps its kafka-go loop and adds
// one call, dedupe's Do: see loop.go. It needs $ONLYONCE_POSTGRES_URL and
// $ONLYONCE_KAFKA_BROKERS.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

// tableSQL makes the loop's tables. applied has no unique constraint: an order that was applied
// twice would show.
const tableSQL = `
create table if not exists applied (order_id text not null, body bytea not null);
create table if not exists set_aside (
  "partition" int,
  "offset" bigint,
  order_id text not null,
  body bytea not null,
  primary key ("partition", "offset")
)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("ONLYONCE_POSTGRES_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, tableSQL); err != nil {
		log.Fatal(err)
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: strings.Split(os.Getenv("ONLYONCE_KAFKA_BROKERS"), ","),
		GroupID: "own-loop",
		Topic:   "orders",
	})
	if err := loop(ctx, pool, reader); err != nil {
		log.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		log.Fatal(err)
	}
}
