package consumer

import (
	"context"
	"log/slog"
	"testing"

	"github.com/onlyonce/onlyonce/internal/hook/hooktest"
)

func TestJoinHooks(t *testing.T) {
	t.Parallel()
	hooktest.Join(t, Hooks.Join)
}

func TestHooksThatPanic(t *testing.T) {
	t.Parallel()
	hooktest.Guard(t, func(h Hooks) Hooks { return h.guarded(slog.New(slog.DiscardHandler)) })
}

// Without hooks, a transaction allocates nothing for them.
func TestNoHooksAllocateNothing(t *testing.T) {
	c := &Consumer{cfg: Config{Hooks: Hooks{}.guarded(slog.Default())}}
	p := &plan{msgs: []*Message{{}}}
	o := &outcome{}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		end(begin(ctx, c.cfg.Hooks.AttemptStart, o.result.Batch), c.cfg.Hooks.AttemptEnd, o.result, nil)
		c.emitCommitted(p, o)
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// With middleware, a message allocates the call and one closure for each middleware.
func TestMiddlewareAllocates(t *testing.T) {
	through := func(ctx context.Context, _ Tx, _ []*Message, next func(context.Context) error) error {
		return next(ctx)
	}
	c := &Consumer{
		cfg:     Config{Middleware: []Middleware{through, through}},
		handler: HandlerFunc(func(context.Context, Tx, *Message) error { return nil }),
	}
	m := &Message{}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if err := c.callThroughMiddleware(ctx, nil, m, nil); err != nil {
			t.Error(err)
		}
	}); n > 3 {
		t.Errorf("%v allocations, want 3", n)
	}
}
