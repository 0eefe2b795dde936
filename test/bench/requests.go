package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
)

const (
	requestWorkers = 8
	// answered is how many requests have their answer before a side that replays begins.
	answered = 1000
)

// served is a service under measurement: its handler over the side's database.
type served func(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error)

// requests compares a service with the layer and the same one without it, called directly, or over
// HTTP on loopback with its client in this process. With replays, all requests have been answered
// before.
func requests(replays, network bool) func(context.Context, *server, options) (wrapped, plain side, err error) {
	return func(context.Context, *server, options) (side, side, error) {
		if replays {
			return requestSide(layeredService, true, network), requestSide(selectService, true, network), nil
		}
		return requestSide(layeredService, false, network), requestSide(bareService, false, network), nil
	}
}

// receipt is an answer as a service of payments gives it.
func receipt(n int64, body []byte) []byte {
	return fmt.Appendf(nil, `{"id":"ch_%020d","object":"charge","amount":2000,"currency":"eur","status":"succeeded","description":%q}`,
		n, fmt.Sprintf("%x", body[:100]))
}

func answer(w http.ResponseWriter, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Location", "/v1/charges/ch_1")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

// layeredService is a handler in transactional mode, which waits for its statement.
func layeredService(_ context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	return layered(pool, idempotency.Config{})
}

func layered(pool *pgxpool.Pool, cfg idempotency.Config) (http.Handler, error) {
	cfg.Scope, cfg.FingerprintKeys = idempotency.GlobalScope(), seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}
	layer, err := idempotency.New(pool, cfg)
	if err != nil {
		return nil, err
	}
	return layer.Handle(
		idempotency.Route{Pattern: "/v1/charges", NoCalls: true},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(err)
			}
			tx, err := idempotency.TxOf(r)
			if err == nil {
				_, err = tx.Exec(r.Context(), effectSQL, int64(len(body)), body)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			answer(w, receipt(1, body))
		}),
	)
}

// bareService does the same in a transaction of its own.
func bareService(_ context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		if err := applyWaiting(r.Context(), pool, int64(len(body)), [][]byte{body}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, receipt(1, body))
	}), nil
}

// answersSQL keeps answers as one would by hand who only wants to find them.
const answersSQL = `create table answers (key text primary key, status int not null, body bytea not null)`

// selectService answers with a row of a table, found by its primary key.
func selectService(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	if _, err := pool.Exec(ctx, answersSQL); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		var status int
		var stored []byte
		key := r.Header.Get("Idempotency-Key")
		err = pool.QueryRow(r.Context(), `select status, body from answers where key = $1`, key).Scan(&status, &stored)
		if err != nil { // while the side is readied
			stored = receipt(1, body)
			if _, err := pool.Exec(r.Context(), `insert into answers values ($1, 201, $2)`, key, stored); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		answer(w, stored)
	}), nil
}

// sender asks for one thing under a key, and returns when it has its answer.
type sender func(ctx context.Context, key string, body []byte) error

// requestSide has requestWorkers clients send requests one after another.
func requestSide(ready served, replays, network bool) side {
	return senderSide(replays, func(ctx context.Context, pool *pgxpool.Pool) (send sender, end func(), err error) {
		handler, err := ready(ctx, pool)
		if err != nil || !network {
			return direct(handler), func() {}, err
		}
		srv := httptest.NewServer(handler)
		transport := &http.Transport{MaxIdleConnsPerHost: requestWorkers}
		return overNetwork(transport, srv.URL), func() { transport.CloseIdleConnections(); srv.Close() }, nil
	})
}

// senderSide has requestWorkers callers ask for one thing after another: each for another one, or,
// with replays, for things that have their answer.
func senderSide(replays bool, ready func(context.Context, *pgxpool.Pool) (sender, func(), error)) side {
	bodies := newBodies(rand.NewChaCha8([32]byte{16}))
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, requestWorkers)
		if err != nil {
			return sample{}, err
		}
		send, end, err := ready(ctx, pool)
		if err != nil {
			return sample{}, err
		}
		defer end()
		keys := make([]string, answered)
		if replays {
			for i := range keys {
				keys[i] = uuid.NewString()
				if err := send(ctx, keys[i], bodies[i]); err != nil {
					return sample{}, err
				}
			}
		}
		var count atomic.Int64
		var stopped atomic.Bool
		failed := make(chan error, requestWorkers)
		var workers sync.WaitGroup
		for c := range requestWorkers {
			workers.Go(func() {
				for n := c; !stopped.Load(); n += requestWorkers {
					key, body := "", bodies[n%len(bodies)]
					if replays {
						key, body = keys[n%answered], bodies[n%answered]
					} else {
						key = uuid.NewString()
					}
					if err := send(ctx, key, body); err != nil {
						failed <- err
						return
					}
					count.Add(1)
				}
			})
		}
		got, err := w.watch(ctx, db, count.Load, nil, failed)
		stopped.Store(true)
		workers.Wait()
		if err != nil || replays {
			return got, err
		}
		return got, db.verify(ctx, count.Load())
	}
}

// direct calls a handler as net/http does, without a network.
func direct(h http.Handler) sender {
	return func(ctx context.Context, key string, body []byte) error {
		req, err := newRequest(ctx, "http://bench/v1/charges", key, body)
		if err != nil {
			return err
		}
		w := &written{header: http.Header{}}
		h.ServeHTTP(w, req)
		if w.status != http.StatusCreated || w.bytes < 100 {
			return fmt.Errorf("answered %d with %d bytes", w.status, w.bytes)
		}
		return nil
	}
}

func overNetwork(transport *http.Transport, url string) sender {
	return func(ctx context.Context, key string, body []byte) error {
		req, err := newRequest(ctx, url+"/v1/charges", key, body)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusCreated {
			err = fmt.Errorf("answered %s", resp.Status)
		}
		return err
	}
}

func newRequest(ctx context.Context, url, key string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	return req, nil
}

// written is a ResponseWriter that keeps how much was written.
type written struct {
	header http.Header
	status int
	bytes  int
}

func (w *written) Header() http.Header { return w.header }

func (w *written) WriteHeader(status int) { w.status = status }

func (w *written) Write(b []byte) (int, error) {
	w.bytes += len(b)
	return len(b), nil
}
