// Package steps has requests in steps of an HTTP handler, whose key has to be that of the step.
package steps

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/faulty/store"
	"github.com/onlyonce/onlyonce/idempotency"
)

type charge struct {
	Cents          int
	IdempotencyKey string
}

type payments struct {
	client   *http.Client
	provider *store.Provider
}

// FAULTY.

func (p *payments) random(_ http.ResponseWriter, r *http.Request) {
	_, _ = idempotency.Step(r.Context(), "charge", func(ctx context.Context, _ string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example", strings.NewReader("5"))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Idempotency-Key", uuid.NewString()) // want `the idempotency key of a request comes from uuid.NewString: if the step runs again, the remote takes its request for another one, and applies it twice. Use the key that the step's function gets.`
		return p.send(req)
	})
}

func (p *payments) send(req *http.Request) ([]byte, error) {
	res, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	return nil, res.Body.Close()
}

// The step is a method, and the request is made in another function, by the clock.
func (p *payments) method(_ http.ResponseWriter, r *http.Request) {
	_, _ = idempotency.Step(r.Context(), "charge", p.pay)
}

func (p *payments) pay(ctx context.Context, _ string) ([]byte, error) {
	return p.charge(ctx, fmt.Sprint("charge-", time.Now().UnixNano()))
}

func (p *payments) charge(ctx context.Context, key string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example", nil)
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Idempotency-Key": {key}} // want `the idempotency key of a request comes from time.Now`
	return p.send(req)
}

// A client of another package, and one with a struct of parameters.
func (p *payments) provided(_ http.ResponseWriter, r *http.Request) {
	_, _ = idempotency.Step(r.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
		if err := p.provider.Charge(ctx, uuid.NewString(), 5); err != nil { // want `the idempotency key of store.Provider.Charge comes from uuid.NewString`
			return nil, err
		}
		if err := p.provider.Refund(ctx, 5); err != nil { // want `the idempotency key of store.Provider.Refund comes from uuid.NewString \(store.go:\d+\)`
			return nil, err
		}
		return nil, p.provider.Send(ctx, key)
	})
	_, _ = idempotency.Step(r.Context(), "again", func(ctx context.Context, key string) ([]byte, error) {
		c := charge{Cents: 5, IdempotencyKey: uuid.NewString()} // want `the idempotency key of a request comes from uuid.NewString`
		return fmt.Append(nil, c.IdempotencyKey), nil
	})
}

// SOUND.

// The key of the step, or what is made of it.
func (p *payments) sound(_ http.ResponseWriter, r *http.Request) {
	pay := func(ctx context.Context, key string) ([]byte, error) { return p.charge(ctx, key) }
	_, _ = idempotency.Step(r.Context(), "charge", func(ctx context.Context, key string) ([]byte, error) {
		if err := p.provider.Charge(ctx, key+"-charge", 5); err != nil {
			return nil, err
		}
		return pay(ctx, key)
	})
	_, _ = idempotency.Step(r.Context(), "charge again", pay)
}

// Steps in a handler with a transaction: a method, and a function that another literal has
// captured.
func (p *payments) transaction(_ http.ResponseWriter, r *http.Request) {
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return
	}
	captured := func(ctx context.Context, key string) ([]byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example", nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("X-Request-Id", uuid.NewString())
		return p.send(req)
	}
	run := func() ([]byte, error) { return idempotency.Step(r.Context(), "captured", captured) }
	if _, err := run(); err != nil {
		return
	}
	if _, err := idempotency.Step(r.Context(), "notify", p.notify); err != nil {
		return
	}
	tx.Queue(`insert into charges default values`)
}

func (p *payments) notify(ctx context.Context, key string) ([]byte, error) {
	return nil, store.Notify(ctx, p.client, key)
}

// Who begins an operation draws its key.
func (p *payments) begin(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://shop.example/orders", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Idempotency-Key", uuid.NewString())
	return p.send(req)
}
