// Package servertest gives tests servers beside Postgres and Kafka. If a server's program is not on
// the machine, the test is skipped with the reason, or fails if CI=true.
package servertest

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// startTimeout bounds the start of a server, which may have to be installed from PyPI.
const startTimeout = 5 * time.Minute

// Redis returns a Redis server of this test's own, which is stopped when the test ends.
func Redis(t testing.TB) *devenv.Redis {
	t.Helper()
	return own(t, devenv.ErrNoRedis, devenv.StartRedis)
}

// Moto returns a server of this test's own that speaks Amazon SQS's protocol. It is stopped when
// the test ends.
func Moto(t testing.TB) *devenv.Moto {
	t.Helper()
	return own(t, devenv.ErrNoPython, devenv.StartMoto)
}

func own[S interface{ Stop() error }](t testing.TB, missing error, start func(context.Context, devenv.Options) (S, error)) S {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s, err := start(ctx, devenv.Options{})
	check(t, err, missing)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("servertest: %v", err)
		}
	})
	return s
}

// check ends the test if the server could not be started.
func check(t testing.TB, err, missing error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, missing) && os.Getenv("CI") != "true":
		t.Skipf("servertest: %v", err)
	default:
		t.Fatalf("servertest: %v", err)
	}
}

var rabbit = sync.OnceValues(func() (*devenv.RabbitMQ, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return devenv.StartRabbitMQ(ctx, devenv.Options{})
})

// RabbitMQ returns the RabbitMQ server of this process, which ends with it: it takes seconds to
// start.
func RabbitMQ(t testing.TB) *devenv.RabbitMQ {
	t.Helper()
	r, err := rabbit()
	check(t, err, devenv.ErrNoRabbitMQ)
	return r
}

// Strike kills the server, calls a function, and starts the server again. It waits before until the
// server has written down a queue. Tests beside it that use the server see this too.
func Strike(t testing.TB, r *devenv.RabbitMQ, queue string, away func()) {
	t.Helper()
	pgtest.Until(t, startTimeout, "the queue "+queue+" is written down", func() bool { return r.Kept(queue) })
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := r.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	away()
	if err := r.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}
