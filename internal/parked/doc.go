// Package parked holds what the engines and operators share about rows of onlyonce.parked: the
// states, the reasons, and the SQL that writes a row, makes it due, settles it and promotes the
// next one of its ordering key. SQL that only one engine runs, with knowledge of its own tables, is
// in that engine's package, for example the choice of what is due, and how an attempt ended.
package parked

// Kinds of rows.
const (
	Message = "message"
	Call    = "call"
	Event   = "event"
)

// States of a row.
const (
	Waiting   = "waiting"   // for an operator
	Retrying  = "retrying"  // tried again when it is due
	Blocked   = "blocked"   // waits for an earlier row of its ordering key
	Reconcile = "reconcile" // of a call: it may have been applied, and its key may be forgotten
	Resolved  = "resolved"  // settled: applied
	Discarded = "discarded" // settled: given up
)

// Reasons why a row is parked.
const (
	Failed    = "failed"    // an attempt failed, or a call had no final answer; it is tried again
	Postponed = "postponed" // of a call: it was not applied, and is tried again
	Permanent = "permanent" // the handler reported that no retry will help
	Exhausted = "exhausted" // its attempts are used up
	Crashed   = "crashed"   // its attempts ended without a result: they ended the process
	Behind    = "behind"    // an earlier row of its ordering key is parked
	Conflict  = "conflict"  // its id was used before for another payload
	NoKey     = "no-key"    // it has no id
	TooOld    = "too-old"   // its key may be forgotten: whether it is a copy is not known
	SameBody  = "same-body" // of an event: an earlier one had the same body
	Stale     = "stale"     // of an event: older than what was applied to its object
	Forward   = "forward"   // of an event: it could not be forwarded
	Divergent = "divergent" // of an event: the same id, another body
	Scheduled = "scheduled" // of a call: its time has not come
	// of a call: its lane was given back, or its sink took no more calls, before its turn: it was
	// not made
	Cut        = "cut"
	UnderWay   = "under-way"  // of a call: its attempt had not ended when it was parked
	Completion = "completion" // of a call: the remote has accepted it, RelayConfig.Complete has not
	Rejected   = "rejected"   // of a call: the last attempt at it was refused
	Unopened   = "unopened"   // of a call: its body will never open
	Rate       = "rate"       // of a call: its tenant's calls of this second have been made
	Window     = "window"     // of a call: the remote may have forgotten its key
	Unsafe     = "unsafe"     // of a call: it may have been applied by a remote that keeps no key of it
)

// Reasons are those that an operator may ask for.
var Reasons = []string{
	Permanent, Exhausted, Crashed, Conflict, NoKey, TooOld, Failed, Behind, SameBody, Divergent,
	Stale, Forward, Scheduled, Cut, UnderWay, Completion, Postponed, Rejected, Unopened, Window,
	Unsafe, Rate,
}
