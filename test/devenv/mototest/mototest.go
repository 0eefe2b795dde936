// Package mototest gives tests a server of their own that speaks Amazon SQS's protocol.
package mototest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/test/devenv"
)

// startTimeout bounds the start of a server, which may have to be installed from PyPI.
const startTimeout = 5 * time.Minute

// Start returns a server of this test's own, which is stopped when the test ends. If Python is not
// on the machine, the test is skipped with the reason, or fails if CI=true.
func Start(t testing.TB) *devenv.Moto {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	m, err := devenv.StartMoto(ctx, devenv.Options{})
	switch {
	case err == nil:
	case errors.Is(err, devenv.ErrNoPython) && os.Getenv("CI") != "true":
		t.Skipf("mototest: %v", err)
	default:
		t.Fatalf("mototest: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Errorf("mototest: %v", err)
		}
	})
	return m
}
