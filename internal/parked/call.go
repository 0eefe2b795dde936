package parked

import "github.com/onlyonce/onlyonce/internal/outcome"

// KnownCall is what is known of a call between two attempts. All that becomes of it is decided by
// [KnownCall.After], after an attempt, and by [KnownCall.Decide], by a person (O6).
type KnownCall struct {
	State, Reason string

	// Open means that the remote may have applied the call: an attempt under its key may have left,
	// and no final answer has followed. In the database: column open.
	Open bool

	// Accepted means that the remote has applied the call, and that its completion is left.
	Accepted bool
}

// CallOf returns what a row shows of a call.
func CallOf(state, reason string, mayBeApplied bool) KnownCall {
	return KnownCall{State: state, Reason: reason, Open: mayBeApplied, Accepted: reason == Completion}
}

// CallOpen is KnownCall.Open of a row p of onlyonce.parked. A call in state reconcile is open,
// whatever wrote its row.
const CallOpen = `(p.kind = 'call'
        and p.settled_at is null
        and p.response_status is null
        and (p.open or p.state = 'reconcile'))`

// CapturedCall is a condition on a row of onlyonce.parked: a call that was delivered, whose answer
// was captured (Call.Capture) and which is complete. It was never in trouble, so it is counted
// apart, and lists leave it out. By the index parked_troubled, which has all other settled rows.
const CapturedCall = `(kind = 'call' and state = 'resolved' and reason = 'completion')`

// After returns what becomes of a call after an attempt (O6). tooLate means that no attempt was
// made, because the remote may have forgotten the key: only an open call has one that it can
// forget.
func (c KnownCall) After(a outcome.Answer, tooLate bool) KnownCall {
	if tooLate && c.Open {
		return KnownCall{State: Reconcile, Reason: Window, Open: true}
	}
	if tooLate {
		a = outcome.Answer{Applied: outcome.NotApplied, Again: true}
	}
	next, open := outcome.After(c.Open, a)
	switch next {
	case outcome.Accepted:
		return KnownCall{State: Resolved, Accepted: true}
	case outcome.Refused:
		return KnownCall{State: Waiting, Reason: Rejected, Open: open}
	case outcome.Ask:
		return KnownCall{State: Reconcile, Reason: Unsafe, Open: open}
	}
	if open {
		return KnownCall{State: Retrying, Reason: Failed, Open: true}
	}
	return KnownCall{State: Retrying, Reason: Postponed}
}

// Decision is what a person, or RelayConfig.Reconcile, decides about a call.
type Decision int

// Decisions.
const (
	SendAgain          Decision = iota // under its key
	VerifiedApplied                    // the remote has applied it
	VerifiedNotApplied                 // it has not: it is sent again
	AnotherKey                         // it is sent under a new key, as another call to the remote
	AnotherKeyVerified                 // likewise, and the remote has not applied it under the old one
	GiveUp
)

// Why a decision is refused, as the end of a sentence that begins with the call.
const (
	refusedSettled   = "is settled"
	refusedBlocked   = "is blocked behind another of its ordering key: redrive or discard that one first"
	refusedRetrying  = "is being tried again: the answer to the next attempt decides"
	refusedAccepted  = "was accepted by the remote: only its completion is left"
	refusedReconcile = "may have been applied, and another attempt may apply it again. Ask the remote, and " +
		"say -verified-applied or -verified-not-applied"
	refusedNewKey = "may have been applied: an attempt had no final answer. -new-key needs -verified-not-applied too"
	refusedClosed = "was not applied: each attempt was refused, and none is without an answer. " +
		"-verified-applied and -verified-not-applied are for calls that may have been applied"
	refusedNoAnswer = "was not rejected by the remote: a new key needs its rejection, or a conflict of keys"
)

// Decide returns what becomes of a call by a decision, or why it is refused. Discarding an open
// call is allowed: the remote may have applied it all the same.
func (c KnownCall) Decide(d Decision) (next KnownCall, refused string) {
	verifies := d == VerifiedApplied || d == VerifiedNotApplied || d == AnotherKeyVerified
	switch {
	case c.State == Resolved || c.State == Discarded:
		return c, refusedSettled
	case d == GiveUp:
		c.State = Discarded
		return c, ""
	case c.State == Blocked:
		return c, refusedBlocked
	case c.Accepted && d != SendAgain:
		return c, refusedAccepted
	case c.State == Retrying && d != SendAgain:
		return c, refusedRetrying
	case verifies && !c.Open:
		return c, refusedClosed
	case c.State == Reconcile && d == SendAgain:
		return c, refusedReconcile
	case d == AnotherKey && c.Open:
		return c, refusedNewKey
	case d == AnotherKey && c.Reason != Rejected && c.Reason != Conflict:
		return c, refusedNoAnswer
	case d == VerifiedApplied:
		return KnownCall{State: Resolved, Reason: c.Reason}, ""
	case verifies:
		return KnownCall{State: Retrying, Reason: Failed}, ""
	}
	c.State = Retrying
	return c, ""
}
