package main

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/webhook"
)

func createPaid(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create table paid (event text, invoice bytea)`)
	return err
}

// An order asks for one charge, whatever breaks.
func TestChargeOnce(t *testing.T) {
	onlyoncetest.Run(t, onlyoncetest.Case{
		Start:    onlyoncetest.Consume(consumer.HandlerFunc(charge), consumer.Config{}),
		Messages: []onlyoncetest.Message{{ID: "1", Value: "a"}, {ID: "2", Value: "b"}},
	})
}

// An invoice that Stripe reports twice is written down once, and other events are passed over.
func TestPaid(t *testing.T) {
	pool := onlyoncetest.Pool(t)
	if err := createPaid(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	event := func(id, kind string) onlyoncetest.Message {
		e := &webhook.Event{Provider: "stripe", ID: id, Type: kind, Header: http.Header{}, Body: []byte(id)}
		return onlyoncetest.FromMessage(e.Message("stripe"))
	}
	got := onlyoncetest.Apply(
		t,
		pool,
		consumer.HandlerFunc(paid),
		consumer.Config{},
		event("1", "invoice.paid"),
		event("1", "invoice.paid"),
		event("2", "invoice.voided"),
	)
	var n int
	err := pool.QueryRow(t.Context(), `select count(*) from paid`).Scan(&n)
	good := err == nil && n == 1 && len(got.Applied) == 2 && len(got.Skipped) == 1
	if !good {
		t.Errorf("%d rows, %v; %+v", n, err, got)
	}
}
