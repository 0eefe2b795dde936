package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/onlyonce/onlyonce/internal/hook"
)

// Hooks are called at events, outside any transaction. They run in the goroutines that work for a
// sink's lanes, so they must be safe for concurrent use. A hook that blocks holds up its lane. Nil
// hooks are skipped. [Hooks.Join] joins several users of them. The structs may get more fields.
//
// A hook observes the relay and cannot change its work. If a hook panics, the relay logs that, at
// most once a minute for each hook, and continues. If AttemptStart panics or returns nil, the
// attempt's context is the one that it got. A hook must not call runtime.Goexit.
type Hooks struct {
	// AttemptStart and AttemptEnd enclose one attempt: a Send, the part of one call in a SendBatch,
	// or a call of RelayConfig.Complete or RelayConfig.Reconcile. An attempt whose lease or key
	// window has ended, or whose body cannot be opened, is not made and has no pair.
	//
	// The context that AttemptStart returns is the attempt's, and is passed to AttemptEnd; it must
	// derive from the one that AttemptStart gets. A SendBatch has one context for all its calls, so
	// there it goes to AttemptEnd only. AttemptEnd is called when the attempt has returned, before
	// its outcome is committed: see Settled. For a reconciliation, Delivered means that the remote
	// has applied the call.
	AttemptStart func(ctx context.Context, a AttemptEvent) context.Context
	AttemptEnd   func(ctx context.Context, a AttemptEvent, r Result)
	// Settled is called for each attempt after its outcome is committed.
	Settled func(SettledEvent)
	// Lease is called when this relay takes, loses or releases a lane.
	Lease func(LeaseEvent)
	// Paused is called when this relay finds a sink paused or resumed.
	Paused func(PausedEvent)
	// TransactionFailed is called when a transaction of the relay has failed and will be tried
	// again.
	TransactionFailed func(TransactionFailedEvent)
}

// AttemptKind is who makes an attempt.
type AttemptKind string

// Kinds of attempts.
const (
	AttemptSend      AttemptKind = "send"      // the sink sends the call
	AttemptComplete  AttemptKind = "complete"  // RelayConfig.Complete gets the remote's answer
	AttemptReconcile AttemptKind = "reconcile" // RelayConfig.Reconcile asks the remote
)

// AttemptEvent describes an attempt at a call.
type AttemptEvent struct {
	Kind AttemptKind
	Sink string
	Row  int64
	Key  string
	Name string
	// Number counts from 1: all attempts at the call and at its completion.
	Number int
	// Batch is the number of calls in this attempt's SendBatch, or 0 if it is not part of one.
	Batch int
	// Trace is the W3C trace context of the transaction that asked for the call: see Call.Trace.
	Trace string
}

// CallState is what has become of a call.
type CallState string

// States of a call after an attempt.
const (
	// CallDelivered: the remote has accepted it.
	CallDelivered CallState = "delivered"
	// CallAccepted: the remote has accepted it; its answer is kept for RelayConfig.Complete.
	CallAccepted CallState = "accepted"
	// CallRetry: there was no final answer. It is due again later.
	CallRetry CallState = "retry"
	// CallRejected: the attempt was refused, or the call for good. An operator decides.
	CallRejected CallState = "rejected"
	// CallUnopened: its body will never open ([seal.ErrValue]), so no call was made. An operator
	// decides.
	CallUnopened CallState = "unopened"
	// CallReconcile: it is unknown whether the remote has applied it, and another attempt may apply
	// it again. None is made.
	CallReconcile CallState = "reconcile"
)

// SettledEvent describes the end of an attempt.
type SettledEvent struct {
	AttemptEvent
	// State is the new state of the call.
	State CallState
	// Final is true if the relay is done with the call. After CallRetry and CallAccepted further
	// attempts follow.
	Final bool
	// Open is true if the remote may have applied the call, by this attempt or an earlier one, and
	// no final answer has followed.
	Open bool
	// Age is how long ago the call was enqueued.
	Age time.Duration
	// Wait is how long until the next attempt, if State is CallRetry.
	Wait time.Duration
	// Reason is the row's last error: empty after a delivery.
	Reason string
	// Err is the whole error, if there was one. It may quote the remote's answer, so keep it out of
	// places that must hold no payloads, for example a shared log.
	Err error
}

// LeaseEvent reports that this relay took, lost or released a lane of a sink.
type LeaseEvent struct {
	Sink  string
	Lane  int
	Epoch int64
	// Held is true when this relay has taken the lane, and false when it has lost or released it.
	Held bool
	// Err is why the lease was lost, or nil if it was released in order. Calls that were under way
	// are cut off. The next owner of the lane sends them again, under the same keys.
	Err error
}

// TransactionFailedEvent is an error of the database that the relay waits out.
type TransactionFailedEvent struct {
	Sink string
	Err  error
	Wait time.Duration
}

// PausedEvent reports that an operator paused or resumed a sink.
type PausedEvent struct {
	Sink   string
	Paused bool
}

// Join returns hooks that call those of h and of b, for example your own and those of package
// telemetry. h's AttemptStart and AttemptEnd enclose b's, and each AttemptEnd gets the context that
// its own AttemptStart returned. The other hooks of h are called before b's. If a hook panics, the
// other one of that event may not be called.
func (h Hooks) Join(b Hooks) Hooks {
	type pair = hook.PairWith[AttemptEvent, AttemptEvent, Result]
	attempt := hook.JoinPairWith(
		pair{Start: h.AttemptStart, End: h.AttemptEnd},
		pair{Start: b.AttemptStart, End: b.AttemptEnd},
	)
	return Hooks{
		AttemptStart: attempt.Start, AttemptEnd: attempt.End,
		Settled:           hook.JoinEvent(h.Settled, b.Settled),
		Lease:             hook.JoinEvent(h.Lease, b.Lease),
		Paused:            hook.JoinEvent(h.Paused, b.Paused),
		TransactionFailed: hook.JoinEvent(h.TransactionFailed, b.TransactionFailed),
	}
}

// guarded returns hooks whose panics are logged and end nothing.
func (h Hooks) guarded(log *slog.Logger) Hooks {
	g := &hook.Guard{Log: log}
	return Hooks{
		AttemptStart:      hook.Start(g, "AttemptStart", h.AttemptStart),
		AttemptEnd:        hook.EndWith(g, "AttemptEnd", h.AttemptEnd),
		Settled:           hook.Event(g, "Settled", h.Settled),
		Lease:             hook.Event(g, "Lease", h.Lease),
		Paused:            hook.Event(g, "Paused", h.Paused),
		TransactionFailed: hook.Event(g, "TransactionFailed", h.TransactionFailed),
	}
}

// emitter calls the hooks and writes the log. It logs only a call's row, key, name and stored
// reason.
type emitter struct {
	hooks Hooks
	log   *slog.Logger
	sink  string
}

func (e emitter) settled(s SettledEvent) {
	s.Sink = e.sink
	if e.hooks.Settled != nil {
		e.hooks.Settled(s)
	}
	level := slog.LevelDebug
	what := "onlyonce: call settled"
	switch s.State {
	case CallRejected, CallUnopened:
		level = slog.LevelWarn
		what = "onlyonce: a call waits for an operator's decision: onlyonce parked list -kind call -state waiting"
	case CallReconcile:
		level = slog.LevelWarn
		what = "onlyonce: the outcome of a call is not known, and an operator has to ask the remote: " +
			"onlyonce parked list -kind call -state reconcile"
	}
	if !e.log.Enabled(context.Background(), level) {
		return // before a dozen arguments are made for each call
	}
	e.log.Log(context.Background(), level, what,
		"sink", e.sink, "state", s.State, "row", s.Row, "key", s.Key, "name", s.Name, "attempt", s.Number,
		"open", s.Open, "wait", s.Wait, "reason", s.Reason)
}

func (e emitter) lease(c LeaseEvent) {
	c.Sink = e.sink
	if e.hooks.Lease != nil {
		e.hooks.Lease(c)
	}
	if c.Err != nil {
		e.log.Warn("onlyonce: the relay lost a lane: calls under way are cut off, and the next owner sends "+
			"them again under the same keys", "sink", e.sink, "lane", c.Lane, "epoch", c.Epoch, "error", c.Err)
		return
	}
	e.log.Debug("onlyonce: lane", "sink", e.sink, "lane", c.Lane, "epoch", c.Epoch, "held", c.Held)
}

// shared logs, in one line for all lanes, that the relay has taken some or gives some to others.
func (e emitter) shared(taken, given, held int) {
	if taken > 0 || given > 0 {
		e.log.Info("onlyonce: lanes shared among relays",
			"sink", e.sink, "taken", taken, "given", given, "held", held, "of", lanes)
	}
}

func (e emitter) failed(err error, wait time.Duration) {
	if e.hooks.TransactionFailed != nil {
		e.hooks.TransactionFailed(TransactionFailedEvent{Sink: e.sink, Err: err, Wait: wait})
	}
	e.log.Warn("onlyonce: a transaction of the relay failed and is tried again",
		"sink", e.sink, "error", err, "wait", wait)
}

func (e emitter) purged(rows int64) {
	e.log.Debug("onlyonce: settled calls deleted after their retention", "sink", e.sink, "rows", rows)
}

func (e emitter) paused(is bool) {
	if e.hooks.Paused != nil {
		e.hooks.Paused(PausedEvent{Sink: e.sink, Paused: is})
	}
	msg := "onlyonce: an operator resumed the sink"
	if is {
		msg = "onlyonce: an operator paused the sink"
	}
	e.log.Info(msg, "sink", e.sink)
}
