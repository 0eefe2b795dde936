package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// twoDatabases are two databases with a table of effects, and the function that routes tenants.
type twoDatabases struct {
	*rig
	a, b  *pgxpool.Pool
	moved atomic.Bool // tenants are in b
}

func newTwoDatabases(t *testing.T) *twoDatabases {
	t.Helper()
	d := &twoDatabases{a: pgtest.DB(t), b: pgtest.DB(t)}
	for _, pool := range []*pgxpool.Pool{d.a, d.b} {
		if _, err := pool.Exec(t.Context(), `create table effects (v text not null)`); err != nil {
			t.Fatal(err)
		}
	}
	d.rig = d.process(t)
	return d
}

// process is another process: a server with a layer of both databases.
func (d *twoDatabases) process(t *testing.T) *rig {
	t.Helper()
	set, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"a": d.a, "b": d.b}, OfPlace: func(string) string {
		if d.moved.Load() {
			return "b"
		}
		return "a"
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasedConfig()
	cfg.Hooks.StoreFailed = func(err error) { t.Logf("failed: %v", err) }
	layer, err := idempotency.NewSharded(set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, pool: d.a, mux: http.NewServeMux(), layer: layer}
	r.srv = httptest.NewServer(r.mux)
	t.Cleanup(r.srv.Close)
	return r
}

func (d *twoDatabases) effects(t *testing.T, pool *pgxpool.Pool) (all string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select coalesce(string_agg(v, ' ' order by v), '') from effects`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

// leave takes a tenant out of a database, and returns its state.
func leave(t *testing.T, db *pgxpool.Pool, to string) string {
	t.Helper()
	done, err := ops.LeavePlace(t.Context(), db, ops.By{Reason: "OPS-40"}, ops.LeavePlaceInput{Place: "acme", To: to})
	if err != nil {
		t.Fatal(err)
	}
	return done.After
}

func adopt(t *testing.T, db, from *pgxpool.Pool, as string) *ops.AdoptedPlace {
	t.Helper()
	done, err := ops.AdoptPlace(
		t.Context(),
		db,
		ops.By{Reason: "OPS-40"},
		ops.AdoptPlaceInput{Place: "acme", From: &ops.Origin{DB: from, Name: "the other", As: as}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// N2, N3: a tenant moves from a to b and back. What took effect before is answered from its record,
// requests in between get 503 and do nothing, and other tenants go on.
func TestN2TenantMoves(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	d.handle(idempotency.Route{Pattern: "/charges"}, effect)
	acme := func(key string) got { return d.post("/charges", key, key, "X-Tenant", "acme") }
	first := acme("k1")
	if first.mark() != "created" || d.effects(t, d.a) != "k1" || d.effects(t, d.b) != "" {
		t.Fatalf("%v", first)
	}
	if g := d.post("/charges", "k1", "other", "X-Tenant", "other"); g.mark() != "created" {
		t.Fatalf("%v", g)
	}
	if state := leave(t, d.a, "b"); state != "left" {
		t.Fatal(state)
	}
	if g := acme("k2"); g.status != 503 || g.mark() != "rejected" {
		t.Errorf("while it moves: %v", g)
	}
	if g := d.post("/charges", "k2", "other2", "X-Tenant", "other"); g.mark() != "created" {
		t.Errorf("another tenant: %v", g)
	}
	d.moved.Store(true)
	if g := acme("k1"); g.status != 503 {
		t.Errorf("before it is adopted: %v", g)
	}
	if done := adopt(t, d.b, d.a, "b"); done.Moves != 1 || *done.Requests != 1 {
		t.Errorf("%+v", done)
	}
	if g := acme("k1"); g.mark() != "replayed" || g.body != first.body || g.header.Get("Location") != "/effects/1" {
		t.Errorf("a copy after the move: %v", g)
	}
	if g := acme("k3"); g.mark() != "created" {
		t.Errorf("%v", g)
	}
	d.moved.Store(false) // a process with the old function comes late
	if g := acme("k4"); g.status != 503 {
		t.Errorf("in the old database: %v", g)
	}
	late := d.process(t)
	late.handle(idempotency.Route{Pattern: "/charges"}, effect)
	if g := late.post("/charges", "k4", "k4", "X-Tenant", "acme"); g.status != 503 {
		t.Errorf("a new process with the old function: %v", g)
	}
	leave(t, d.b, "a")
	if done := adopt(t, d.a, d.b, "a"); done.Moves != 2 || *done.Requests != 2 {
		t.Errorf("back: %+v", done)
	}
	for _, key := range []string{"k1", "k3"} {
		if g := acme(key); g.mark() != "replayed" {
			t.Errorf("%s, back in a: %v", key, g)
		}
	}
	a, b := d.effects(t, d.a), d.effects(t, d.b)
	if a != "k1 other other2" || b != "k3" {
		t.Errorf("effects %q and %q", a, b)
	}
	if err := d.layer.Erase(t.Context(), "acme", "http POST /charges", "k3"); err != nil {
		t.Error(err)
	}
}

// N2: a request in lease mode is cut off by the move: its handler's writes do not commit in the old
// database. It goes on in the new one, after the step that is done.
func TestN2LeasedRequestIsCutOff(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	g := newGate(t)
	var calls atomic.Int64
	d.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.Step(req.Context(), "charge", func(context.Context, string) ([]byte, error) {
			calls.Add(1)
			return []byte("ch_1"), nil
		}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if d.runs.Load() == 1 {
			g.before(effect)(w, req)
			return
		}
		effect(w, req)
	})
	cut := d.background("/charges", "k", "x", "X-Tenant", "acme")
	wait(t, "its step is done", g.begun)
	leave(t, d.a, "b")
	g.release()
	if answer := wait(t, "an answer", cut); answer.mark() == "created" {
		t.Errorf("%v: it committed in the old database", answer)
	}
	d.moved.Store(true)
	adopt(t, d.b, d.a, "b")
	if answer := d.settled("/charges", "k", "x", "X-Tenant", "acme"); answer.mark() != "created" {
		t.Errorf("%v", answer)
	}
	a, b := d.effects(t, d.a), d.effects(t, d.b)
	if a != "" || b != "x" || calls.Load() != 1 {
		t.Errorf("effects %q and %q, %d calls", a, b, calls.Load())
	}
}

// N2: a request that a dead process has left in lease mode is not taken over in the database that
// the tenant has left.
func TestN2NoTakeOverAfterLeaving(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	d.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.Step(req.Context(), "charge", func(context.Context, string) ([]byte, error) {
			return []byte("ch_1"), nil
		}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if d.runs.Load() == 1 {
			w.WriteHeader(http.StatusBadGateway) // the request stays, because it has a step
			return
		}
		effect(w, req)
	})
	if g := d.post("/charges", "k", "x", "X-Tenant", "acme"); g.mark() != "released" {
		t.Fatalf("%v", g)
	}
	leave(t, d.a, "b")
	for _, key := range []string{"k", "new"} {
		if g := d.post("/charges", key, "x", "X-Tenant", "acme"); g.status != 503 || d.effects(t, d.a) != "" {
			t.Errorf("%s: %v", key, g)
		}
	}
}

// Requests without a key, and calls of Do, are refused too.
func TestN2WhatElseIsRefused(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	d.handle(idempotency.Route{Pattern: "/optional", KeyOptional: true}, effect)
	doer, err := idempotency.NewDoer(d.layer, idempotency.DoerConfig{Scope: "charge", KeyWindow: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	do := func() (string, error) {
		out, _, err := idempotency.Do(
			t.Context(),
			doer,
			idempotency.Scope{Tenant: "acme"},
			"k",
			"x",
			func(ctx context.Context, tx consumer.Tx) (string, error) {
				_, err := tx.Exec(ctx, `insert into effects values ('done')`)
				return "result", err
			},
		)
		return out, err
	}
	if out, err := do(); out != "result" || err != nil {
		t.Fatal(out, err)
	}
	leave(t, d.a, "b")
	if g := d.post("/optional", "", "x", "X-Tenant", "acme"); g.status/100 != 5 {
		t.Errorf("%v", g)
	}
	d.moved.Store(true)
	var refused *idempotency.RefusedError
	if _, err := do(); !errors.As(err, &refused) || !refused.Retryable {
		t.Errorf("%v", err)
	}
	adopt(t, d.b, d.a, "b")
	if out, err := do(); out != "result" || err != nil || d.effects(t, d.b) != "" {
		t.Errorf("%s, %v, effects %q", out, err, d.effects(t, d.b))
	}
	if a := d.effects(t, d.a); a != "done" {
		t.Errorf("effects %q", a)
	}
}

// An operation of a tenant ends before the tenant leaves, and its state moves with the tenant.
func TestN2OperationsEndFirst(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	g := newGate(t)
	o := d.operations(map[string]idempotency.Work{
		"export": func(ctx context.Context, tx consumer.Tx, _ *idempotency.Operation) (json.RawMessage, error) {
			g.begun <- struct{}{}
			select {
			case <-g.open:
			case <-ctx.Done():
			}
			tx.Queue(`insert into effects values ('exported')`)
			return json.RawMessage(`"file"`), nil
		},
	})
	d.works(o)
	accepted := d.post("/exports", "k", "x", "X-Tenant", "acme")
	if accepted.status != http.StatusAccepted {
		t.Fatalf("%v", accepted)
	}
	wait(t, "it runs", g.begun)
	if state := leave(t, d.a, "b"); state != "leaving" {
		t.Fatal(state)
	}
	if g := d.post("/exports", "k2", "x", "X-Tenant", "acme"); g.status != 503 {
		t.Errorf("while it leaves: %v", g)
	}
	g.release()
	until(t, "it has left", func() bool { return leave(t, d.a, "b") == "left" })
	d.moved.Store(true)
	adopt(t, d.b, d.a, "b")
	if s := d.state(accepted.header.Get("Location"), "X-Tenant", "acme"); s.State != "succeeded" || string(s.Result) != `"file"` {
		t.Errorf("%+v", s)
	}
	if copied := d.post("/exports", "k", "x", "X-Tenant", "acme"); copied.status != http.StatusOK ||
		!strings.Contains(copied.body, "file") {
		t.Errorf("a copy: %v", copied)
	}
}

// A layer of several databases runs and is ready in each.
func TestShardedLayerRuns(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	if d.layer.Ready() == nil || len(d.layer.Shards()) != 2 {
		t.Error("ready before Run")
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- d.layer.Run(ctx) }()
	until(t, "it is ready", func() bool { return d.layer.Ready() == nil })
	stop()
	if err := wait(t, "its end", done); err != nil {
		t.Error(err)
	}
	if _, err := idempotency.NewSharded(nil, testConfig()); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	}
}

// A set that was made for consumers does not say where a tenant lives.
func TestSetWithoutPlacesIsRefused(t *testing.T) {
	t.Parallel()
	set, err := shard.New(shard.Config{
		Pools:       map[string]*pgxpool.Pool{"a": pgtest.DB(t)},
		OfPartition: func(string, int32) string { return "a" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := idempotency.NewSharded(set, leasedConfig()); !errors.Is(err, idempotency.ErrConfig) ||
		!strings.Contains(err.Error(), "OfPlace: must not be nil") {
		t.Errorf("%v", err)
	}
}
