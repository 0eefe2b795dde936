package webhook

import (
	"context"
	"log/slog"
	"time"

	"github.com/onlyonce/onlyonce/internal/hook"
)

// ReceiveOutcome is the result for an event that was verified. Each of them is answered with 200.
type ReceiveOutcome string

// Outcomes of a verified event.
const (
	Accepted  ReceiveOutcome = "accepted"  // new; stored, handled or forwarded
	Duplicate ReceiveOutcome = "duplicate" // accepted before
	// this id was accepted before with another body: parked, unless its sender signs ids
	Divergent   ReceiveOutcome = "divergent"
	SameBody    ReceiveOutcome = "same-body"   // this body was accepted lately under another id: parked
	Stale       ReceiveOutcome = "stale"       // older than what its handler has applied: parked
	Unforwarded ReceiveOutcome = "unforwarded" // no call can be made from it ([Forward]): not handled, parked
	Unstorable  ReceiveOutcome = "unstorable"  // the database never takes it: parked
	Probed      ReceiveOutcome = "probed"      // the provider only checks whether the endpoint answers
)

// ReceiveStart describes a request that begins. It is not verified yet.
type ReceiveStart struct {
	Endpoint, Provider string
}

// ReceiveEnd describes how a request was answered.
type ReceiveEnd struct {
	ReceiveStart
	// Type and ID are the event's. They are empty if the request was not verified, and ID if it is
	// a probe.
	Type, ID string
	// Outcome is empty unless Status is 200.
	Outcome ReceiveOutcome
	Status  int
	// Err is the reason of a status other than 200. If the request was not verified, it does not
	// quote the request.
	Err      error
	Duration time.Duration
}

// BackfilledEvent describes a backfill by this process.
type BackfilledEvent struct {
	Listed int // events that the provider listed
	Missed int // of them, those that were new
	Old    int // of them, those that happened longer ago than Config.Retention: passed over
	Err    error
}

// Hooks are functions that observe requests, for example to count them. They are called from the
// goroutine of the request, outside the transaction, so they must be safe for concurrent use. Nil
// hooks are skipped. [Hooks.Join] joins several users of them. The structs may get more fields.
//
// A hook observes, and cannot change the endpoint's behavior. If it panics, the endpoint logs that,
// at most once a minute for each hook, and continues the request. If ReceiveStart panics or returns
// nil, the request keeps its own context. A hook must not call runtime.Goexit.
//
// The hooks of the consumer that applies stored events are in consumer.Config.
type Hooks struct {
	// ReceiveStart and ReceiveEnd enclose one request, from its first byte to the answer. The
	// context of an inline handler derives from ReceiveStart's result, which must derive from its
	// argument. ReceiveEnd gets that result too.
	ReceiveStart func(ctx context.Context, r ReceiveStart) context.Context
	ReceiveEnd   func(ctx context.Context, r ReceiveEnd)

	// Forgotten is called with the number of ids and bodies that were forgotten.
	Forgotten func(records int64)

	// Backfilled is called at the end of each backfill by this process.
	Backfilled func(BackfilledEvent)
}

// Join returns hooks that call those of h and of b, for example your own and those of package
// telemetry. h's ReceiveStart and ReceiveEnd enclose b's, and each ReceiveEnd gets the context that
// its own ReceiveStart returned. The other hooks of h are called before b's. If a hook panics, the
// other hook of that event may be skipped.
func (h Hooks) Join(b Hooks) Hooks {
	type pair = hook.Pair[ReceiveStart, ReceiveEnd]
	receive := hook.JoinPair(
		pair{Start: h.ReceiveStart, End: h.ReceiveEnd},
		pair{Start: b.ReceiveStart, End: b.ReceiveEnd},
	)
	return Hooks{
		ReceiveStart: receive.Start, ReceiveEnd: receive.End,
		Forgotten:  hook.JoinEvent(h.Forgotten, b.Forgotten),
		Backfilled: hook.JoinEvent(h.Backfilled, b.Backfilled),
	}
}

// guarded returns hooks whose panics are logged and end nothing.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	g := &hook.Guard{Log: log}
	return Hooks{
		ReceiveStart: hook.Start(g, "ReceiveStart", h.ReceiveStart),
		ReceiveEnd:   hook.End(g, "ReceiveEnd", h.ReceiveEnd),
		Forgotten:    hook.Event(g, "Forgotten", h.Forgotten),
		Backfilled:   hook.Event(g, "Backfilled", h.Backfilled),
	}
}
