package webhook_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/webhook"
)

// docs/guide/webhooks.md shows this code; package test/docs compares them.

func paid(_ context.Context, tx consumer.Tx, m *consumer.Message) error {
	event, err := webhook.EventOf(m)
	if err != nil || event.Type != "invoice.paid" {
		return err
	}
	tx.Queue(`insert into paid (event, invoice) values ($1, $2)`, event.ID, event.Body) // commits once
	return nil
}

func webhooks(ctx context.Context, pool *pgxpool.Pool, mux *http.ServeMux, secret string) error {
	endpoint, err := webhook.New(pool, webhook.Config{
		Name: "stripe", Provider: webhook.Stripe{}, Secrets: []string{secret},
	})
	if err != nil {
		return err
	}
	mux.Handle("/hooks/stripe", endpoint) // 200 once the event is committed
	events, err := consumer.New(pool, endpoint, consumer.HandlerFunc(paid), consumer.Config{Scope: webhook.Scope("stripe")})
	if err != nil {
		return err
	}
	return events.Run(ctx) // applies the events
}

// It does what the guide says.
func TestReadmeWebhooks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`create table paid (event text, invoice bytea)`)
	s := samples(t)["Stripe"]
	mux := http.NewServeMux()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- webhooks(ctx, r.pool, mux, s.secret) }()
	e := r.serveMux(s, mux, "/hooks/stripe")
	r.until("the endpoint is there", func() bool { return e.send(stripeBody("evt_1", "")).status == 200 })
	for range 3 {
		e.send(stripeBody("evt_1", "")).want(t, 200, true)
	}
	r.until("it is applied", func() bool { return r.count("paid") == 1 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
