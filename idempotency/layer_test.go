package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// rig is a server with the layer, over a database of its own.
type rig struct {
	t     *testing.T
	pool  *pgxpool.Pool
	layer *idempotency.Layer
	mux   *http.ServeMux
	srv   *httptest.Server
	runs  atomic.Int64
}

// testConfig is a layer's with nothing but what is required; the tenant is what X-Tenant says.
func testConfig() idempotency.Config {
	return idempotency.Config{
		Scope: func(r *http.Request) (idempotency.Scope, error) {
			return idempotency.Scope{Tenant: r.Header.Get("X-Tenant"), Principal: r.Header.Get("X-Principal")}, nil
		},
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
	}
}

func newRig(t *testing.T, cfg idempotency.Config) *rig {
	t.Helper()
	pool := pgtest.DB(t)
	r := newRigOn(t, pool, pool, cfg)
	r.exec(`create table effects (v text not null)`)
	return r
}

// newRigOn is another process's worth of the same: the layer works on one pool, and the test looks
// through the other.
func newRigOn(t *testing.T, layers, pool *pgxpool.Pool, cfg idempotency.Config) *rig {
	t.Helper()
	r := &rig{t: t, pool: pool, mux: http.NewServeMux()}
	told := cfg.Hooks.StoreFailed
	cfg.Hooks.StoreFailed = func(err error) {
		t.Logf("failed: %v", err)
		if told != nil {
			told(err)
		}
	}
	var err error
	if r.layer, err = idempotency.New(layers, cfg); err != nil {
		t.Fatal(err)
	}
	r.srv = httptest.NewUnstartedServer(r.mux)
	r.srv.Config.ErrorLog = log.New(io.Discard, "", 0) // panics of handlers are meant
	r.srv.Start()
	t.Cleanup(r.srv.Close)
	return r
}

// wiredRig is a rig whose layer's connections go through a wire.
func wiredRig(t *testing.T, cfg idempotency.Config, w *pgtest.Wire, hold <-chan struct{}) *rig {
	t.Helper()
	pool := pgtest.DB(t)
	r := newRigOn(t, pgtest.Wired(t, pool, pgx.QueryExecModeCacheStatement, w, hold), pool, cfg)
	r.exec(`create table effects (v text not null)`)
	return r
}

// calling is a route whose remotes remember keys for a day, unless it says otherwise.
func calling(route idempotency.Route) idempotency.Route {
	if route.KeyWindow == 0 && !route.NoCalls {
		route.KeyWindow = 24 * time.Hour
	}
	return route
}

// handle puts a handler behind the layer.
func (r *rig) handle(route idempotency.Route, h http.HandlerFunc) {
	r.t.Helper()
	counted := func(w http.ResponseWriter, req *http.Request) {
		r.runs.Add(1)
		h(w, req)
	}
	wrapped, err := r.layer.Handle(calling(route), http.HandlerFunc(counted))
	if err != nil {
		r.t.Fatal(err)
	}
	r.mux.Handle(route.Pattern, wrapped)
}

// effect is a handler that writes its body as an effect, and answers with the effect's number.
func effect(w http.ResponseWriter, req *http.Request) {
	tx, err := idempotency.TxOf(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	body, _ := io.ReadAll(req.Body)
	if _, err := tx.Exec(req.Context(), `insert into effects values ($1)`, string(body)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", "/effects/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "effect of %s", body)
}

// got is an answer, read whole.
type got struct {
	status int
	header http.Header
	body   string
}

func (g got) mark() string { return g.header.Get("Idempotency-Status") }

// post sends a request; headers come in pairs.
func (r *rig) post(path, key, body string, headers ...string) got {
	r.t.Helper()
	return r.send(http.MethodPost, path, key, body, headers...)
}

func (r *rig) send(method, path, key, body string, headers ...string) got {
	r.t.Helper()
	g, err := r.try(context.Background(), method, path, key, body, headers...)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

// try is send for requests that may get no answer, and for other goroutines than the test's.
func (r *rig) try(ctx context.Context, method, path, key, body string, headers ...string) (g got, err error) {
	req, err := http.NewRequestWithContext(ctx, method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		return g, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	req.GetBody = nil // nothing sends it again but the test
	resp, err := r.srv.Client().Do(req)
	if err != nil {
		return g, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(b)}, err
}

// all sends n requests at once and returns their answers.
func (r *rig) all(n int, send func(i int) (got, error)) []got {
	r.t.Helper()
	answers := make([]got, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			g, err := send(i)
			if err != nil {
				r.t.Error(err)
			}
			answers[i] = g
		})
	}
	wg.Wait()
	return answers
}

// code is the problem's.
func (g got) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(g.body), &p)
	return p.Code
}

// String is what tests print.
func (g got) String() string { return fmt.Sprintf("%d %s %q", g.status, g.mark(), g.body) }

// settled sends a request until it has an answer that is neither "in progress" nor one of the
// layer's own refusals.
func (r *rig) settled(path, key, body string, headers ...string) (g got) {
	r.t.Helper()
	until(r.t, "an answer under "+key, func() bool {
		g = r.post(path, key, body, headers...)
		return g.mark() != "in-progress" && g.mark() != "rejected" && g.mark() != "released"
	})
	return g
}

// patience bounds what tests wait for; nothing is judged by how long it took. Mutants that make a
// test wait for what never comes shorten it.
var patience = pgtest.Patience(time.Minute)

// until polls a condition.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
}

// wait returns what comes out of a channel.
func wait[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		pgtest.GaveUp(t, patience, what)
	}
	return v
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func one[T any](r *rig, sql string, args ...any) (v T) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r *rig) effects() int { return one[int](r, `select count(*) from effects`) }

// H13: the same request gets the first answer, byte for byte, and another body 422.
func TestFirstAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	first := r.post("/charges", "k1", "10 EUR")
	again := r.post("/charges", "k1", "10 EUR")
	good := first.status == http.StatusCreated &&
		first.mark() == "created" &&
		again.mark() == "replayed" &&
		again.body == first.body &&
		again.status == first.status &&
		again.header.Get("Location") == "/effects/1"
	if !good {
		t.Fatalf("first %+v\nagain %+v", first, again)
	}
	if n := r.effects(); n != 1 || r.runs.Load() != 1 {
		t.Errorf("%d effects of %d runs", n, r.runs.Load())
	}
	if other := r.post("/charges", "k1", "20 EUR"); other.status != http.StatusUnprocessableEntity || other.mark() != "mismatch" {
		t.Errorf("another request: %+v", other)
	}
	if declined := r.post("/charges", "", "10 EUR"); declined.status != http.StatusBadRequest {
		t.Errorf("without a key: %+v", declined)
	}
}

func TestFinalRefusalIsKeptWithoutItsWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		tx, _ := idempotency.TxOf(req)
		_, _ = tx.Exec(req.Context(), `insert into effects values ($1)`, "undone")
		tx.Queue(`insert into effects values ('undone too')`)
		w.WriteHeader(http.StatusPaymentRequired)
	})
	first := r.post("/charges", "k1", "x")
	again := r.post("/charges", "k1", "x")
	good := first.status == 402 &&
		first.mark() == "created" &&
		again.status == 402 &&
		again.mark() == "replayed" &&
		r.effects() == 0 &&
		r.runs.Load() == 1
	if !good {
		t.Errorf("%+v, %+v, %d effects, %d runs", first, again, r.effects(), r.runs.Load())
	}
}

func TestLeaseModeRemembersSteps(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	var keys []string
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		result, err := idempotency.Step(req.Context(), "charge", func(_ context.Context, key string) ([]byte, error) {
			keys = append(keys, key)
			return []byte("paid"), nil
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		tx, err := idempotency.TxOf(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		tx.Queue(`insert into effects values ($1)`, string(result))
		if r.runs.Load() == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = w.Write(result)
	})
	first := r.post("/charges", "k1", "x")
	second := r.post("/charges", "k1", "x")
	third := r.post("/charges", "k1", "x")
	good := first.status == 502 &&
		first.mark() == "released" &&
		second.status == 200 &&
		second.mark() == "created" &&
		third.mark() == "replayed" &&
		third.body == "paid"
	if !good {
		t.Errorf("%+v\n%+v\n%+v", first, second, third)
	}
	if len(keys) != 1 || r.effects() != 1 || r.runs.Load() != 2 {
		t.Errorf("%d calls, %d effects, %d runs", len(keys), r.effects(), r.runs.Load())
	}
	if n := one[int](r, `select count(*) from onlyonce.leases`); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}
