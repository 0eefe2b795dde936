package idempotency_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// memory is a cache without a server.
type memory struct{ m sync.Map }

func (c *memory) Get(_ context.Context, id [16]byte) ([]byte, error) {
	if v, ok := c.m.Load(id); ok {
		return v.([]byte), nil
	}
	return nil, nil
}

func (c *memory) Put(_ context.Context, id [16]byte, entry []byte, _ time.Duration) error {
	c.m.Store(id, entry)
	return nil
}

func (c *memory) Delete(_ context.Context, id [16]byte) error {
	c.m.Delete(id)
	return nil
}

// H21: a failover that loses a request's commit is not papered over by a cache that has its answer.
func TestH21LossyFailover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	primary, err := devenv.StartPostgres(ctx, devenv.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = primary.Stop() }()
	conn, err := pgx.Connect(ctx, primary.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Apply(ctx, conn); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `create table effects (v text not null)`); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(ctx)
	standby, err := primary.Standby(ctx, "twin", devenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standby.Stop() }()
	if err := standby.Detach(ctx); err != nil { // what follows is lost
		t.Fatal(err)
	}
	cache := &watched{Cache: &memory{}}
	before := rigOn(t, primary.URL, cache)
	first := before.post("/charges", "k1", "10 EUR")
	if first.mark() != "created" || before.post("/charges", "k1", "10 EUR").mark() != "replayed" {
		t.Fatalf("%+v", first)
	}
	until(t, "the cache has it", func() bool { return cache.have(1) })
	if err := primary.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	after := rigOn(t, standby.URL, cache)
	after.post("/charges", "another", "x") // the database has answered just now
	if g := after.post("/charges", "k1", "10 EUR"); g.mark() != "created" {
		t.Errorf("a commit that is lost is answered for: %+v", g)
	}
	if n := after.effects(); n != 2 {
		t.Errorf("%d effects of two requests", n)
	}
}

// rigOn is a rig on a server of the test's own, with a cache.
func rigOn(t *testing.T, url string, cache idempotency.Cache) *rig {
	t.Helper()
	cfg := testConfig()
	cfg.Sealer = testSealer(t)
	cfg.Cache = cache
	cfg.CacheTimeout = 10 * time.Second
	r := &rig{t: t, pool: pgtest.Pool(t, url), mux: http.NewServeMux()}
	var err error
	if r.layer, err = idempotency.New(r.pool, cfg); err != nil {
		t.Fatal(err)
	}
	r.srv = httptest.NewServer(r.mux)
	t.Cleanup(r.srv.Close)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	return r
}
