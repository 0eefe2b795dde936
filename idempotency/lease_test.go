package idempotency_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// provider is a remote that honours keys: what it was asked for under each, and how often.
type provider struct {
	mu    sync.Mutex
	calls map[string]int
}

func (p *provider) pay(_ context.Context, key string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[string]int{}
	}
	p.calls[key]++
	return []byte("paid under " + key), nil
}

// keys says how many payments there were, and total how many calls.
func (p *provider) keys() (n, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, calls := range p.calls {
		total += calls
	}
	return len(p.calls), total
}

// dies lets the owner of the only lease be dead: its time is over, by the database's clock, and it
// does not notice.
func (r *rig) dies() {
	r.t.Helper()
	r.exec(`update onlyonce.leases set until = clock_timestamp()`)
}

// An owner stalls in its handler while its lease ends. Another process takes over and finishes.
// When the first one wakes up, all that it does fails: a step, a transaction, and its answer.
func TestH18ZombieChangesNothing(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before the step", "in the call", "before Tx", "in Tx", "without Tx"} {
		cfg := leasedConfig()
		cfg.LeaseTTL = time.Hour // it is not renewed, and does not notice
		r := newRig(t, cfg)
		other := newRigOn(t, r.pool, r.pool, cfg)
		var p provider
		g := newGate(t)
		stand := func(here string, first bool) {
			if first && here == at {
				g.begun <- struct{}{}
				<-g.open
			}
		}
		handler := func(first bool) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				stand("before the step", first)
				result, err := idempotency.Step(req.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
					stand("in the call", first)
					return p.pay(ctx, key)
				})
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				stand("before Tx", first)
				stand("without Tx", first)
				if at != "without Tx" {
					tx, err := idempotency.TxOf(req)
					if err != nil {
						http.Error(w, err.Error(), http.StatusInternalServerError)
						return
					}
					if _, err := tx.Exec(req.Context(), `insert into effects values ('x')`); err != nil {
						t.Error(err)
					}
				}
				stand("in Tx", first)
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(result)
			}
		}
		route := idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased}
		r.handle(route, handler(true))
		other.handle(route, handler(false))
		first := r.background("/charges", "k", "x")
		wait(t, "the first handler has begun", g.begun)
		created := one[time.Time](r, `select created_at from onlyonce.http_records`)
		if dup := other.post("/charges", "k", "x"); dup.code() != "request-in-progress" {
			t.Errorf("%s: before the lease ends: %v", at, dup)
		}
		r.dies()
		second := other.post("/charges", "k", "x")
		if second.mark() != "created" || !one[time.Time](r, `select created_at from onlyonce.http_records`).Equal(created) {
			t.Errorf("%s: the second one: %v", at, second)
		}
		g.release()
		if z := wait(t, "the zombie is answered", first); z.status == http.StatusCreated && z.body != second.body || z.mark() == "created" {
			t.Errorf("%s: the zombie: %v", at, z)
		}
		effects := 1
		if at == "without Tx" {
			effects = 0
		}
		if keys, _ := p.keys(); keys != 1 || r.effects() != effects || r.leases() != 0 {
			t.Errorf("%s: %d payments, %d effects, %d leases", at, keys, r.effects(), r.leases())
		}
		if again := r.post("/charges", "k", "x"); again.mark() != "replayed" || again.body != second.body {
			t.Errorf("%s: %v", at, again)
		}
	}
}

// Each take-over raises the epoch, and of many only one comes through.
func TestH18OneThief(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	other := newRigOn(t, r.pool, r.pool, leasedConfig())
	var p provider
	route := idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased}
	var broken atomic.Bool
	broken.Store(true)
	handler := func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.Step(req.Context(), "charge", p.pay); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if broken.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		effect(w, req)
	}
	r.handle(route, handler)
	other.handle(route, handler)
	for n := range 3 {
		r.post("/charges", "k", "x")
		if epoch := one[int](r, `select epoch from onlyonce.leases`); epoch != n+1 {
			t.Errorf("epoch %d after %d owners", epoch, n+1)
		}
	}
	broken.Store(false)
	created := 0
	both := []*rig{r, other}
	for _, g := range r.all(30, func(i int) (got, error) {
		return both[i%2].try(context.Background(), http.MethodPost, "/charges", "k", "x")
	}) {
		if g.mark() == "created" {
			created++
		}
	}
	keys, calls := p.keys()
	good := created == 1 && keys == 1 && calls == 1 && r.effects() == 1
	if !good {
		t.Errorf("%d created, %d payments in %d calls, %d effects", created, keys, calls, r.effects())
	}
	// Another request under the key of one that was left is refused, and does not take it over.
	broken.Store(true)
	r.post("/charges", "left", "x")
	if g := r.post("/charges", "left", "y"); g.mark() != "mismatch" {
		t.Errorf("%v", g)
	}
}

// The lease of a handler that works longer than its lease is renewed, with a transaction open too;
// the database's clock counts.
func TestH18LeasesAreRenewed(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	r := newRig(t, cfg)
	g := newGate(t)
	for _, path := range []string{"/plain", "/tx"} {
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
			if path == "/tx" {
				effect(w, req)
			}
			g.begun <- struct{}{}
			<-g.open
			if err := req.Context().Err(); err != nil {
				t.Errorf("%s: %v", path, context.Cause(req.Context()))
			}
		})
	}
	answers := []<-chan got{r.background("/plain", "k", "x"), r.background("/tx", "k", "x"), r.background("/tx", "k2", "x")}
	for range answers {
		wait(t, "they run", g.begun)
	}
	first := one[time.Time](r, `select max(until) from onlyonce.leases`)
	until(t, "all are renewed twice", func() bool {
		return one[time.Duration](r, `select min(until) - $1 from onlyonce.leases`, first) > cfg.LeaseTTL/2
	})
	g.release()
	for _, c := range answers {
		if a := wait(t, "they are answered", c); a.mark() != "created" {
			t.Errorf("%v", a)
		}
	}
}

// A handler whose lease was taken over gets a cancelled context, and its answer is not sent.
func TestH18LostLeaseEndsTheHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	begun := make(chan struct{}, 1)
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		begun <- struct{}{}
		<-req.Context().Done()
		w.WriteHeader(http.StatusCreated)
	})
	first := r.background("/charges", "k", "x")
	wait(t, "it runs", begun)
	r.exec(`update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid()`)
	if g := wait(t, "it is answered", first); g.code() != "request-in-progress" {
		t.Errorf("%v", g)
	}
}

// While COMMIT of one request hangs, the leases of the others are renewed.
func TestH18StuckCommitKeepsNoOtherLease(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	var stick atomic.Bool
	w := &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut {
		if stick.Swap(false) {
			return pgtest.Held
		}
		return pgtest.Pass
	}}
	cfg := leasedConfig()
	// on a busy machine a renewal may take a second
	cfg.LeaseTTL = 3 * time.Second
	cfg.Timeouts.Commit = 7 * time.Second
	r := wiredRig(t, cfg, w, hold)
	t.Cleanup(release)
	g := newGate(t)
	r.handle(idempotency.Route{Pattern: "/slow", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		g.begun <- struct{}{}
		<-g.open
		effect(w, req)
	})
	r.handle(idempotency.Route{Pattern: "/stuck", Mode: idempotency.Leased}, effect)
	slow := r.background("/slow", "k", "x")
	wait(t, "the slow one runs", g.begun)
	stick.Store(true)
	stuck := r.background("/stuck", "k", "x")
	// It is not known, or the connection was cut before the server came as far as the lease: then
	// it has run again.
	if a := wait(t, "the stuck one is answered", stuck); a.code() != "commit-unknown" && a.mark() != "created" || w.Cuts.Load() != 1 {
		t.Errorf("%v, %d cuts", a, w.Cuts.Load())
	}
	g.release()
	if a := wait(t, "the slow one is answered", slow); a.mark() != "created" {
		t.Errorf("its lease was lost: %v", a)
	}
	release()
	if a := r.settled("/stuck", "k", "x"); a.status != http.StatusCreated || r.effects() != 2 {
		t.Errorf("%v, %d effects", a, r.effects())
	}
}

// The same while the second one is still at it: what the zombie does is refused because it is the
// zombie's, and not because everything is over.
func TestH18ZombieBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before the step", "in the call", "in Tx"} {
		cfg := leasedConfig()
		cfg.LeaseTTL = time.Hour
		r := newRig(t, cfg)
		other := newRigOn(t, r.pool, r.pool, cfg)
		var p provider
		first := newGate(t)
		second := newGate(t)
		handler := func(g *gate, zombie bool) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				stand := func(here string) {
					wrong := zombie && here == at || !zombie && here == "in the call"
					if wrong {
						g.begun <- struct{}{}
						<-g.open
					}
				}
				stand("before the step")
				result, err := idempotency.Step(req.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
					stand("in the call")
					return p.pay(ctx, key)
				})
				if zombie && at != "in Tx" && err == nil {
					t.Errorf("%s: the zombie's step was kept", at)
				}
				tx, err := idempotency.TxOf(req)
				if err == nil {
					_, err = tx.Exec(req.Context(), `insert into effects values ('x')`)
				}
				if err != nil && !zombie {
					t.Error(err)
				}
				stand("in Tx")
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(result)
			}
		}
		route := idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: idempotency.Leased}
		r.handle(route, handler(first, true))
		other.handle(route, handler(second, false))
		zombie := r.background("/charges", "k", "x")
		wait(t, "the first handler has begun", first.begun)
		r.dies()
		successor := other.background("/charges", "k", "x")
		if at != "in Tx" { // there the step is done, and the second one has nothing to stand at
			wait(t, "the second one works", second.begun)
			first.release()
			if z := wait(t, "the zombie is answered", zombie); z.mark() == "created" || z.mark() == "replayed" || z.status < 400 {
				t.Errorf("%s: the zombie: %v", at, z)
			}
			second.release()
		}
		if g := wait(t, "the second one is answered", successor); g.mark() != "created" {
			t.Errorf("%s: the second one: %v", at, g)
		}
		first.release()
		if keys, _ := p.keys(); keys != 1 || r.effects() != 1 {
			t.Errorf("%s: %d payments, %d effects", at, keys, r.effects())
		}
	}
}

// An owner that was replaced keeps no answer, whatever its process believes: the database compares.
func TestH18FenceOfTheLastStatement(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	ctx := t.Context()
	var lease, epoch int64
	nonce := "00000000-0000-8000-8000-000000000001"
	next := "00000000-0000-8000-8000-000000000002"
	id := "00000000-0000-8000-8000-000000000003"
	if err := r.pool.QueryRow(ctx, `select lease, epoch from onlyonce.http_claim($1, '', 's', '\x00', $2, '1 day', '0')`, id, nonce).Scan(
		&lease,
		&epoch,
	); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](r, `select onlyonce.raise_epoch($1, $2, $3::uuid, '1 hour'::interval)`, lease, epoch, next); n != epoch+1 {
		t.Fatalf("epoch %d", n)
	}
	for name, sql := range map[string]string{
		"finish":    `select onlyonce.http_finish($1, $2, $3, $4, '\x00', false)`,
		"release":   `select onlyonce.http_release($1, $2, $3, $4)`,
		"reconcile": `select onlyonce.http_reconcile($1, $2, $3, $4)`,
		"step":      `select onlyonce.http_step($2, $3, $4, $1, 's', '1 hour', false)`,
		"step done": `select onlyonce.http_step_done($2, $3, $4, $1, 's', '\x00', false)`,
	} {
		if _, err := r.pool.Exec(ctx, sql, id, lease, epoch, nonce); err == nil || !strings.Contains(err.Error(), "OO001") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records where state = 'running' and lease_id = $1`, lease); n != 1 {
		t.Error("the record was changed")
	}
}
