package http

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/rediscache"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
)

func testSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	s, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watched is a cache that counts what was put into it and what it answered.
type watched struct {
	idempotency.Cache
	mu         sync.Mutex
	puts, hits int
}

func (w *watched) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	err := w.Cache.Put(ctx, id, entry, ttl)
	w.mu.Lock()
	w.puts++
	w.mu.Unlock()
	return err
}

func (w *watched) Get(ctx context.Context, id [16]byte) ([]byte, error) {
	entry, err := w.Cache.Get(ctx, id)
	w.mu.Lock()
	if len(entry) > 0 {
		w.hits++
	}
	w.mu.Unlock()
	return entry, err
}

func (w *watched) have(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.puts >= n
}

// H21: the layer answers from Redis what it has read from the database before. Whatever happens to
// Redis, it can answer from the database.
func TestH21LayerWithRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	inRedis, err := rediscache.New(client, "layer:")
	if err != nil {
		t.Fatal(err)
	}
	cache := &watched{Cache: inRedis}
	cfg := testConfig()
	cfg.Sealer = testSealer(t)
	cfg.Cache = cache
	cfg.CacheTimeout = 10 * time.Second
	r := newRig(t, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	first := r.post("/charges", "k1", "10 EUR")
	fromDatabase := r.post("/charges", "k1", "10 EUR")
	if first.status != http.StatusCreated || fromDatabase.mark() != "replayed" || fromDatabase.body != first.body {
		t.Fatalf("%+v\n%+v", first, fromDatabase)
	}
	until(t, "the record is in Redis", func() bool { return cache.have(1) })

	// The records can no longer be read from the database, so an answer comes from the cache. The
	// database's last sign of life counts for a second; then the layer reads from the database.
	r.exec(`update onlyonce.http_records set response = 'garbage'`)
	fromRedis := false
	for range 100 {
		// Reading another key is an answer of the database, which shows that its history is still
		// the same.
		r.post("/charges", "another", "x")
		g := r.post("/charges", "k1", "10 EUR")
		same := g.status == first.status && g.body == first.body
		if same && g.mark() == "replayed" && g.header.Get("Location") == "/effects/1" {
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

// answers is a layer with a cache, and the answers that it has given.
type answers struct {
	*rig
	cache *watched
	want  map[string]got
}

// newAnswers makes 20 requests. The cache may take as long as timeout.
func newAnswers(t *testing.T, client *redis.Client, timeout time.Duration) *answers {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	inRedis, err := rediscache.New(client, "test:")
	if err != nil {
		t.Fatal(err)
	}
	a := &answers{cache: &watched{Cache: inRedis}, want: map[string]got{}}
	cfg := testConfig()
	cfg.Sealer = testSealer(t)
	cfg.Cache = a.cache
	cfg.CacheTimeout = timeout
	a.rig = newRig(t, cfg)
	a.handle(idempotency.Route{Pattern: "/charges"}, effect)
	for i := range 20 {
		key := fmt.Sprint("k", i)
		a.want[key] = a.post("/charges", key, "of "+key)
		if a.want[key].mark() != "created" {
			t.Fatalf("%s: %v", key, a.want[key])
		}
	}
	return a
}

// all repeats every request, and returns how many entries the cache had for them.
func (a *answers) all(when string) int {
	a.t.Helper()
	a.cache.mu.Lock()
	a.cache.hits = 0
	a.cache.mu.Unlock()
	for key, want := range a.want {
		// The cache counts only if the database has answered within the last second.
		a.post("/charges", "another", "x")
		if g := a.post("/charges", key, "of "+key); g.status != want.status || g.body != want.body || g.mark() != "replayed" {
			a.t.Errorf("%s: %s: %v, want %v", when, key, g, want)
		}
	}
	a.cache.mu.Lock()
	defer a.cache.mu.Unlock()
	return a.cache.hits
}

// H21: whatever happens to Redis, the answers are the same. Only the number of answers that come
// from the database differs.
func TestH21WhateverBecomesOfRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	// The timeout is long enough for a slow machine: a Redis that works is never taken for one that
	// does not.
	a := newAnswers(t, client, 10*time.Second)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	entries := func() []string { return client.Keys(t.Context(), "test:*").Val() }
	filled := func() {
		t.Helper()
		until(t, "the answers are in Redis", func() bool { a.all("filling"); return len(entries()) > 20 }) // and that of "another"
	}
	filled()
	if n := a.all("full"); n == 0 {
		t.Error("no answer came from a full cache: it is of no use")
	}
	must(client.FlushAll(t.Context()).Err())
	a.all("flushed")
	filled()
	keys := entries()
	first := client.Get(t.Context(), keys[0]).Val()
	for i, key := range keys {
		switch i % 4 {
		case 0:
			must(client.Set(t.Context(), key, "garbage", 0).Err())
		case 1:
			must(client.Set(t.Context(), key, first, 0).Err()) // another record's
		case 2:
			must(client.Append(t.Context(), key, "x").Err())
		case 3:
			must(client.Del(t.Context(), key).Err())
			must(client.HSet(t.Context(), key, "a", "hash").Err())
		}
	}
	a.all("garbage")
	a.all("after garbage")
	must(server.Kill(t.Context()))
	if n := a.all("down"); n != 0 {
		t.Errorf("%d answers of a Redis that is down", n)
	}
	must(server.Restart(t.Context()))
	a.all("back")

	// Erased while Redis is up: the answer is gone for every request.
	must(a.layer.Erase(t.Context(), "", "http POST /charges", "k3"))
	delete(a.want, "k3")
	a.all("erased")
	if g := a.post("/charges", "k3", "of k3"); g.status != http.StatusGone {
		t.Errorf("an erased answer: %v", g)
	}
}

// H21: a Redis that hangs costs a bounded time, and no answers.
func TestH21RedisThatHangs(t *testing.T) {
	t.Parallel()
	for _, contextTimeout := range []bool{true, false} { // without it go-redis waits for 3 s, and does not look at the context
		server := servertest.Redis(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: contextTimeout, MaxRetries: -1})
		a := newAnswers(t, client, 20*time.Millisecond)
		a.all("before")
		if err := server.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := a.all("paused"); n != 0 {
			t.Errorf("%d answers of a Redis that hangs", n)
		}
		if err := server.Continue(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.all("continued")
	}
}

// H21: a listener that accepts and sends nothing, and one that sends what Redis never sends.
func TestH21WhatIsNotRedis(t *testing.T) {
	t.Parallel()
	for _, says := range []string{
		"",
		"HTTP/1.1 400 Bad Request\r\n\r\n",
		"$1000000000\r\n",
		"*1\r\n*1\r\n*1\r\n",
		"+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
		"\x00\x00\x00",
	} {
		t.Run(fmt.Sprintf("%q", says), func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { _ = conn.Close() })
					_, _ = conn.Write([]byte(says))
				}
			}()
			client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), ContextTimeoutEnabled: true, MaxRetries: -1})
			a := newAnswers(t, client, 20*time.Millisecond)
			a.all("no Redis")
		})
	}
}
