package main

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/seal"
)

// Wherever the shop dies, a session is made once, and completed once with one order and one charge.
func TestCheckoutOnce(t *testing.T) {
	provider := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	header := http.Header{"Authorization": {"Bearer key-1"}}
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, schema+
				`insert into acp_sessions (id, agent, item, quantity, unit_price) values ('cs_1', 'agent', 'tea', 2, 450)`)
			return err
		},
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			s, err := newShop(p.Pool, config{Agents: map[string]string{"key-1": "agent"}, Provider: p.Reach(provider), Secret: seal.Key{1}})
			if err != nil {
				return nil, nil, err
			}
			return s.handler(), onlyoncetest.RunnerFunc(s.run), nil
		},
		Requests: []onlyoncetest.Request{
			{Path: "/checkout_sessions", Key: "create-1", Header: header, Body: `{"items":[{"id":"mug","quantity":1}]}`},
			{Path: "/checkout_sessions/cs_1/complete", Key: "complete-1", Header: header, Body: `{"payment_data":{"token":"spt_1"}}`},
		},
		Mask: `(cs|order)_[a-z0-9]{26}`, // ids are random
	})
}
