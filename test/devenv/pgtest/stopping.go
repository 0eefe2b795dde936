package pgtest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// StopsAnywhere has run, which works until its context is done, stopped at each of its first
// moments: before it begins, and when it takes its first connections from a pool like the given
// one. It fails the test unless each returns nil: a program that is stopped while it starts has no
// fault.
func StopsAnywhere(t *testing.T, patience time.Duration, pool *pgxpool.Pool,
	run func(context.Context, *pgxpool.Pool) error,
) {
	t.Helper()
	for n := range int64(6) {
		ctx, stop := context.WithCancel(t.Context())
		var taken atomic.Int64
		if n == 0 {
			stop()
		}
		cfg := pool.Config().Copy()
		cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if taken.Add(1) == n {
				stop()
			}
			return true, nil
		}
		stopping, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, stopping) }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("stopped at connection %d: %v", n, err)
			}
		case <-time.After(patience):
			t.Errorf("it does not end, stopped at connection %d of %d", n, taken.Load())
		}
		stop()
		stopping.Close()
	}
}
