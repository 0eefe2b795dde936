package main

import (
	"context"
	_ "embed"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
)

//go:embed stock.sql
var schema string

// A copy of an order is skipped, and what is no order is parked.
func TestHold(t *testing.T) {
	pool := onlyoncetest.Pool(t)
	if _, err := pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	order := onlyoncetest.Message{ID: "order-1", Value: `{"sku":"tea","qty":3}`}
	broken := onlyoncetest.Message{ID: "order-2", Value: "no order"}
	got := onlyoncetest.Apply(t, pool, consumer.Decode(consumer.JSON, hold), consumer.Config{}, order, order, broken)
	if len(got.Applied) != 1 || len(got.Skipped) != 1 || len(got.Parked) != 1 {
		t.Errorf("%+v", got)
	}
	var held int
	if err := pool.QueryRow(t.Context(), `select held from stock where sku = 'tea'`).Scan(&held); err != nil || held != 3 {
		t.Errorf("held %d, %v", held, err)
	}
}

// Whatever breaks, and however often an order comes, its stock is held once.
func TestHoldOnce(t *testing.T) {
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, schema)
			return err
		},
		Start: onlyoncetest.Consume(consumer.Decode(consumer.JSON, hold), consumer.Config{}),
		Messages: []onlyoncetest.Message{
			{ID: "order-1", Value: `{"sku":"tea","qty":3}`},
			{ID: "order-2", Value: `{"sku":"coffee","qty":1}`},
		},
	})
}
