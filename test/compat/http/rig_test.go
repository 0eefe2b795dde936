package http

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// rig is a server with the layer, over a database of its own.
type rig struct {
	t     *testing.T
	pool  *pgxpool.Pool
	layer *idempotency.Layer
	mux   *http.ServeMux
	srv   *httptest.Server
}

// testConfig is a layer's configuration with the required fields only; the tenant is the header
// X-Tenant.
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

// newRigOn is a second process on the same database: the layer uses one pool, and the test reads
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

// handle wraps a handler in the layer.
func (r *rig) handle(route idempotency.Route, h http.HandlerFunc) {
	r.t.Helper()
	if route.KeyWindow == 0 && !route.NoCalls {
		route.KeyWindow = 24 * time.Hour
	}
	wrapped, err := r.layer.Handle(route, h)
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
	g, err := r.try(context.Background(), http.MethodPost, path, key, body, headers...)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

// try is post for requests that may get no answer, and for other goroutines than the test's.
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

// code returns the problem's code.
func (g got) code() string {
	var p struct{ Code string }
	_ = json.Unmarshal([]byte(g.body), &p)
	return p.Code
}

// String is what tests print.
func (g got) String() string { return fmt.Sprintf("%d %s %q", g.status, g.mark(), g.body) }

// patience bounds the waits of tests; no result depends on how long it took. Mutants that make a
// test wait in vain shorten it.
var patience = pgtest.Patience(time.Minute)

// until polls a condition.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pgtest.Until(t, patience, what, cond)
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
