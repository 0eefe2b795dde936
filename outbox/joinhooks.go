package outbox

import (
	"log/slog"

	"github.com/onlyonce/onlyonce/internal/hook"
)

// Join returns hooks that call those of h and of b, for example your own and those of package
// telemetry. h's AttemptStart and AttemptEnd enclose b's, and each AttemptEnd gets the context that
// its own AttemptStart returned. The other hooks of h are called before b's. If a hook panics, the
// other one of that event may not be called.
func (h Hooks) Join(b Hooks) Hooks {
	type pair = hook.PairWith[Attempt, Attempt, Result]
	attempt := hook.JoinPairWith(pair{Start: h.AttemptStart, End: h.AttemptEnd}, pair{Start: b.AttemptStart, End: b.AttemptEnd})
	return Hooks{
		AttemptStart: attempt.Start, AttemptEnd: attempt.End,
		Settled: hook.JoinEvent(h.Settled, b.Settled),
		Lease:   hook.JoinEvent(h.Lease, b.Lease),
		Paused:  hook.JoinEvent(h.Paused, b.Paused),
		Failed:  hook.JoinEvent(h.Failed, b.Failed),
	}
}

// guarded returns hooks whose panics are logged and end nothing.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	g := &hook.Guard{Log: log}
	return Hooks{
		AttemptStart: hook.Start(g, "AttemptStart", h.AttemptStart),
		AttemptEnd:   hook.EndWith(g, "AttemptEnd", h.AttemptEnd),
		Settled:      hook.Event(g, "Settled", h.Settled),
		Lease:        hook.Event(g, "Lease", h.Lease),
		Paused:       hook.Event(g, "Paused", h.Paused),
		Failed:       hook.Event(g, "Failed", h.Failed),
	}
}
