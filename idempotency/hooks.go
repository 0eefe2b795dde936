package idempotency

import (
	"context"
	"log/slog"
	"time"

	"github.com/onlyonce/onlyonce/internal/hook"
)

// Hooks observe the layer. A request's hooks are called from the request's goroutine, so they must
// be short and safe for concurrent use. Nil hooks are skipped. [Hooks.Join] joins several users of
// them. The structs may get more fields.
//
// A hook observes, and cannot change the layer's behavior. If it panics, the layer logs that, at
// most once a minute for each hook, and continues the request. If ServeStart panics or returns nil,
// the request keeps its own context. A hook must not call runtime.Goexit.
type Hooks struct {
	// ServeStart and ServeEnd enclose one request with a method for which keys count, or one call
	// of [Do], even if the handler panics. The handler's context has the values of ServeStart's
	// result, which must derive from its argument. ServeEnd gets that result too, after the answer.
	ServeStart func(ctx context.Context, s ServeStart) context.Context
	ServeEnd   func(ctx context.Context, s ServeEnd)
	// Purged is called by [Layer.Run] when it has deleted records.
	Purged func(records int)
	// StoreFailed is called for an error of the store that made the layer answer a request 5xx or
	// made the purge fail.
	StoreFailed func(error)
}

// ServeStart describes a request that begins.
type ServeStart struct {
	Pattern string
	Method  string // empty for a call of Do
}

// ServeEnd describes how a request was answered.
type ServeEnd struct {
	ServeStart
	Tenant string
	// Outcome is the value of the answer header Idempotency-Status.
	Outcome ServeOutcome
	// Code is the code of the layer's problem, for example "key-reused". It is empty if the handler
	// answered.
	Code string
	// Status is the answer's status. It is 0 if there was no answer, because the handler panicked
	// or ended its goroutine; Outcome is then [Released].
	Status int
	// Runs counts the runs of the handler for this request: 0 for a replay, more than 1 after
	// serialization failures.
	Runs int
	// Took is the time from the request to the answer.
	Took time.Duration
}

// ServeOutcome is the layer's decision about a request, and the value of the answer header
// Idempotency-Status. With it, a client can distinguish the layer's 409 and 422 from the
// application's.
type ServeOutcome string

// The outcomes.
const (
	Created    ServeOutcome = "created"     // the handler ran, and its answer is stored
	Replayed   ServeOutcome = "replayed"    // the answer is the stored one
	InProgress ServeOutcome = "in-progress" // a request with the key is running, or its outcome is not known yet
	Mismatch   ServeOutcome = "mismatch"    // the key was used for another request
	// as Created and Replayed, with a key that the layer has derived: see Route.DeriveKeyFor
	Derived ServeOutcome = "derived"
	// the handler ran without protection: no key and none required, or another method
	Bypassed ServeOutcome = "bypassed"
	Rejected ServeOutcome = "rejected" // refused before the handler ran, or undone by the layer
	// the handler's own answer, not stored: its writes are undone, and the next request runs again
	Released ServeOutcome = "released"
)

// Join returns hooks that call those of h and of b, for example your own and those of package
// telemetry. h's ServeStart and ServeEnd enclose b's, and each ServeEnd gets the context that its
// own ServeStart returned. The other hooks of h are called before b's. If a hook panics, the other
// hook of that event may be skipped.
func (h Hooks) Join(b Hooks) Hooks {
	type pair = hook.Pair[ServeStart, ServeEnd]
	serve := hook.JoinPair(pair{Start: h.ServeStart, End: h.ServeEnd}, pair{Start: b.ServeStart, End: b.ServeEnd})
	return Hooks{
		ServeStart: serve.Start, ServeEnd: serve.End,
		Purged:      hook.JoinEvent(h.Purged, b.Purged),
		StoreFailed: hook.JoinEvent(h.StoreFailed, b.StoreFailed),
	}
}

// guarded returns hooks whose panics are logged and end nothing.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	g := &hook.Guard{Log: log}
	return Hooks{
		ServeStart:  hook.Start(g, "ServeStart", h.ServeStart),
		ServeEnd:    hook.End(g, "ServeEnd", h.ServeEnd),
		Purged:      hook.Event(g, "Purged", h.Purged),
		StoreFailed: hook.Event(g, "StoreFailed", h.StoreFailed),
	}
}
