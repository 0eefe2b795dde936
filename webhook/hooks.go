package webhook

import "time"

// Outcome is the result for an event that was verified. Each of them is answered with 200.
type Outcome string

// Outcomes of a verified event.
const (
	Accepted    Outcome = "accepted"    // new, and stored, handled or forwarded
	Duplicate   Outcome = "duplicate"   // accepted before
	Divergent   Outcome = "divergent"   // an event with this id was accepted before, with another body
	SameBody    Outcome = "same-body"   // this body was accepted lately under another id: parked
	Stale       Outcome = "stale"       // older than what its handler has applied: parked
	Unforwarded Outcome = "unforwarded" // no call can be made of it ([Forward]): not handled, parked
	Probed      Outcome = "probed"      // the provider only checks whether the endpoint answers
)

// Received describes a request that was answered with 200, or an event that a reconciliation
// listed.
type Received struct {
	Endpoint, Provider, Type, ID string
	Outcome                      Outcome
	Reconciled                   bool
	Duration                     time.Duration
}

// Refused describes a request that was answered with anything but 200.
type Refused struct {
	Endpoint string
	Status   int
	// Err is the reason. If the request was not verified, it quotes nothing that was received.
	Err      error
	Duration time.Duration
}

// Hooks are functions that observe requests, for example to count them. They are called from the
// goroutine of the request, after the transaction. Nil hooks are skipped. The structs may get more
// fields.
type Hooks struct {
	Received func(Received)
	Refused  func(Refused)
	// Purged is called with the number of ids and bodies that were forgotten, if there were any.
	Purged func(ids, bodies int64)
	// Reconciled is called at the end of each reconciliation of this process, with the number of
	// events that it listed and how many of them were new.
	Reconciled func(listed, missed int, err error)
}
