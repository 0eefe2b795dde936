package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/test/demo/command"
)

// worker is one process of a way, from its own side.
type worker struct {
	brokers      []string
	topic, group string
	session      time.Duration
	seat         string
	redis        string
	pool         *pgxpool.Pool
}

// serve is main in a worker.
func serve(name string) int {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // the rig holds the other end: without it this process ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := work(ctx, name); err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "doubles: a worker of %s has ended: %v\n", name, err)
		return command.Failed
	}
	return command.Good
}

func work(ctx context.Context, name string) error {
	i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name })
	if i < 0 {
		return fmt.Errorf("there is no way %q", name)
	}
	w := &worker{
		brokers: strings.Split(os.Getenv(envBrokers), ","),
		topic:   os.Getenv(envTopic),
		group:   os.Getenv(envGroup),
		seat:    os.Getenv(envSeat),
		redis:   os.Getenv(envRedis),
	}
	var err error
	if w.session, err = time.ParseDuration(os.Getenv(envSession)); err != nil {
		return err
	}
	if w.pool, err = pgxpool.New(ctx, os.Getenv(envPostgres)); err != nil {
		return err
	}
	defer w.pool.Close()
	return tools[i].work(ctx, w)
}

// db is a pool, or a transaction.
type db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// effectSQL is what each handler does. $1 is the message's id, $2 the record.
const effectSQL = `insert into effects (id, record) values ($1, $2)`

// apply is the handler of every way that works on Kafka's records.
func apply(ctx context.Context, to db, value []byte, record string) error {
	var c content
	if err := json.Unmarshal(value, &c); err != nil {
		return err
	}
	_, err := to.Exec(ctx, effectSQL, c.ID, record)
	return err
}

// recordOf names a record.
func recordOf(partition int, offset int64) string { return fmt.Sprintf("%d/%d", partition, offset) }

func idOf(m kafka.Message) string {
	for _, h := range m.Headers {
		if h.Key == idHeader {
			return string(h.Value)
		}
	}
	return ""
}

// reader is kafka-go's reader of a group.
func (w *worker) reader() *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: w.brokers, GroupID: w.group, Topic: w.topic, MaxWait: 100 * time.Millisecond,
		SessionTimeout: w.session, HeartbeatInterval: w.session / 5,
	})
}

// each fetches a record, handles it, and commits its offset.
func (w *worker) each(ctx context.Context, handle func(context.Context, kafka.Message) error) error {
	r := w.reader()
	defer func() { _ = r.Close() }() // leaves the group
	for {
		m, err := r.FetchMessage(ctx)
		if err == nil {
			err = handle(ctx, m)
		}
		if err == nil {
			err = r.CommitMessages(ctx, m)
		}
		if err != nil {
			return err
		}
	}
}
