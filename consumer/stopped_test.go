package consumer_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A consumer that is stopped while it starts returns no error: nothing has failed.
func TestConsumerIsStoppedWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	stop := r.start(effect, testConfig())
	r.numbered(0, 3)
	r.reaches(0, 3)
	stop()
	r.log.SetCommitted("stock", 0, 3, names.Mark("other", 3)) // so the database is asked whose the group is
	pgtest.StopsAnywhere(t, patience, r.pool, func(ctx context.Context, pool *pgxpool.Pool) error {
		c, err := consumer.New(pool, r.src, consumer.HandlerFunc(effect), testConfig())
		if err != nil {
			return err
		}
		return c.Run(apart(ctx))
	})
}
