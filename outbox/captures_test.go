package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A relay whose Complete no call asks for says so, once, at the first call that it delivers. One
// with a call that captures says nothing, and neither does one without Complete.
func TestCompleteWithoutCapturedCalls(t *testing.T) {
	t.Parallel()
	complete := func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error { return nil }
	for name, c := range map[string]struct {
		complete func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error
		captures bool
		lines    int
	}{
		"no call captures":     {complete, false, 1},
		"the first captures":   {complete, true, 0},
		"there is no Complete": {nil, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			cfg := testConfig(newScripted(accept))
			cfg.Complete = c.complete
			var text func() string
			cfg.Logger, text = pgtest.Logged()
			r.start(cfg)
			for _, id := range []string{"1", "2", "3"} {
				call := charge(id)
				call.Capture = c.captures && id == "1"
				r.enqueue(call)
				until(t, "it is delivered", func() bool {
					return one[int](r, `select count(*) from onlyonce.calls where state <> 'delivered'`) == 0
				})
			}
			const line = `level=WARN msg="onlyonce: RelayConfig.Complete is set, and the first call that was delivered does not ask ` +
				`for its answer`
			if n := strings.Count(text(), line); n != c.lines {
				t.Errorf("%d lines, want %d:\n%s", n, c.lines, text())
			}
		})
	}
}
