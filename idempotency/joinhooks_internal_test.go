package idempotency

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
