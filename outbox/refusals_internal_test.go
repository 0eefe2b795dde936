package outbox

import (
	"fmt"
	"log/slog"
	"testing"
)

// O17: as many refusals alike as the brake considers make the next one wait, unless the brake is
// off.
func TestO17Off(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{false, true} {
		b := newRefusals(Brake{Off: off}, "stripe", slog.New(slog.DiscardHandler))
		waits := false
		for range 2 * brakeWindow {
			r := b.judge("", Result{Outcome: Rejected, Reason: "402"})
			waits = waits || r.Outcome == Postponed
		}
		if waits == off {
			t.Errorf("off %t: a refusal waits: %t", off, waits)
		}
	}
}

// However many tenants have their calls refused, no more than mostBraked are remembered, and the
// sink's own window is not forgotten for them.
func TestO17RefusedTenantsAreBounded(t *testing.T) {
	t.Parallel()
	b := newRefusals(Brake{}, "stripe", slog.New(slog.DiscardHandler))
	own := b.window("")
	for i := range mostBraked + 10 {
		b.judge(fmt.Sprint("tenant ", i), Result{Outcome: Rejected, Reason: fmt.Sprint(i)})
		if len(b.of) > mostBraked {
			t.Fatalf("%d windows", len(b.of))
		}
	}
	if b.window("") != own {
		t.Error("the sink's window was forgotten")
	}
}
