package outbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// callAttempt is one attempt at one call: what the database knows of the call, how far the attempt
// has come, and how it ended. While it is under way, only the goroutine that makes the call changes
// it.
type callAttempt struct {
	Attempt
	key      uuid.UUID
	order    *uuid.UUID // nil: it waits for no other
	sealed   bool
	firstKey uuid.UUID  // that it was enqueued under: a sealed body opens under it
	parked   int64      // id of the row that it was picked from; 0: it comes from the log
	pick     int32      // which pick of that row it is; of a call from the log 1, as parkSQL notes
	batch    batchPlace // where the log has it; zero: it was picked

	callHistory
	orderPrefix int64 // of its ordering key, see codec.OrderPrefix; 0: it has none
	keyParked   bool  // another call of its ordering key is parked
	// ticket is what the call is made with, from when it is admitted until its lane has taken its
	// result in. The lane's goroutine ends it.
	ticket    *gate.Ticket
	waitsFor  gate.Key   // whose rate or room it waits for, in state attemptRated; of a picked call: waited for
	overdueAt time.Time  // when it is given up if it has not returned (O18)
	tookIn    bool       // the lane's owner has its result
	returned  bool       // the goroutine that makes the call has ended; stuckCalls guards it
	inRemote  *departure // from when it went to the remote until it has returned; remoteHealth guards it
	gaveUp    atomic.Bool
	notAfter  time.Time // when the call may no longer start; zero: no bound

	lane        *heldLane // by whose lease the call is made; nil before it is started
	state       attemptState
	reconciling bool      // asks whether the call was applied; no call is made
	together    int       // calls of its SendBatch; 0: it is sent alone
	answer      *Response // the remote has accepted the call; only its completion is left

	attemptResult
	disposition disposition
	decided     bool // disposition holds
}

// callHistory is what is known of a call before the attempt.
type callHistory struct {
	readAt      time.Time     // before the database measured the durations
	age         time.Duration // since the first call under the key can have been made
	notBeforeIn time.Duration // until it may be made; not positive: now
	waited      time.Duration // since it was enqueued
	// maybeCalledBefore means that an earlier attempt, by whichever relay, may have reached the
	// remote: the key's window has begun.
	maybeCalledBefore bool
	noneOpen          bool // no earlier attempt is open
}

// attemptResult is how an attempt ended.
type attemptResult struct {
	mayHaveLeft bool // the call may have left
	unopened    bool // its body could not be opened: no call was made
	result      Result
	decision    decision
}

// decision is the result of RelayConfig.Reconcile for a call.
type decision int

const (
	wasApplied decision = iota + 1
	wasNotApplied
	notKnown
)

// batchPlace finds a batch by the index batches_new, within its sink and lane.
type batchPlace struct {
	id  int64  // of its first call; the others follow
	xid string // of the transaction that wrote it
}

// disposition is what becomes of a call's row after an attempt.
type disposition struct {
	settlement    CallState
	state, reason string
	lastError     string        // error that the row keeps
	due           bool          // it becomes due by itself
	delay         time.Duration // after that long
	open          bool          // the remote may have applied the call
	uncounted     bool          // the attempt is not counted
	answer        *Response     // kept in the row
}

// describe describes the attempt to a hook.
func (a *callAttempt) describe() AttemptEvent {
	kind := AttemptSend
	switch {
	case a.completing():
		kind = AttemptComplete
	case a.reconciling:
		kind = AttemptReconcile
	}
	return AttemptEvent{
		Kind:   kind,
		Sink:   a.Sink,
		Row:    a.ID,
		Key:    a.Key,
		Name:   a.Name,
		Number: a.Number,
		Batch:  a.together,
		Trace:  a.Trace,
	}
}

// known is what was known of the call before the attempt (O6).
func (a *callAttempt) known() parked.KnownCall {
	if a.reconciling {
		return parked.KnownCall{State: parked.Reconcile, Open: true}
	}
	return parked.KnownCall{Open: !a.noneOpen}
}

// answered is what the attempt has shown.
func (a *callAttempt) answered() outcome.Answer {
	answer := a.result.Outcome.answer()
	if !a.mayHaveReached() && answer.Applied == outcome.MayBeApplied {
		answer.Applied = outcome.NotApplied
	}
	return answer
}

// mayHaveReached reports whether the remote may know the key by the attempt, which has returned or
// was not made.
func (a *callAttempt) mayHaveReached() bool {
	return a.mayHaveLeft && !a.result.Unseen && !errors.Is(a.result.Err, ErrNotStarted)
}

// mayHaveBeenCalled reports whether the remote may know the key: by an earlier attempt, of
// whichever relay, or by this one. The key's window has begun then, also for a remote that refuses
// an attempt and remembers its key (O6).
func (a *callAttempt) mayHaveBeenCalled() bool {
	if a.maybeCalledBefore || a.state == attemptUnderWay { // mayHaveLeft and result are its goroutine's then
		return true
	}
	return a.mayHaveReached()
}

// completing reports whether the remote has accepted the call, so that no further call is made.
func (a *callAttempt) completing() bool { return a.answer != nil }

// attemptState is how far a row of a chunk has come.
type attemptState int

const (
	attemptWaiting   attemptState = iota // for its turn
	attemptBlocked                       // an earlier call of its key is parked: no call is made
	attemptScheduled                     // its time has not come
	attemptRated                         // the rate that it counts for has no permit for it
	attemptUnderWay
	attemptReturned
)

// boundBy sets until when the call may start, so that it would end within the key's window. If no
// attempt is open, the remote has nothing to apply a second time, however old the key is. The age
// decides about the next one.
func (a *callAttempt) boundBy(window time.Duration) {
	switch {
	case window == Forever:
	case a.noneOpen && a.parked != 0:
		a.notAfter = a.readAt.Add(window)
	default:
		a.notAfter = a.readAt.Add(window - a.age)
	}
}

// mayStart is Attempt.MayStart.
func (a *callAttempt) mayStart() error {
	now := time.Now()
	if a.gaveUp.Load() {
		return errGaveUp
	}
	if a.lane.expired(now) {
		return errLease
	}
	if !a.notAfter.IsZero() && !now.Before(a.notAfter) {
		return errWindow
	}
	return nil
}

// over reports whether its lane's owner awaits it no more.
func (a *callAttempt) over() bool { return a.tookIn || a.gaveUp.Load() }

// entrant is what the call counts for at the gate.
func (a *callAttempt) entrant() gate.Entrant {
	e := gate.Entrant{Tenant: a.Tenant, Prefix: a.orderPrefix}
	switch {
	case a.completing():
		e.Role = gate.Completion
	case a.reconciling:
		e.Role = gate.Inquiry
	}
	return e
}

// began calls the hook before the attempt, and returns the attempt's context.
func (a *callAttempt) began(ctx context.Context, hooks *Hooks) context.Context {
	if hooks.AttemptStart == nil {
		return ctx
	}
	return hooks.AttemptStart(ctx, a.describe())
}

// ended calls the hook after the attempt.
func (a *callAttempt) ended(ctx context.Context, hooks *Hooks) {
	if hooks.AttemptEnd == nil {
		return
	}
	result := a.result
	switch a.decision {
	case wasApplied:
		result = Result{Outcome: Delivered}
	case wasNotApplied:
		result = Failure("not applied", nil)
	}
	hooks.AttemptEnd(ctx, a.describe(), result)
}
