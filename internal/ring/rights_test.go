package ring_test

import (
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/internal/process"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A process whose role may not rotate says so in one line, however many rings there are.
func TestNotRotatingIsLoggedOnce(t *testing.T) {
	log, text := pgtest.Logged()
	for range 2 {
		ctx := process.With(t.Context(), &process.Process{})
		for range 7 {
			ring.LogNotRotating(ctx, log)
		}
	}
	if n := strings.Count(text(), "does not rotate"); n != 2 {
		t.Errorf("%d lines of two processes\n%s", n, text())
	}
}
