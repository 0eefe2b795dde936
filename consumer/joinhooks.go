package consumer

import (
	"context"
	"log/slog"

	"github.com/onlyonce/onlyonce/internal/hook"
)

// Join returns hooks that call those of h and of b, for example your own and those of package
// telemetry. h's Start and End enclose b's, and each End gets the context that its own Start
// returned. The other hooks of h are called before b's. If a hook panics, the other one of that
// event may not be called.
func (h Hooks) Join(b Hooks) Hooks {
	attempt := joinSteps(h.AttemptStart, h.AttemptEnd, b.AttemptStart, b.AttemptEnd)
	handle := joinSteps(h.HandleStart, h.HandleEnd, b.HandleStart, b.HandleEnd)
	batch := joinSteps(h.HandleBatchStart, h.HandleBatchEnd, b.HandleBatchStart, b.HandleBatchEnd)
	return Hooks{
		AttemptStart: attempt.Start, AttemptEnd: attempt.End,
		HandleStart: handle.Start, HandleEnd: handle.End,
		HandleBatchStart: batch.Start, HandleBatchEnd: batch.End,
		Batch:         hook.JoinEvent(h.Batch, b.Batch),
		Retry:         hook.JoinEvent(h.Retry, b.Retry),
		Parked:        hook.JoinEvent(h.Parked, b.Parked),
		Resolved:      hook.JoinEvent(h.Resolved, b.Resolved),
		Hung:          hook.JoinEvent(h.Hung, b.Hung),
		Halted:        hook.JoinEvent(h.Halted, b.Halted),
		Paused:        hook.JoinEvent(h.Paused, b.Paused),
		WindowFull:    hook.JoinEvent(h.WindowFull, b.WindowFull),
		Owned:         hook.JoinEvent(h.Owned, b.Owned),
		Released:      hook.JoinEvent(h.Released, b.Released),
		OffsetIgnored: hook.JoinEvent(h.OffsetIgnored, b.OffsetIgnored),
		Repartitioned: hook.JoinEvent(h.Repartitioned, b.Repartitioned),
	}
}

type (
	stepStart[S any] = func(context.Context, S) context.Context
	stepEnd[S any]   = func(context.Context, S, error)
)

func joinSteps[S, E any](
	aStart stepStart[S],
	aEnd stepEnd[E],
	bStart stepStart[S],
	bEnd stepEnd[E],
) hook.PairWith[S, E, error] {
	return hook.JoinPairWith(
		hook.PairWith[S, E, error]{Start: aStart, End: aEnd},
		hook.PairWith[S, E, error]{Start: bStart, End: bEnd},
	)
}

// guarded returns hooks whose panics are logged and end nothing.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	g := &hook.Guard{Log: log}
	return Hooks{
		AttemptStart:     hook.Start(g, "AttemptStart", h.AttemptStart),
		AttemptEnd:       hook.EndWith(g, "AttemptEnd", h.AttemptEnd),
		HandleStart:      hook.Start(g, "HandleStart", h.HandleStart),
		HandleEnd:        hook.EndWith(g, "HandleEnd", h.HandleEnd),
		HandleBatchStart: hook.Start(g, "HandleBatchStart", h.HandleBatchStart),
		HandleBatchEnd:   hook.EndWith(g, "HandleBatchEnd", h.HandleBatchEnd),
		Batch:            hook.Event(g, "Batch", h.Batch),
		Retry:            hook.Event(g, "Retry", h.Retry),
		Parked:           hook.Event(g, "Parked", h.Parked),
		Resolved:         hook.Event(g, "Resolved", h.Resolved),
		Hung:             hook.Event(g, "Hung", h.Hung),
		Halted:           hook.Event(g, "Halted", h.Halted),
		Paused:           hook.Event(g, "Paused", h.Paused),
		WindowFull:       hook.Event(g, "WindowFull", h.WindowFull),
		Owned:            hook.Event(g, "Owned", h.Owned),
		Released:         hook.Event(g, "Released", h.Released),
		OffsetIgnored:    hook.Event(g, "OffsetIgnored", h.OffsetIgnored),
		Repartitioned:    hook.Event(g, "Repartitioned", h.Repartitioned),
	}
}
