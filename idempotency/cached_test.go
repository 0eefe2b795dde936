package idempotency_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/rediscache"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/redistest"
)

func testSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	s, err := seal.New(1, map[uint32]seal.Key{1: {1}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watched is a cache that tells of what was put into it.
type watched struct {
	idempotency.Cache
	mu   sync.Mutex
	puts int
}

func (w *watched) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	err := w.Cache.Put(ctx, id, entry, ttl)
	w.mu.Lock()
	w.puts++
	w.mu.Unlock()
	return err
}

func (w *watched) have(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts >= n
}

// H21: the layer answers from Redis what it has read from the database before, and from the database whatever becomes of Redis.
func TestH21LayerWithRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	inRedis, err := rediscache.New(client, "layer:")
	if err != nil {
		t.Fatal(err)
	}
	cache := &watched{Cache: inRedis}
	cfg := testConfig()
	cfg.Sealer, cfg.Cache, cfg.CacheTimeout = testSealer(t), cache, 10*time.Second
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	first := r.post("/charges", "k1", "10 EUR")
	fromDatabase := r.post("/charges", "k1", "10 EUR")
	if first.status != http.StatusCreated || fromDatabase.mark() != "replayed" || fromDatabase.body != first.body {
		t.Fatalf("%+v\n%+v", first, fromDatabase)
	}
	until(t, "the record is in Redis", func() bool { return cache.have(1) })

	// What the database holds cannot be read any more: who answers is the cache. A sighting lasts a second, and then the database is asked.
	r.exec(`update onlyonce.http_records set response = 'garbage'`)
	fromRedis := false
	for range 100 {
		// The look for another key is an answer of the database, which says that its history is still this one.
		r.post("/charges", "another", "x")
		if g := r.post("/charges", "k1", "10 EUR"); g.status == first.status && g.body == first.body && g.mark() == "replayed" && g.header.Get("Location") == "/effects/1" {
			fromRedis = true
			break
		}
	}
	if !fromRedis {
		t.Fatal("never answered from Redis")
	}
	r.post("/charges", "another", "x")
	if g := r.post("/charges", "k1", "20 EUR"); g.status != http.StatusUnprocessableEntity || g.mark() != "mismatch" {
		t.Errorf("another request under a cached key: %+v", g)
	}
	if g := r.post("/charges", "k1", "10 EUR", "X-Tenant", "acct_2"); g.status != http.StatusCreated || g.mark() != "created" {
		t.Errorf("another tenant under a cached key: %+v", g)
	}

	if err := r.layer.Erase(t.Context(), "", "http POST /charges", "k1"); err != nil {
		t.Fatal(err)
	}
	r.post("/charges", "another", "x")
	if g := r.post("/charges", "k1", "10 EUR"); g.status != http.StatusGone {
		t.Errorf("after its erasure: %+v", g)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if g := r.post("/charges", "k2", "30 EUR"); g.mark() != "created" {
		t.Errorf("without Redis: %+v", g)
	}
	if g := r.post("/charges", "k2", "30 EUR"); g.mark() != "replayed" || g.body != "effect of 30 EUR" {
		t.Errorf("without Redis, again: %+v", g)
	}
}
