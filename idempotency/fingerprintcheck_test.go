package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// keys returns a configuration with these secrets of fingerprints, of which the last id is current.
func keys(secrets ...byte) idempotency.Config {
	cfg := testConfig()
	cfg.FingerprintKeys = seal.Keys{Current: uint32(len(secrets)), ByID: map[uint32]seal.Key{}}
	for i, secret := range secrets {
		cfg.FingerprintKeys.ByID[uint32(i+1)] = seal.Key{secret}
	}
	return cfg
}

// chargesOn is a process that serves /charges and /leased on a database.
func chargesOn(t *testing.T, pool *pgxpool.Pool, cfg idempotency.Config) *rig {
	t.Helper()
	r := newRigOn(t, pool, pool, cfg)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, effect)
	return r
}

// A process with another secret under an id would take each retry for another request, and a client
// that then uses a new key pays twice.
func TestH30SecretReplacedUnderItsID(t *testing.T) {
	t.Parallel()
	before := newRig(t, keys(1))
	pool := before.pool
	before = chargesOn(t, pool, keys(1))
	for _, path := range []string{"/charges", "/leased"} {
		if g := before.post(path, "k", "x"); g.mark() != "created" {
			t.Fatalf("%s: %v", path, g)
		}
	}

	for name, cfg := range map[string]idempotency.Config{"current": keys(9), "an older one": keys(9, 2)} {
		after := chargesOn(t, pool, cfg)
		for _, path := range []string{"/charges", "/leased"} {
			for _, key := range []string{"k", "new"} {
				g := after.post(path, key, "x")
				good := g.status == http.StatusServiceUnavailable &&
					g.code() == "fingerprint-key-changed" &&
					strings.Contains(g.body, `"retryable":true`) &&
					g.header.Get("Retry-After") != ""
				if !good {
					t.Errorf("%s: %s %s: %v", name, path, key, g)
				}
			}
		}
		doer, err := idempotency.NewDoer(after.layer, idempotency.DoerConfig{Scope: "charge", NoCalls: true})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = idempotency.Do(t.Context(), doer, idempotency.Scope{}, "k", "x", func(context.Context, consumer.Tx) (int, error) {
			t.Error("the function ran")
			return 0, nil
		})
		var refused *idempotency.RefusedError
		if !errors.As(err, &refused) || refused.Code != "fingerprint-key-changed" || !refused.Retryable {
			t.Errorf("%s: Do: %v", name, err)
		}
		if err := after.layer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "ids [1]") {
			t.Errorf("%s: Run: %v", name, err)
		}
		if n := after.runs.Load(); n != 0 {
			t.Errorf("%s: the handler ran %d times", name, n)
		}
	}
	if !one[bool](before, `select refused_at > clock_timestamp() - interval '1 hour' from onlyonce.http_fingerprint_keys where id = 1`) {
		t.Error("the refusal is not recorded")
	}

	// The process that has the secret goes on, and so does one that has the new one under a new id.
	for name, r := range map[string]*rig{"before": before, "rotated": chargesOn(t, pool, keys(1, 3))} {
		if g := r.post("/charges", "k", "x"); name == "before" && g.mark() != "replayed" || g.status != http.StatusCreated {
			t.Errorf("%s: %v", name, g)
		}
	}
	if n := before.effects(); n != 2 {
		t.Errorf("%d effects of 2 requests", n)
	}
}

// The database is asked once: requests need neither the table nor the function afterwards.
func TestH30KeysAreCheckedOnce(t *testing.T) {
	t.Parallel()
	r := chargesOn(t, newRig(t, keys(1)).pool, keys(1))
	r.post("/charges", "k", "x")
	r.exec(`drop table onlyonce.http_fingerprint_keys; drop function onlyonce.http_check_keys`)
	if g := r.post("/charges", "k", "x"); g.mark() != "replayed" {
		t.Errorf("%v", g)
	}
	if g := r.post("/charges", "other", "x"); g.mark() != "created" {
		t.Errorf("%v", g)
	}
	if g := chargesOn(t, r.pool, keys(1)).post("/charges", "k", "x"); g.code() != "store-unavailable" {
		t.Errorf("unchecked: %v", g)
	}
}

// Of two processes that bring different secrets under a new id at once, one serves. The second
// waits for the first, and then compares, also if the server's transactions have one snapshot.
func TestH30TwoProcessesAtOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		base := newRig(t, keys(1)).pool
		url := base.Config().ConnString() + "&default_transaction_isolation=" + strings.ReplaceAll(level, " ", "%20")
		var all []*rig
		for i := range 8 {
			all = append(all, chargesOn(t, pgtest.Pool(t, url), keys(byte(1+i%2))))
		}
		codes := make([]string, len(all))
		var wg sync.WaitGroup
		for i, r := range all {
			wg.Go(func() {
				g, err := r.try(context.Background(), http.MethodPost, "/charges", fmt.Sprint("k", i), "x")
				if err != nil {
					t.Error(err)
				}
				codes[i] = g.mark() + g.code()
			})
		}
		wg.Wait()
		served := map[int]bool{}
		for i, code := range codes {
			switch code {
			case "created":
				served[i%2] = true
			case "rejectedfingerprint-key-changed":
			default:
				t.Errorf("%s: %s", level, code)
			}
		}
		if len(served) != 1 {
			t.Errorf("%s: %d secrets serve: %v", level, len(served), codes)
		}
	}
}

// A standby has the rows, and cannot write any.
func TestH30KeysAreComparedReadOnly(t *testing.T) {
	t.Parallel()
	r := chargesOn(t, newRig(t, keys(1)).pool, keys(1))
	r.post("/charges", "k", "x")
	readOnly := pgtest.Pool(t, r.pool.Config().ConnString()+"&default_transaction_read_only=on")
	var changed []int64
	if err := readOnly.QueryRow(
		t.Context(),
		`select onlyonce.http_check_keys(array_agg(id), array_agg(check_value)) from onlyonce.http_fingerprint_keys`,
	).Scan(&changed); err != nil ||
		len(changed) != 0 {
		t.Errorf("%v, %v", changed, err)
	}
}

// Each database knows the secrets of its own processes.
func TestH30EachDatabaseIsAsked(t *testing.T) {
	t.Parallel()
	d := newTwoDatabases(t)
	other := chargesOn(t, d.b, keys(9))
	if g := other.post("/charges", "k", "x"); g.mark() != "created" {
		t.Fatalf("%v", g)
	}
	r := d.process(t)
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	if g := r.post("/charges", "k", "x", "X-Tenant", "acme"); g.mark() != "created" {
		t.Errorf("%v", g)
	}
	if err := r.layer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "ids [1]") {
		t.Errorf("Run: %v", err)
	}
	d.moved.Store(true)
	if g := r.post("/charges", "k", "x", "X-Tenant", "other"); g.code() != "fingerprint-key-changed" {
		t.Errorf("%v", g)
	}
}
