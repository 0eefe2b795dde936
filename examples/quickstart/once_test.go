package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/onlyoncetest"
)

// Whatever breaks, an order has one effect and one charge, and one that cannot be read is parked.
func TestOrdersOnce(t *testing.T) {
	s := &orders{run: "payments"}
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error { _, err := pool.Exec(ctx, tableSQL); return err },
		Start:   onlyoncetest.Consume(consumer.HandlerFunc(s.apply), consumer.Config{BatchSize: 2}),
		Messages: []onlyoncetest.Message{
			{ID: "1", Value: `{"id":"1","amount_cents":100}`},
			{ID: "2", Value: `{"id":`},
			{ID: "3", Value: `{"id":"3","amount_cents":5}`},
		},
	})
}
