package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/eventsource"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// The parameters that the consumer's scenes vary.
var (
	levels   = []string{"read-committed", "repeatable-read", "serializable"}
	keys     = []string{"key", "positions", "events"}
	handlers = []string{"messages", "batch", "ordered", "slots", "slots-ordered"}
)

func consumerScenes() (scenes []scene) {
	for _, level := range levels {
		for _, key := range keys {
			for _, handler := range handlers {
				scenes = append(scenes, scene{
					name: strings.Join([]string{"consumer", level, key, handler}, "/"),
					make: func() stage { return &consuming{level: level, key: key, handler: handler} },
				})
			}
		}
	}
	return scenes
}

const (
	scope = "stock"
	topic = "orders"
	group = "stock"
)

// consuming is a consumer that applies a log. Its batches are of two messages. Some wait for an
// answer in the middle, and some are a single round trip. One has a copy, and one fails and is
// divided.
type consuming struct {
	level, key, handler string

	log *memlog.Log
	mix *scenario.Mix
	n   int

	handle consumer.HandlerFunc // nil: scenario.Handle
}

// setUp implements stage.
func (x *consuming) setUp(r *rig) error {
	var log scenario.Log
	if x.key == "events" {
		if _, err := eventsource.MakeStream(r.ctx, r.db.Pool, topic, 1); err != nil {
			return err
		}
		log = &stream{r: r}
	} else {
		x.log = memlog.NewLog(topic, 1)
		log = x.log
	}
	x.mix = scenario.New(log, scope, topic)
	x.mix.PositionsOnly = x.key != "key"
	x.mix.Ordered = strings.HasSuffix(x.handler, "ordered")
	x.mix.Add(0, "a", "a-0", "call")
	x.mix.Add(0, "b", "b-0", "")
	x.mix.Add(0, "a", "a-1", "queue")
	x.mix.Add(0, "b", "b-1", "queue call")
	log.Skip(0, 100) // more offsets without a message than a batch or a window has (F9)
	x.mix.Add(0, "a", "a-2", "queue")
	x.mix.Add(0, "c", "c-0", "queue")
	x.mix.Add(0, "d", "d-0", "fail:1")
	x.mix.Add(0, "d", "d-1", "queue")
	if x.key == "key" {
		x.mix.AddAs(0, "a", "a-0", "a-0", "call")
	}
	x.mix.Add(0, "a", "a-3", "queue")
	return nil
}

// more implements stage: six messages, so that the owner goes on for three batches.
func (x *consuming) more(*rig) error {
	for range 6 {
		x.n++
		x.mix.Add(0, fmt.Sprint("m", x.n%2), fmt.Sprintf("more-%d", x.n), "queue")
	}
	return nil
}

// start implements stage.
func (x *consuming) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	b := r.bound
	cfg := consumer.Config{
		Scope:          scope,
		BatchSize:      2,
		Linger:         time.Millisecond,
		MaxAttempts:    40,
		Backoff:        dedupe.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond},
		HandlerTimeout: b,
		BatchTimeout:   b,
		HangTimeout:    b,
		Timeouts:       dedupe.Timeouts{Lock: b / 2, Statement: b / 2, Idle: r.idleTimeout(), Commit: b},
		DrainTimeout:   b,
		OnBegin:        x.begin,
		Logger:         r.logger(),
	}
	switch x.key {
	case "key":
		cfg.Key = consumer.HeaderKey(scenario.HeaderID)
	case "positions":
		cfg.PositionsOnly = true
	}
	if strings.HasPrefix(x.handler, "slots") {
		cfg.Concurrency = 3
	}
	if strings.HasSuffix(x.handler, "ordered") {
		cfg.OnFailure = consumer.ParkOrderingKey
	}
	return r.process(func(ctx context.Context) error {
		var source consumer.Source = &memlog.Source{Log: x.log, GroupID: group}
		if x.key == "events" {
			var err error
			source, err = eventsource.NewSource(pool, eventsource.Config{
				Group:           group,
				Topics:          []string{topic},
				PollInterval:    50 * time.Millisecond,
				LeaseTTL:        max(b, time.Second),
				HandoverTimeout: b,
				Logger:          cfg.Logger,
			})
			if err != nil {
				return err
			}
		}
		var c *consumer.Consumer
		var err error
		if x.handler == "batch" {
			c, err = consumer.New(pool, source, consumer.BatchHandlerFunc(each), cfg)
		} else {
			handle := x.handle
			if handle == nil {
				handle = scenario.Handle
			}
			c, err = consumer.New(pool, source, handle, cfg)
		}
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}), nil
}

// begin chooses the isolation level and runs a query, as a user's Config.OnBegin may: above READ
// COMMITTED the transaction has its snapshot before the fence.
func (x *consuming) begin(ctx context.Context, tx consumer.Tx) error {
	tx.Queue("set transaction isolation level " + strings.ReplaceAll(x.level, "-", " "))
	var n int
	return tx.QueryRow(ctx, "select 1 + 1 as question").Scan(&n)
}

// each is a batch handler.
func each(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
	for _, m := range msgs {
		if err := scenario.Handle(ctx, consumer.TxFor(tx, m), m); err != nil {
			return consumer.FailMessage(m, err)
		}
	}
	return nil
}

const standsSQL = `
select coalesce((select next_offset from onlyonce.positions where scope = $1 and topic = $2), 0),
       (select count(*) from onlyonce.parked where settled_at is null)`

// done implements stage.
func (x *consuming) done(r *rig) (bool, error) {
	var at int64
	var parked int
	if err := r.db.Pool.QueryRow(r.ctx, standsSQL, scope, topic).Scan(&at, &parked); err != nil {
		return false, err
	}
	if at < x.mix.End(0) || parked > 0 {
		return false, nil
	}
	return true, nil
}

// check implements stage.
func (x *consuming) check(r *rig) ([]string, error) {
	found, err := x.mix.Check(r.ctx, r.db.Pool, true)
	if err != nil {
		return nil, err
	}
	if r.target != nil {
		return found, nil
	}
	var kept bool
	err = r.db.Pool.QueryRow(
		r.ctx,
		`
select exists (select from onlyonce.progress where from_offset = 0)
or exists (select from onlyonce.done where "offset" = 0)`,
	).Scan(&kept)
	if err != nil {
		return nil, err
	}
	if kept {
		return nil, errUnpruned
	}
	return found, nil
}

// stream is a stream of events as a log.
type stream struct{ r *rig }

// AppendMessage implements scenario.Log.
func (s *stream) AppendMessage(partition int32, m *consumer.Message) int64 {
	offset, err := s.append(partition, m)
	if err != nil && s.r.ctx.Err() == nil {
		panic(err) // the database is the rig's own
	}
	return offset
}

func (s *stream) append(_ int32, m *consumer.Message) (offset int64, err error) {
	tx, err := s.r.db.Pool.Begin(s.r.ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(s.r.ctx) }()
	id, _ := m.Header(scenario.HeaderID)
	if err := eventsource.Append(s.r.ctx, tx, eventsource.Event{
		Topic:   topic,
		ID:      string(id),
		Key:     m.Key,
		Headers: m.Headers,
		Body:    m.Value,
	}); err != nil {
		return 0, err
	}
	err = tx.QueryRow(
		s.r.ctx,
		`select b.next_offset - 1 from onlyonce.streams s, onlyonce.stream_bounds(s.id, 0::smallint) b where s.topic = $1`,
		topic,
	).Scan(&offset)
	return offset, errors.Join(err, tx.Commit(s.r.ctx))
}

// Skip implements scenario.Log: the offsets of events have no holes.
func (s *stream) Skip(int32, int64) {}
