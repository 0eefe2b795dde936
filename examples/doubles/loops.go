package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
)

// order is the content of a message.
type order struct {
	N int `json:"n"`
}

// db is a pool, or the transaction that onlyonce passes to a handler.
type db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// hold is the handler of every loop. Its table has no unique constraint: a second row shows.
func (w *worker) hold(ctx context.Context, to db, o order) error {
	w.killedAt(o, before)
	_, err := to.Exec(ctx, `insert into onlyonce_doubles.effects (run, loop, n) values ($1, $2, $3)`, w.Run, w.Loop, o.N)
	w.killedAt(o, after)
	return err
}

// loops are the ways to consume that are compared. Only the last one uses onlyonce.
var loops = []struct {
	name string
	run  func(ctx context.Context, w *worker, pool *pgxpool.Pool) error
}{
	{"ReadMessage, then handle", readThenHandle},
	{"handle, then commit the offset", handleThenCommit},
	{"the same, with a table of processed ids", handleThenMark},
	{"onlyonce", withOnlyonce},
}

// readThenHandle is the first example of many clients: ReadMessage commits the offset before the
// handler runs.
func readThenHandle(ctx context.Context, w *worker, pool *pgxpool.Pool) error {
	r := w.reader()
	defer func() { _ = r.Close() }() // leaves the group
	for {
		m, err := r.ReadMessage(ctx)
		if err == nil {
			err = w.handle(ctx, pool, m.Value)
		}
		if err != nil {
			return err
		}
	}
}

// handleThenCommit commits the offset once the effects are in the database.
func handleThenCommit(ctx context.Context, w *worker, pool *pgxpool.Pool) error {
	r := w.reader()
	defer func() { _ = r.Close() }() // leaves the group
	for {
		m, err := r.FetchMessage(ctx)
		if err == nil {
			err = w.handle(ctx, pool, m.Value)
		}
		if err == nil {
			err = r.CommitMessages(ctx, m)
		}
		if err != nil {
			return err
		}
	}
}

// handleThenMark skips an id that is in a table, and writes it there when the handler has returned.
func handleThenMark(ctx context.Context, w *worker, pool *pgxpool.Pool) error {
	r := w.reader()
	defer func() { _ = r.Close() }() // leaves the group
	for {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return err
		}
		id := string(m.Headers[0].Value)
		known := false
		const query = `select exists (select from onlyonce_doubles.processed where run = $1 and id = $2)`
		if err := pool.QueryRow(ctx, query, w.Run, id).Scan(&known); err != nil {
			return err
		}
		if !known {
			if err := w.handle(ctx, pool, m.Value); err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, `insert into onlyonce_doubles.processed (run, id) values ($1, $2)`, w.Run, id); err != nil {
				return err
			}
		}
		if err := r.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

// withOnlyonce passes the same handler a transaction.
func withOnlyonce(ctx context.Context, w *worker, pool *pgxpool.Pool) error {
	source := kafkasource.New(kafkasource.Config{
		Brokers: w.Brokers, GroupID: w.topic(), Topics: []string{w.topic()}, SessionTimeout: w.Session, HeartbeatInterval: w.Session / 5,
	})
	handler := func(ctx context.Context, tx consumer.Tx, _ *consumer.Message, o order) error {
		return w.hold(ctx, tx, o)
	}
	c, err := consumer.New(pool, source, consumer.Decode(consumer.JSON, handler), consumer.Config{
		Scope: w.topic(),
		Key:   consumer.HeaderKey(idHeader),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// reader is a member of the loop's group.
func (w *worker) reader() *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: w.Brokers, GroupID: w.topic(), Topic: w.topic(), MaxWait: 100 * time.Millisecond,
		SessionTimeout: w.Session, HeartbeatInterval: w.Session / 5,
	})
}

func (w *worker) handle(ctx context.Context, to db, value []byte) error {
	var o order
	if err := json.Unmarshal(value, &o); err != nil {
		return err
	}
	return w.hold(ctx, to, o)
}
