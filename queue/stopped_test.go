package queue_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A receiver that is stopped while it starts returns no error: nothing has failed.
func TestReceiverIsStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pgtest.StopsAnywhere(t, patience, r.pool, func(ctx context.Context, pool *pgxpool.Pool) error {
		return r.queue(pool, r.broker.Connect()).Receive(ctx)
	})
}
