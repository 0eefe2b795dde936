package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/devenv/pgtest"
	"github.com/onlyonce/onlyonce/seal"
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

// dies lets the owner of the only lease be dead: its time is over, by the database's clock, and it does not notice.
func (r *rig) dies() {
	r.t.Helper()
	r.exec(`update onlyonce.leases set until = clock_timestamp()`)
}

// An owner stands still in its handler while its lease ends. Another process takes over and finishes. When the first wakes up, nothing
// that it does has an effect: not a step, not a transaction, not its answer.
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
					tx, err := idempotency.Tx(req)
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
		route := idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}
		r.handle(route, handler(true))
		other.handle(route, handler(false))
		first := r.background("/charges", "k", "x")
		wait(t, "the first one stands still", g.begun)
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
		effects := map[bool]int{true: 0, false: 1}[at == "without Tx"]
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
	route := idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}
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
	for _, g := range r.all(30, func(i int) (got, error) {
		return []*rig{r, other}[i%2].try(context.Background(), http.MethodPost, "/charges", "k", "x")
	}) {
		if g.mark() == "created" {
			created++
		}
	}
	if keys, calls := p.keys(); created != 1 || keys != 1 || calls != 1 || r.effects() != 1 {
		t.Errorf("%d created, %d payments in %d calls, %d effects", created, keys, calls, r.effects())
	}
	// Another request under the key of one that was left is refused, and does not take it over.
	broken.Store(true)
	r.post("/charges", "left", "x")
	if g := r.post("/charges", "left", "y"); g.mark() != "mismatch" {
		t.Errorf("%v", g)
	}
}

// The lease of a handler that works longer than its lease is renewed, with a transaction open too; the database's clock counts.
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

// A handler whose lease was taken is told, and its answer is not sent.
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

// While COMMIT of one request stands still, the leases of the others are renewed.
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
	cfg.CommitTimeout = 4 * time.Second
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
	// It is not known, or the connection was cut before the server came as far as the lease: then it has run again.
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

// The provider's memory bounds how long a step of unknown outcome is asked about.
func TestH18OutcomeThatIsUnknownForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var calls atomic.Int64
	var seen []string
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased, TTL: 10 * time.Hour, KeyWindow: 5 * time.Hour}, func(w http.ResponseWriter, req *http.Request) {
		_, err := idempotency.Step(req.Context(), "charge", func(_ context.Context, key string) ([]byte, error) {
			seen = append(seen, key)
			if calls.Add(1) < 3 {
				return nil, errors.New("in use: the attempt before may be under way")
			}
			return nil, errors.New("no answer")
		})
		if errors.Is(err, idempotency.ErrOutcomeUnknown) {
			w.WriteHeader(http.StatusOK) // whatever it says
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	})
	for range 2 {
		if g := r.post("/charges", "k", "x"); g.status != http.StatusBadGateway || g.mark() != "released" {
			t.Errorf("%v", g)
		}
	}
	r.exec(`update onlyonce.http_steps set first_at = clock_timestamp() - interval '3 hours 59 minutes'`)
	r.post("/charges", "k", "x")
	r.exec(`update onlyonce.http_steps set first_at = clock_timestamp() - interval '4 hours 1 minute'`)
	for range 3 {
		if g := r.post("/charges", "k", "x"); g.status != 503 || g.code() != "commit-unknown" {
			t.Errorf("%v", g)
		}
	}
	if calls.Load() != 3 || seen[0] != seen[1] || seen[1] != seen[2] {
		t.Errorf("%d calls under %v", calls.Load(), seen)
	}
	if s := one[string](r, `select state from onlyonce.http_records`); s != "reconcile" {
		t.Errorf("state %s", s)
	}
}

// Keys of steps: the same for whoever asks, others for other steps, requests and tenants.
func TestH18KeysOfSteps(t *testing.T) {
	t.Parallel()
	sealer, err := seal.New(1, map[uint32]seal.Key{1: {1}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasedConfig()
	cfg.Sealer = sealer
	r := newRig(t, cfg)
	var p provider
	handler := func(w http.ResponseWriter, req *http.Request) {
		for _, name := range []string{"authorize", "capture"} {
			for range 2 { // the second time it is remembered
				result, err := idempotency.Step(req.Context(), name, p.pay)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = w.Write(result)
			}
		}
		if r.runs.Load()%2 == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}
	for _, path := range []string{"/a", "/b"} {
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
			if r.runs.Load()%2 == 1 {
				handler(discard{w}, req)
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			handler(w, req)
		})
	}
	requests := [][]string{{"/a", "k"}, {"/b", "k"}, {"/a", "k2"}, {"/a", "k", "X-Tenant", "t"}, {"/a", "k", "X-Principal", "p"}}
	for _, q := range requests {
		first, second := r.post(q[0], q[1], "x", q[2:]...), r.post(q[0], q[1], "x", q[2:]...)
		if first.mark() != "released" || second.mark() != "created" {
			t.Errorf("%v: %v, %v", q, first, second)
		}
	}
	if keys, calls := p.keys(); keys != 2*len(requests) || calls != keys {
		t.Errorf("%d keys in %d calls, want %d of each", keys, calls, 2*len(requests))
	}
	if n := one[int](r, `select count(*) from onlyonce.http_steps where not sealed or position('paid'::bytea in result) > 0`); n != 0 {
		t.Errorf("%d results are not sealed", n)
	}
	// They go with their record.
	r.exec(`update onlyonce.http_records set expires_at = clock_timestamp()`)
	r.exec(`select onlyonce.http_purge(100)`)
	if n := one[int](r, `select count(*) from onlyonce.http_steps`); n != 0 {
		t.Errorf("%d steps are left", n)
	}
}

// discard is a ResponseWriter whose answer nobody gets.
type discard struct{ http.ResponseWriter }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// A record is kept for longer than a provider's memory, or its step's key would be used for another request.
func TestH18ConfigOfLeases(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	for name, c := range map[string]struct {
		route idempotency.Route
		fits  bool
	}{
		"defaults":         {idempotency.Route{}, true},
		"an hour longer":   {idempotency.Route{TTL: 3 * time.Hour, KeyWindow: 2 * time.Hour}, true},
		"not as long":      {idempotency.Route{TTL: 3 * time.Hour, KeyWindow: 2*time.Hour + time.Second}, false},
		"window by itself": {idempotency.Route{KeyWindow: 30 * 24 * time.Hour}, false},
		"derived key":      {idempotency.Route{Key: idempotency.KeyDerived}, false},
	} {
		c.route.Pattern, c.route.Mode = "/x", idempotency.Leased
		if _, err := r.layer.Handle(c.route, http.NotFoundHandler()); c.fits != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestH18StepsThatAreNone(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	call := func(context.Context, string) ([]byte, error) { t.Error("a call was made"); return nil, nil }
	refused := func(what string, err error) {
		if !errors.Is(err, idempotency.ErrStep) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := idempotency.Step(t.Context(), "s", call)
	refused("outside of a request", err)
	r.handle(idempotency.Route{Pattern: "/tx"}, func(w http.ResponseWriter, req *http.Request) {
		_, err := idempotency.Step(req.Context(), "s", call)
		refused("in transactional mode", err)
	})
	r.handle(idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		_, err := idempotency.Step(req.Context(), "", call)
		refused("without a name", err)
		if _, err := idempotency.Step(req.Context(), "long", func(context.Context, string) ([]byte, error) { return make([]byte, 1<<20+1), nil }); err == nil {
			t.Error("a result that is too long is kept")
		}
		if _, err := idempotency.Tx(req); err != nil {
			t.Error(err)
		}
		_, err = idempotency.Step(req.Context(), "s", call)
		refused("behind Tx", err)
		_, _ = io.WriteString(w, "ok")
	})
	for _, path := range []string{"/tx", "/leased"} {
		if g := r.post(path, "k", "x"); g.mark() != "created" {
			t.Errorf("%v", g)
		}
	}
}

// Requests that nobody came back for are deleted, or set aside where a step's outcome is unknown.
func TestH18AbandonedRequests(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	r := newRig(t, cfg)
	var p provider
	g := newGate(t)
	fails := func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") }
	for path, step := range map[string]func(context.Context, string) ([]byte, error){"/known": p.pay, "/unknown": fails} {
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
			_, _ = idempotency.Step(req.Context(), "charge", step)
			w.WriteHeader(http.StatusBadGateway)
		})
	}
	r.handle(idempotency.Route{Pattern: "/alive", Mode: idempotency.Leased}, g.before(effect))
	r.post("/known", "k", "x")
	r.post("/unknown", "k", "x")
	alive := r.background("/alive", "k", "x")
	wait(t, "it runs", g.begun)
	r.exec(`update onlyonce.http_records set created_at = created_at - interval '47 hours'`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	states := func() string {
		return one[string](r, `select coalesce(string_agg(substr(scope, 11) || ' ' || state, ', ' order by scope), '') from onlyonce.http_records`)
	}
	r.exec(`select onlyonce.http_abandon(100)`)
	if s := states(); s != "/alive running, /known running, /unknown running" {
		t.Errorf("before their time: %s", s)
	}
	r.exec(`update onlyonce.http_records set created_at = created_at - interval '2 hours'`)
	until(t, "those that were left are seen to", func() bool { return states() == "/alive running, /unknown reconcile" })
	g.release()
	if a := wait(t, "the one that works goes on", alive); a.mark() != "created" {
		t.Errorf("%v", a)
	}
	cancel()
	if err := wait(t, "Run returns", ended); err != nil {
		t.Error(err)
	}
	if a := r.post("/unknown", "k", "x"); a.code() != "commit-unknown" {
		t.Errorf("%v", a)
	}
}

// The same while the second one is still at it: what the zombie does is refused because it is the zombie's, and not because
// everything is over.
func TestH18ZombieBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before the step", "in the call", "in Tx"} {
		cfg := leasedConfig()
		cfg.LeaseTTL = time.Hour
		r := newRig(t, cfg)
		other := newRigOn(t, r.pool, r.pool, cfg)
		var p provider
		first, second := newGate(t), newGate(t)
		handler := func(g *gate, zombie bool) http.HandlerFunc {
			return func(w http.ResponseWriter, req *http.Request) {
				stand := func(here string) {
					if zombie && here == at || !zombie && here == "in the call" {
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
				tx, err := idempotency.Tx(req)
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
		route := idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}
		r.handle(route, handler(first, true))
		other.handle(route, handler(second, false))
		zombie := r.background("/charges", "k", "x")
		wait(t, "the first one stands still", first.begun)
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
	nonce, next, id := "00000000-0000-8000-8000-000000000001", "00000000-0000-8000-8000-000000000002", "00000000-0000-8000-8000-000000000003"
	if err := r.pool.QueryRow(ctx, `select lease, epoch from onlyonce.http_claim($1, '', 's', '\x00', $2, '1 day', '0')`, id, nonce).Scan(&lease, &epoch); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](r, `select onlyonce.raise_epoch($1, $2, $3::uuid, '1 hour'::interval)`, lease, epoch, next); n != epoch+1 {
		t.Fatalf("epoch %d", n)
	}
	for name, sql := range map[string]string{
		"finish": `select onlyonce.http_finish($1, $2, $3, $4, '\x00', false)`, "release": `select onlyonce.http_release($1, $2, $3, $4)`, "reconcile": `select onlyonce.http_reconcile($1, $2, $3, $4)`,
		"step": `select onlyonce.http_step($2, $3, $4, $1, 's', '1 hour')`, "step done": `select onlyonce.http_step_done($2, $3, $4, $1, 's', '\x00', false)`,
	} {
		if _, err := r.pool.Exec(ctx, sql, id, lease, epoch, nonce); err == nil || !strings.Contains(err.Error(), "OO001") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.http_records where state = 'running' and lease_id = $1`, lease); n != 1 {
		t.Error("the record was changed")
	}
}

// A record that the engine has not sealed does not commit, in either mode.
func TestH17RecordNeedsTheSeal(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	complete := func(sealed bool) error {
		return pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `select onlyonce.http_open('1s', '1s', '1s')`); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `select onlyonce.http_complete(gen_random_uuid(), '', 's', '\x00', gen_random_uuid(), '\x00', false, '1 day')`)
			if err == nil && sealed {
				_, err = tx.Exec(t.Context(), `select onlyonce.seal()`)
			}
			return err
		})
	}
	if err := complete(true); err != nil {
		t.Error(err)
	}
	if err := complete(false); err == nil || !strings.Contains(err.Error(), "OO002") {
		t.Errorf("without the seal: %v", err)
	}
}
