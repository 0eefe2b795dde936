package payments

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/onlyoncetest"
	"github.com/onlyonce/onlyonce/seal"
)

// Wherever the service dies, a charge is made once, here and at the provider.
func TestChargesOnce(t *testing.T) {
	provider := onlyoncetest.NewRemote(t, onlyoncetest.RemoteOptions{})
	body := `{"amount":500,"currency":"EUR","source":"tok_visa","capture":false,"metadata":{"reference":"a"}}`
	header := http.Header{"Authorization": {"Bearer sk_test_1"}}
	onlyoncetest.Run(t, onlyoncetest.Case{
		Migrate: func(ctx context.Context, pool *pgxpool.Pool) error { _, err := pool.Exec(ctx, Schema); return err },
		Serve: func(p *onlyoncetest.Process) (http.Handler, onlyoncetest.Runner, error) {
			a, err := New(p.Pool, Config{Accounts: map[string]string{"sk_test_1": "acct_1"}, Sink: "provider",
				Provider: p.Reach(provider), Secret: seal.Key{1}})
			if err != nil {
				return nil, nil, err
			}
			return a.Handler(), onlyoncetest.RunnerFunc(a.Run), nil
		},
		Requests: []onlyoncetest.Request{{Path: "/v1/charges", Key: "k-1", Header: header, Body: body}},
		Mask:     `ch_[a-z0-9]{26}`, // ids are random
	})
}
