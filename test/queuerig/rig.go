// Package queuerig is what the tests of all adapters to queues need: a database, receivers, and
// what they have stored.
package queuerig

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
	cfg := queue.Config{Name: "q", CopiesWithin: time.Hour, Partitions: 4, PollInterval: 20 * time.Millisecond, LeaseTTL: 2 * time.Second, Logger: logger}
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
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Receive(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.T.Error(err)
		}
	})
	r.T.Cleanup(stop)
	return q, stop
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
