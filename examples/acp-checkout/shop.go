package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
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

// schema begins with a lock, because processes that start together would make the tables twice.
//
//go:embed schema.sql
var schema string

// makeTables makes the shop's tables.
func makeTables(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, schema)
	return err
}

// config configures the shop.
type config struct {
	Agents   map[string]string // API key -> agent
	Provider string            // base URL of the payment provider
	Secret   seal.Key
}

// shop serves the checkout of the Agentic Commerce Protocol.
type shop struct {
	cfg   config
	layer *idempotency.Layer
	relay *outbox.Relay
	sink  *httpsink.Sink
}

// keyWindow is how long the payment provider remembers keys. The shop keeps its answers for twice
// as long (Route.TTL, by default), because the provider's keys are made of the agents' keys.
const keyWindow = 24 * time.Hour

// payments is the sink of the outbox through which the provider is called.
const payments = "payments"

func newShop(pool *pgxpool.Pool, cfg config) (*shop, error) {
	s := &shop{cfg: cfg}
	var err error
	s.sink, err = httpsink.New(httpsink.Config{
		Name: payments, BaseURL: cfg.Provider, KeyWindow: keyWindow, Timeout: 5 * time.Second,
		AllowPrivate: true, // the provider of this example runs on loopback
	})
	if err != nil {
		return nil, err
	}
	s.relay, err = outbox.NewRelay(pool, outbox.RelayConfig{
		Sinks: []outbox.Sink{s.sink}, PollInterval: 100 * time.Millisecond, LeaseTTL: 3 * time.Second,
		Backoff: dedupe.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
	})
	if err != nil {
		return nil, err
	}
	s.layer, err = idempotency.New(pool, idempotency.Config{
		Profile:         idempotency.ProfileACP,
		Scope:           s.agentOf,
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: cfg.Secret}},
	})
	return s, err
}

// agentOf returns the owner of a request's key, by the API key that it bears.
func (s *shop) agentOf(r *http.Request) (idempotency.Scope, error) {
	agent, known := s.cfg.Agents[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !known {
		return idempotency.Scope{}, errors.New("no agent has this API key")
	}
	return idempotency.Scope{Tenant: agent}, nil
}

// handler returns the routes of the checkout.
func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, run := range map[string]operation{
		"/checkout_sessions":               s.create,
		"/checkout_sessions/{id}":          s.update,
		"/checkout_sessions/{id}/complete": s.complete,
		"/checkout_sessions/{id}/cancel":   s.cancel,
	} {
		mux.Handle("POST "+pattern, s.layer.MustHandle(idempotency.Route{Pattern: pattern, KeyWindow: keyWindow}, s.serve(run)))
	}
	return mux
}

// run sends the payments and purges expired records, until ctx ends.
func (s *shop) run(ctx context.Context) error {
	defer s.sink.Close()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return s.layer.Run(ctx) })
	work.Go(func() error { return s.relay.Run(ctx) })
	return work.Wait()
}

// operation works on a session in the transaction that stores its answer.
type operation func(ctx context.Context, tx consumer.Tx, in *request) (*session, error)

// request is what the agent asks for.
type request struct {
	agent string
	id    string // of the session; empty for a new one

	Items []struct {
		ID       string `json:"id"`
		Quantity int    `json:"quantity"`
	} `json:"items"`
	PaymentData struct {
		Token string `json:"token"`
	} `json:"payment_data"`
}

// refusal is a flat error of ACP.
type refusal struct {
	status  int
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return r.Message }

func refuse(status int, code, message string) *refusal {
	return &refusal{status, "invalid_request", code, message}
}

// serve makes a handler of an operation. An error that is no refusal is answered 500: nothing of it
// is kept, and the agent may try again under its key.
func (s *shop) serve(run operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		answer := any(nil)
		made, err := s.operate(run, r)
		switch refused := (*refusal)(nil); {
		case errors.As(err, &refused):
			status = refused.status
			answer = refused
		case err != nil:
			status = http.StatusInternalServerError
			answer = &refusal{
				Type:    "processing_error",
				Code:    "internal",
				Message: "something went wrong",
			}
		default:
			answer = made
			if r.PathValue("id") == "" {
				status = http.StatusCreated
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // the layer keeps it, whether the agent is still there or not
	})
}

func (s *shop) operate(run operation, r *http.Request) (*session, error) {
	in := &request{id: r.PathValue("id")}
	scope, err := s.agentOf(r)
	if err != nil {
		return nil, err // cannot happen: the layer has let it in
	}
	in.agent = scope.Tenant
	if err := json.NewDecoder(r.Body).Decode(in); err != nil {
		return nil, refuse(http.StatusBadRequest, "invalid", "the body is not a JSON object of a checkout")
	}
	tx, err := idempotency.TxOf(r)
	if err != nil {
		return nil, err
	}
	return run(r.Context(), tx, in)
}

func newID(kind string) string { return kind + "_" + strings.ToLower(rand.Text()) }
