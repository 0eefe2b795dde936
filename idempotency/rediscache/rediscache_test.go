package rediscache_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency/rediscache"
	"github.com/onlyonce/onlyonce/test/devenv/servertest"
)

const prefix = "test:"

func connect(t *testing.T, addr string) (*redis.Client, *rediscache.Cache) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	cache, err := rediscache.New(client, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return client, cache
}

func TestEntries(t *testing.T) {
	t.Parallel()
	client, cache := connect(t, servertest.Redis(t).Addr)
	ctx, id := t.Context(), [16]byte{0xab, 15: 0xcd}
	is := func(want []byte) {
		t.Helper()
		if got, err := cache.Get(ctx, id); err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is(nil)
	must(cache.Delete(ctx, id))
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	must(cache.Put(ctx, id, all, time.Minute))
	is(all)
	const key = prefix + "ab0000000000000000000000000000cd"
	if ttl := client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("it is kept for %v", ttl)
	}
	must(cache.Put(ctx, id, []byte("another"), time.Hour))
	is([]byte("another"))
	must(cache.Delete(ctx, id))
	is(nil)
	// No entry is ever kept without an end.
	for _, ttl := range []time.Duration{0, -1, time.Microsecond, 999 * time.Microsecond, -time.Hour} {
		must(cache.Put(ctx, id, []byte("x"), time.Minute))
		must(cache.Put(ctx, id, []byte("y"), ttl))
		is(nil)
	}
	must(cache.Put(ctx, id, []byte("x"), 1500*time.Microsecond+time.Hour))
	is([]byte("x"))
	if ttl := client.PTTL(ctx, key).Val(); ttl <= 0 || ttl > time.Hour+time.Millisecond {
		t.Errorf("it is kept for %v", ttl)
	}
	// What others write under our name.
	must(client.Set(ctx, key, "", 0).Err())
	is(nil)
	must(client.Del(ctx, key).Err())
	must(client.RPush(ctx, key, "a list").Err())
	is(nil)
	must(cache.Put(ctx, id, []byte("x"), time.Minute))
	is([]byte("x"))
	must(client.SetRange(ctx, key, 64<<20, "a huge one").Err())
	if got, err := cache.Get(ctx, id); err != nil || len(got) != 8<<20 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	must(client.FlushAll(ctx).Err())
	is(nil)
}

// Two services on one Redis, and two records, are apart.
func TestNamesAreApart(t *testing.T) {
	t.Parallel()
	client, cache := connect(t, servertest.Redis(t).Addr)
	other, err := rediscache.New(client, "other:")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []*rediscache.Cache{cache, other} {
		for j := range byte(3) {
			if err := c.Put(t.Context(), [16]byte{j}, []byte{byte(i), j}, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, c := range []*rediscache.Cache{cache, other} {
		for j := range byte(3) {
			if got, err := c.Get(t.Context(), [16]byte{j}); err != nil || !bytes.Equal(got, []byte{byte(i), j}) {
				t.Errorf("%d %d: %v, %v", i, j, got, err)
			}
		}
	}
	if keys := client.Keys(t.Context(), prefix+hex.EncodeToString(make([]byte, 16))).Val(); len(keys) != 1 {
		t.Errorf("%v", keys)
	}
}

func TestErrorsOfRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	_, cache := connect(t, server.Addr)
	if err := server.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, err := cache.Get(short, [16]byte{}); err == nil || got != nil {
		t.Errorf("paused: %q, %v", got, err)
	}
	if err := errors.Join(server.Continue(t.Context()), server.Kill(t.Context())); err != nil {
		t.Fatal(err)
	}
	_, getErr := cache.Get(t.Context(), [16]byte{})
	for _, err := range []error{
		getErr,
		cache.Put(t.Context(), [16]byte{}, []byte("x"), time.Minute),
		cache.Delete(t.Context(), [16]byte{}),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "rediscache: ") {
			t.Errorf("down: %v", err)
		}
	}
}

// H24: a cache needs a client and a prefix that Redis takes.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := rediscache.New(nil, "")
	if !errors.Is(err, rediscache.ErrConfig) || !strings.Contains(err.Error(), "client: ") || !strings.Contains(err.Error(), "prefix: ") {
		t.Errorf("%v", err)
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	if _, err := rediscache.New(client, strings.Repeat("x", 256)); !errors.Is(err, rediscache.ErrConfig) {
		t.Errorf("%v", err)
	}
}
