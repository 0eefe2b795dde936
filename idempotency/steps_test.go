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
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The provider's memory bounds how long a step of unknown outcome is asked about.
func TestH18OutcomeThatIsUnknownForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var calls atomic.Int64
	var seen []string
	r.handle(
		idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased, TTL: 10 * time.Hour, KeyWindow: 5 * time.Hour},
		func(w http.ResponseWriter, req *http.Request) {
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
		},
	)
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

// A step that is too old to be repeated: the provider is asked, and a person only if it cannot
// tell.
func TestH29ProviderIsAsked(t *testing.T) {
	t.Parallel()
	type asked struct {
		outcome idempotency.StepOutcome
		err     error
	}
	for name, c := range map[string]struct {
		says         []asked // for each request that comes too late
		calls        int64   // of the step's function, the first one included
		mark, answer string
		state        string
	}{
		"took effect": {[]asked{{outcome: idempotency.StepTookEffect}}, 1, "created", "found", "completed"},
		"no effect":   {[]asked{{outcome: idempotency.StepNoEffect}}, 2, "created", "paid", "completed"},
		"cannot tell": {[]asked{{outcome: idempotency.StepUnknown}}, 1, "in-progress", "", "reconcile"},
		"down, then can": {
			[]asked{{err: errors.New("down")}, {outcome: idempotency.StepTookEffect}},
			1,
			"created",
			"found",
			"completed",
		},
		"down, then cannot": {[]asked{{err: errors.New("down")}, {outcome: idempotency.StepUnknown}}, 1, "in-progress", "", "reconcile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, leasedConfig())
			var calls, asks atomic.Int64
			keys := map[string]bool{}
			reconcile := func(_ context.Context, step, key string) (idempotency.StepOutcome, []byte, error) {
				keys[step+key] = true
				says := c.says[asks.Add(1)-1]
				return says.outcome, []byte("found"), says.err
			}
			r.handle(
				idempotency.Route{
					Pattern:   "/charges",
					Mode:      idempotency.Leased,
					TTL:       10 * time.Hour,
					KeyWindow: 5 * time.Hour,
					Reconcile: reconcile,
				},
				func(w http.ResponseWriter, req *http.Request) {
					result, err := idempotency.Step(req.Context(), "charge", func(_ context.Context, key string) ([]byte, error) {
						keys["charge"+key] = true
						if calls.Add(1) == 1 {
							return nil, errors.New("no answer")
						}
						return []byte("paid"), nil
					})
					if err != nil {
						w.WriteHeader(http.StatusBadGateway)
						return
					}
					if r.runs.Load() == int64(len(c.says))+1 { // the result must outlive a failure after it
						w.WriteHeader(http.StatusInternalServerError)
						return
					}
					_, _ = w.Write(result)
				},
			)
			r.post("/charges", "k", "x")
			r.exec(`update onlyonce.http_steps set first_at = clock_timestamp() - interval '4 hours 1 minute'`)
			var last got
			for range len(c.says) + 1 {
				last = r.post("/charges", "k", "x")
			}
			wrong := last.mark() != c.mark ||
				c.answer != "" && last.body != c.answer ||
				calls.Load() != c.calls ||
				asks.Load() != int64(len(c.says)) ||
				len(keys) != 1
			if wrong {
				t.Errorf("%v; %d calls, asked %d times, %d keys", last, calls.Load(), asks.Load(), len(keys))
			}
			if s := one[string](r, `select state from onlyonce.http_records`); s != c.state {
				t.Errorf("state %s", s)
			}
		})
	}
}

// Keys of steps are the same in every process, and differ between steps, requests and tenants
// (H16).
func TestH18KeysOfSteps(t *testing.T) {
	t.Parallel()
	sealer, err := seal.New(seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := leasedConfig()
	cfg.Sealer = sealer
	r := newRig(t, cfg)
	var p provider
	handler := func(w http.ResponseWriter, req *http.Request) {
		for _, name := range []string{"authorize", "capture"} {
			result, err := idempotency.Step(req.Context(), name, p.pay)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = w.Write(result)
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
		first := r.post(q[0], q[1], "x", q[2:]...)
		second := r.post(q[0], q[1], "x", q[2:]...)
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

// discard is a ResponseWriter that drops the answer.
type discard struct{ http.ResponseWriter }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// A record is kept for longer than a provider's memory, or its step's key would be used for another
// request.
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
	} {
		c.route.Pattern = "/x"
		c.route.Mode = idempotency.Leased
		if _, err := r.layer.Handle(calling(c.route), http.NotFoundHandler()); c.fits != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A name is one call of a run: in a loop over items, the first one's result would be returned for
// each, and no call made. After an error the step may be tried again, and the next run has the
// names anew.
func TestH18OneCallAName(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, key := range []string{"k", ""} { // with a record, and without
		var calls []string
		path := "/refunds/" + key
		var again atomic.Bool
		r.handle(
			idempotency.Route{Pattern: path, Mode: idempotency.Leased, KeyOptional: true},
			func(w http.ResponseWriter, req *http.Request) {
				refund := func(name string) error {
					_, err := idempotency.Step(req.Context(), name, func(_ context.Context, key string) ([]byte, error) {
						calls = append(calls, name)
						if len(calls) == 1 {
							return nil, errors.New("no answer")
						}
						_, err := idempotency.Step(req.Context(), name, func(context.Context, string) ([]byte, error) {
							t.Error("a call within the call of that name")
							return nil, nil
						})
						if !errors.Is(err, idempotency.ErrStep) {
							t.Errorf("while it is under way: %v", err)
						}
						return []byte("refunded"), nil
					})
					return err
				}
				if !again.Load() {
					if err := refund("refund a"); err == nil || errors.Is(err, idempotency.ErrStep) {
						t.Errorf("the first: %v", err)
					}
				}
				for _, name := range []string{"refund a", "refund b"} {
					if err := refund(name); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if err := refund(name); !errors.Is(err, idempotency.ErrStep) ||
						!strings.Contains(err.Error(), "give each call its own name") {
						t.Errorf("%s again: %v", name, err)
					}
				}
				if !again.Load() {
					w.WriteHeader(http.StatusBadGateway)
				}
			},
		)
		r.post(path, key, "x")
		if s := strings.Join(calls, ","); s != "refund a,refund a,refund b" {
			t.Errorf("calls: %s", s)
		}
		if again.Store(true); key != "" {
			if g := r.post(path, key, "x"); g.mark() != "created" || len(calls) != 3 {
				t.Errorf("%v, calls: %v", g, calls)
			}
		}
	}
}

// Steps may run at the same time, also past a handler that does not wait for them: what they find
// out is written and read under one lock (with -race).
func TestH18StepsAtTheSameTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var left sync.WaitGroup
	var leaves atomic.Bool
	r.handle(idempotency.Route{Pattern: "/charges", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		for _, name := range []string{"a", "b", "c"} {
			left.Go(func() {
				_, _ = idempotency.Step(req.Context(), name, func(context.Context, string) ([]byte, error) {
					return nil, errors.New("no answer")
				})
			})
		}
		if !leaves.Load() {
			left.Wait()
		}
		w.WriteHeader(http.StatusPaymentRequired)
	})
	if g := r.post("/charges", "k", "x"); g.mark() != "released" {
		t.Errorf("%v", g)
	}
	r.exec(`update onlyonce.http_steps set first_at = first_at - interval '3 days'`)
	leaves.Store(true)
	if g := r.post("/charges", "k", "x"); g.mark() != "released" && g.code() != "commit-unknown" {
		t.Errorf("the steps are left behind: %v", g)
	}
	left.Wait()
	leaves.Store(false)
	if g := r.post("/charges", "k", "x"); g.code() != "commit-unknown" {
		t.Errorf("the steps are too old: %v", g)
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
		if _, err := idempotency.TxOf(req); err != nil {
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
	r.handle(idempotency.Route{Pattern: "/long", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		if _, err := idempotency.Step(req.Context(), "long", func(context.Context, string) ([]byte, error) {
			return make([]byte, 1<<20+1), nil
		}); err == nil {
			t.Error("a result that is too long is kept")
		}
		_, _ = io.WriteString(w, "ok")
	})
	if g := r.post("/long", "k", "x"); g.code() != "rolled-back" {
		t.Errorf("a call whose result is not remembered: %v", g)
	}
}

// T6, H18: what a handler's request gives it ends with the handler's return. A goroutine that it
// has left gets no transaction, makes no call of a step, and decides nothing.
func TestH18AfterTheHandlersReturn(t *testing.T) {
	t.Parallel()
	for _, mode := range both {
		r := newRig(t, leasedConfig())
		var left *http.Request
		r.handle(idempotency.Route{
			Pattern: "/left", Mode: mode, KeyWindow: time.Hour,
			Render: func(context.Context, idempotency.Scope, string) ([]byte, error) { return []byte("rendered"), nil },
		}, func(w http.ResponseWriter, req *http.Request) {
			left = req.WithContext(context.WithoutCancel(req.Context()))
			_, _ = io.WriteString(w, "ok")
		})
		if g := r.post("/left", "k", "x"); g.mark() != "created" {
			t.Fatalf("%v", g)
		}
		if _, err := idempotency.TxOf(left); !errors.Is(err, guard.ErrClosed) {
			t.Errorf("%v, Tx: %v", mode, err)
		}
		if err := idempotency.Reference(left, "late"); !errors.Is(err, guard.ErrClosed) {
			t.Errorf("%v, Reference: %v", mode, err)
		}
		_, err := idempotency.Step(left.Context(), "late", func(context.Context, string) ([]byte, error) {
			t.Errorf("%v: a call was made", mode)
			return nil, nil
		})
		if !errors.Is(err, idempotency.ErrStep) {
			t.Errorf("%v, Step: %v", mode, err)
		}
		idempotency.Transient(left)
		if n := one[int](r, `select count(*) from onlyonce.http_steps`); n != 0 {
			t.Errorf("%v: %d steps are recorded", mode, n)
		}
		if g := r.post("/left", "k", "x"); g.mark() != "replayed" {
			t.Errorf("%v: %v", mode, g)
		}
	}
}

// Of the requests in lease mode that no client came back for, only one without a step is deleted.
// One whose step had its effect stays, operators see it, and the next request goes on with the
// step's result. One with a step of unknown outcome is set aside.
func TestH18AbandonedRequests(t *testing.T) {
	t.Parallel()
	cfg := leasedConfig()
	cfg.PurgeInterval = 100 * time.Millisecond
	r := newRig(t, cfg)
	var p provider
	g := newGate(t)
	fails := func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") }
	var healthy atomic.Bool
	for path, step := range map[string]func(context.Context, string) ([]byte, error){"/known": p.pay, "/unknown": fails} {
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
			result, _ := idempotency.Step(req.Context(), "charge", step)
			if !healthy.Load() {
				w.WriteHeader(http.StatusBadGateway)
			}
			_, _ = w.Write(result)
		})
	}
	r.handle(idempotency.Route{Pattern: "/alive", Mode: idempotency.Leased}, g.before(effect))
	r.post("/known", "k", "x")
	r.post("/unknown", "k", "x")
	alive := r.background("/alive", "k", "x")
	wait(t, "it runs", g.begun)
	// A process that died before its first step.
	r.exec(`select onlyonce.http_claim(gen_random_uuid(), '', 'http POST /stepless', '', gen_random_uuid(), '2 days', '-1 second')`)
	earlier := func(hours int) {
		r.exec(`update onlyonce.http_records set created_at = created_at - make_interval(hours => $1)`, hours)
		r.exec(`update onlyonce.leases set until = until - make_interval(hours => $1) where until <= clock_timestamp()`, hours)
		r.exec(
			`update onlyonce.http_steps
				set first_at = first_at - make_interval(hours => $1), done_at = done_at - make_interval(hours => $1)`,
			hours,
		)
	}
	earlier(47)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	states := func() string {
		return one[string](
			r,
			`select coalesce(string_agg(substr(scope, 11) || ' ' || case when abandoned_at is null then state else 'abandoned' end, ', '
				order by scope),
				'')
				from onlyonce.http_records`,
		)
	}
	r.exec(`select onlyonce.http_abandon(100)`)
	if s := states(); s != "/alive running, /known running, /stepless running, /unknown running" {
		t.Errorf("before their time: %s", s)
	}
	earlier(2)
	until(t, "those that were left are seen to", func() bool { return states() == "/alive running, /known abandoned, /unknown reconcile" })
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
	healthy.Store(true)
	if a := r.post("/known", "k", "x"); a.mark() != "created" || !strings.HasPrefix(a.body, "paid under ") {
		t.Errorf("%v", a)
	}
	if keys, calls := p.keys(); keys != 1 || calls != 1 {
		t.Errorf("%d payments in %d calls", keys, calls)
	}
}

// H18: a handler returns while a goroutine of it begins a step. The step's call will be made, so
// the release, which waits for it, must not delete the request.
func TestH18StepThatBeginsAtTheRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	ctx := t.Context()
	var lease, epoch int64
	nonce := "00000000-0000-8000-8000-000000000001"
	id := "00000000-0000-8000-8000-000000000003"
	if err := r.pool.QueryRow(ctx, `select lease, epoch from onlyonce.http_claim($1, '', 's', '\x00', $2, '1 day', '1 minute')`,
		id, nonce).Scan(
		&lease,
		&epoch,
	); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select onlyonce.http_step($2, $3, $4, $1, 'charge', '1 hour', false)`,
			id, lease, epoch, nonce); err != nil {
			return err
		}
		go func() {
			_, err := r.pool.Exec(ctx, `select onlyonce.http_release($1, $2, $3, $4)`, id, lease, epoch, nonce)
			released <- err
		}()
		until(t, "the release waits", func() bool {
			return one[bool](
				r,
				`select exists (select from pg_stat_activity
					where datname = current_database() and wait_event_type = 'Lock' and query like '%http_release%')`,
			)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Receive(t, patience, "it is released", released); err != nil {
		t.Error(err)
	}
	if got := one[string](
		r,
		`select count(*) || ' ' || coalesce(max(r.state), '') from onlyonce.http_steps s
			join onlyonce.http_records r on r.id = s.record_id`,
	); got != "1 running" {
		t.Errorf("steps and the state of their request: %s", got)
	}
	if n := one[int](r, `select count(*) from onlyonce.leases where until <= clock_timestamp()`); n != 1 {
		t.Error("the next request has to wait for the lease")
	}
}

// A request that was abandoned, and goes on after all, is seen to again.
func TestH18StepAfterItWasAbandoned(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var p provider
	var again atomic.Bool
	r.handle(idempotency.Route{Pattern: "/pay", Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
		_, _ = idempotency.Step(req.Context(), "charge", p.pay)
		if again.Load() {
			_, _ = idempotency.Step(req.Context(), "ship", func(context.Context, string) ([]byte, error) {
				return nil, errors.New("no answer")
			})
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	for _, want := range []string{"running t", "reconcile f"} {
		r.post("/pay", "k", "x")
		again.Store(true)
		r.exec(`update onlyonce.http_records set created_at = created_at - interval '49 hours'`)
		r.exec(`update onlyonce.leases set until = until - interval '49 hours'`)
		r.exec(`select onlyonce.http_abandon(100)`)
		if got := one[string](r, `select concat_ws(' ', state, abandoned_at is not null) from onlyonce.http_records`); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The age of a request that was left counts from its last attempt: a client that has asked all the
// time is not one that never came back.
func TestH18AgeCountsFromTheLastAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	var p provider
	for path, step := range map[string]func(context.Context, string) ([]byte, error){
		"/known": p.pay, "/unknown": func(context.Context, string) ([]byte, error) { return nil, errors.New("no answer") },
	} {
		r.handle(idempotency.Route{Pattern: path, Mode: idempotency.Leased}, func(w http.ResponseWriter, req *http.Request) {
			_, _ = idempotency.Step(req.Context(), "charge", step)
			w.WriteHeader(http.StatusServiceUnavailable)
		})
	}
	for range 2 { // the second attempt is two days behind the first
		r.post("/known", "k", "x")
		r.post("/unknown", "k", "x")
		r.exec(`update onlyonce.http_records set created_at = created_at - interval '49 hours'`)
	}
	r.exec(`select onlyonce.http_abandon(100)`)
	if n := one[int](r, `select count(*) from onlyonce.http_records where state = 'running' and abandoned_at is null`); n != 2 {
		t.Errorf("%d requests are as they were, want 2", n)
	}
	r.post("/known", "k", "x")
	if keys, calls := p.keys(); keys != 1 || calls != 1 {
		t.Errorf("%d payments in %d calls", keys, calls)
	}
}
