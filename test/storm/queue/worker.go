package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

const (
	queueName  = "storm"
	partitions = 6
	batchSize  = 20
	// leaseTTL and ackWait are short, because they are waited for after a kill.
	leaseTTL = 3 * time.Second
	ackWait  = 2 * time.Second
)

// workerConfig is all that a worker needs to know.
type workerConfig struct {
	Postgres, Kind, Broker string
}

// workerMain is main in a worker process.
func workerMain() int {
	var cfg workerConfig
	return fleet.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error { return work(ctx, c, cfg) })
}

// work receives, stores and applies.
func work(ctx context.Context, c *fleet.Child, cfg workerConfig) error {
	pool, err := rig.Pool(ctx, cfg.Postgres, 12, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	broker, closed, err := kinds[cfg.Kind].receiver(cfg.Broker)
	if err != nil {
		return err
	}
	defer closed()
	q, err := queue.New(pool, broker, queue.Config{
		Name:         queueName,
		CopiesWithin: time.Hour,
		Ordered:      !kinds[cfg.Kind].ordersKeys,
		Batch:        batchSize,
		Partitions:   partitions,
		PollInterval: 50 * time.Millisecond,
		LeaseTTL:     leaseTTL,
		Identify: func(d *queue.Delivery) error {
			d.Key = []byte(d.Header(kinds[cfg.Kind].key))
			return nil
		},
	})
	if err != nil {
		return err
	}
	w, err := consumer.New(pool, q, consumer.HandlerFunc(func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		if err := c.Entered(m); err != nil {
			return err
		}
		var got rig.Message
		if err := json.Unmarshal(m.Value, &got); err != nil {
			return consumer.Permanent(err)
		}
		tx.Queue(rig.EffectSQL, got.ID, got.Key, got.Seq)
		return nil
	}), consumer.Config{
		Scope: queueName, BatchSize: batchSize, Backoff: dedupe.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond},
		// This is how long a worker that is suspended in mid-batch keeps its successor waiting.
		Timeouts: dedupe.Timeouts{Lock: 2 * time.Second, Idle: 3 * time.Second}, DrainTimeout: 3 * time.Second, Hooks: c.Hooks(nil),
	})
	if err != nil {
		return err
	}
	if err := w.Run(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}
