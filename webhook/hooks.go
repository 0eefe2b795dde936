package webhook

import "time"

// Outcome is what became of an event that was verified. All of them are answered with 200.
type Outcome string

// Outcomes.
const (
	Accepted    Outcome = "accepted"    // it is new, and stored, handled or forwarded
	Duplicate   Outcome = "duplicate"   // it was accepted before
	Divergent   Outcome = "divergent"   // one of its id was accepted before, with another body
	SameBody    Outcome = "same-body"   // one of its body was accepted lately under another id: set aside in the parked table
	Stale       Outcome = "stale"       // its handler found it older than what was applied, and it is set aside in the parked table
	Unforwarded Outcome = "unforwarded" // the outbox takes no call of it ([Forward]): neither stored nor handled, and set aside in the parked table
	Probed      Outcome = "probed"      // the provider asked whether somebody is here
)

// Received tells of a request that was answered with 200, or of an event that a reconciliation brought.
type Received struct {
	Endpoint, Provider, Type, ID string
	Outcome                      Outcome
	Reconciled                   bool
	Duration                     time.Duration
}

// Refused tells of a request that was answered with anything but 200.
type Refused struct {
	Endpoint string
	Status   int
	// Err says why. Of a request that was not verified it quotes nothing that was received.
	Err      error
	Duration time.Duration
}

// Hooks are called from the goroutine of the request, after the transaction. Nil hooks are skipped. The structs may grow.
type Hooks struct {
	Received func(Received)
	Refused  func(Refused)
	// Purged is told how many ids and bodies were forgotten, where there were any.
	Purged func(ids, bodies int64)
	// Reconciled is told the end of each reconciliation that this process made: how many events it listed, and how many were new.
	Reconciled func(listed, missed int, err error)
}
