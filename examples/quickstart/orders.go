package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/test/demo/quickstart"
)

// tableSQL makes the service's table. It has no unique constraint: an order that was applied twice
// would show.
const tableSQL = `
create schema if not exists onlyonce_quickstart;
create table if not exists onlyonce_quickstart.effects (
  run text not null,
  order_id text not null,
  amount_cents bigint not null
);
create index if not exists effects_run on onlyonce_quickstart.effects (run)`

// order is the content of a message.
type order struct {
	ID          string `json:"id"`
	AmountCents int64  `json:"amount_cents"`
}

// charge is the body of the call for an order. It holds nothing that would differ when the order is
// handled again.
type charge struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
}

// orders handles the messages.
type orders struct {
	run string // of the demonstration: marks its effects, and names its sink
	own bool   // the messages are yours (-input): nothing is known of them but the id
}

// apply writes the effects of one message in the transaction that it gets, and enqueues the call
// that belongs to them.
func (s *orders) apply(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	o, err := s.read(m)
	if err != nil {
		return consumer.Permanent(err) // no retry can change that: parked, after one run alone
	}
	body, err := json.Marshal(charge{o.ID, o.AmountCents})
	if err != nil {
		return err
	}
	tx.Queue(`insert into onlyonce_quickstart.effects (run, order_id, amount_cents) values ($1, $2, $3)`, s.run, o.ID, o.AmountCents)
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: s.run, Name: "charge", Target: "/charges", Body: body})
}

func (s *orders) read(m *consumer.Message) (o order, err error) {
	if s.own {
		return order{ID: m.ID()}, nil
	}
	if err := json.Unmarshal(m.Value, &o); err != nil {
		return o, fmt.Errorf("not an order: %w", err)
	}
	if o.AmountCents <= 0 {
		return o, fmt.Errorf("an amount of %d cents cannot be charged", o.AmountCents)
	}
	return o, nil
}

// serve consumes orders and sends their calls, until ctx ends. Every process runs a relay; the
// relays share the sink's lanes.
func serve(ctx context.Context, w *quickstart.Worker) error {
	payments, err := httpsink.New(httpsink.Config{
		Name: w.Run, BaseURL: w.Payments, KeyWindow: time.Hour, Timeout: 5 * time.Second,
		AllowPrivate: true, // this payment service runs on loopback
		Breaker:      httpsink.Breaker{OpenFor: time.Second},
	})
	if err != nil {
		return err
	}
	defer payments.Close()
	relay, err := outbox.NewRelay(w.RelayPool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{payments},
		Concurrency:  64,
		PollInterval: 100 * time.Millisecond,
		LeaseTTL:     3 * time.Second,
		Backoff:      dedupe.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second},
		DrainTimeout: 5 * time.Second,
		Hooks:        w.RelayHooks(),
	})
	if err != nil {
		return err
	}
	s := &orders{run: w.Run, own: w.Own()}
	c, err := consumer.New(w.Pool, w.Source, w.Watched(s.apply), consumer.Config{
		Scope: w.Run, Key: w.Key(), BatchSize: w.BatchSize, DrainTimeout: 5 * time.Second, Hooks: w.ConsumerHooks(relay),
	})
	if err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return c.Run(ctx) })
	work.Go(func() error { return relay.Run(ctx) })
	return work.Wait()
}
