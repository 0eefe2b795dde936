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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/webhook"
)

const webhookSecret = "a secret of 32 characters, please"

// received compares a receiver, which verifies, claims and stores an event, with a handler that
// inserts the body and nothing else.
func received(context.Context, *server, options) (wrapped, plain side, err error) {
	return webhookSide(receiverService), webhookSide(insertService), nil
}

func receiverService(_ context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	return webhook.New(pool, webhook.Config{Name: "bench", Secrets: []string{webhookSecret}, Provider: webhook.HMAC{Name: "bench", SignatureHeader: "X-Signature",
		IDHeader: "X-Id", Layout: "{id}.{body}"}})
}

func insertService(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	if _, err := pool.Exec(ctx, `create table events (id bigint generated always as identity primary key, body bytea not null)`); err != nil {
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

// webhookSide has requestWorkers senders deliver events one after another, and keeps how long each
// answer took.
func webhookSide(ready served) side {
	bodies := newBodies(rand.NewChaCha8([32]byte{20}))
	return func(ctx context.Context, db *database, w *window) (sample, error) {
		pool, err := db.open(ctx, requestWorkers)
		if err != nil {
			return sample{}, err
		}
		handler, err := ready(ctx, pool)
		if err != nil {
			return sample{}, err
		}
		var count atomic.Int64
		var stopped atomic.Bool
		failed := make(chan error, requestWorkers)
		var took [requestWorkers][]time.Duration
		var workers sync.WaitGroup
		for c := range requestWorkers {
			workers.Go(func() {
				for n := c; !stopped.Load(); n += requestWorkers {
					start := time.Now()
					if err := notify(ctx, handler, bodies[n%len(bodies)]); err != nil {
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
		workers.Wait()
		all := slices.Concat(took[:]...)
		slices.Sort(all)
		if err == nil && len(all) > 0 {
			got.p50, got.p99 = all[len(all)/2], all[len(all)*99/100]
		}
		return got, err
	}
}

func notify(ctx context.Context, h http.Handler, body []byte) error {
	id := uuid.NewString()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bench/hooks", bytes.NewReader(body))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(webhookSecret))
	mac.Write([]byte(id + "."))
	mac.Write(body)
	req.Header.Set("X-Id", id)
	req.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
	w := &written{header: http.Header{}, status: http.StatusOK}
	if h.ServeHTTP(w, req); w.status != http.StatusOK {
		return fmt.Errorf("answered %d", w.status)
	}
	return nil
}

// answerTime is how long a sender waits for all but one of a hundred answers, in milliseconds.
func answerTime(wrapped, _ sample) (float64, bool) {
	return float64(wrapped.p99.Microseconds()) / 1000, wrapped.p99 > 0
}
