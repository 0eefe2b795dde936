package idempotency_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// smallRig is a rig whose layer has a pool of its own, of few connections.
func smallRig(t *testing.T, cfg idempotency.Config, conns int32) (r *rig, layers *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.DB(t)
	c := pool.Config()
	c.MaxConns = conns
	layers, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(layers.Close)
	r = newRigOn(t, layers, pool, cfg)
	r.exec(`create table effects (v text not null)`)
	return r, layers
}

// In lease mode, too, a tenant whose handlers are slow leaves connections to the others.
func TestH10ConnectionsInLeaseMode(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	cfg.AcquireTimeout = 3 * time.Second
	r, _ := smallRig(t, cfg, 8)
	begins := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if _, err := idempotency.TxOf(req); errors.Is(err, idempotency.ErrBusy) {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next(w, req)
		}
	}
	r.handle(idempotency.Route{Pattern: "/quick", Mode: idempotency.Leased}, begins(effect))
	for _, path := range []string{"/slow", "/again"} { // the share is given back
		g := newGate(t)
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased, HandlerTimeout: time.Hour}, begins(g.before(effect)))
		var slow []<-chan got
		for i := range 4 {
			slow = append(slow, r.background(path, fmt.Sprint(i), "x", "X-Tenant", "slow"))
			wait(t, "it runs", g.begun)
		}
		if a := r.post("/quick", rand.Text(), "x", "X-Tenant", "slow"); a.status != http.StatusTooManyRequests || a.mark() != "released" {
			t.Errorf("beyond its share: %v", a)
		}
		for range 5 {
			if a := r.post("/quick", rand.Text(), "x", "X-Tenant", "other"); a.mark() != "created" {
				t.Errorf("another tenant: %v", a)
			}
		}
		g.release()
		for _, c := range slow {
			if a := wait(t, "the slow ones are answered", c); a.mark() != "created" {
				t.Errorf("%v", a)
			}
		}
	}
}

// Leases are renewed although others hold all connections of the pool.
func TestH18RenewalsHaveAConnection(t *testing.T) {
	t.Parallel()
	r, layers := smallRig(t, leasedConfig(), 2)
	g := newGate(t)
	lost := make(chan error, 1)
	r.handle(
		idempotency.Route{Pattern: "/long", Mode: idempotency.Leased, HandlerTimeout: time.Hour},
		func(w http.ResponseWriter, req *http.Request) {
			g.begun <- struct{}{}
			select {
			case <-g.open:
			case <-req.Context().Done():
				lost <- context.Cause(req.Context())
			}
			effect(w, req)
		},
	)
	answer := r.background("/long", "k", "x")
	wait(t, "it runs", g.begun)
	var held []*pgxpool.Conn
	for range 2 {
		c, err := layers.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	const end = `select max(until) from onlyonce.leases`
	begun := one[time.Time](r, end)
	until(t, "the lease is renewed", func() bool {
		select {
		case err := <-lost:
			t.Fatalf("the lease is lost: %v", err)
		default:
		}
		return one[time.Time](r, end).Sub(begun) > 3*time.Second // three times as long as it lasts
	})
	for _, c := range held {
		c.Release()
	}
	g.release()
	if a := wait(t, "it is answered", answer); a.mark() != "created" {
		t.Errorf("%v", a)
	}
}

// Operations cannot use up the pool, and one tenant's leave partitions to the others and do not
// pile up without a bound.
func TestH23OperationsOfATenant(t *testing.T) {
	t.Parallel()
	r, _ := smallRig(t, testConfig(), 12)
	begun := make(chan string, 100)
	end := make(chan struct{})
	work := map[string]idempotency.Work{
		"export": func(ctx context.Context, _ consumer.Tx, op *idempotency.Operation) (json.RawMessage, error) {
			begun <- op.Scope.Tenant
			if op.Scope.Tenant == "greedy" {
				select {
				case <-end:
				case <-ctx.Done():
				}
			}
			return nil, ctx.Err()
		},
	}
	if _, err := idempotency.NewOperations(
		r.layer,
		idempotency.OperationsConfig{Partitions: 9},
		work,
	); !errors.Is(err, idempotency.ErrConfig) ||
		!strings.Contains(err.Error(), "at least 13") {
		t.Errorf("a pool of 12 for 9 operations: %v", err)
	}
	// S5: the stream of a queue is no stream of operations.
	if _, err := idempotency.NewOperations(
		r.layer,
		idempotency.OperationsConfig{Stream: "queue.orders"},
		work,
	); !errors.Is(err, idempotency.ErrConfig) ||
		!strings.Contains(err.Error(), "OperationsConfig.Stream") {
		t.Errorf("the stream of a queue: %v", err)
	}
	ops, err := idempotency.NewOperations(
		r.layer,
		idempotency.OperationsConfig{Partitions: 8, TenantRunning: 10, PollInterval: 20 * time.Millisecond},
		work,
	)
	if err != nil {
		t.Fatal(err)
	}
	r.works(ops)
	r.handle(idempotency.Route{Pattern: "/exports"}, func(w http.ResponseWriter, req *http.Request) {
		if err := ops.Accept(w, req, idempotency.Request{Name: "export", OrderingKey: req.Header.Get("X-Order")}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	r.mux.Handle("/operations/", ops)
	r.handle(idempotency.Route{Pattern: "/quick"}, effect)
	var last got
	for i := range 10 {
		if last = r.post("/exports",
			fmt.Sprint(i), "x", "X-Tenant", "greedy", "X-Order", fmt.Sprint(i)); last.status != http.StatusAccepted {
			t.Fatalf("%v", last)
		}
	}
	a := r.post("/exports", "more", "x", "X-Tenant", "greedy")
	good := a.status == http.StatusTooManyRequests &&
		a.code() == "over-capacity" &&
		a.header.Get("Retry-After") == "2" &&
		a.mark() == "released"
	if !good {
		t.Errorf("an 11th: %v %v", a, a.header)
	}
	for range 2 {
		wait(t, "two of its operations run", begun)
	}
	for i := range 8 { // some wait behind the greedy one's
		if a := r.post("/exports", fmt.Sprint(i), "x", "X-Tenant", fmt.Sprint("other", i)); a.status != http.StatusAccepted {
			t.Errorf("another tenant: %v", a)
		}
	}
	for range 4 {
		if tenant := wait(t, "others' operations run", begun); tenant == "greedy" {
			t.Error("a third operation of the tenant runs")
		}
	}
	for i := range 5 {
		if a := r.post("/quick", fmt.Sprint(i), "x", "X-Tenant", "other"); a.mark() != "created" {
			t.Errorf("another tenant's request: %v", a)
		}
	}
	close(end)
	r.untilIs(func(s state) bool { return s.State == "succeeded" }, last.header.Get("Location"), "X-Tenant", "greedy")
	if a := r.post("/exports", "more", "x", "X-Tenant", "greedy"); a.status != http.StatusAccepted {
		t.Errorf("once others have ended: %v", a)
	}
}

// A body is read once its sender has a scope and a place among its tenant's requests: until then it
// would hold memory for as long as the sender likes.
func TestH6BodiesOfCallersThatAreNotLetIn(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	scope := cfg.Scope
	cfg.Scope = func(r *http.Request) (idempotency.Scope, error) {
		if r.Header.Get("X-Tenant") == "" {
			return idempotency.Scope{}, errors.New("no credentials")
		}
		return scope(r)
	}
	cfg.TenantLimit = 1
	r := newRig(t, cfg)
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/charges"}, g.before(effect))
	first := r.background("/charges", "k", "x", "X-Tenant", "a")
	wait(t, "it runs", g.begun)
	for tenant, want := range map[string]int{"": http.StatusForbidden, "a": http.StatusTooManyRequests} {
		body := &unreadable{t: t}
		req := httptest.NewRequest(http.MethodPost, "/charges", body)
		req.Header.Set("Idempotency-Key", "other")
		req.Header.Set("X-Tenant", tenant)
		answer := httptest.NewRecorder()
		r.mux.ServeHTTP(answer, req)
		if answer.Code != want {
			t.Errorf("tenant %q: %d", tenant, answer.Code)
		}
	}
	g.release()
	if a := wait(t, "it is answered", first); a.mark() != "created" {
		t.Errorf("%v", a)
	}
}

// unreadable is a body that must not be read.
type unreadable struct{ t *testing.T }

func (u *unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// A deferred trigger that does not end is cut off by the bound of statements, and the request is
// undone. In COMMIT nothing would bound it.
func TestH17DeferredTriggerIsBounded(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		cfg := testConfig()
		cfg.Timeouts.Statement = 500 * time.Millisecond
		cfg.Timeouts.Commit = time.Minute
		r := newRig(t, cfg)
		r.exec(`create function hangs() returns trigger language plpgsql as 'begin perform pg_sleep(3600); return null; end'`)
		r.exec(`create constraint trigger hangs after insert on effects deferrable initially deferred for each row
			execute function hangs()`)
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, effect)
		if a := r.post("/charges", "k", "x"); a.status != http.StatusInternalServerError || a.code() != "rolled-back" {
			t.Errorf("mode %d: %v", mode, a)
		}
		if n := r.effects(); n != 0 {
			t.Errorf("mode %d: %d effects", mode, n)
		}
	}
}
