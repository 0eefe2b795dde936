// Package queuerig is what the tests of all adapters to queues need: a database, receivers and
// what they have stored, a relay and calls.
package queuerig

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Rig is a database of a test.
type Rig struct {
	T    *testing.T
	Pool *pgxpool.Pool
}

// New returns a rig with a database of its own.
func New(t *testing.T) *Rig {
	t.Helper()
	return &Rig{T: t, Pool: pgtest.DB(t)}
}

// Queue returns a queue of 4 partitions.
func (r *Rig) Queue(b queue.Broker, more ...func(*queue.Config)) *queue.Queue {
	r.T.Helper()
	logger, _ := pgtest.Logged()
	cfg := queue.Config{
		Name:         "q",
		CopiesWithin: time.Hour,
		Partitions:   4,
		PollInterval: 20 * time.Millisecond,
		LeaseTTL:     2 * time.Second,
		Logger:       logger,
	}
	for _, m := range more {
		m(&cfg)
	}
	q, err := queue.New(r.Pool, b, cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	return q
}

// Receives runs a receiver until the test's end, or until the returned function is called.
func (r *Rig) Receives(b queue.Broker, more ...func(*queue.Config)) (q *queue.Queue, stop func()) {
	r.T.Helper()
	q = r.Queue(b, more...)
	return q, r.runs(q.Receive)
}

// runs calls run until the test's end, or until the returned function is called.
func (r *Rig) runs(run func(context.Context) error) (stop func()) {
	r.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.T.Error(err)
		}
	})
	r.T.Cleanup(stop)
	return stop
}

// Strings returns the rows of a query with one column of text.
func (r *Rig) Strings(query string) []string {
	r.T.Helper()
	rows, err := r.Pool.Query(context.Background(), query)
	if err != nil {
		r.T.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.T.Fatal(err)
	}
	return all
}

// Stored returns the ids of stored messages, in the order of storing.
func (r *Rig) Stored() []string {
	r.T.Helper()
	return r.Strings(`select id from onlyonce.event_log order by partition, "offset"`)
}

// UntilStored waits until so many messages are stored.
func (r *Rig) UntilStored(n int) {
	r.T.Helper()
	pgtest.Until(r.T, pgtest.Patience(time.Minute), fmt.Sprintf("%d messages are stored", n), func() bool { return len(r.Stored()) >= n })
}

// Relays runs a relay until the test's end, or until the returned function is called. It soon tries
// again: a server that is away for long would otherwise be asked minutes after it is back.
func (r *Rig) Relays(s outbox.Sink) (stop func()) {
	r.T.Helper()
	relay, err := outbox.NewRelay(r.Pool, outbox.RelayConfig{
		Sinks:   []outbox.Sink{s},
		Backoff: dedupe.Backoff{Min: 20 * time.Millisecond, Max: time.Second},
	})
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() {
		if r.T.Failed() {
			r.T.Log("queuerig: calls: ",
				r.Strings(`select format('%s %s %s', count(*), state, max(error)) from onlyonce.calls group by state`))
		}
	})
	return r.runs(relay.Run)
}

// Enqueues enqueues calls of the numbers from, from + 1 and so on below to, which are their bodies.
func (r *Rig) Enqueues(from, to int, target string, more ...func(n int, c *outbox.Call)) {
	r.T.Helper()
	for n := from; n < to; n++ {
		c := outbox.Call{ID: fmt.Sprint(n), Scope: "s", Sink: "events", Name: "placed", Target: target, Body: []byte(fmt.Sprint(n))}
		for _, m := range more {
			m(n, &c)
		}
		if err := pgx.BeginFunc(r.T.Context(), r.Pool, func(tx pgx.Tx) error { return outbox.Enqueue(r.T.Context(), tx, c) }); err != nil {
			r.T.Fatal(err)
		}
	}
}
