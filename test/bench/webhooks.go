package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/webhook"
)

const webhookSecret = "a secret of 32 characters, please"

// received compares an endpoint, which verifies, claims and stores an event, with a handler that
// inserts the body and nothing else.
func received(senders int, overHTTP bool) func(context.Context, *server, options) (wrapped, plain side, err error) {
	return func(context.Context, *server, options) (wrapped, plain side, err error) {
		load := webhookLoad{senders: senders, overHTTP: overHTTP}
		return load.side(receiverService), load.side(insertService), nil
	}
}

// answers are the metrics of an endpoint under a load: its rate, and how long senders wait for all
// but one of a hundred answers, and for half of them.
func answers(rate, p99 metric, p50 string) []metric {
	p99.unit = "ms"
	p99.atMost = !p99.shown
	p99.of = answerTime
	return []metric{rate, p99, {name: p50, shown: true, unit: "ms", of: medianTime}}
}

func receiverService(_ context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	return webhook.New(pool, webhook.Config{
		Name:    "bench",
		Secrets: []string{webhookSecret},
		Provider: webhook.HMAC{Name: "bench", SignatureHeader: "X-Signature",
			IDHeader: "X-Id", Layout: "{id}.{body}"},
	})
}

func insertService(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	if _, err := pool.Exec(
		ctx,
		`create table events (id bigint generated always as identity primary key, body bytea not null)`,
	); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = pool.Exec(r.Context(), `insert into events (body) values ($1)`, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}), nil
}

// mostConnections is how many connections a side has: below a server's default of 100.
const mostConnections = 90

// webhookLoad is how events come: from senders that deliver one after another.
type webhookLoad struct {
	senders  int
	overHTTP bool // by a server on loopback; otherwise the handler is called
}

// side measures a handler under the load, and how long each answer took. The handler may have a
// connection for each sender.
func (l webhookLoad) side(ready served) side {
	bodies := newBodies(rand.NewChaCha8([32]byte{20}))
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, min(l.senders, mostConnections))
		if err != nil {
			return sample{}, err
		}
		handler, err := ready(ctx, pool)
		if err != nil {
			return sample{}, err
		}
		send, end := l.sending(handler)
		defer end()
		var count atomic.Int64
		var stopped atomic.Bool
		failed := make(chan error, l.senders)
		took := make([][]time.Duration, l.senders)
		var senders sync.WaitGroup
		for c := range l.senders {
			senders.Go(func() {
				for n := c; !stopped.Load(); n += l.senders {
					start := time.Now()
					if err := send(ctx, bodies[n%len(bodies)]); err != nil {
						failed <- err
						return
					}
					took[c] = append(took[c], time.Since(start))
					count.Add(1)
				}
			})
		}
		got, err := w.watch(ctx, db, count.Load, nil, failed)
		stopped.Store(true)
		senders.Wait()
		all := slices.Concat(took...)
		slices.Sort(all)
		if err == nil && len(all) > 0 {
			got.p50 = all[len(all)/2]
			got.p99 = all[len(all)*99/100]
		}
		return got, err
	}
}

// sending returns what sends an event to the handler.
func (l webhookLoad) sending(h http.Handler) (send func(ctx context.Context, body []byte) error, end func()) {
	if !l.overHTTP {
		return func(ctx context.Context, body []byte) error {
			req, err := notification(ctx, "http://bench/hooks", body)
			if err != nil {
				return err
			}
			w := &written{header: http.Header{}, status: http.StatusOK}
			h.ServeHTTP(w, req)
			return statusError(w.status)
		}, func() {}
	}
	srv := httptest.NewServer(h)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: l.senders}}
	return func(ctx context.Context, body []byte) error {
		req, err := notification(ctx, srv.URL, body)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return statusError(resp.StatusCode)
	}, srv.Close
}

func statusError(status int) error {
	if status != http.StatusOK {
		return fmt.Errorf("answered %d", status)
	}
	return nil
}

// notification is a signed event with an id of its own.
func notification(ctx context.Context, url string, body []byte) (*http.Request, error) {
	id := uuid.NewString()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, []byte(webhookSecret))
	mac.Write([]byte(id + "."))
	mac.Write(body)
	req.Header.Set("X-Id", id)
	req.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
	return req, nil
}

// answerTime is how long a sender waits for all but one of a hundred answers, in milliseconds.
func answerTime(wrapped, _ sample) (float64, bool) {
	return float64(wrapped.p99.Microseconds()) / 1000, wrapped.p99 > 0
}

// medianTime is how long a sender waits for half of the answers, in milliseconds.
func medianTime(wrapped, _ sample) (float64, bool) {
	return float64(wrapped.p50.Microseconds()) / 1000, wrapped.p50 > 0
}
