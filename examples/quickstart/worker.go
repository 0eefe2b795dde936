package main

import (
	"context"
	"errors"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/examples/internal/servers"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/fleet"
)

// workerConfig is all that a worker needs to know.
type workerConfig struct {
	Postgres     string
	Kafka        servers.KafkaAddress
	Session      time.Duration
	Group, Topic string
	Run          string // marks this run's rows in the effects table
	Scope        string
	Pointer      string // where the id is in the user's own messages; empty: in the header message-id
	Sink         string
	Payments     string // base URL
	BatchSize    int
	Connections  int32
}

// effectSQL is the handler's own write. The table has no unique constraint: an order applied twice
// would show.
const effectSQL = `insert into onlyonce_quickstart.effects (run, order_id, amount_cents, worker) values ($1, $2, $3, $4)`

// handler lets the demo know that a message is handled, and applies it.
func (w *worker) handler(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := w.Entered(m); err != nil {
		return err
	}
	return w.apply(ctx, tx, m)
}

// apply is what a user of onlyonce writes: the effects of one message, in the transaction that it
// is given, and an outbound call that belongs to them.
func (w *worker) apply(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := w.order(m)
	if err != nil {
		return consumer.Permanent(err) // parked, after one run alone
	}
	tx.Queue(effectSQL, w.cfg.Run, o.ID, o.AmountCents, w.Number)
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: w.cfg.Sink, Name: "charge", Target: "/charges", Body: o.charge()})
}

// order reads the message. Of the user's own messages nothing is known but the id.
func (w *worker) order(m *consumer.Message) (order, error) {
	if w.cfg.Pointer != "" {
		return order{ID: m.ID()}, nil
	}
	return parseOrder(m.Value)
}

// run consumes, and sends the outbox's calls, until ctx ends. Every worker runs a relay; the sink's
// lease decides whose sends.
func (w *worker) run(ctx context.Context) error {
	pool, err := servers.OpenPool(ctx, w.cfg.Postgres, w.cfg.Connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	relayPool, err := servers.OpenPool(ctx, w.cfg.Postgres, 2)
	if err != nil {
		return err
	}
	defer relayPool.Close()

	payments, err := httpsink.New(httpsink.Config{
		Name: w.cfg.Sink, BaseURL: w.cfg.Payments, KeyWindow: time.Hour, Timeout: 5 * time.Second,
		AllowPrivate: true, // the payments service of this example runs on loopback
		Breaker:      httpsink.Breaker{OpenFor: time.Second}})
	if err != nil {
		return err
	}
	defer payments.Close()
	relay, err := outbox.NewRelay(relayPool, outbox.RelayConfig{
		Sinks: []outbox.Sink{payments}, Concurrency: 64, PollInterval: 100 * time.Millisecond,
		LeaseTTL: 3 * time.Second, RetryMin: 100 * time.Millisecond, RetryMax: 2 * time.Second, DrainTimeout: 5 * time.Second,
		Hooks: w.relayHooks(),
	})
	if err != nil {
		return err
	}

	config, mechanism, err := w.cfg.Kafka.Security()
	if err != nil {
		return err
	}
	source := kafkasource.New(kafkasource.Config{
		Brokers: w.cfg.Kafka.Brokers, TLS: config, SASL: mechanism, GroupID: w.cfg.Group, Topics: []string{w.cfg.Topic},
		SessionTimeout: w.cfg.Session, HeartbeatInterval: w.cfg.Session / 5, RebalanceTimeout: 15 * time.Second,
		FetchMaxWait: 100 * time.Millisecond,
	})
	key := consumer.HeaderKey(idHeader)
	if w.cfg.Pointer != "" {
		key = consumer.JSONKey(w.cfg.Pointer)
	}
	c, err := consumer.New(pool, source, w.handler, consumer.Config{
		Scope: w.cfg.Scope, Key: key, BatchSize: w.cfg.BatchSize, DrainTimeout: 5 * time.Second, Hooks: w.consumerHooks(relay),
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{c.Run, relay.Run} {
		go func() { ended <- run(ctx); cancel() }()
	}
	return errors.Join(<-ended, <-ended)
}

// worker is one process that consumes.
type worker struct {
	*fleet.Child
	cfg workerConfig
}

// workerMain is main in a worker process.
func workerMain() int {
	var cfg workerConfig
	return fleet.Serve(&cfg, func(ctx context.Context, c *fleet.Child) error { return (&worker{c, cfg}).run(ctx) })
}

func (w *worker) consumerHooks(relay *outbox.Relay) consumer.Hooks {
	return w.Hooks(func(b consumer.BatchDone) {
		if b.Handled > 0 {
			relay.Wake()
		}
	})
}

func (w *worker) relayHooks() outbox.Hooks {
	return outbox.Hooks{
		Settled: func(s outbox.Settled) {
			if s.As == outbox.SettledRejected || s.As == outbox.SettledReconcile {
				w.Tell(fleet.Event{Kind: fleet.Rejected, Text: string(s.As) + ": " + s.Reason})
			}
		},
		Lease: func(c outbox.LeaseChange) {
			switch {
			case c.Held:
				w.Tell(fleet.Event{Kind: fleet.Lease, Text: "the relay of this worker sends the calls from now on"})
			case c.Err != nil:
				w.Tell(fleet.Event{Kind: fleet.Lease, Text: "the relay has lost its lease: " + c.Err.Error()})
			}
		},
		Failed: func(f outbox.Failed) {
			w.Tell(fleet.Event{Kind: fleet.Trouble, Text: "relay: " + f.Err.Error()})
		},
	}
}
