package outbox

import (
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

// Without hooks, an attempt allocates nothing for them.
func TestNoHooksAllocateNothing(t *testing.T) {
	e := emitter{hooks: Hooks{}.guarded(slog.Default()), log: slog.New(slog.DiscardHandler)}
	a := &callAttempt{}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		a.ended(a.began(ctx, &e.hooks), &e.hooks)
		e.settled(SettledEvent{})
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
