package webhook_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/webhook"
)

// Upkeep that is stopped while it starts returns no error: nothing has failed.
func TestUpkeepIsStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := samples(t)["Stripe"]
	pgtest.StopsAnywhere(t, patience, r.pool, func(ctx context.Context, pool *pgxpool.Pool) error {
		cfg := webhook.Config{Name: "e", Provider: s.provider, Secrets: []string{s.secret}, Partitions: 4}
		endpoint, err := webhook.New(pool, cfg)
		if err != nil {
			return err
		}
		return endpoint.Upkeep(ctx)
	})
}
