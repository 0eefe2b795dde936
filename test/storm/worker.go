package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/fleet"
	"github.com/onlyonce/onlyonce/test/storm/rig"
)

// workerConfig is all that a worker needs to know.
type workerConfig struct {
	Postgres  string
	Brokers   []string
	Topic     string
	Scope     string // also the group, and the sink of calls
	Session   time.Duration
	BatchSize int
	Pool      int32
	Positions bool // run without keys
	Source    string
	Policy    string

	Concurrency int
}

// effectSQL is the handler's own write. The table has no unique constraint, so that a repeated
// effect is possible and shows.
const effectSQL = `
insert into storm.effects (
  scope,
  id,
  key,
  seq,
  part,
  off,
  worker,
  called
) values (
  $1,
  $2,
  $3,
  $4,
  $5,
  $6,
  $7,
  $8
)`

var (
	errFaulty = errors.New("a message that nobody can handle")
	errSick   = errors.New("a message that nobody can handle yet")
)

// worker is one process that consumes.
type worker struct {
	*fleet.Child
	cfg workerConfig
}

func (w *worker) handler(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := w.Entered(m); err != nil {
		return err
	}
	var got message
	if err := json.Unmarshal(m.Value, &got); err != nil {
		return consumer.Permanent(err)
	}
	tx.Queue(effectSQL, w.cfg.Scope, got.ID, got.Key, got.Seq, m.Partition, m.Offset, w.Number, got.withCall())
	if got.withCall() {
		if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: w.cfg.Scope, Name: "note", Target: "/" + got.ID, Body: m.Value}); err != nil {
			return err
		}
	}
	// Only now: what was written before must go.
	switch {
	case got.permanent():
		return consumer.Permanent(errFaulty)
	case got.exhausted():
		return errFaulty
	case w.cfg.Policy == policyKey && got.sick() && m.Attempt <= got.sickRuns():
		return errSick
	}
	return nil
}

// workerMain is main in a worker process.
func workerMain() int {
	var cfg workerConfig
	return rig.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error {
		w := &worker{c, cfg}
		return w.run(ctx)
	})
}

func (w *worker) breach(format string, args ...any) {
	w.Tell(fleet.Event{Kind: fleet.Breach, Text: fmt.Sprintf(format, args...)})
}

// source is what the worker consumes through. What it commits is watched.
func (w *worker) source() consumer.Source {
	const (
		rebalance = 8 * time.Second
		wait      = 100 * time.Millisecond
	)
	if w.cfg.Source == sourceFranz {
		instance := ""
		if w.Seat%2 == 0 {
			instance = fmt.Sprintf("seat-%d", w.Seat)
		}
		return w.watched(franzsource.New(franzsource.Config{
			Brokers: w.cfg.Brokers, GroupID: w.cfg.Scope, Topics: []string{w.cfg.Topic}, InstanceID: instance,
			SessionTimeout: w.cfg.Session, HeartbeatInterval: w.cfg.Session / 6, RebalanceTimeout: rebalance, FetchMaxWait: wait,
		}))
	}
	return w.watched(kafkasource.New(kafkasource.Config{
		Brokers: w.cfg.Brokers, GroupID: w.cfg.Scope, Topics: []string{w.cfg.Topic},
		SessionTimeout: w.cfg.Session, HeartbeatInterval: w.cfg.Session / 6, RebalanceTimeout: rebalance, FetchMaxWait: wait,
	}))
}

func (w *worker) watched(s consumer.Source) consumer.Source { return watch(s, w.breach) }

// concurrency differs from worker to worker, as it does while a change is rolled out: partitions go
// from owners with many transactions at once to owners with one, and back.
func (w *worker) concurrency() int { return max(w.cfg.Concurrency/(1+w.Seat%3*3), 1) }

// afterBatch is a hook outside of transactions.
func (w *worker) afterBatch(b consumer.BatchResult) {
	for offset := b.From; offset < b.Next; offset++ {
		w.Trap("batch", fmt.Sprintf("%d-%d", b.Partition, offset))
	}
}

// layTraps sets the functions that the consumer calls for each message, beside the handler. Each
// may end the process, or hang.
func (w *worker) layTraps(cfg *consumer.Config) {
	id := func(m *consumer.Message) string { id, _ := consumer.HeaderKey(idHeader)(m); return id }
	if !w.cfg.Positions {
		cfg.Key = func(m *consumer.Message) (string, error) { w.Trap("key", id(m)); return id(m), nil }
	}
	cfg.Tenant = func(m *consumer.Message) string { w.Trap("tenant", id(m)); return "" }
	cfg.OrderingKey = func(m *consumer.Message) []byte { w.Trap("ordering-key", id(m)); return m.Key }
	cfg.Hooks.HandleEnd = func(_ context.Context, m *consumer.Message, _ error) { w.Trap("handle-end", id(m)) }
}

func (w *worker) run(ctx context.Context) error {
	pool, err := rig.Pool(ctx, w.cfg.Postgres, w.cfg.Pool, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	source := w.source()
	cfg := consumer.Config{
		Scope: w.cfg.Scope, PositionsOnly: w.cfg.Positions, BatchSize: w.cfg.BatchSize, Concurrency: w.concurrency(),
		Backoff: dedupe.Backoff{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond},
		// This is how long a worker that is suspended in mid-batch keeps its successor waiting.
		Timeouts: dedupe.Timeouts{Lock: 2 * time.Second, Idle: 3 * time.Second}, DrainTimeout: 3 * time.Second,
		Hooks: w.Hooks(w.afterBatch),
	}
	if w.cfg.Policy == policyKey {
		cfg.OnFailure = consumer.ParkOrderingKey
	}
	w.layTraps(&cfg)
	c, err := consumer.New(pool, source, consumer.HandlerFunc(w.handler), cfg)
	if err != nil {
		return err
	}
	if err := c.Run(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}
