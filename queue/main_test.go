package queue_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/queue/queuetest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds the waits of tests; no result depends on how long it took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	if db := os.Getenv(childDB); db != "" {
		if err := child(db); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

// rig is a database with a table of effects, and a broker in memory.
type rig struct {
	t      *testing.T
	pool   *pgxpool.Pool // the test's own
	broker queuetest.Memory

	mu   sync.Mutex
	done queue.StoredEvent // by all receivers
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pool: pgtest.DB(t)}
	r.exec(`create table effects (id text not null, at bigserial, constraint one unique (id) deferrable initially deferred)`)
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	pgtest.Exec(r.t, r.pool, sql, args...)
}

func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	return pgtest.One[T](r.t, r.pool, sql, args...)
}

func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, cond)
}

// config is that of a queue whose source is quick.
func (r *rig) config(more ...func(*queue.Config)) queue.Config {
	logger, _ := pgtest.Logged()
	cfg := queue.Config{
		Name:         "q",
		CopiesWithin: time.Hour,
		Partitions:   4,
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     2 * time.Second,
		Logger:       logger,
		OnStored: func(s queue.StoredEvent) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.done = queue.StoredEvent{Fresh: r.done.Fresh + s.Fresh, Copies: r.done.Copies + s.Copies, Parked: r.done.Parked + s.Parked}
		},
	}
	for _, m := range more {
		m(&cfg)
	}
	return cfg
}

// stored returns what receivers have stored so far.
func (r *rig) stored() queue.StoredEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *rig) queue(pool *pgxpool.Pool, broker queue.Broker, more ...func(*queue.Config)) *queue.Queue {
	r.t.Helper()
	q, err := queue.New(pool, broker, r.config(more...))
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

// runs runs something until the test's end, or until the returned function is called.
func (r *rig) runs(run func(context.Context) error) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// receives runs a receiver.
func (r *rig) receives(more ...func(*queue.Config)) (q *queue.Queue, stop func()) {
	r.t.Helper()
	q = r.queue(r.pool, r.broker.Connect(), more...)
	return q, r.runs(q.Receive)
}

// effect writes a row under the message's id.
func effect(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(`insert into effects (id) values ($1)`, m.ID())
	return nil
}

// applies runs a consumer of a queue.
func (r *rig) applies(q *queue.Queue, h consumer.HandlerFunc) {
	r.t.Helper()
	c, err := consumer.New(r.pool, q, h, consumer.Config{
		Scope:   "s",
		Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Linger:  time.Millisecond,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.runs(c.Run)
}

func (r *rig) count(table string) int {
	r.t.Helper()
	return one[int](r, `select count(*) from `+table)
}

func message(id string, body ...string) queue.Delivery {
	return queue.Delivery{ID: id, Body: []byte(strings.Join(append(body, "body of "+id)[:1], ""))}
}

func messages(from, to int) (all []queue.Delivery) {
	for n := from; n < to; n++ {
		all = append(all, message(fmt.Sprintf("m%04d", n)))
	}
	return all
}
