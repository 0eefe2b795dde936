package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
	"github.com/onlyonce/onlyonce/test/scenario"
	"github.com/onlyonce/onlyonce/webhook"
)

// servingScenes are the HTTP layer in both modes and at each isolation level, Do, and receivers of
// webhooks in both of their modes.
func servingScenes() (scenes []scene) {
	for _, level := range levels {
		scenes = append(scenes, scene{name: "http/transactional/" + level, make: func() stage {
			return newServing(func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
				return x.layer(r, pool, idempotency.Transactional, pgx.TxIsoLevel(strings.ReplaceAll(level, "-", " ")))
			})
		}})
	}
	return append(scenes,
		scene{name: "http/do", make: func() stage { return newServing((*serving).doer) }},
		scene{name: "http/leased", make: func() stage {
			return newServing(func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
				return x.layer(r, pool, idempotency.Leased, "")
			})
		}},
		scene{name: "receiver/inbox", make: func() stage { return newServing(receiver(webhook.Stored)) }},
		scene{name: "receiver/inline", make: func() stage { return newServing(receiver(webhook.Inline)) }},
		scene{name: "receiver/sets/ids", make: func() stage { return newSets(stripe) }},
		scene{name: "receiver/sets/bodies", make: func() stage { return newSets(github) }})
}

// serving is a server, and a client that sends again until it gets 2xx, and then once more.
type serving struct {
	sender  sender
	handler func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error)
	streams bool // what it accepts are events
	// orderingKey is an endpoint's, or nil.
	orderingKey func(*webhook.Event) string
	// Nil unless tenants live in several databases: what makes the layer; the tenant of a key; what
	// is called when a key was refused.
	newSharded func(pool *pgxpool.Pool, cfg idempotency.Config) (*idempotency.Layer, error)
	tenant     func(key string) string
	refusal    func(key string)

	address atomic.Pointer[string]

	mu      sync.Mutex
	script  [][]string // steps: keys to be asked for at once, without those that were answered
	next    int        // the present step
	wrong   []string
	ids     map[string]string // the first answer
	runs    map[string]int
	paid    map[string]map[string]bool // by request: the keys that the provider has seen
	n       int
	refused int // rounds since the last answer
}

func newServing(h func(*serving, *rig, *pgxpool.Pool) (http.Handler, func(context.Context) error, error)) *serving {
	return &serving{sender: stripe, handler: h, ids: map[string]string{}, runs: map[string]int{}, paid: map[string]map[string]bool{}}
}

// setUp implements stage.
func (x *serving) setUp(r *rig) error {
	ctx, cancel := context.WithCancel(r.ctx)
	if x.script == nil {
		x.script = steps("k1", "k1", "fails-once", "k2", "k3", "k2")
	}
	var client sync.WaitGroup
	client.Go(func() { x.ask(ctx, r) })
	r.atEnd(func() {
		cancel()
		client.Wait()
	})
	return nil
}

// more implements stage.
func (x *serving) more(*rig) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n++
	fresh := fmt.Sprintf("more-%d", x.n)
	x.script = append(x.script, steps(fresh, "k1", fresh)...)
	return nil
}

// steps returns one step for each key.
func steps(keys ...string) (script [][]string) {
	for _, key := range keys {
		script = append(script, []string{key})
	}
	return script
}

// heard records an answer, and reports whether the client is content.
func (x *serving) heard(key string, status int, body string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if status/100 != 2 {
		switch status {
		case http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError,
			http.StatusBadGateway, http.StatusServiceUnavailable:
		default:
			x.wrong = append(x.wrong, fmt.Sprintf("I12 %s is answered %d %s", key, status, body))
			x.over(key)
		}
		return false
	}
	x.over(key)
	if first, there := x.ids[key]; !x.streams && there && first != body {
		x.wrong = append(x.wrong, fmt.Sprintf("I12 %s is answered %q and %q", key, first, body))
	} else if !there {
		x.ids[key] = body
	}
	return true
}

// pass makes the client go on to the next key. A key that was answered before was another's.
func (x *serving) pass(key string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, answered := x.ids[key]; answered {
		x.wrong = append(x.wrong, "N1 "+key+" was answered, and lives elsewhere")
	}
	x.refused = 0
	x.over(key)
}

// stuck implements patient: a client that is asked again and again to come back cannot go on.
func (x *serving) stuck() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.refused >= 8
}

// start implements stage.
func (x *serving) start(r *rig, pool *pgxpool.Pool) (func() error, error) {
	handler, run, err := x.handler(x, r, pool)
	if err != nil {
		return nil, err
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	x.address.Store(&server.URL)
	stop := r.process(run)
	return sync.OnceValue(func() error {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			server.Close() // after the requests that are under way
		}()
		return cmp.Or(r.ends(closed, "a server"), stop())
	}), nil
}

// done implements stage.
func (x *serving) done(*rig) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.next >= len(x.script), nil
}

// effectsSQL lists the keys of effects, and of events that are stored or parked.
const effectsSQL = `
select value from effects
 union all
select substring(id from '[^/]*$') from onlyonce.event_log
 union all
select substring(event_id from '[^/]*$') from onlyonce.parked where event_id is not null`

// check implements stage.
func (x *serving) check(r *rig) ([]string, error) { return x.checkIn(r, r.db.Pool) }

// checkIn is check for effects that are in several databases.
func (x *serving) checkIn(r *rig, pools ...*pgxpool.Pool) (found []string, err error) {
	effects := map[string]int{}
	for _, pool := range pools {
		keys, err := texts(r.ctx, pool, effectsSQL)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if effects[key]++; effects[key] == 2 {
				found = append(found, fmt.Sprintf("I2 %s took effect twice", key))
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	found = append(found, x.wrong...)
	for key := range x.ids {
		if effects[key] == 0 {
			found = append(found, fmt.Sprintf("I1 %s was answered with 2xx and has no effect", key))
		}
		if len(x.paid[key]) > 1 {
			found = append(found, fmt.Sprintf("H18 the provider has seen %d keys for %s", len(x.paid[key]), key))
		}
	}
	return found, nil
}

// failsNow reports whether a run of a request is to fail: the first one of one key.
func (x *serving) failsNow(key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.runs[key]++
	return key == "fails-once" && x.runs[key] == 1
}

// layer is a server with the HTTP layer.
func (x *serving) layer(
	r *rig,
	pool *pgxpool.Pool,
	mode idempotency.RouteMode,
	level pgx.TxIsoLevel,
) (http.Handler, func(context.Context) error, error) {
	layer, err := x.newLayer(r, pool)
	if err != nil {
		return nil, nil, err
	}
	h, err := layer.Handle(
		idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: mode, Isolation: level, HandlerTimeout: 2 * r.bound},
		http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			key := req.Header.Get("Idempotency-Key")
			refuse := func(err error) { http.Error(w, err.Error(), http.StatusBadGateway) }
			if mode == idempotency.Leased {
				if _, err := idempotency.Step(req.Context(), "charge", func(_ context.Context, k string) ([]byte, error) {
					x.mu.Lock()
					defer x.mu.Unlock()
					if x.paid[key] == nil {
						x.paid[key] = map[string]bool{}
					}
					x.paid[key][k] = true
					return []byte("paid"), nil
				}); err != nil {
					refuse(err)
					return
				}
			}
			tx, err := idempotency.TxOf(req)
			if err == nil {
				_, err = tx.Exec(req.Context(), scenario.EffectSQL, key, 0, scenario.Elsewhere)
			}
			if err == nil && x.failsNow(key) {
				err = errors.New("asked to fail")
			}
			if err != nil {
				refuse(err)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, "effect of %s", key)
		}),
	)
	return h, layer.Run, err
}

func (x *serving) newLayer(r *rig, pool *pgxpool.Pool) (*idempotency.Layer, error) {
	b := r.bound
	tenant := x.tenant
	make := x.newSharded
	if tenant == nil {
		tenant = func(string) string { return "t" }
	}
	if make == nil {
		make = idempotency.New
	}
	return make(pool, idempotency.Config{
		Scope: func(req *http.Request) (idempotency.Scope, error) {
			return idempotency.Scope{Tenant: tenant(req.Header.Get("Idempotency-Key"))}, nil
		},
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}},
		AcquireTimeout:  b,
		Timeouts:        dedupe.Timeouts{Lock: b / 2, Statement: b / 2, Idle: r.idleTimeout(), Commit: b},
		LeaseTTL:        max(b, time.Second),
		PurgeInterval:   b,
		Logger:          r.logger(),
	})
}

// doer is a server whose handler calls idempotency.Do, and has no layer around it.
func (x *serving) doer(r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
	layer, err := x.newLayer(r, pool)
	if err != nil {
		return nil, nil, err
	}
	doer, err := idempotency.NewDoer(layer, idempotency.DoerConfig{Scope: "charge", KeyWindow: 24 * time.Hour, HandlerTimeout: 2 * r.bound})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		key := req.Header.Get("Idempotency-Key")
		text, _, err := idempotency.Do(
			req.Context(),
			doer,
			idempotency.Scope{Tenant: "t"},
			key,
			nil,
			func(ctx context.Context, tx consumer.Tx) (string, error) {
				_, err := tx.Exec(ctx, scenario.EffectSQL, key, 0, scenario.Elsewhere)
				if err == nil && x.failsNow(key) {
					err = errors.New("asked to fail")
				}
				return "effect of " + key, err
			},
		)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	}), layer.Run, err
}
