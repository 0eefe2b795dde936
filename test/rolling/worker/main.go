// Command worker is a process with one consumer, for the test of rolling deploys.
//
// It ends in order on SIGTERM, and when its standard input ends, which the test's does whatever
// becomes of it.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/migrations"
)

func main() {
	postgres := flag.String("postgres", "", "address of the database")
	migrate := flag.Bool("migrate", false, "bring the schema to this version, and end")
	brokers := flag.String("brokers", "", "addresses, separated by commas")
	topic := flag.String("topic", "", "topic; the group has its name")
	name := flag.String("name", "", "stands in the effects that this worker made")
	keys := flag.Bool("keys", false, "dedupe by the header message-id, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	log.SetPrefix(*name + ": ")
	run := func() error { return work(ctx, *postgres, *brokers, *topic, *name, *keys) }
	if *migrate {
		run = func() error { return apply(ctx, *postgres) }
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func apply(ctx context.Context, postgres string) error {
	conn, err := pgx.Connect(ctx, postgres)
	if err != nil {
		return err
	}
	_, err = migrations.Apply(ctx, conn)
	return errors.Join(err, conn.Close(ctx))
}

func work(ctx context.Context, postgres, brokers, topic, name string, keys bool) error {
	pool, err := pgxpool.New(ctx, postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("worker", name)
	source := kafkasource.New(kafkasource.Config{
		Brokers: strings.Split(brokers, ","), GroupID: topic, Topics: []string{topic}, Logger: logger,
		SessionTimeout: 2 * time.Second, RebalanceTimeout: 10 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
	})
	cfg := consumer.Config{
		Scope:        "rolling",
		BatchSize:    20,
		Linger:       time.Millisecond,
		Backoff:      dedupe.Backoff{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond},
		DrainTimeout: 3 * time.Second,
		Logger:       logger,
	}
	if keys {
		cfg.Key = consumer.HeaderKey("message-id")
	} else {
		cfg.PositionsOnly = true
	}
	c, err := consumer.New(pool, source, consumer.HandlerFunc(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (value, part, off, worker) values ($1, $2, $3, $4)`, string(m.Value), m.Partition, m.Offset, name)
		return nil
	}), cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
