package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// charge is a handler in lease mode: it pays by a step, writes the effect and answers with what the
// provider said.
func charge(provider func(ctx context.Context, key string) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		result, err := idempotency.Step(req.Context(), "charge", provider)
		if err != nil {
			http.Error(w, "the provider: "+err.Error(), http.StatusBadGateway)
			return
		}
		tx, err := idempotency.TxOf(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if _, err := tx.Exec(req.Context(), `insert into effects values ($1)`, string(body)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(result)
	}
}

// leasedConfig has short leases.
func leasedConfig() idempotency.Config {
	cfg := testConfig()
	cfg.LeaseTTL = time.Second
	cfg.AcquireTimeout = 2 * time.Second
	cfg.Timeouts.Commit = 3 * time.Second
	return cfg
}

func (r *rig) leases() int { return one[int](r, `select count(*) from onlyonce.leases`) }

// A handler that ends its goroutine leaves neither its key nor a connection behind (H11).
func TestGoexitFreesTheKey(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, leasedConfig())
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			tx, err := idempotency.TxOf(req)
			if err != nil {
				t.Error(err)
				return
			}
			tx.Queue(`insert into effects values ('x')`)
			if r.runs.Load() == 1 {
				runtime.Goexit()
			}
			effect(w, req)
		})
		if g, err := r.try(context.Background(), http.MethodPost, "/charges", "k", "x"); err == nil {
			t.Fatalf("Goexit was answered: %v", g)
		}
		if g := r.settled("/charges", "k", "x"); g.mark() != "created" || r.effects() != 2 || r.runs.Load() != 2 {
			t.Errorf("mode %d: %v, %d effects, %d runs", mode, g, r.effects(), r.runs.Load())
		}
		until(t, "no connection is in use", func() bool { return r.pool.Stat().AcquiredConns() == 0 })
	}
}

// Without a key nothing joins two requests: neither may the key that their steps carry (H5).
func TestStepsOfRequestsWithoutAKeyHaveKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var mu sync.Mutex
	var keys []string
	r.handle(
		idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased, KeyOptional: true},
		func(w http.ResponseWriter, req *http.Request) {
			for _, name := range []string{"authorize", "capture"} {
				if _, err := idempotency.Step(req.Context(), name, func(_ context.Context, key string) ([]byte, error) {
					mu.Lock()
					defer mu.Unlock()
					keys = append(keys, key)
					return nil, nil
				}); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusCreated)
		},
	)
	for range 2 {
		if g := r.post("/charges", "", "10 EUR"); g.status != http.StatusCreated || g.mark() != "bypassed" {
			t.Errorf("%v", g)
		}
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 4 {
		t.Errorf("keys %v: want one for each step of each request", keys)
	}
}

// H19: a request whose answer was erased gets 410, and does not run again.
func TestErasedAnswerIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.handle(
		idempotency.Route{Pattern: "/leased", Mode: idempotency.Leased},
		charge(func(context.Context, string) ([]byte, error) { return []byte("secret"), nil }),
	)
	for _, path := range []string{"/charges", "/leased"} {
		r.post(path, "k", "x", "X-Principal", "a b")
		if err := r.layer.Erase(t.Context(), "", "http POST "+path+" a%20b", "k"); err != nil {
			t.Fatal(err)
		}
		if g := r.post(path, "k", "x", "X-Principal", "a b"); g.status != http.StatusGone || g.code() != "response-not-replayable" {
			t.Errorf("%v", g)
		}
		if err := r.layer.Erase(t.Context(), "", "http POST "+path+" a%20b", "k"); !errors.Is(err, idempotency.ErrNoRecord) {
			t.Errorf("erased twice: %v", err)
		}
	}
	if n := one[int](r, `select count(*) from onlyonce.http_steps where result is not null`); n != 0 {
		t.Errorf("%d results of steps are left", n)
	}
	if r.effects() != 2 {
		t.Errorf("%d effects", r.effects())
	}
}

// A request that is not completed needs the results of its steps: erasing refuses, and changes
// nothing (H19).
func TestEraseOfWhatIsNotCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var p provider
	var healthy atomic.Bool
	r.handle(idempotency.Route{Pattern: "/payouts", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		result, err := idempotency.Step(req.Context(), "payout", p.pay)
		if err != nil {
			t.Error(err)
		}
		if !healthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(result)
	})
	r.post("/payouts", "k", "x")
	for _, state := range []string{"running", "reconcile", "running"} {
		r.exec(`update onlyonce.http_records set state = $1`, state)
		before := one[string](r, `select r::text || s::text from onlyonce.http_records r join onlyonce.http_steps s on s.record_id = r.id`)
		if err := r.layer.Erase(t.Context(), "", "http POST /payouts", "k"); !errors.Is(err, idempotency.ErrNoRecord) {
			t.Errorf("%s: %v", state, err)
		}
		if after := one[string](
			r,
			`select r::text || s::text from onlyonce.http_records r join onlyonce.http_steps s on s.record_id = r.id`,
		); after != before {
			t.Errorf("%s: %s, was %s", state, after, before)
		}
	}
	healthy.Store(true)
	if g := r.post("/payouts", "k", "x"); g.mark() != "created" || !strings.HasPrefix(g.body, "paid under ") {
		t.Errorf("%v", g)
	}
	if _, calls := p.keys(); calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// Those who ask for a stored answer at the same time do not stand in one another's way (H10).
func TestReplaysAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, effect)
	first := r.post("/charges", "k", "x")
	for _, g := range r.all(100, func(int) (got, error) {
		return r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
	}) {
		if g.mark() != "replayed" || g.body != first.body {
			t.Fatalf("%v", g)
		}
	}
}

// A handler that goes on after its time keeps neither the key nor the connection, in this process
// or in another (H11).
func TestHangingHandlerKeepsNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, leasedConfig())
		open := make(chan struct{})
		release := sync.OnceFunc(func() { close(open) })
		t.Cleanup(release)
		hung := make(chan struct{}, 1)
		r.handle(
			idempotency.Route{Pattern: "/charges", Mode: mode, HandlerTimeout: time.Second},
			func(w http.ResponseWriter, req *http.Request) {
				if r.runs.Load() > 1 {
					effect(w, req)
					return
				}
				tx, err := idempotency.TxOf(req)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = tx.Exec(req.Context(), `insert into effects values ('hung')`)
				hung <- struct{}{}
				<-open
				w.WriteHeader(http.StatusCreated)
			},
		)
		answered := make(chan got, 1)
		go func() {
			g, _ := r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
			answered <- g
		}()
		wait(t, "the handler hangs", hung)
		if g := r.settled("/charges", "k", "x"); g.mark() != "created" {
			t.Errorf("%v", g)
		}
		release()
		if g := wait(t, "the hung one is answered", answered); g.status == http.StatusCreated || g.mark() == "created" {
			t.Errorf("mode %d: the hung one: %v", mode, g)
		}
		if r.effects() != 1 {
			t.Errorf("mode %d: %d effects", mode, r.effects())
		}
		if g := r.post("/charges", "k", "x"); g.mark() != "replayed" {
			t.Errorf("%v", g)
		}
	}
}

// What a handler has left running gets no transaction behind it (H17).
func TestTxBehindTheHandler(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, leasedConfig())
		var left atomic.Pointer[http.Request]
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			left.Store(req)
			effect(w, req)
		})
		r.post("/charges", "k", "x")
		if _, err := idempotency.TxOf(left.Load()); err == nil {
			t.Errorf("mode %d: a transaction behind the answer", mode)
		}
		if _, err := idempotency.Step(left.Load().Context(), "late", func(context.Context, string) ([]byte, error) {
			t.Error("a call behind the answer")
			return nil, nil
		}); err == nil {
			t.Errorf("mode %d: a step behind the answer", mode)
		}
	}
}

// T6: what an earlier run of the handler has left running gets nothing of a later run's
// transaction, and two calls at once fail the request.
func TestT6TxOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r := newRig(t, leasedConfig())
		var first *http.Request
		again := unserializable(r, 1)
		r.handle(idempotency.Route{Pattern: "/charges", Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			if first == nil {
				first = req
			} else if _, err := idempotency.TxOf(first); err == nil {
				t.Errorf("mode %d: the first run's request leads to the second run's transaction", mode)
			}
			again(w, req)
		})
		if g := r.post("/charges", "k", "x"); g.status != http.StatusCreated || r.effects() != 1 {
			t.Errorf("mode %d: %v, %d effects", mode, g, r.effects())
		}
	}
}

// waitingSource is a copy that is under way for as long as a test wants.
type waitingSource struct{ asked, more chan struct{} }

func (w *waitingSource) Next() bool           { w.asked <- struct{}{}; <-w.more; return false }
func (*waitingSource) Values() ([]any, error) { return nil, nil }
func (*waitingSource) Err() error             { return nil }

func TestT6ForkedRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges"}, func(w http.ResponseWriter, req *http.Request) {
		if r.runs.Load() == 1 {
			tx, err := idempotency.TxOf(req)
			if err != nil {
				t.Error(err)
				return
			}
			src := &waitingSource{make(chan struct{}), make(chan struct{})}
			first := make(chan error)
			go func() {
				_, err := tx.CopyFrom(req.Context(), pgx.Identifier{"effects"}, []string{"v"}, src)
				first <- err
			}()
			<-src.asked
			_, second := tx.Exec(req.Context(), `select 1`)
			close(src.more)
			if err := <-first; err == nil || second == nil {
				t.Errorf("calls that overlapped: %v; %v", err, second)
			}
		}
		w.WriteHeader(http.StatusCreated)
	})
	if g := r.post("/charges", "k", "x"); g.status != http.StatusInternalServerError {
		t.Errorf("%v", g)
	}
	if g := r.post("/charges", "k", "x"); g.status != http.StatusCreated || r.runs.Load() != 2 {
		t.Errorf("the key was not free again: %v, %d runs", g, r.runs.Load())
	}
}

// Requests without a key run again too where the database asks for it (H5).
func TestSerializationFailureWithoutAKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges", KeyOptional: true}, unserializable(r, 2))
	if g := r.post("/charges", "", "x"); g.status != http.StatusCreated || r.runs.Load() != 3 || r.effects() != 1 {
		t.Errorf("%v, %d runs, %d effects", g, r.runs.Load(), r.effects())
	}
}

// unserializable is effect with a serialization failure in its first n runs.
func unserializable(r *rig, n int64) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if r.runs.Load() <= n {
			if tx, err := idempotency.TxOf(req); err == nil {
				_, _ = tx.Exec(req.Context(), `do $$ begin raise exception using errcode = '40001'; end $$`)
			}
			_, _ = io.Copy(io.Discard, req.Body)
			req.Header.Set("X-Run", "spoiled")
			w.Header().Set("X-Run", "spoiled")
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if req.Header.Get("X-Run") != "" {
			w.Header().Set("X-Run", "spoiled")
		}
		effect(w, req)
	}
}

// Duplicates of a request that another process has wait too, and no more of them than of one's own
// (H10).
func TestWaitersAreCappedAcrossProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	open := make(chan struct{})
	begun := make(chan struct{}, 1)
	release := sync.OnceFunc(func() { close(open) })
	t.Cleanup(release)
	slow := func(w http.ResponseWriter, req *http.Request) {
		begun <- struct{}{}
		<-open
		effect(w, req)
	}
	route := idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Wait: 30 * time.Second}
	r.handle(route, slow)
	other := newRigOn(t, r.pool, r.pool, testConfig())
	other.handle(route, slow)
	first := make(chan got, 1)
	go func() {
		g, _ := r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
		first <- g
	}()
	wait(t, "the first one runs", begun)
	answers := make(chan got, 20)
	for range 20 {
		go func() {
			g, _ := other.try(context.Background(), http.MethodPost, "/charges", "k", "x")
			answers <- g
		}()
	}
	for range 12 { // 8 wait
		if g := wait(t, "those beyond the cap are told at once", answers); g.status != http.StatusConflict {
			t.Errorf("%v", g)
		}
	}
	release()
	for range 8 {
		if g := wait(t, "those that wait get the answer", answers); g.mark() != "replayed" {
			t.Errorf("%v", g)
		}
	}
	if g := pgtest.Receive(t, patience, "first", first); g.mark() != "created" || r.effects() != 1 {
		t.Errorf("%v, %d effects", g, r.effects())
	}
}

// An answer that is cut off at the limit is none, whatever its status (H15).
func TestCutOffRefusalIsNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges", MaxResponse: 10}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "half of ")
		_, _ = io.WriteString(w, "what it says")
	})
	if g := r.post("/charges", "k", "x"); g.code() != "response-too-large" {
		t.Errorf("%v", g)
	}
}

// A handler that panics over a step of unknown outcome leaves the request to an operator all the
// same (H18).
func TestPanicOverAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var calls atomic.Int64
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(_ http.ResponseWriter, req *http.Request) {
		_, err := idempotency.Step(req.Context(), "charge", func(context.Context, string) ([]byte, error) {
			calls.Add(1)
			return nil, errors.New("no answer")
		})
		panic(err)
	})
	_, _ = r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
	r.exec(`update onlyonce.http_steps set first_at = first_at - interval '2 days'`)
	_, _ = r.try(context.Background(), http.MethodPost, "/charges", "k", "x")
	g := r.post("/charges", "k", "x")
	if g.code() != "commit-unknown" {
		t.Errorf("%v", g)
	}
	if calls.Load() != 1 {
		t.Errorf("%v, %d calls", g, calls.Load())
	}
	if s := one[string](r, `select state from onlyonce.http_records`); s != "reconcile" {
		t.Errorf("state %s", s)
	}
}

// A body that cannot be read as JSON is another one than a body that could (H7).
func TestRawBodyAgainstAJSONRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	r.handle(idempotency.Route{Pattern: "/charges", FingerprintJSON: true}, effect)
	other := newRigOn(t, r.pool, r.pool, testConfig())
	other.handle(idempotency.Route{Pattern: "/charges"}, effect)
	r.post("/charges", "k", `{"a":1}`)
	if g := other.post("/charges", "k", `{"a":1`); g.status != http.StatusUnprocessableEntity || g.mark() != "mismatch" {
		t.Errorf("%v", g)
	}
}

// Without prepared statements, as behind a pooler in transaction mode, every statement of the layer
// works too.
func TestWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	none := &pgtest.Wire{At: func(int32) pgtest.Cut { return pgtest.Pass }}
	r := newRigOn(t, pgtest.Wired(t, pool, pgx.QueryExecModeExec, none, nil), pool, leasedConfig())
	r.exec(`create table effects (v text not null)`)
	var p provider
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		path := "/tx"
		if mode == idempotency.Leased {
			path = "/leased"
		}
		r.handle(idempotency.Route{Pattern: path, Mode: mode}, func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Query().Get("odd") != "" && r.runs.Load()%2 == 1 {
				if mode == idempotency.Leased {
					_, _ = idempotency.Step(req.Context(), "charge", p.pay)
				}
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			if mode == idempotency.Leased {
				charge(p.pay)(w, req)
				return
			}
			effect(w, req)
		})
		r.runs.Store(0)
		for n, want := range []string{"released", "created", "replayed"} {
			if g := r.post(path+"?odd=1", "k", "x"); g.mark() != want {
				t.Errorf("%s, %d: %v, want %s", path, n, g, want)
			}
		}
	}
	r.handle(
		idempotency.Route{Pattern: "/unknown", Mode: idempotency.Leased},
		charge(func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") }),
	)
	r.post("/unknown", "k", "x")
	r.exec(`update onlyonce.http_steps set first_at = first_at - interval '2 days'`)
	if g := r.post("/unknown", "k", "x"); g.code() != "commit-unknown" ||
		one[int](r, `select count(*) from onlyonce.http_records where state = 'reconcile'`) != 1 {
		t.Errorf("%v", g)
	}
	if r.effects() != 2 {
		t.Errorf("%d effects", r.effects())
	}
	if err := r.layer.Erase(t.Context(), "", "http POST /tx", "k"); err != nil {
		t.Error(err)
	}
}

// Without a key a client cannot retry safely: the outcome of a COMMIT without an answer stays
// unknown, and the answer does not ask the client to repeat the request (H5).
func TestUnknownCommitWithoutAKey(t *testing.T) {
	t.Parallel()
	r := wiredRig(t, leasedConfig(), &pgtest.Wire{Statement: "commit", At: func(int32) pgtest.Cut { return pgtest.Unheard }}, nil)
	r.handle(idempotency.Route{Pattern: "/charges", KeyOptional: true}, effect)
	g := r.post("/charges", "", "x")
	good := g.code() == "commit-unknown" &&
		strings.Contains(g.body, `"retryable":false`) &&
		g.header.Get("Retry-After") == "" &&
		r.effects() == 1
	if !good {
		t.Errorf("%v %v", g, g.header)
	}
}
