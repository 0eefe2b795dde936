package idempotency_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/rig/wire"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The connection breaks at COMMIT: before the server gets it, or after it and before the client
// hears of it. What is answered is true either way, and there is one effect.
func TestH17CommitWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, what := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
			w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
				if n%3 != 2 {
					return what // most of them
				}
				return pgtest.Pass
			}}
			cfg := leasedConfig()
			cfg.Timeouts.Commit = 10 * time.Second
			r := wiredRig(t, cfg, w, nil)
			var p provider
			work := http.HandlerFunc(effect)
			if mode == idempotency.Leased {
				work = charge(p.pay)
			}
			r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, work)
			r.handle(
				idempotency.Route{Pattern: "/bare", Mode: mode},
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
			)
			const n = 8
			for i := range n {
				first := r.post("/charges", fmt.Sprint(i), fmt.Sprint(i))
				if first.mark() != "created" { // found out, or run again: the client need not know
					t.Errorf("mode %d, cut %d: %v", mode, what, first)
				}
				if again := r.post("/charges", fmt.Sprint(i), fmt.Sprint(i)); again.mark() != "replayed" || again.body != first.body {
					t.Errorf("mode %d, cut %d, again: %v", mode, what, again)
				}
				if g := r.post("/bare", fmt.Sprint(i), "x"); g.mark() != "created" {
					t.Errorf("mode %d, cut %d, without writes: %v", mode, what, g)
				}
			}
			if r.effects() != n || w.Cuts.Load() < n || r.leases() != 0 {
				t.Errorf("mode %d, cut %d: %d effects, %d cuts, %d leases", mode, what, r.effects(), w.Cuts.Load(), r.leases())
			}
			if runs := r.runs.Load(); what == pgtest.Unheard && runs != 2*n {
				t.Errorf("mode %d: %d runs: what had committed ran again", mode, runs)
			}
			if keys, calls := p.keys(); mode == idempotency.Leased && (keys != n || calls != n) {
				t.Errorf("%d payments in %d calls", keys, calls)
			}
		}
	}
}

// The old backend commits late, or never. Until that is decided, the answer is commit-unknown, and
// no other request gets the key. Then the layer finds out.
func TestH17CommitThatIsStillUnderWay(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		for _, what := range []pgtest.Cut{pgtest.Held, pgtest.Dropped} {
			hold := make(chan struct{})
			release := sync.OnceFunc(func() { close(hold) })
			w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
				if n == 1 {
					return what
				}
				return pgtest.Pass
			}}
			cfg := leasedConfig()
			cfg.Timeouts.Commit = time.Second
			r := wiredRig(t, cfg, w, hold)
			t.Cleanup(release)
			other := newRigOn(t, r.pool, r.pool, cfg)
			// In lease mode the writes are sent before COMMIT, and so is what locks the lease: but
			// not until the server has read it.
			for _, one := range []*rig{r, other} {
				one.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, effect)
			}
			first := r.post("/charges", "k", "x")
			if first.code() != "commit-unknown" && !(mode == idempotency.Leased && first.mark() == "created") {
				t.Errorf("mode %d, cut %d: %v", mode, what, first)
			}
			for _, one := range []*rig{r, other} {
				if g := one.post("/charges", "k", "x"); first.code() == "commit-unknown" &&
					mode == idempotency.Transactional &&
					g.code() != "request-in-progress" {
					t.Errorf("mode %d, cut %d, meanwhile: %v", mode, what, g)
				}
			}
			release()
			if g := other.settled("/charges", "k", "x"); g.status != http.StatusCreated || g.body != "effect of x" {
				t.Errorf("%v", g)
			}
			if r.effects() != 1 {
				t.Errorf("mode %d, cut %d: %d effects", mode, what, r.effects())
			}
			if what == pgtest.Held && mode == idempotency.Transactional && other.runs.Load() != 0 {
				t.Error("what had committed ran again")
			}
		}
	}
}

// A COMMIT that was carried out and not answered is not taken for one that was not, although its
// record has expired by the time that the layer looks for it.
func TestH17CommitWithoutAnAnswerOutlivesTheRecord(t *testing.T) {
	t.Parallel()
	w := &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
		if n == 1 {
			return wire.Mute
		}
		return pgtest.Pass
	}}
	cfg := testConfig()
	cfg.Timeouts.Commit = 1500 * time.Millisecond
	r := wiredRig(t, cfg, w, nil)
	r.handle(idempotency.Route{Pattern: "/charges", TTL: time.Second, NoCalls: true}, effect)
	if g := r.post("/charges", "k", "x"); g.code() != "commit-unknown" || r.effects() != 1 || w.Cuts.Load() != 1 {
		t.Errorf("%v, %d effects, %d cuts", g, r.effects(), w.Cuts.Load())
	}
}

// An expired record is purged between a claim's snapshot and its own look: the request runs again.
func TestH17ClaimBesideAPurge(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testConfig())
			r.handle(idempotency.Route{Pattern: "/charges", Isolation: level}, effect)
			r.post("/charges", "k", "x")
			r.exec(`update onlyonce.http_records set expires_at = clock_timestamp()`)
			other := newRigOn(t, r.pool, r.pool, testConfig())
			other.handle(idempotency.Route{Pattern: "/charges", Isolation: level}, effect)
			purge, err := r.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := purge.Exec(t.Context(), `select onlyonce.http_purge(100)`); err != nil {
				t.Fatal(err)
			}
			second := other.background("/charges", "k", "x")
			pgtest.Until(t, time.Minute, "the claim waits for the purge", func() bool {
				return one[bool](
					r,
					`select exists (select from pg_stat_activity
						where datname = current_database() and wait_event_type = 'Lock' and query like '%http_begin%')`,
				)
			})
			if err := purge.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if g := wait(t, "its answer", second); g.status != http.StatusCreated || g.mark() != "created" {
				t.Errorf("%v", g)
			}
		})
	}
}

// The connection breaks at every other statement of the layer, before the server gets it or after
// it (H22).
func TestStoreThatBreaksAnywhere(t *testing.T) {
	t.Parallel()
	statements := map[idempotency.RouteMode][]string{
		idempotency.Transactional: {
			"select onlyonce.http_begin(", "savepoint onlyonce_0", "insert into effects values ($1)", "select onlyonce.http_complete(",
			"rollback",
		},
		idempotency.Leased: {
			"select lease, epoch from onlyonce.http_claim(", "select done, result, sealed, late from onlyonce.http_step(",
			"select onlyonce.http_step_done(", "select onlyonce.http_open(", "select onlyonce.http_finish(",
			"select onlyonce.http_release(", "select onlyonce.raise_epoch(",
		},
	}
	for mode, all := range statements {
		for _, what := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
			for _, s := range all {
				t.Run(fmt.Sprint(mode, what, s[:min(len(s), 40)]), func(t *testing.T) {
					t.Parallel()
					breaksAt(t, mode, what, s)
				})
			}
		}
	}
}

func breaksAt(t *testing.T, mode idempotency.RouteMode, what pgtest.Cut, statement string) {
	var armed atomic.Bool
	w := &pgtest.Wire{Statement: statement, At: func(int32) pgtest.Cut {
		if armed.Swap(false) {
			return what
		}
		return pgtest.Pass
	}}
	r := wiredRig(t, leasedConfig(), w, nil)
	var p provider
	handler := charge(p.pay)
	if mode == idempotency.Transactional {
		handler = effect
	}
	r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
		if r.runs.Load() == 1 {
			w = refusing{w}
		}
		handler(w, req)
	})
	armed.Store(true)
	_, _ = r.try(context.Background(), http.MethodPost, "/charges", "k", "x") // is refused, so that the release is met
	if g := r.settled("/charges", "k", "x"); g.status != http.StatusCreated {
		t.Errorf("%v", g)
	}
	if armed.Load() {
		t.Error("it was never sent")
	}
	if keys, _ := p.keys(); r.effects() != 1 || mode == idempotency.Leased && keys != 1 {
		t.Errorf("%d effects, %d payments", r.effects(), keys)
	}
}

// refusing answers 502, whatever the handler says.
type refusing struct{ http.ResponseWriter }

func (r refusing) WriteHeader(int) { r.ResponseWriter.WriteHeader(http.StatusBadGateway) }
