// Package fault names the points at which tests kill, fail or stop a process. In a production build
// a point is an empty function that the compiler removes; the tag onlyonce_fault makes it ask the
// environment:
//
//	ONLYONCE_FAULT="consumer/fenced=kill@3,consumer/committed=error"
//
// makes the process kill itself (SIGKILL) when it comes to the point consumer/fenced for the third
// time, and the point consumer/committed return [ErrInjected] each time. The third action, hang,
// stops the goroutine there for the time that ONLYONCE_FAULT_HANG says (default 10s).
package fault

import "errors"

// ErrInjected is what a point returns whose action is error. The engine must take it for a fault of
// a server or of the way to it.
var ErrInjected = errors.New("fault injected by a test")

// The points of package consumer, in the order in which a message meets them.
const (
	Joined         = "consumer/joined"          // a partition was handed over
	CursorRead     = "consumer/cursor-read"     // before membership is proved
	Proved         = "consumer/proved"          // membership proved, epoch not raised
	Raised         = "consumer/raised"          // epoch raised, position not read
	StartDecided   = "consumer/start-decided"   // the first cursor row is there, Kafka was not told
	LogVerified    = "consumer/log-verified"    // anchor compared
	Fetching       = "consumer/fetching"        // before a fetch
	Fetched        = "consumer/fetched"         // after it
	Connected      = "consumer/connected"       // the batch has its connection
	Fenced         = "consumer/fenced"          // fence and claim queued or sent
	Handling       = "consumer/handling"        // before the handler of one message
	Handled        = "consumer/handled"         // after it
	Sealing        = "consumer/sealing"         // all handlers done, COMMIT not sent
	Committed      = "consumer/committed"       // COMMIT answered, nothing noted
	Noted          = "consumer/noted"           // position noted, Kafka not told
	OffsetSending  = "consumer/offset-sending"  // before the offset commit
	OffsetSent     = "consumer/offset-sent"     // after it
	RolledBack     = "consumer/rolled-back"     // the failed attempt is undone
	Counting       = "consumer/counting"        // before an attempt is counted
	Counted        = "consumer/counted"         // counted, not made
	TakingBack     = "consumer/taking-back"     // before a count is taken back
	Parking        = "consumer/parking"         // the row that sets a message aside is queued
	Advancing      = "consumer/advancing"       // before a position without work is written
	Releasing      = "consumer/releasing"       // before the cursor is let go
	Released       = "consumer/released"        // let go, partition not given back
	RetryTaken     = "consumer/retry-taken"     // a parked row's attempt is counted
	RetrySettled   = "consumer/retry-settled"   // its settlement is queued
	RetryCommitted = "consumer/retry-committed" // its COMMIT answered
	RetryFailed    = "consumer/retry-failed"    // undone, its failure not written
	// Before the next row of an ordering key is made due.
	Promoting = "consumer/promoting"
	Tending   = "consumer/tending" // before the owner looks for what operators did
)

// Points lists every point of package consumer that a partition with one transaction at a time
// meets.
var Points = []string{
	Joined, CursorRead, Proved, Raised, StartDecided, LogVerified, Fetching, Fetched, Connected, Fenced, Handling, Handled, Sealing,
	Committed, Noted, OffsetSending, OffsetSent, RolledBack, Counting, Counted, TakingBack, Parking, Advancing, Releasing,
	Released, RetryTaken, RetrySettled, RetryCommitted, RetryFailed, Promoting, Tending,
}

// The points of package consumer that only a partition with several transactions at once meets.
const (
	DoneReading = "consumer/done-reading" // what is done above the position is not read yet
	SlotDone    = "consumer/slot-done"    // a slot's COMMIT is answered, the scheduler does not know
	Sweeping    = "consumer/sweeping"     // before the position is moved over what is done
	Swept       = "consumer/swept"        // its COMMIT is answered, nothing noted
	DonePruning = "consumer/done-pruning" // before rows of onlyonce.done are deleted
)

// SlotPoints lists them.
var SlotPoints = []string{DoneReading, SlotDone, Sweeping, Swept, DonePruning}

// The points of package outbox, in the order in which a call meets them.
const (
	RelayLooking   = "outbox/looking"   // before a relay looks for lanes that are free
	RelayAcquired  = "outbox/acquired"  // a lane's lease is raised, nothing is known of its cursor
	RelayRenewing  = "outbox/renewing"  // before the leases are renewed
	RelayLoading   = "outbox/loading"   // before the cursor is read
	RelayTurning   = "outbox/turning"   // a chunk is done or a pass begins: the journal is not sent
	RelayTurned    = "outbox/turned"    // its COMMIT is answered, nothing noted and nothing called
	RelayCalling   = "outbox/calling"   // before a call leaves
	RelayCalled    = "outbox/called"    // the remote has answered, nothing is noted
	RelayPicking   = "outbox/picking"   // parked calls are to be settled and picked: not sent
	RelayPicked    = "outbox/picked"    // its COMMIT is answered, nothing noted and nothing called
	RelayPromoting = "outbox/promoting" // before what stood behind a settled call is made due
	RelayPromoted  = "outbox/promoted"  // after it, not noted
	RelayPermits   = "outbox/permits"   // before permits are taken out of the bucket of a rate
	RelayPermitted = "outbox/permitted" // they are taken, and no call has used one
	RelayReleasing = "outbox/releasing" // before a lane is given back
)

// RelayPoints lists every point of package outbox.
var RelayPoints = []string{
	RelayLooking, RelayAcquired, RelayRenewing, RelayLoading, RelayTurning, RelayTurned, RelayCalling, RelayCalled, RelayPicking, RelayPicked,
	RelayPromoting, RelayPromoted, RelayPermits, RelayPermitted, RelayReleasing,
}

// The points of package idempotency, in the order in which a request meets them.
const (
	// Lease mode: the claim is committed, nothing has run.
	RequestLeased    = "idempotency/leased"
	RequestClaimed   = "idempotency/claimed"   // transactional mode: the key's lock is held
	StepBegun        = "idempotency/step"      // lease mode: the step is noted, its call not made
	StepCalled       = "idempotency/stepped"   // its call was answered, the result is not kept
	StepKept         = "idempotency/step-kept" // it is kept
	RequestHandled   = "idempotency/handled"   // the handler has returned
	RequestSealing   = "idempotency/sealing"   // the record is queued, COMMIT not sent
	RequestCommitted = "idempotency/committed" // COMMIT answered, nothing left for the client
)

// RequestPoints lists every point of package idempotency.
var RequestPoints = []string{
	RequestLeased, RequestClaimed, StepBegun, StepCalled, StepKept, RequestHandled, RequestSealing, RequestCommitted,
}

// The points of package webhook, in the order in which an event meets them.
const (
	WebhookVerified = "webhook/verified" // nothing is asked of the database
	WebhookClaimed  = "webhook/claimed"  // its id is claimed, nothing is committed
	WebhookStoring  = "webhook/storing"  // all is done, COMMIT not sent
	WebhookStored   = "webhook/stored"   // COMMIT answered, the sender not
)

// WebhookPoints lists every point of package webhook.
var WebhookPoints = []string{WebhookVerified, WebhookClaimed, WebhookStoring, WebhookStored}
