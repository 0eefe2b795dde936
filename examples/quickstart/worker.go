package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/examples/internal/servers"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
)

// envWorker makes a copy of this program a worker. It reads its workerConfig as the first line of standard input, works until
// standard input ends, and writes events to standard output, one JSON object a line.
const envWorker = "ONLYONCE_QUICKSTART_WORKER"

// workerConfig is all that a worker needs to know.
type workerConfig struct {
	Number       int // of this process; no two have the same
	Postgres     string
	Kafka        servers.KafkaAddress
	Session      time.Duration
	Group, Topic string
	Run          string // marks this run's rows in the effects table
	Scope        string
	Pointer      string // where the id is in the user's own messages; empty: in the header message-id
	Sink         string
	Payments     string // base URL
	Journal      string // file, see journal
	BatchSize    int
	Connections  int32
}

// effectSQL is the handler's own write. The table has no unique constraint: an order applied twice would show.
const effectSQL = `insert into onlyonce_quickstart.effects (run, order_id, amount_cents, worker) values ($1, $2, $3, $4)`

// handler is what a user of onlyonce writes: the effects of one message, in the transaction that it is given, and an outbound
// call that belongs to them.
func (w *worker) handler(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if err := w.entered(m); err != nil {
		return err
	}
	o, err := w.order(m)
	if err != nil {
		return consumer.Permanent(err) // parked, not retried
	}
	tx.Queue(effectSQL, w.cfg.Run, o.ID, o.AmountCents, w.cfg.Number)
	return outbox.Enqueue(ctx, tx, outbox.Call{Sink: w.cfg.Sink, Name: "charge", Target: "/charges", Body: o.charge()})
}

// order reads the message. Of the user's own messages nothing is known but the id.
func (w *worker) order(m *consumer.Message) (order, error) {
	if w.cfg.Pointer != "" {
		return order{ID: m.ID()}, nil
	}
	return parseOrder(m.Value)
}

// run consumes, and sends the outbox's calls, until ctx ends. Every worker runs a relay; the sink's lease decides whose sends.
func (w *worker) run(ctx context.Context) error {
	pool, err := w.pool(ctx, w.cfg.Connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	relayPool, err := w.pool(ctx, 2)
	if err != nil {
		return err
	}
	defer relayPool.Close()

	payments, err := httpsink.New(httpsink.Config{
		Name: w.cfg.Sink, BaseURL: w.cfg.Payments, KeyWindow: time.Hour, Timeout: 5 * time.Second})
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

func (w *worker) pool(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(w.cfg.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, cfg)
}

// worker is one process that consumes.
type worker struct {
	cfg     workerConfig
	journal *os.File
	events  *eventWriter
}

// workerMain is main in a worker process.
func workerMain(stdin io.Reader, stdout io.Writer) int {
	// Ctrl-C in a terminal reaches every process; this one is stopped by its parent, in order.
	signal.Ignore(os.Interrupt)
	w := &worker{events: newEventWriter(stdout)}
	lines := bufio.NewReader(stdin)
	line, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &w.cfg)
	}
	if err == nil {
		w.journal, err = os.OpenFile(w.cfg.Journal, os.O_APPEND|os.O_WRONLY, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart worker:", err)
		return statusEnvironment
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		// The parent closes the pipe when this worker is to leave; if the parent dies the kernel does.
		_, _ = io.Copy(io.Discard, lines)
		stop()
	}()
	if err := w.run(ctx); err != nil {
		w.events.write(event{Kind: eventEnded, Text: err.Error()})
		return statusFailed
	}
	return statusGood
}

// invocation is one entry of the journal, a file that all workers append to when their handler is entered. It tells how
// often the handler ran, for every record and in which process, and loses nothing to SIGKILL: what was written is the kernel's.
type invocation struct {
	Worker    uint32
	Partition uint32
	Offset    uint64
}

const invocationSize = 16

// entered notes that the handler runs.
func (w *worker) entered(m *consumer.Message) error {
	var b [invocationSize]byte
	if _, err := binary.Encode(b[:], binary.BigEndian, invocation{uint32(w.cfg.Number), uint32(m.Partition), uint64(m.Offset)}); err != nil {
		return err
	}
	if _, err := w.journal.Write(b[:]); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	w.events.begin(m)
	return nil
}
