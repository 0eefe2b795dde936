package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A relay that is stopped while it starts returns no error: nothing has failed.
func TestRelayIsStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pgtest.StopsAnywhere(t, patience, r.pool, func(ctx context.Context, pool *pgxpool.Pool) error {
		relay, err := outbox.NewRelay(pool, testConfig(newScripted(accept)))
		if err != nil {
			return err
		}
		return relay.Run(ctx)
	})
}
