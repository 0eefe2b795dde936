package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// order is what tests ask for, and receipt what they get.
type (
	order   struct{ Amount int }
	receipt struct {
		ID   int
		Text string
	}
)

// doRig is a Doer over a database of its own, with the table effects.
type doRig struct {
	*rig
	doer *idempotency.Doer
}

func newDoRig(t *testing.T, cfg idempotency.DoerConfig) *doRig {
	t.Helper()
	r := newRig(t, leasedConfig())
	return &doRig{rig: r, doer: newDoer(t, r.layer, cfg)}
}

func newDoer(t *testing.T, layer *idempotency.Layer, cfg idempotency.DoerConfig) *idempotency.Doer {
	t.Helper()
	if cfg.Scope == "" {
		cfg.Scope = "charge"
	}
	if cfg.KeyWindow == 0 && !cfg.NoCalls {
		cfg.KeyWindow = 24 * time.Hour
	}
	doer, err := idempotency.NewDoer(layer, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return doer
}

// pay writes an effect and returns a receipt that differs from run to run.
func (r *doRig) pay(ctx context.Context, tx consumer.Tx) (receipt, error) {
	n := int(r.runs.Add(1))
	_, err := tx.Exec(ctx, `insert into effects values ('paid')`)
	return receipt{ID: n, Text: "thanks"}, err
}

var acme = idempotency.Scope{Tenant: "acme"}

// wantDo fails unless a call ended with a mark, and with an error that is the wanted one, or nil.
func wantDo(t *testing.T, what string, mark, wantMark idempotency.ServeOutcome, err, want error) {
	t.Helper()
	if mark != wantMark || !errors.Is(err, want) {
		t.Errorf("%s: %s, %v; want %s, %v", what, mark, err, wantMark, want)
	}
}

func TestH25ResultIsGivenAgain(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{})
	first, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{10}, r.pay)
	wantDo(t, "first", mark, idempotency.Created, err, nil)
	again, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{10}, r.pay)
	wantDo(t, "again", mark, idempotency.Replayed, err, nil)
	if want := (receipt{1, "thanks"}); first != want || again != want || r.effects() != 1 {
		t.Errorf("%v, %v, %d effects", first, again, r.effects())
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{20}, r.pay)
	wantDo(t, "another request", mark, idempotency.Mismatch, err, idempotency.ErrKeyReused)
	for name, scope := range map[string]idempotency.Scope{"tenant": {Tenant: "other"}, "principal": {Tenant: "acme", Principal: "p"}} {
		_, mark, err = idempotency.Do(t.Context(), r.doer, scope, "k", order{10}, r.pay)
		wantDo(t, "another "+name, mark, idempotency.Created, err, nil)
	}
	_, mark, err = idempotency.Do(t.Context(), newDoer(t, r.layer, idempotency.DoerConfig{Scope: "refund"}), acme, "k", order{10}, r.pay)
	wantDo(t, "another operation", mark, idempotency.Created, err, nil)
	r.exec(`update onlyonce.http_records set response = null, erased_at = clock_timestamp() where scope = 'do charge'`)
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{10}, r.pay)
	wantDo(t, "erased", mark, idempotency.Replayed, err, idempotency.ErrResultGone)
}

// rawCodec passes requests on as they were received.
type rawCodec struct{ idempotency.Codec }

func (rawCodec) Marshal(v any) ([]byte, error) {
	if raw, is := v.(json.RawMessage); is {
		return raw, nil
	}
	return json.Marshal(v)
}

func (rawCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// H25, H7: with FingerprintJSON a request is what its JSON says.
func TestH25RequestsByTheirJSON(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{Codec: rawCodec{}, FingerprintJSON: true})
	for i, c := range []struct {
		request string
		mark    idempotency.ServeOutcome
		err     error
	}{
		{`{"a":1,"b":[2]}`, idempotency.Created, nil},
		{` {"b":[2.0], "a":10e-1}`, idempotency.Replayed, nil},
		{`{"a":1,"b":[3]}`, idempotency.Mismatch, idempotency.ErrKeyReused},
		{`{"a":1`, idempotency.Rejected, &idempotency.RefusedError{Code: "body-invalid"}},
	} {
		_, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", json.RawMessage(c.request), r.pay)
		wantDo(t, fmt.Sprint(i), mark, c.mark, err, c.err)
	}
	if r.effects() != 1 {
		t.Errorf("%d effects", r.effects())
	}
}

// H25: a permanent error that was erased is one still: the call took no effect.
func TestH25ErasedErrorIsPermanent(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{})
	decline := func(context.Context, consumer.Tx) (receipt, error) {
		return receipt{}, idempotency.Permanent("card-declined", "Ms X has no money")
	}
	_, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{10}, decline)
	if mark != idempotency.Created {
		t.Fatal(mark, err)
	}
	if err := r.layer.Erase(t.Context(), acme.Tenant, "do charge", "k"); err != nil {
		t.Fatal(err)
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{10}, decline)
	var permanent *idempotency.PermanentError
	if mark != idempotency.Replayed || !errors.As(err, &permanent) || *permanent != (idempotency.PermanentError{Code: "erased"}) {
		t.Errorf("%s, %v", mark, err)
	}
}

// A permanent error is stored, and its writes are undone unless the configuration keeps them. Any
// other error leaves nothing, and the next call runs.
func TestH25Errors(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{})
	keeps := newDoer(t, r.layer, idempotency.DoerConfig{Scope: "keeps", KeepWrites: true})
	declined := &idempotency.PermanentError{Code: "card-declined", Detail: "ask your bank"}
	decline := func(ctx context.Context, tx consumer.Tx) (receipt, error) {
		got, err := r.pay(ctx, tx)
		return got, errors.Join(err, fmt.Errorf("charging: %w", declined))
	}
	for effects, doer := range []*idempotency.Doer{r.doer, keeps} {
		for _, want := range []idempotency.ServeOutcome{idempotency.Created, idempotency.Replayed} {
			_, mark, err := idempotency.Do(t.Context(), doer, acme, "k", order{}, decline)
			var permanent *idempotency.PermanentError
			if !errors.As(err, &permanent) || *permanent != *declined || mark != want {
				t.Errorf("%s, %v", mark, err)
			}
		}
		if r.effects() != effects {
			t.Errorf("%d effects, want %d", r.effects(), effects)
		}
	}
	busy := errors.New("try again")
	_, mark, err := idempotency.Do(t.Context(), r.doer, acme, "busy", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
		got, _ := r.pay(ctx, tx)
		return got, busy
	})
	wantDo(t, "transient", mark, idempotency.Released, err, busy)
	if r.effects() != 1 {
		t.Errorf("%d effects", r.effects())
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "busy", order{}, r.pay)
	wantDo(t, "the next call", mark, idempotency.Created, err, nil)
}

// What is undone: a panic, a statement's error that fn ignores, a result that is too long or cannot
// be read again, the end of the caller's context.
func TestH25Undone(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{MaxResult: 100})
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("panicked with %v", p)
			}
		}()
		_, _, _ = idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
			_, _ = r.pay(ctx, tx)
			panic("boom")
		})
	}()
	_, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
		got, _ := r.pay(ctx, tx)
		_, _ = tx.Exec(ctx, `select 1 / 0`)
		return got, nil
	})
	var refused *idempotency.RefusedError
	good := errors.As(err, &refused) &&
		refused.Code == "rolled-back" &&
		refused.Retryable &&
		mark == idempotency.Rejected
	if !good {
		t.Errorf("ignored error: %s, %v", mark, err)
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
		got, err := r.pay(ctx, tx)
		got.Text = strings.Repeat("x", 100)
		return got, err
	})
	if !errors.As(err, &refused) || refused.Code != "response-too-large" || mark != idempotency.Rejected {
		t.Errorf("too long: %s, %v", mark, err)
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (chan int, error) {
		_, err := r.pay(ctx, tx)
		return make(chan int), err
	})
	if mark != idempotency.Released || err == nil {
		t.Errorf("no JSON: %s, %v", mark, err)
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (oneWay, error) {
		_, err := r.pay(ctx, tx)
		return oneWay{}, err
	})
	if mark != idempotency.Released || err == nil {
		t.Errorf("JSON that cannot be read: %s, %v", mark, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, mark, err = idempotency.Do(ctx, r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
		got, err := r.pay(ctx, tx)
		cancel()
		return got, err
	})
	wantDo(t, "cancelled", mark, idempotency.Rejected, err, context.Canceled)
	if r.effects() != 0 {
		t.Errorf("%d effects", r.effects())
	}
	_, mark, err = idempotency.Do(t.Context(), r.doer, acme, "k", order{}, r.pay)
	wantDo(t, "at last", mark, idempotency.Created, err, nil)
}

// oneWay can be encoded and not decoded.
type oneWay struct{}

func (oneWay) MarshalJSON() ([]byte, error) { return []byte(`"there"`), nil }
func (*oneWay) UnmarshalJSON([]byte) error  { return errors.New("and not back") }

// Two calls at once: one runs, and the other is refused or waits, in this process and in another.
func TestH25CallsAtOnce(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{})
	waits := newDoer(t, r.layer, idempotency.DoerConfig{Wait: time.Minute})
	other := newDoer(t, newRigOn(t, r.pool, r.pool, leasedConfig()).layer, idempotency.DoerConfig{Wait: time.Minute})
	g := newGate(t)
	done := make(chan error, 3)
	go func() {
		_, _, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{}, func(ctx context.Context, tx consumer.Tx) (receipt, error) {
			g.begun <- struct{}{}
			<-g.open
			return r.pay(ctx, tx)
		})
		done <- err
	}()
	wait(t, "it runs", g.begun)
	_, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{}, r.pay)
	wantDo(t, "at once", mark, idempotency.InProgress, err, idempotency.ErrInProgress)
	for _, doer := range []*idempotency.Doer{waits, other} {
		go func() {
			got, mark, err := idempotency.Do(t.Context(), doer, acme, "k", order{}, r.pay)
			if err == nil && (mark != idempotency.Replayed || got.ID != 1) {
				err = fmt.Errorf("%s %v", mark, got)
			}
			done <- err
		}()
	}
	g.release()
	for range 3 {
		if err := wait(t, "they end", done); err != nil {
			t.Error(err)
		}
	}
	if r.effects() != 1 {
		t.Errorf("%d effects", r.effects())
	}
}

// Callers who retry until they have an answer, over connections that break at COMMIT and before, in
// two processes: each key has one effect, and all of its callers get one result.
func TestH25RetryStorm(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"commit", "select onlyonce.http_begin(", "select onlyonce.http_complete("} {
		for _, what := range []pgtest.Cut{pgtest.Unsent, pgtest.Unheard} {
			t.Run(fmt.Sprint(what, statement[:min(len(statement), 26)]), func(t *testing.T) {
				t.Parallel()
				base := newRig(t, leasedConfig())
				w := &pgtest.Wire{Statement: statement, At: func(n int32) pgtest.Cut {
					if n%2 != 0 {
						return what
					}
					return pgtest.Pass
				}}
				wired := pgtest.Wired(t, base.pool, pgx.QueryExecModeCacheStatement, w, nil)
				doers := []*idempotency.Doer{}
				for range 2 {
					doers = append(doers, newDoer(t, newRigOn(t, wired, base.pool, leasedConfig()).layer, idempotency.DoerConfig{}))
				}
				const keys, callers = 6, 4
				results := make([][callers]receipt, keys)
				r := &doRig{rig: base}
				var wg sync.WaitGroup
				var cut atomic.Int64
				for i := range keys * callers {
					wg.Go(func() {
						until(t, "an answer", func() bool {
							got, _, err := idempotency.Do(t.Context(), doers[i%2], acme, fmt.Sprint(i/callers), order{i / callers}, r.pay)
							var refused *idempotency.RefusedError
							if err != nil && errors.As(err, &refused) && !refused.Retryable {
								t.Error(err)
							} else if err != nil {
								cut.Add(1)
							}
							results[i/callers][i%callers] = got
							return err == nil
						})
					})
				}
				wg.Wait()
				for k, all := range results {
					for _, one := range all {
						if one != all[0] || one.ID == 0 {
							t.Errorf("key %d: %v", k, all)
						}
					}
				}
				if base.effects() != keys || w.Cuts.Load() == 0 {
					t.Errorf("%d effects of %d keys, %d cuts", base.effects(), keys, w.Cuts.Load())
				}
				t.Logf("%d runs, %d cuts, %d calls without an answer", r.runs.Load(), w.Cuts.Load(), cut.Load())
			})
		}
	}
}

// Calls that the function enqueues have keys made of the call's, and with NoCalls none (H26).
func TestH25CallsOfTheOutbox(t *testing.T) {
	t.Parallel()
	r := newDoRig(t, idempotency.DoerConfig{})
	none := newDoer(t, r.layer, idempotency.DoerConfig{Scope: "none", NoCalls: true, TTL: time.Minute})
	call := func(ctx context.Context, tx consumer.Tx) (int, error) {
		return 1, outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges", Body: []byte("{}")})
	}
	keys := func() int { return one[int](r.rig, `select count(distinct key) from onlyonce.calls`) }
	for range 2 {
		if _, mark, err := idempotency.Do(t.Context(), r.doer, acme, "k", order{}, call); err != nil {
			t.Error(mark, err)
		}
		r.exec(`delete from onlyonce.http_records`)
	}
	if keys() != 1 {
		t.Errorf("%d keys of one call", keys())
	}
	if _, _, err := idempotency.Do(t.Context(), none, acme, "k", order{}, call); err == nil || keys() != 1 {
		t.Errorf("a call's key was made of a key that is forgotten before it: %v, %d keys", err, keys())
	}
}

func TestH25Config(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	if _, err := idempotency.NewDoer(nil, idempotency.DoerConfig{
		Scope:          "a b",
		KeyWindow:      24 * time.Hour,
		MaxResult:      -1,
		TTL:            time.Hour,
		HandlerTimeout: -1,
		Wait:           3 * time.Minute,
	}); !errors.Is(err, idempotency.ErrConfig) {
		t.Error(err)
	} else {
		for _, field := range []string{
			"layer",
			"DoerConfig.Scope",
			"DoerConfig.MaxResult",
			"DoerConfig.TTL",
			"DoerConfig.HandlerTimeout",
			"DoerConfig.Wait",
		} {
			if !strings.Contains(err.Error(), field+":") {
				t.Errorf("no fault of %s in %v", field, err)
			}
		}
	}
	for name, fault := range map[string]string{
		"":                       ": must not be empty",
		"a b":                    ": must be at most 200 visible ASCII characters",
		"ü":                      ": must be at most 200 visible ASCII characters",
		strings.Repeat("a", 201): ": must be at most 200 visible ASCII characters",
		strings.Repeat("~", 200): "",
	} {
		_, ofRoute := r.layer.Handle(idempotency.Route{Pattern: name, NoCalls: true}, http.NotFoundHandler())
		_, ofDoer := idempotency.NewDoer(r.layer, idempotency.DoerConfig{Scope: name, NoCalls: true})
		for field, err := range map[string]error{"Route.Pattern": ofRoute, "DoerConfig.Scope": ofDoer} {
			if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), field+fault) {
				t.Errorf("%q: %v, want %s%s", name, err, field, fault)
			}
		}
	}
	doer := newDoer(t, r.layer, idempotency.DoerConfig{})
	never := func(context.Context, consumer.Tx) (int, error) { return 0, errors.New("it ran") }
	for _, k := range []string{"", strings.Repeat("k", 256), "a\nb"} {
		_, mark, err := idempotency.Do(t.Context(), doer, acme, k, nil, never)
		wantDo(t, k, mark, idempotency.Rejected, err, idempotency.ErrConfig)
	}
	_, mark, err := idempotency.Do(t.Context(), doer, idempotency.Scope{Tenant: "\x00"}, "k", nil, never)
	wantDo(t, "tenant", mark, idempotency.Rejected, err, idempotency.ErrConfig)
	if _, mark, err = idempotency.Do(t.Context(), doer, acme, "k", make(chan int), never); err == nil ||
		mark != idempotency.Rejected ||
		!strings.Contains(err.Error(), "encoding the request") {
		t.Errorf("a request that cannot be encoded: %v, %v", mark, err)
	}
	_, mark, err = idempotency.Do[int](t.Context(), doer, acme, "k", nil, nil)
	wantDo(t, "no function", mark, idempotency.Rejected, err, idempotency.ErrConfig)
	_, mark, err = idempotency.Do(t.Context(), nil, acme, "k", nil, never)
	wantDo(t, "no doer", mark, idempotency.Rejected, err, idempotency.ErrConfig)
}

// A route that says that it makes no calls makes none, in either mode.
func TestH26NoCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, leasedConfig())
	for _, mode := range []idempotency.RouteMode{idempotency.Transactional, idempotency.Leased} {
		r.handle(
			idempotency.Route{Pattern: fmt.Sprint("/", mode), Mode: mode, NoCalls: true, TTL: time.Minute},
			func(w http.ResponseWriter, req *http.Request) {
				if _, err := idempotency.Step(req.Context(), "charge", func(context.Context, string) ([]byte, error) {
					return nil, nil
				}); !errors.Is(err, idempotency.ErrStep) {
					t.Errorf("a step: %v", err)
				}
				tx, err := idempotency.TxOf(req)
				if err != nil {
					t.Error(err)
					return
				}
				if err := outbox.Enqueue(req.Context(), tx, outbox.Call{
					Sink:   "payments",
					Name:   "charge",
					Target: "/charges",
					Body:   []byte("{}"),
				}); err == nil {
					t.Error("a call got a key that is made of the request's")
				}
				effect(w, req)
			},
		)
		if g := r.post(fmt.Sprint("/", mode), "k", "x"); g.mark() != "created" {
			t.Errorf("%v", g)
		}
	}
}
