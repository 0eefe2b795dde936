// Package payments is a payments API whose requests take effect once. Its handlers decide about
// single answers, store one by reference, ask the provider about lost calls, and settle in the
// background. openapi.yaml describes it.
package payments

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/outbox/httpsink"
	"github.com/onlyonce/onlyonce/seal"
)

// Schema makes the service's tables.
//
//go:embed schema.sql
var Schema string

// Config configures the service.
type Config struct {
	Accounts map[string]string // API key -> account
	Sink     string            // name of the payment provider in the outbox
	Provider string            // its base URL
	Secret   seal.Key
}

// API is the service.
type API struct {
	cfg   Config
	pool  *pgxpool.Pool
	layer *idempotency.Layer
	relay *outbox.Relay

	operations *idempotency.Operations
	sink       *httpsink.Sink
	provider   *http.Client
}

// keyWindow is how long the provider remembers keys, keep how long this API does. keep is longer,
// because the provider's keys are derived from ours: after keep, a key is a new request here, and
// the provider must have forgotten it.
const (
	keyWindow = 24 * time.Hour
	keep      = 2 * keyWindow
)

// New builds the layer, which makes requests take effect once, and the relay, which sends their
// calls.
func New(pool *pgxpool.Pool, cfg Config) (*API, error) {
	a := &API{cfg: cfg, pool: pool, provider: &http.Client{Timeout: 5 * time.Second}}
	var err error
	a.sink, err = httpsink.New(httpsink.Config{
		Name: cfg.Sink, BaseURL: cfg.Provider, KeyWindow: keyWindow, Timeout: 5 * time.Second,
		AllowPrivate: true, // the provider runs on loopback
		Breaker:      httpsink.Breaker{OpenFor: time.Second},
	})
	if err != nil {
		return nil, err
	}
	a.relay, err = outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks: []outbox.Sink{a.sink}, Concurrency: 32, PollInterval: 100 * time.Millisecond, LeaseTTL: 3 * time.Second,
		Backoff: dedupe.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}, DrainTimeout: 5 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	a.layer, err = idempotency.New(pool, idempotency.Config{
		// The owner of a key comes from the API key, never from what the client says about itself:
		// see authenticated.
		Scope: func(r *http.Request) (idempotency.Scope, error) {
			account, ok := accountOf(r.Context())
			if !ok {
				return idempotency.Scope{}, errors.New("the request is not authenticated")
			}
			return idempotency.Scope{Tenant: account}, nil
		},
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: cfg.Secret}},
		LeaseTTL:        3 * time.Second, // after that, another process continues the payouts of a process that was killed
		Hooks: idempotency.Hooks{ServeEnd: func(_ context.Context, s idempotency.ServeEnd) {
			if s.Outcome == idempotency.Created {
				a.relay.Wake() // sends the request's calls now, not at the next poll
			}
		}},
	})
	if err != nil {
		return nil, err
	}
	a.operations, err = idempotency.NewOperations(a.layer, idempotency.OperationsConfig{
		Path:         "/v1/settlements/",
		Stream:       cfg.Sink,
		Partitions:   4,
		PollInterval: 50 * time.Millisecond,
		RetryAfter:   time.Second,
		LeaseTTL:     3 * time.Second,
		Hooks:        consumer.Hooks{Batch: func(consumer.BatchResult) { a.relay.Wake() }},
	}, map[string]idempotency.Work{"settle": a.settleWork})
	return a, err
}

// Handler returns the service's routes. Authentication runs outside of the layer: a replay needs
// the same account.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range []struct {
		route idempotency.Route
		run   operation
	}{
		{idempotency.Route{Pattern: "/v1/charges", KeyWindow: keyWindow, TTL: keep}, a.charge},
		{idempotency.Route{Pattern: "/v1/charges/{id}/capture", KeyWindow: keyWindow, TTL: keep}, a.capture},
		{idempotency.Route{Pattern: "/v1/refunds", KeyWindow: keyWindow, TTL: keep}, a.refund},
		// A payout's answer contains the provider's, so the provider is called while the request
		// runs: lease mode. The answer names a bank account, so the record does not contain it:
		// copies get it made from the row again. If the provider may have forgotten a call's key
		// before the outcome is known, it is asked by the key what became of the call.
		{idempotency.Route{Pattern: "/v1/payouts", Mode: idempotency.Leased, TTL: keep, KeyWindow: keyWindow,
			Render: a.renderPayout, Reconcile: a.payoutOutcome}, a.payout},
	} {
		mux.Handle("POST "+r.route.Pattern, a.layer.MustHandle(r.route, r.run))
	}
	// A settlement's work goes on after the answer.
	mux.Handle("POST /v1/settlements",
		a.layer.MustHandle(idempotency.Route{Pattern: "/v1/settlements", KeyWindow: keyWindow, TTL: keep}, http.HandlerFunc(a.settle)))
	mux.Handle("GET /v1/settlements/{id}", a.operations)
	mux.Handle("GET /v1/charges/{id}", operation(a.showCharge))
	return a.authenticated(mux)
}

// Run purges expired records, does the work of settlements and sends the outbox's calls, until ctx
// ends.
func (a *API) Run(ctx context.Context) error {
	defer a.sink.Close()
	work, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{a.layer.Run, a.operations.Run, a.relay.Run} {
		work.Go(func() error { return run(ctx) })
	}
	return work.Wait()
}

type accountKey struct{}

func accountOf(ctx context.Context) (string, bool) {
	account, ok := ctx.Value(accountKey{}).(string)
	return account, ok
}

// authenticated finds the account of an API key, which is sent as a bearer token.
func (a *API) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		account, ok := a.cfg.Accounts[token]
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="payments"`)
			write(w, nil, newProblem(http.StatusUnauthorized, "unauthenticated", "no account has this API key"))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
	})
}

// operation is a route's handler. It returns the answer or an error; clients get the details of a
// [*problem] only.
type operation func(r *http.Request, in *params) (*answer, error)

func (o operation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a *answer
	in, err := readParams(r)
	if err == nil {
		a, err = o(r, in)
	}
	write(w, a, err)
}

// answer is a result of an operation.
type answer struct {
	status   int
	location string
	object   any
}

// problem is a refusal (RFC 9457), with the member "error" for Stripe's libraries: they consider an
// answer without it broken, and retry.
type problem struct {
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Status      int         `json:"status"`
	Code        string      `json:"code"`
	Retryable   bool        `json:"retryable,omitempty"` // the same request may succeed, under the same key
	StripeError stripeError `json:"error"`
}

type stripeError struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (p *problem) Error() string { return p.Title }

func newProblem(status int, code, format string, args ...any) *problem {
	title := fmt.Sprintf(format, args...)
	kind := "invalid_request_error"
	switch {
	case status == http.StatusPaymentRequired:
		kind = "card_error"
	case status >= 500:
		kind = "api_error"
	}
	return &problem{Type: "urn:payments-api:problem:" + code, Title: title, Status: status, Code: code,
		StripeError: stripeError{kind, code, title}}
}

// write answers. The layer decides by the status what is stored, see docs/http.md. An error that is
// not a problem is answered 500: it is undone and not stored, and the client may retry.
func write(w http.ResponseWriter, a *answer, err error) {
	var p *problem
	switch {
	case errors.As(err, &p):
	case err != nil:
		p = newProblem(http.StatusInternalServerError, "internal", "something went wrong")
	}
	status := 0
	contentType := "application/json"
	object := any(nil)
	if p != nil {
		status = p.Status
		contentType = "application/problem+json"
		object = p
		if p.Retryable {
			w.Header().Set("Retry-After", "1")
		}
	} else {
		status = a.status
		object = a.object
		if a.location != "" {
			w.Header().Set("Location", a.location)
		}
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(encode(object))
}

// encode returns an object as it is sent.
func encode(object any) []byte {
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // cannot fail: structs of strings and numbers
	}
	return append(body, '\n')
}
