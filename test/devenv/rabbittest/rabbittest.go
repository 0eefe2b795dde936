// Package rabbittest gives the tests of a package a RabbitMQ server.
package rabbittest

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

// startTimeout bounds the start of a server.
const startTimeout = 3 * time.Minute

var shared = sync.OnceValues(func() (*devenv.RabbitMQ, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return devenv.StartRabbitMQ(ctx, devenv.Options{})
})

// Shared returns the server of this process, which ends with it: it takes seconds to start. If the
// program is not on the machine, the test is skipped with the reason, or fails if CI=true.
func Shared(t testing.TB) *devenv.RabbitMQ {
	t.Helper()
	r, err := shared()
	switch {
	case err == nil:
	case errors.Is(err, devenv.ErrNoRabbitMQ) && os.Getenv("CI") != "true":
		t.Skipf("rabbittest: %v", err)
	default:
		t.Fatalf("rabbittest: %v", err)
	}
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
