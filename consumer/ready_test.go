package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// joining is a source that reports whether it is a member.
type joining struct {
	*memlog.Source
	member atomic.Bool
}

func (s *joining) Ready() error {
	if s.member.Load() {
		return nil
	}
	return errors.New("no coordinator")
}

// A consumer is ready from the time that its source is a member until it is to stop; a drain that
// goes on is not ready.
func TestReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 1)
	src := &joining{Source: r.src}
	entered := make(chan struct{})
	resume := make(chan struct{})
	cfg := testConfig()
	c, err := consumer.New(r.pool, src, consumer.HandlerFunc(func(context.Context, consumer.Tx, *consumer.Message) error {
		close(entered)
		<-resume
		return nil
	}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "Run has not begun") {
		t.Errorf("before Run: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(apart(ctx)) }()
	pgtest.Receive(t, patience, "the handler is entered", entered)
	if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "no coordinator") {
		t.Errorf("before the source is a member: %v", err)
	}
	src.member.Store(true)
	if err := c.Ready(); err != nil {
		t.Errorf("as a member: %v", err)
	}
	cancel()
	if err := c.Ready(); err == nil || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("while it drains: %v", err)
	}
	close(resume)
	if err := pgtest.Receive(t, patience, "Run ends", ended); err != nil {
		t.Error(err)
	}
	if c.Ready() == nil {
		t.Error("ready after Run")
	}
}
