package outbox_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds how long tests wait. No test depends on how long something took.
var patience = pgtest.Patience(time.Minute)

func TestMain(m *testing.M) {
	if db := os.Getenv(childDB); db != "" {
		if err := child(db, os.Getenv(childURL)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

// rig is a database and the events that relays on it reported.
type rig struct {
	t    *testing.T
	pool *pgxpool.Pool

	mu      sync.Mutex
	settled []outbox.SettledEvent
	leases  []outbox.LeaseEvent
	gates   []*gate
	paused  atomic.Bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{t: t, pool: pgtest.DB(t)}
}

// testConfig is quick in everything.
func testConfig(sinks ...outbox.Sink) outbox.RelayConfig {
	return outbox.RelayConfig{
		Sinks: sinks, PollInterval: 40 * time.Millisecond, LeaseTTL: 5 * time.Second,
		Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}, DrainTimeout: 10 * time.Second,
	}
}

func (r *rig) relay(cfg outbox.RelayConfig) *outbox.Relay {
	r.t.Helper()
	cfg.Hooks = cfg.Hooks.Join(outbox.Hooks{
		Settled:           func(s outbox.SettledEvent) { r.mu.Lock(); defer r.mu.Unlock(); r.settled = append(r.settled, s) },
		Lease:             func(c outbox.LeaseEvent) { r.mu.Lock(); defer r.mu.Unlock(); r.leases = append(r.leases, c) },
		Paused:            func(p outbox.PausedEvent) { r.paused.Store(p.Paused) },
		TransactionFailed: func(f outbox.TransactionFailedEvent) { r.t.Logf("failed: %.300v", f.Err) },
	})
	relay, err := outbox.NewRelay(r.pool, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return relay
}

// running is a relay that runs. Stop fails the test unless Run ends with nil.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan error
	once   sync.Once
}

func (r *rig) start(cfg outbox.RelayConfig) *running {
	r.t.Helper()
	return r.run(r.relay(cfg))
}

func (r *rig) run(relay *outbox.Relay) *running { return r.runIn(context.Background(), relay) }

func (r *rig) runIn(ctx context.Context, relay *outbox.Relay) *running {
	ctx, cancel := context.WithCancel(ctx)
	x := &running{t: r.t, cancel: cancel, ended: make(chan error, 1)}
	go func() { x.ended <- relay.Run(ctx) }()
	r.t.Cleanup(func() {
		for _, g := range r.gates {
			g.release() // or a test that has failed would wait for its calls
		}
		x.stop()
	})
	return x
}

func (x *running) stop() {
	x.once.Do(func() {
		x.cancel()
		if err := x.wait(); err != nil {
			x.t.Errorf("Run: %v", err)
		}
	})
}

func (x *running) wait() error {
	select {
	case err := <-x.ended:
		return err
	case <-time.After(2 * patience):
		return fmt.Errorf("it did not return within %v", 2*patience)
	}
}

// until polls a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	pgtest.Exec(r.t, r.pool, sql, args...)
}

// one reads one value.
func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	return pgtest.One[T](r.t, r.pool, sql, args...)
}

func charge(id string) outbox.Call {
	return outbox.Call{
		Sink: "payments", Name: "charge", ID: id, Scope: "checkout", Target: "/charges",
		Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"order":"` + id + `"}`),
	}
}

// enqueue commits calls in one transaction.
func (r *rig) enqueue(calls ...outbox.Call) {
	r.t.Helper()
	err := pgx.BeginFunc(context.Background(), r.pool, func(tx pgx.Tx) error {
		for _, c := range calls {
			if err := outbox.Enqueue(context.Background(), tx, c); err != nil {
				return err
			}
		}
		return ownLanes(tx)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// ownLanes moves the batches that the transaction has written, of calls without an ordering key, to
// the lanes of their first calls' keys. Enqueue chooses a lane at random, and tests choose calls of
// one lane (sameLane).
func ownLanes(tx pgx.Tx) error {
	_, err := tx.Exec(context.Background(), `update onlyonce.batches set lane = onlyonce.lane(keys[1])
		where xid = pg_current_xact_id() and order_key is null and order_keys is null`)
	return err
}

// laneOf is the lane of a call without an ordering key; see ownLanes.
func laneOf(c outbox.Call) byte {
	key := uuid.MustParse(outbox.Identity(origin.Origin{Tenant: c.Tenant, Scope: c.Scope}, false, c))
	return key[15] & 15
}

// sameLane is an id for a call like this one, without an ordering key, whose key is of the same
// lane; see ownLanes.
func (r *rig) sameLane(c outbox.Call, like string) string {
	r.t.Helper()
	want := laneOf(c)
	for i := 0; ; i++ {
		c.ID = fmt.Sprint(like, "-", i)
		if laneOf(c) == want {
			return c.ID
		}
	}
}

// states waits until every row is in one of these states.
func (r *rig) states(want ...string) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("all rows are %v", want), func() bool {
		return one[int](r, `select count(*) from onlyonce.calls where not state = any($1)`, want) == 0
	})
}

// holds waits until relays of this process have taken n lanes.
func (r *rig) holds(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%d lanes are taken", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		held := 0
		for _, c := range r.leases {
			if c.Held {
				held++
			}
		}
		return held >= n
	})
}

// told waits until n attempts were reported as settled, and returns them.
func (r *rig) told(n int) []outbox.SettledEvent {
	r.t.Helper()
	var all []outbox.SettledEvent
	until(r.t, fmt.Sprintf("%d attempts are told", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		all = slices.Clone(r.settled)
		return len(all) >= n
	})
	return all
}

// as returns how attempts were settled, in the order of the reports.
func (r *rig) as() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.settled {
		all = append(all, string(s.State))
	}
	return all
}

// lost reports whether a lease was lost.
func (r *rig) lost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.leases, func(c outbox.LeaseEvent) bool { return c.Err != nil })
}

// scripted is a sink that does what a function says.
type scripted struct {
	name   string
	limits outbox.Limits
	send   func(ctx context.Context, a *outbox.Attempt) outbox.Result

	mu   sync.Mutex
	sent []outbox.Attempt
}

func newScripted(send func(ctx context.Context, a *outbox.Attempt) outbox.Result) *scripted {
	return &scripted{name: "payments", limits: outbox.Limits{KeyWindow: 24 * time.Hour, Timeout: 10 * time.Second}, send: send}
}

func (s *scripted) Name() string          { return s.name }
func (s *scripted) Limits() outbox.Limits { return s.limits }

func (s *scripted) Send(ctx context.Context, a *outbox.Attempt) outbox.Result {
	s.mu.Lock()
	s.sent = append(s.sent, *a)
	s.mu.Unlock()
	return s.send(ctx, a)
}

func (s *scripted) calls() []outbox.Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// bodies are the orders that were sent, in that order.
func (s *scripted) bodies() string {
	var all []string
	for _, d := range s.calls() {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(string(d.Body), `{"order":"`), `"}`))
	}
	return strings.Join(all, " ")
}

// gate holds calls up until it is opened; a test that fails opens it.
type gate struct {
	t     *testing.T
	begun chan *outbox.Attempt
	open  chan struct{}
	once  sync.Once
}

func (r *rig) gate() *gate {
	g := &gate{t: r.t, begun: make(chan *outbox.Attempt, 2000), open: make(chan struct{})}
	r.gates = append(r.gates, g)
	return g
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) pass(a *outbox.Attempt) {
	g.begun <- a
	<-g.open
}

// accept is a remote that takes everything once the gate is open.
func (g *gate) accept(_ context.Context, a *outbox.Attempt) outbox.Result {
	g.pass(a)
	return outbox.Result{Outcome: outbox.Delivered}
}

// wait returns the next call that has reached the gate.
func (g *gate) wait() *outbox.Attempt {
	g.t.Helper()
	select {
	case a := <-g.begun:
		return a
	case <-time.After(patience):
		pgtest.GaveUp(g.t, patience, "a call")
		return nil
	}
}

// accept is a remote that takes everything.
func accept(context.Context, *outbox.Attempt) outbox.Result {
	return outbox.Result{Outcome: outbox.Delivered}
}
