package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/test/demo/servers"
)

// Paths of the control server.
const (
	countPath   = "/count"
	restartPath = "/restart"
	expirePath  = "/expire"
)

// countSQL counts the effects.
const countSQL = `select (select count(*) from onlyonce_payments.charges) + (select count(*) from onlyonce_payments.payouts)`

// ageSQL makes each stored answer as old as it is kept for, by the clock and by watched time. The
// calls of its request are made by then: see expire.
const ageSQL = `
update onlyonce.http_records
   set expires_at = clock_timestamp(), watched_at = watched_at - keep, look_at = null where expires_at is not null`

func (w *world) controls() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(countPath, func(to http.ResponseWriter, r *http.Request) {
		n, err := w.count(r.Context())
		answer(to, fmt.Sprint(n), err)
	})
	mux.HandleFunc(restartPath, func(to http.ResponseWriter, _ *http.Request) { answer(to, "", w.restart()) })
	mux.HandleFunc(expirePath, func(to http.ResponseWriter, r *http.Request) { answer(to, "", w.expire(r.Context())) })
	return mux
}

func answer(to http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(to, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(to, text)
}

func (w *world) count(ctx context.Context) (n int, err error) {
	err = w.pool.QueryRow(ctx, countSQL).Scan(&n)
	return n, err
}

// restart kills the API's process, and returns when the next one serves.
func (w *world) restart() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.process.kill(); err != nil {
		return err
	}
	w.restarts++
	w.process, err = start(w.listener, w.orders)
	return err
}

// expire lets all answers expire, and the provider forget its keys: it remembers them for a shorter
// time than the API.
func (w *world) expire(ctx context.Context) error {
	if err := w.delivered(ctx); err != nil {
		return err
	}
	if _, err := w.pool.Exec(ctx, ageSQL); err != nil {
		return err
	}
	return w.provider.forget()
}

// deliveredWithin bounds the wait for calls to the provider.
const deliveredWithin = 2 * time.Minute

// delivered waits until the API has made all its calls to the provider.
func (w *world) delivered(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deliveredWithin)
	defer cancel()
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		pending, reason, err := servers.Pending(ctx, w.pool, sink)
		if err != nil || pending == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d calls to the provider are pending; the last error: %q: %w", pending, reason, context.Cause(ctx))
		case <-ticks.C:
		}
	}
}

// paid checks that each charge and each payout was paid once.
func (w *world) paid(ctx context.Context) error {
	if err := w.delivered(ctx); err != nil {
		return err
	}
	rows, err := w.count(ctx)
	if err != nil {
		return err
	}
	if paid := w.provider.payments(); paid != rows {
		err = fmt.Errorf("%d charges and payouts, and %d payments at the provider", rows, paid)
	}
	if n := w.provider.changed(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d calls came with other bytes than their key's first", n))
	}
	return err
}
