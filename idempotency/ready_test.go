package idempotency_test

import (
	"context"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A layer is ready while Run works.
func TestReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, testConfig())
	if err := r.layer.Ready(); err == nil || !strings.Contains(err.Error(), "Run has not begun") {
		t.Errorf("before Run: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.layer.Run(ctx) }()
	until(t, "it is ready", func() bool { return r.layer.Ready() == nil })
	cancel()
	if r.layer.Ready() == nil {
		t.Error("ready while it stops")
	}
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
}
