package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
)

// H34: requests without a key are one if they would be under one key, and of one owner.
func TestH34EqualRequestsAreOne(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	var mu sync.Mutex
	seen := map[idempotency.ServeOutcome]int{}
	cfg.Hooks.ServeEnd = func(_ context.Context, s idempotency.ServeEnd) {
		mu.Lock()
		defer mu.Unlock()
		seen[s.Outcome]++
	}
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/orders/{id}", DeriveKeyFor: time.Minute, FingerprintJSON: true}, effect)
	for n, request := range []struct{ path, body, again, tenant, principal string }{
		{"/orders/1", `{"a":1,"b":2}`, `{"b":2,"a":1.0}`, "acme", ""},
		{"/orders/1", `{"a":2,"b":2}`, `{"a":2,"b":2}`, "acme", ""},
		{"/orders/2", `{"a":1,"b":2}`, `{"a":1,"b":2}`, "acme", ""},
		{"/orders/1?x=1", `{"a":1,"b":2}`, `{"a":1,"b":2}`, "acme", ""},
		{"/orders/1", `{"a":1,"b":2}`, `{"a":1,"b":2}`, "other", ""},
		{"/orders/1", `{"a":1,"b":2}`, `{"a":1,"b":2}`, "acme", "joe"},
		{"/orders/1", `{"a":1,"b":2}`, `{"a":1,"b":2}`, "", "joe"},
	} {
		owner := []string{"X-Tenant", request.tenant, "X-Principal", request.principal}
		sent := time.Now()
		first := r.post(request.path, "", request.body, owner...)
		again := r.post(request.path, "", request.again, owner...)
		if first.status != http.StatusCreated || first.mark() != "derived" || first.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%v: %v", request, first)
		}
		good := again.status == first.status &&
			again.body == first.body &&
			again.mark() == "derived" &&
			again.header.Get("Idempotent-Replayed") == "true"
		if !good {
			t.Errorf("%v, again: %v", request, again)
		}
		expires, err := http.ParseTime(first.header.Get("Idempotency-Expires"))
		if err != nil || expires.After(sent.Add(time.Since(sent)+time.Minute)) || first.header.Get("Idempotency-Key") != "" {
			t.Errorf("%v: %v, %v", request, err, first.header)
		}
		if r.effects() != n+1 {
			t.Fatalf("%v: %d effects", request, r.effects())
		}
	}
	mu.Lock()
	if len(seen) != 1 || seen[idempotency.Derived] != 14 {
		t.Errorf("%v", seen)
	}
	mu.Unlock()
	runs := r.effects()
	r.aged()
	if g := r.post("/orders/1", "", `{"a":1,"b":2}`, "X-Tenant", "acme"); g.header.Get("Idempotent-Replayed") != "" ||
		r.effects() != runs+1 {
		t.Errorf("after its time: %v", g)
	}
	if g := r.post("/orders/1", "k", `{"a":1,"b":2}`, "X-Tenant", "acme"); g.mark() != "created" {
		t.Errorf("with a key: %v", g)
	}
}

// H34: nobody's requests, and those that cannot be compared, are refused as before.
func TestH34NobodyGetsAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/orders", DeriveKeyFor: time.Minute, FingerprintJSON: true}, effect)
	if g := r.post("/orders", "", `{}`); g.status != http.StatusBadRequest || g.code() != "key-missing" {
		t.Errorf("nobody: %v", g)
	}
	if g := r.post("/orders", "", `{`, "X-Tenant", "acme"); g.status != http.StatusBadRequest || g.code() != "body-invalid" {
		t.Errorf("not JSON: %v", g)
	}
	if r.runs.Load() != 0 {
		t.Errorf("%d runs", r.runs.Load())
	}
}

// H34: a copy of a request that runs, here or in another process, does not run too; a failure frees
// the key.
func TestH34WhileItRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	g := newGate(t)
	route := idempotency.Route{Pattern: "/orders", DeriveKeyFor: time.Minute}
	r.handle(route, func(w http.ResponseWriter, req *http.Request) {
		if r.runs.Load() > 1 {
			effect(w, req)
			return
		}
		g.before(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })(w, req)
	})
	other := newRigOn(t, r.pool, r.pool, testConfig())
	other.handle(route, effect)
	first := r.background("/orders", "", `{}`, "X-Tenant", "acme")
	wait(t, "it runs", g.begun)
	for _, process := range []*rig{r, other} {
		if dup := process.post("/orders", "", `{}`, "X-Tenant", "acme"); dup.status != http.StatusConflict || dup.mark() != "in-progress" {
			t.Errorf("%v", dup)
		}
	}
	g.release()
	if failed := wait(t, "it is answered", first); failed.mark() != "released" {
		t.Errorf("%v", failed)
	}
	if next := other.post("/orders", "", `{}`, "X-Tenant", "acme"); next.mark() != "derived" {
		t.Errorf("%v", next)
	}
	if copied := r.post("/orders", "", `{}`, "X-Tenant", "acme"); copied.header.Get("Idempotent-Replayed") != "true" || r.effects() != 1 {
		t.Errorf("%v, %d effects", copied, r.effects())
	}
}

// H34: no call has a key that is made of a derived one.
func TestH34NoCallDerives(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/orders", DeriveKeyFor: time.Minute}, func(w http.ResponseWriter, req *http.Request) {
		tx, err := idempotency.TxOf(req)
		if err != nil {
			t.Error(err)
			return
		}
		call := outbox.Call{Sink: "payments", Name: "charge", Scope: "orders", ID: req.Header.Get("X-Call"), Body: []byte("{}")}
		if err := outbox.Enqueue(req.Context(), tx, call); err != nil {
			if !errors.Is(err, outbox.ErrCall) {
				t.Error(err)
			}
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	if g := r.post("/orders", "", `{}`, "X-Tenant", "acme"); g.status != http.StatusInternalServerError {
		t.Errorf("a call without an id: %v", g)
	}
	if g := r.post("/orders", "", `{}`, "X-Tenant", "acme", "X-Call", "17"); g.status != http.StatusCreated || g.mark() != "derived" {
		t.Errorf("a call with an id: %v", g)
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records where look_at is null and calls is null`); n != 1 {
		t.Errorf("%d records that end after a minute", n)
	}
}

// H34: an equal request after the key's time is another one, also while the first one's operation
// runs.
func TestH34OperationDoesNotProlong(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	ops := r.operations(map[string]idempotency.Work{
		"export": func(context.Context, consumer.Tx, *idempotency.Operation) (json.RawMessage, error) {
			return nil, nil
		},
	})
	r.handle(idempotency.Route{Pattern: "/derived", DeriveKeyFor: time.Minute}, func(w http.ResponseWriter, req *http.Request) {
		if err := ops.Accept(w, req, idempotency.Request{Name: "export"}); err != nil {
			t.Error(err)
		}
	})
	ask := func() string {
		t.Helper()
		g := r.post("/derived", "", "x", "X-Tenant", "acme")
		if g.status != http.StatusAccepted || g.mark() != "derived" {
			t.Fatalf("%v", g)
		}
		return g.header.Get("Location")
	}
	first := ask()
	if again := ask(); again != first {
		t.Errorf("within its time: %q, %q", first, again)
	}
	if n := r.aged(); n != 0 {
		t.Errorf("%d records after their time", n)
	}
	if later := ask(); later == first || later == "" {
		t.Errorf("after its time: %q, %q", first, later)
	}
}

// H34: what contradicts a derived key is refused, and names its field.
func TestH34ContradictionsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	for why, route := range map[string]idempotency.Route{
		"lease mode":       {DeriveKeyFor: time.Minute, Mode: idempotency.Leased},
		"with KeyOptional": {DeriveKeyFor: time.Minute, KeyOptional: true},
		"is 1m1s":          {DeriveKeyFor: time.Minute + time.Second},
		"is 1ms":           {DeriveKeyFor: time.Millisecond},
		"is -1s":           {DeriveKeyFor: -time.Second},
	} {
		route.Pattern = "/orders"
		_, err := r.layer.Handle(calling(route), http.HandlerFunc(effect))
		if !errors.Is(err, idempotency.ErrConfig) ||
			!strings.Contains(err.Error(), "Route.DeriveKeyFor") ||
			!strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}
