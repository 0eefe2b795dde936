package client_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/idempotency/client"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Whoever asks for an intent's key gets the same one, until it is forgotten.
func TestSQLKeyStore(t *testing.T) {
	t.Parallel()
	db := stdlib.OpenDBFromPool(pgtest.DB(t))
	t.Cleanup(func() { _ = db.Close() })
	store, err := client.NewSQLKeyStore(db, "public.idempotency_keys")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), store.Schema()); err != nil {
		t.Fatal(err)
	}
	keyOf := func(intent string) string {
		key, err := client.StoredKey(t.Context(), store, intent)
		if err != nil {
			t.Error(err)
		}
		return key
	}
	keys := make([]string, 8)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() { keys[i] = keyOf("form 17") })
	}
	all.Wait()
	for _, key := range keys {
		if key != keys[0] || key == "" {
			t.Fatalf("keys of one intent: %q", keys)
		}
	}
	if keyOf("form 18") == keys[0] {
		t.Error("two intents have one key")
	}
	if err := store.Forget(t.Context(), "form 17"); err != nil {
		t.Fatal(err)
	}
	if keyOf("form 17") == keys[0] {
		t.Error("a key that was forgotten is used again")
	}
	for _, c := range []struct {
		before time.Duration // from now
		want   int64
	}{{-24 * time.Hour, 0}, {24 * time.Hour, 2}} {
		if n, err := store.Expire(t.Context(), time.Now().Add(c.before)); err != nil || n != c.want {
			t.Errorf("%d keys expired, want %d: %v", n, c.want, err)
		}
	}
}

// T15: a key that was stored a moment ago is not expired, and an older one is, whatever the
// session's time zone.
func TestT15SQLKeyStore(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "America/Los_Angeles", "Asia/Kathmandu"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			cfg, err := pgx.ParseConfig(pgtest.URL(t))
			if err != nil {
				t.Fatal(err)
			}
			cfg.RuntimeParams["timezone"] = zone
			db := stdlib.OpenDB(*cfg)
			t.Cleanup(func() { _ = db.Close() })
			store, err := client.NewSQLKeyStore(db, "public.idempotency_keys")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.ExecContext(t.Context(), store.Schema()); err != nil {
				t.Fatal(err)
			}
			if _, err := client.StoredKey(t.Context(), store, "form 17"); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				before time.Duration // from now
				want   int64
			}{{-time.Hour, 0}, {time.Hour, 1}} {
				if n, err := store.Expire(t.Context(), time.Now().Add(c.before)); err != nil || n != c.want {
					t.Errorf("before now and %v: %d keys expired, want %d: %v", c.before, n, c.want, err)
				}
			}
		})
	}
}

func TestSQLKeyStoreFaults(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"", "a b", "a.b.c", `keys"; drop table users`} {
		if _, err := client.NewSQLKeyStore(nil, table); !errors.Is(err, client.ErrConfig) {
			t.Errorf("%q: %v", table, err)
		}
	}
}
