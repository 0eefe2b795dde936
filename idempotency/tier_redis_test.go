package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/idempotency/rediscache"
	"github.com/onlyonce/onlyonce/test/devenv/redistest"
)

// rows is a database with a tier in front.
type rows struct {
	tier    idempotency.Tier
	rows    map[[16]byte][]byte
	queries int
}

func newRows(t *testing.T, client *redis.Client) *rows {
	t.Helper()
	t.Cleanup(func() { _ = client.Close() })
	cache, err := rediscache.New(client, "test:")
	if err != nil {
		t.Fatal(err)
	}
	// Long enough for a slow machine, so that a Redis that is well is never taken for one that is not.
	r := &rows{tier: idempotency.NewTestTier(t, cache, 10*time.Second), rows: map[[16]byte][]byte{}}
	for i := range byte(20) {
		r.rows[[16]byte{i}] = fmt.Appendf(nil, "answer %d", i)
	}
	return r
}

// read is what the engine does.
func (r *rows) read(ctx context.Context, id [16]byte) []byte {
	if body, ok := r.tier.Get(ctx, id); ok {
		return body
	}
	r.queries++
	body, there := r.rows[id]
	r.tier.Saw(1)
	if there {
		r.tier.Put(ctx, id, body, func(context.Context) (bool, error) { _, there := r.rows[id]; return there, nil })
	}
	return body
}

// all reads every record, and one that is none, and returns how many queries that took.
func (r *rows) all(t *testing.T, when string) int {
	t.Helper()
	r.tier.Saw(1)
	r.queries = 0
	for i := range byte(21) {
		id := [16]byte{i}
		if got := r.read(t.Context(), id); !bytes.Equal(got, r.rows[id]) {
			t.Errorf("%s: record %d: %q, want %q", when, i, got, r.rows[id])
		}
	}
	return r.queries
}

// H21: whatever becomes of Redis, the answers are the same. Only how many of them the database gave differs.
func TestH21WhateverBecomesOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	r := newRows(t, client)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := r.all(t, "empty"); n != 21 {
		t.Errorf("%d queries with an empty cache", n)
	}
	if n := r.all(t, "full"); n > 20 {
		t.Errorf("%d queries with a full cache: it is of no use", n)
	}
	must(client.FlushAll(t.Context()).Err())
	r.all(t, "flushed")
	keys := client.Keys(t.Context(), "test:*").Val()
	if len(keys) != 20 {
		t.Fatalf("%d entries", len(keys))
	}
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
	r.all(t, "garbage")
	r.all(t, "after garbage")
	must(server.Kill(t.Context()))
	if n := r.all(t, "down"); n != 21 {
		t.Errorf("%d queries without a cache", n)
	}
	must(server.Restart(t.Context()))
	r.all(t, "back")

	// Erased while Redis is up: not there any more, whoever asks.
	gone := [16]byte{3}
	delete(r.rows, gone)
	must(r.tier.Forget(t.Context(), gone))
	r.all(t, "erased")
	r.tier.Saw(2)
	r.queries = 0
	if r.read(t.Context(), [16]byte{1}); r.queries != 1 {
		t.Error("an answer of another timeline was believed")
	}
}

// H21: a Redis that hangs costs time, a bounded one, and no answers.
func TestH21RedisThatHangs(t *testing.T) {
	t.Parallel()
	for _, contextTimeout := range []bool{true, false} { // without it go-redis waits for 3 s, and does not look at the context
		server := redistest.Start(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: contextTimeout, MaxRetries: -1})
		r := newRows(t, client)
		r.all(t, "before")
		cache, err := rediscache.New(client, "test:")
		if err != nil {
			t.Fatal(err)
		}
		r.tier = idempotency.NewTestTier(t, cache, 20*time.Millisecond)
		if err := server.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := r.all(t, "paused"); n != 21 {
			t.Errorf("%d queries while it hangs", n)
		}
		if err := server.Continue(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.all(t, "continued")
	}
}

// H21: a listener that accepts and says nothing, and one that says what is none of Redis's.
func TestH21WhatIsNotRedis(t *testing.T) {
	t.Parallel()
	for _, says := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n", "$1000000000\r\n", "*1\r\n*1\r\n*1\r\n", "+OK\r\n+OK\r\n+OK\r\n+OK\r\n", "\x00\x00\x00"} {
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
			r := newRows(t, client)
			cache, err := rediscache.New(client, "test:")
			if err != nil {
				t.Fatal(err)
			}
			r.tier = idempotency.NewTestTier(t, cache, 20*time.Millisecond)
			if n := r.all(t, "no Redis"); n != 21 {
				t.Errorf("%d queries", n)
			}
		})
	}
}
