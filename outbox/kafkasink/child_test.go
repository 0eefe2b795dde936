package kafkasink_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/kafkasink"
)

// childEnv turns this test binary into a worker of service A, and holds its configuration.
const childEnv = "ONLYONCE_KAFKASINK_CHILD"

// service is the configuration of a worker.
type service struct {
	Postgres        string
	Brokers         []string
	Commands, Event string // topics
}

// childMain runs a worker of service A in a process of its own, until its standard input ends.
func childMain() int {
	var s service
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
	if err := s.runA(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startChild starts a worker of A; its process is killed when the test ends.
func (s service) startChild(t *testing.T) *exec.Cmd {
	t.Helper()
	cfg, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(cfg))
	cmd.Stdout = os.Stderr
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // ends when this process does
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

// kill ends a worker with SIGKILL.
func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// runA consumes commands, enqueues an event for each, and relays.
func (s service) runA(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, s.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	sink, err := kafkasink.New(kafkasink.Config{
		Name:      "events",
		Brokers:   s.Brokers,
		Topics:    []string{s.Event},
		KeyWindow: outbox.Forever,
		Timeout:   3 * time.Second,
	})
	if err != nil {
		return err
	}
	defer sink.Close()
	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks:        []outbox.Sink{&forgetful{Sink: sink}},
		Concurrency:  16,
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     2 * time.Second,
		Backoff:      dedupe.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
	})
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (id) values ($1)`, m.ID())
		return outbox.Enqueue(ctx, tx, outbox.Call{
			Sink:   "events",
			Name:   "placed",
			Target: "/" + s.Event + "?key=" + m.ID()[:1],
			Body:   []byte(m.ID()),
		})
	}
	c, err := s.consumer(pool, "a", s.Commands, handle)
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

// runB consumes events. The message-id that the sink wrote is the message's id.
func (s service) runB(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, s.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := s.consumer(pool, "b", s.Event, func(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (id, key) values ($1, $2)`, string(m.Value), m.ID())
		return nil
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func (s service) consumer(pool *pgxpool.Pool, scope, topic string, handle consumer.HandlerFunc) (*consumer.Consumer, error) {
	source := kafkasource.New(kafkasource.Config{
		Brokers:           s.Brokers,
		GroupID:           scope + "-" + topic,
		Topics:            []string{topic},
		SessionTimeout:    time.Second,
		HeartbeatInterval: 100 * time.Millisecond,
		RebalanceTimeout:  5 * time.Second,
		FetchMaxWait:      100 * time.Millisecond,
	})
	return consumer.New(pool, source, handle, consumer.Config{Scope: scope, Key: consumer.HeaderKey(kafkasink.MessageID), BatchSize: 10})
}

// forgetful loses every fifth acknowledgement, so that the relay sends written records again.
type forgetful struct {
	*kafkasink.Sink
	n atomic.Int64
}

func (f *forgetful) lose(r outbox.Result) outbox.Result {
	if r.Outcome == outbox.Delivered && f.n.Add(1)%5 == 0 {
		return outbox.Failure("the acknowledgement was lost", nil)
	}
	return r
}

func (f *forgetful) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	return f.lose(f.Sink.Send(ctx, a))
}

func (f *forgetful) SendBatch(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
	f.Sink.SendBatch(ctx, calls, func(i int, r outbox.Result) { ended(i, f.lose(r)) })
}
