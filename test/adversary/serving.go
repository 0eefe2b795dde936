package main

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
		scene{name: "receiver/inline", make: func() stage { return newServing(receiver(webhook.Inline)) }})
}

// serving is a server, and a client that sends again until it gets 2xx, and then once more.
type serving struct {
	handler func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error)
	streams bool // what it accepts are events
	// Nil unless tenants live in several databases: what makes the layer; the tenant of a key; what
	// is called when a key was refused.
	newSharded func(pool *pgxpool.Pool, cfg idempotency.Config) (*idempotency.Layer, error)
	tenant     func(key string) string
	refusal    func(key string)

	address atomic.Pointer[string]

	mu      sync.Mutex
	script  []string // keys to be asked for, in order
	next    int
	wrong   []string
	ids     map[string]string // the first answer
	runs    map[string]int
	paid    map[string]map[string]bool // by request: the keys that the provider has seen
	n       int
	refused int // since the last answer
}

func newServing(h func(*serving, *rig, *pgxpool.Pool) (http.Handler, func(context.Context) error, error)) *serving {
	return &serving{handler: h, ids: map[string]string{}, runs: map[string]int{}, paid: map[string]map[string]bool{}}
}

// setUp implements stage.
func (x *serving) setUp(r *rig) error {
	ctx, cancel := context.WithCancel(r.ctx)
	x.script = []string{"k1", "k1", "fails-once", "k2", "k3", "k2"}
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
	x.script = append(x.script, fresh, "k1", fresh)
	return nil
}

// ask is the client.
func (x *serving) ask(ctx context.Context, r *rig) {
	client := &http.Client{Timeout: 6 * r.bound, Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		x.mu.Lock()
		key := ""
		if x.next < len(x.script) {
			key = x.script[x.next]
		}
		x.mu.Unlock()
		address := x.address.Load()
		pause := 3 * time.Millisecond
		if key != "" && address != nil {
			status, body, err := post(ctx, client, *address, key)
			switch {
			case err != nil:
				r.say("client: %s: %.200v", key, err)
				pause = 20 * time.Millisecond
			default:
				r.say("client: %s: %d %.100s", key, status, strings.TrimSpace(body))
				if x.heard(key, status, body) {
					continue
				}
				pause = 40 * time.Millisecond
			}
			if x.refusal != nil {
				x.refusal(key)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func post(ctx context.Context, client *http.Client, address, key string) (status int, body string, err error) {
	sent := fmt.Sprintf(`{"id":%q,"type":"invoice.paid","data":{"object":{"id":"in_1"}}}`, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/charges", strings.NewReader(sent))
	if err != nil {
		return 0, "", err
	}
	at := fmt.Sprint(time.Now().Unix())
	mac := hmac.New(sha256.New, []byte(webhookSecret))
	_, _ = mac.Write([]byte(at + "." + sent))
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	read, err := io.ReadAll(res.Body)
	return res.StatusCode, string(read), err
}

const webhookSecret = "whsec_of_the_adversary"

// heard records an answer, and reports whether the client is content.
func (x *serving) heard(key string, status int, body string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if status/100 != 2 {
		x.refused++
		switch status {
		case http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		default:
			x.wrong = append(x.wrong, fmt.Sprintf("I12 %s is answered %d %s", key, status, body))
			x.next++
		}
		return false
	}
	x.refused = 0
	x.next++
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
	x.next++
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

// effectsSQL lists the keys of effects, and of events that are stored.
const effectsSQL = `select value from effects union all select replace(id, 'e/stripe/', '') from onlyonce.event_log`

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
func (x *serving) layer(r *rig, pool *pgxpool.Pool, mode idempotency.Mode, level pgx.TxIsoLevel) (http.Handler, func(context.Context) error, error) {
	layer, err := x.newLayer(r, pool)
	if err != nil {
		return nil, nil, err
	}
	h, err := layer.Handle(idempotency.Route{Pattern: "/charges", KeyWindow: 24 * time.Hour, Mode: mode, Isolation: level, HandlerTimeout: 2 * r.bound}, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		tx, err := idempotency.Tx(req)
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
	}))
	return h, layer.Run, err
}

func (x *serving) newLayer(r *rig, pool *pgxpool.Pool) (*idempotency.Layer, error) {
	b := r.bound
	tenant, make := x.tenant, x.newSharded
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
		AcquireTimeout:  b, Timeouts: dedupe.Timeouts{Lock: b / 2, Statement: b / 2, Idle: r.idleTimeout(), Commit: b}, LeaseTTL: max(b, time.Second), PurgeInterval: b, Logger: r.logger(),
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
		text, _, err := idempotency.Do(req.Context(), doer, idempotency.Scope{Tenant: "t"}, key, nil, func(ctx context.Context, tx consumer.Tx) (string, error) {
			_, err := tx.Exec(ctx, scenario.EffectSQL, key, 0, scenario.Elsewhere)
			if err == nil && x.failsNow(key) {
				err = errors.New("asked to fail")
			}
			return "effect of " + key, err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, text)
	}), layer.Run, err
}

// receiver is a server with a receiver of webhooks.
func receiver(mode webhook.Mode) func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
	return func(x *serving, r *rig, pool *pgxpool.Pool) (http.Handler, func(context.Context) error, error) {
		x.streams = true
		cfg := webhook.Config{Name: "e", Provider: webhook.Stripe{}, Secrets: []string{webhookSecret}, Mode: mode, Partitions: 1, DuplicateWait: r.bound / 2, HandlerTimeout: max(3*r.bound/2, 375*time.Millisecond),
			RetryAfter: time.Second, Logger: r.logger()}
		if mode == webhook.Inline {
			cfg.Handler = func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				event, err := webhook.EventOf(m)
				if err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, scenario.EffectSQL, event.ID, 0, scenario.Elsewhere); err != nil {
					return err
				}
				if x.failsNow(event.ID) {
					return errors.New("asked to fail")
				}
				return nil
			}
		}
		recv, err := webhook.New(pool, cfg)
		if err != nil {
			return nil, nil, err
		}
		return recv, recv.Upkeep, nil
	}
}
