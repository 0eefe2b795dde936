// Package redistest gives tests a Redis server of their own.
package redistest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// startTimeout bounds the start of a server.
const startTimeout = time.Minute

// Start returns a server of this test's own, which is stopped when the test ends. If the program is
// not on the machine, the test is skipped with the reason, or fails if CI=true.
func Start(t testing.TB) *devenv.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	r, err := devenv.StartRedis(ctx, devenv.Options{})
	switch {
	case err == nil:
	case errors.Is(err, devenv.ErrNoRedis) && os.Getenv("CI") != "true":
		t.Skipf("redistest: %v", err)
	default:
		t.Fatalf("redistest: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("redistest: %v", err)
		}
	})
	return r
}
