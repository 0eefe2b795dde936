package consumer

import (
	"log/slog"
	"testing"

	"github.com/onlyonce/onlyonce/internal/hook/hooktest"
)

func TestJoinHooks(t *testing.T) {
	t.Parallel()
	hooktest.Join(t, JoinHooks)
}

func TestHooksThatPanic(t *testing.T) {
	t.Parallel()
	hooktest.Guard(t, func(h Hooks) Hooks { return h.guarded(slog.New(slog.DiscardHandler)) })
}

// Without hooks, a transaction allocates nothing for them.
func TestNoHooksAllocateNothing(t *testing.T) {
	c := &Consumer{cfg: Config{Hooks: Hooks{}.guarded(slog.Default())}}
	a := &attempt{msgs: []*Message{{}}}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		c.traceAttemptEnd(c.traceAttempt(ctx, a.done), a.done, nil)
		c.emitCommitted(a)
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
