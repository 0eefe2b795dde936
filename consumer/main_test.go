package consumer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// patience bounds what tests wait for; nothing is judged by how long it took. Mutants, which make
// tests wait in vain, shorten it.
var patience = pgtest.Patience(time.Minute)

// long makes the fault matrix do what a night has time for.
var long = flag.Bool("long", false, "every row of the fault matrix side by side, too")

// childVar names the scenario that a copy of this test binary plays instead of running tests.
const childVar = "ONLYONCE_TEST_CHILD"

func TestMain(m *testing.M) {
	if scenario := os.Getenv(childVar); scenario != "" {
		if err := children[scenario](os.Getenv(childVar + "_DB")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

// runChild plays a scenario in a process of its own and returns how it ended.
func runChild(t *testing.T, scenario, db string) *os.ProcessState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+scenario, childVar+"_DB="+db)
	cmd.Stderr = os.Stderr
	_ = cmd.Run() // its end is judged by the caller
	return cmd.ProcessState
}

// rig is a database, a log and a table of effects without a unique constraint, so that doubles
// show.
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool
	log  *memlog.Log
	src  *memlog.Source

	mu     sync.Mutex
	seen   []string // values that the handler was called with
	events []consumer.BatchResult
	parked []consumer.ParkedEvent
	halts  []*consumer.HaltError
	tries  []consumer.RetryEvent
	hangs  []consumer.HungEvent

	consumer *consumer.Consumer // the last one that was started
}

func newRig(t *testing.T, partitions int) *rig {
	t.Helper()
	return rigOn(t, pgtest.DB(t), partitions)
}

// rigOn is a rig on a database of the caller's.
func rigOn(t *testing.T, pool *pgxpool.Pool, partitions int) *rig {
	t.Helper()
	r := &rig{t: t, pool: pool, log: memlog.NewLog("orders", partitions)}
	r.src = &memlog.Source{Log: r.log, GroupID: "stock"}
	r.exec(scenario.EffectsSQL)
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// effect is the plainest handler: one row for each call that commits.
func effect(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	_, err := tx.Exec(ctx, `insert into effects (value, part, off) values ($1, $2, $3)`, string(m.Value), m.Partition, m.Offset)
	return err
}

// queued is the same without waiting for answers.
func queued(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	tx.Queue(`insert into effects (value, part, off) values ($1, $2, $3)`, string(m.Value), m.Partition, m.Offset)
	return nil
}

func testConfig() consumer.Config {
	return consumer.Config{
		Scope: "stock", Key: consumer.HeaderKey("message-id"),
		BatchSize: 10, Linger: time.Millisecond, MaxAttempts: 3, Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		Timeouts: dedupe.Timeouts{Lock: 2 * time.Second}, DrainTimeout: 5 * time.Second,
	}
}

func id(v string) consumer.Header { return consumer.Header{Name: "message-id", Value: []byte(v)} }

// start runs a consumer on the rig's log until stop is called; stop fails the test if Run did not
// end well.
func (r *rig) start(h consumer.HandlerFunc, cfg consumer.Config) (stop func()) {
	return r.startOn(r.src, r.pool, h, cfg)
}

func (r *rig) startOn(src consumer.Source, pool *pgxpool.Pool, h consumer.HandlerFunc, cfg consumer.Config) (stop func()) {
	r.t.Helper()
	cfg.Hooks = r.hooks(cfg.Hooks)
	c, err := consumer.New(pool, src, consumer.HandlerFunc(func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		r.mu.Lock()
		r.seen = append(r.seen, string(m.Value))
		r.mu.Unlock()
		return h(ctx, tx, m)
	}), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.run(c)
}

// startBatch is start for a handler of batches.
func (r *rig) startBatch(h consumer.BatchHandlerFunc, cfg consumer.Config) (stop func()) {
	r.t.Helper()
	cfg.Hooks = r.hooks(cfg.Hooks)
	c, err := consumer.New(r.pool, r.src, h, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.run(c)
}

// hooks adds to a test's own hooks those that take notes.
func (r *rig) hooks(h consumer.Hooks) consumer.Hooks {
	h.Batch = func(e consumer.BatchResult) { r.mu.Lock(); defer r.mu.Unlock(); r.events = append(r.events, e) }
	h.Parked = func(e consumer.ParkedEvent) { r.mu.Lock(); defer r.mu.Unlock(); r.parked = append(r.parked, e) }
	h.Halted = func(e *consumer.HaltError) { r.mu.Lock(); defer r.mu.Unlock(); r.halts = append(r.halts, e) }
	h.Hung = func(e consumer.HungEvent) { r.mu.Lock(); defer r.mu.Unlock(); r.hangs = append(r.hangs, e) }
	h.Retry = func(e consumer.RetryEvent) {
		r.t.Logf("retry: offset %d, attempt %d: %.200v", e.Offset, e.Attempt, e.Err)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tries = append(r.tries, e)
	}
	return h
}

// apart makes what runs with ctx a process of its own: handlers of tests that run side by side wait
// for their test, and one that is to be alone would wait for all of them.
func apart(ctx context.Context) context.Context { return process.With(ctx, &process.Process{}) }

// run runs a consumer until stop is called; stop fails the test if Run did not end well.
func (r *rig) run(c *consumer.Consumer) (stop func()) {
	r.consumer = c
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(apart(ctx)) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					r.t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				r.t.Error("Run did not return after its context ended")
			}
		})
	}
	r.t.Cleanup(stop)
	return stop
}

// cutSQL is a statement that breaks its connection, as one that crashes its backend does, once
// cutting has been called.
const cutSQL = `select 'the connection breaks here'`

func (r *rig) cutting() {
	r.pool = pgtest.Wired(
		r.t,
		r.pool,
		pgx.QueryExecModeCacheStatement,
		&pgtest.Wire{Statement: cutSQL, At: func(int32) pgtest.Cut { return pgtest.Unsent }},
		nil,
	)
}

// until polls a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}

// position returns the database's position of a partition, -1 if there is no cursor.
func (r *rig) position(partition int32) int64 {
	var n int64
	err := r.pool.QueryRow(
		context.Background(),
		`select coalesce(max(next_offset), -1) from onlyonce.positions where topic = 'orders' and partition = $1`,
		partition,
	).Scan(&n)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) reaches(partition int32, offset int64) {
	r.t.Helper()
	until(r.t, "position "+strconv.FormatInt(offset, 10), func() bool { return r.position(partition) == offset })
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// once fails the test unless exactly these values have one effect each.
func (r *rig) once(values ...string) {
	r.t.Helper()
	var missing, doubled, invented []string
	want := map[string]int{}
	for _, v := range values {
		want[v] = 0
	}
	rows, err := r.pool.Query(context.Background(), `select value from effects`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			r.t.Fatal(err)
		}
		if _, ok := want[v]; !ok {
			invented = append(invented, v)
		}
		if want[v]++; want[v] > 1 {
			doubled = append(doubled, v)
		}
	}
	for v, n := range want {
		if n == 0 {
			missing = append(missing, v)
		}
	}
	if len(missing)+len(doubled)+len(invented) > 0 {
		r.t.Errorf("effects: missing %v, doubled %v, invented %v", missing, doubled, invented)
	}
}

func (r *rig) reasons() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := map[string]string{}
	for _, p := range r.parked {
		m[strconv.FormatInt(p.Offset, 10)] = string(p.Reason)
	}
	return m
}

// haltsSoFar returns the halts until now.
func (r *rig) haltsSoFar() []*consumer.HaltError {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halts
}

// halted waits for a halt and returns it.
func (r *rig) halted() *consumer.HaltError {
	r.t.Helper()
	var h *consumer.HaltError
	until(r.t, "a halt", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.halts) > 0 {
			h = r.halts[0]
		}
		return h != nil
	})
	return h
}

// numbered appends n messages with ids of their own and returns their values.
func (r *rig) numbered(partition int32, n int) (values []string) {
	for i := range n {
		v := fmt.Sprintf("p%d-%d", partition, i)
		r.log.Append(partition, v, id(v))
		values = append(values, v)
	}
	return values
}

var errBoom = errors.New("boom")

// dump logs the rows of a query.
func (r *rig) dump(sql string) {
	rows, err := r.pool.Query(context.Background(), sql)
	if err != nil {
		r.t.Log(err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		r.t.Log(values, err)
	}
}

// fetching calls after each fetch of a source.
type fetching struct {
	consumer.Source
	after func(*source.Fetched[*consumer.Message], error)
}

func (s fetching) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		return own(ctx, fetchingPartition{p, s})
	})
}

type fetchingPartition struct {
	source.Partition[*consumer.Message]
	of fetching
}

func (p fetchingPartition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	f, err := p.Partition.Fetch(ctx, from, most)
	p.of.after(&f, err)
	return f, err
}
