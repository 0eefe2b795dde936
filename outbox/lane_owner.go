package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// sweepEvery is how often a lane looks for blocked calls that no unsettled call precedes.
var sweepEvery = 5 * time.Minute

// Reasons why a relay loses a lane.
var (
	errReplaced = errors.New("another relay took the lease over")
	errExpired  = errors.New("the lease was not renewed in time")
)

// laneOwner is the time for which a relay holds a lane. One goroutine reads the lane's passes,
// journals, settles and tries parked calls again, one transaction after the other. Calls are made
// in goroutines of their own, which change nothing but their callAttempt.
type laneOwner struct {
	sender *sender
	lane   int16
	lease  *lease.Lease
	err    error // result of run, read by the sender

	// ctx ends with the lease, and calls end with it. It does not end when Run's context does, so
	// that work under way is finished.
	ctx      context.Context
	endLease context.CancelCauseFunc
	// callCtx is the context of calls. The end of the drain cuts it off while the lease is still
	// held.
	callCtx     context.Context
	cutOffCalls context.CancelFunc
	// deadline is when the relay stops by itself, by its monotonic clock; watch ends ctx then.
	deadline      atomic.Pointer[time.Time]
	deadlineTimer *time.Timer

	releasing        atomic.Bool // the lane is to be given back
	releaseRequested chan struct{}
	wakeups          chan wakeup

	cursor         cursor
	versionSeen    atomic.Int64 // cursor.version, for the sender
	cursorKnown    bool         // cursor is what the database has
	refs           []rowRef     // rows of the pass that are not fetched yet
	moreRefs       bool         // the pass may hold rows after refs
	expectMany     bool         // the next pass may hold many rows
	chunk          *chunk
	newRows        bool // there are rows after the pass, or may be
	parkedDue      bool // parked calls are due, or may be
	parkedDueAt    time.Time
	parkedNeedSlot bool // parked calls are due, and there was no slot for them
	parkedHadSlot  bool // the last slot went to a parked call: the next one is for a new call
	returned       returnedCalls
	underWay       int // calls under way: those of the chunk and those of parked rows

	pickedCalls    map[int64]*callAttempt // parked rows under way, by their ids: none of them is picked again
	lateCalls      map[int64]*callAttempt // rows of the log that their chunk did not wait for, likewise
	returnedParked []*callAttempt         // of both, returned and not settled
	keysToPromote  []uuid.UUID            // ordering keys whose next row may be tried
	swept          bool
	// When blocked keys are swept again: a process may die after it settled a call and before it
	// promoted.
	sweepAt time.Time

	retryAt     time.Time // after a database error, or while the sink takes no calls
	dbBackoff   *backoff.ExponentialBackOff
	drainUntil  time.Time // when the drain is over; zero: not stopping
	callsCutOff bool      // the drain is over, calls were cut off
}

func newLaneOwner(ctx context.Context, s *sender, l *lease.Lease, lane int16) *laneOwner {
	o := &laneOwner{
		sender: s, lane: lane, lease: l,
		releaseRequested: make(chan struct{}), wakeups: make(chan wakeup, 1),
		returned:    returnedCalls{signal: make(chan struct{}, 1)},
		pickedCalls: map[int64]*callAttempt{}, lateCalls: map[int64]*callAttempt{},
		parkedDue: true, newRows: true, expectMany: true,
		dbBackoff: s.newBackoff(),
	}
	o.ctx, o.endLease = context.WithCancelCause(context.WithoutCancel(ctx))
	o.callCtx, o.cutOffCalls = context.WithCancel(o.ctx)
	o.deadlineTimer = time.AfterFunc(s.cfg.LeaseTTL, func() { o.endLease(errExpired) })
	o.extend(l.Sent)
	return o
}

// extend moves the deadline (O5). It counts from when the renewal was *sent*, which is before the
// database started to count the ttl by its own clock. A tenth of the ttl is kept for clocks that do
// not run alike.
func (o *laneOwner) extend(sent time.Time) {
	deadline := sent.Add(o.sender.cfg.LeaseTTL - o.sender.cfg.LeaseTTL/10)
	o.deadline.Store(&deadline)
	o.deadlineTimer.Reset(time.Until(deadline))
}

// requestRelease makes the owner give the lane back: no new call is started.
func (o *laneOwner) requestRelease() {
	if !o.releasing.Swap(true) {
		close(o.releaseRequested)
	}
}

// wake passes on what the sender's poll has found.
func (o *laneOwner) wake(w wakeup) {
	select {
	case o.wakeups <- w:
	default: // one is waiting; the next poll finds what only this one says
	}
}

// run serves until the lease ends or the lane is to be given back. It returns an error for faults
// that waiting does not heal.
func (o *laneOwner) run() error {
	err := o.serve()
	cause := context.Cause(o.ctx) // nil: the lease is still held
	o.deadlineTimer.Stop()
	o.endLease(nil)
	o.cutOffCalls()
	if cause != nil {
		o.sender.emit.lease(LeaseChange{Lane: int(o.lane), Epoch: o.lease.Epoch, Err: cause})
	}
	if stuck := o.awaitCalls(); stuck != nil {
		return errors.Join(err, stuck) // without a release, because the call may still be going on
	}
	if errors.Is(cause, errReplaced) {
		return err
	}
	bounded, cancel := o.sender.detached(o.ctx)
	defer cancel()
	released := fault.Point(fault.RelayReleasing)
	if released == nil {
		released = o.lease.Release(bounded, o.sender.pool)
	}
	if released != nil {
		o.sender.emit.failed(fmt.Errorf("releasing lane %d, whose lease ends by itself: %w", o.lane, released), 0)
	} else if cause == nil {
		o.sender.emit.lease(LeaseChange{Lane: int(o.lane), Epoch: o.lease.Epoch})
	}
	return err
}

// serve is the loop. It returns when the lease has ended, or when the lane is to be given back and
// everything is settled. For a fault that waiting does not heal it returns an error.
func (o *laneOwner) serve() error {
	halted := o.releaseRequested
	timer := time.NewTimer(0)
	defer timer.Stop()
	for o.ctx.Err() == nil {
		now := time.Now()
		if !o.drainUntil.IsZero() {
			if o.drained() {
				return nil
			}
			if !now.Before(o.drainUntil) {
				if o.callsCutOff {
					// A sink does not return (join says so), or the database does not answer.
					return nil
				}
				o.callsCutOff, o.drainUntil = true, now.Add(o.sender.returnGrace)
				o.cutOffCalls() // the results come in at once and are settled below
			}
		}
		if !now.Before(o.retryAt) {
			if err := o.runDue(now); err != nil {
				if err = o.handleDBError(err); err != nil {
					return err
				}
			} else {
				o.dbBackoff.Reset()
			}
		}
		var slot <-chan struct{}
		starved := o.parkedNeedSlot && o.cursorKnown && !now.Before(o.retryAt)
		begins := o.chunk != nil && !o.chunk.committing && o.chunk.next < len(o.chunk.rows)
		if (starved || begins) && o.mayStartCalls() {
			slot = o.sender.slots.freed
		}
		timer.Reset(time.Until(o.nextDue()))
		select {
		case <-slot:
			switch {
			case o.sender.acquireSlots(1) == 0: // another lane was first
			case starved && !(begins && o.parkedHadSlot):
				o.parkedHadSlot = true
				if err := o.settleAndPick(true, 1); err != nil {
					if err = o.handleDBError(err); err != nil {
						return err
					}
				}
			default:
				o.parkedHadSlot = false
				o.startRows()
			}
		case <-o.returned.signal:
			o.collectReturned()
		case <-timer.C:
		case w := <-o.wakeups:
			o.newRows = o.newRows || w.Fresh
			if w.Due {
				o.parkedDueIn(0) // perhaps by an operator, long before the next one known here
			}
			if w.Lost && o.chunk == nil { // otherwise the chunk's turn finds out
				o.cursorKnown, o.parkedDue, o.swept = false, true, false
				o.parkedDueAt = time.Time{}
			}
		case <-halted:
			halted = nil
			o.drainUntil = time.Now().Add(o.sender.cfg.DrainTimeout)
		case <-o.ctx.Done():
		}
	}
	return nil
}

// drained reports whether nothing is left to be settled before the lane is given back.
func (o *laneOwner) drained() bool {
	return o.underWay == 0 && o.chunk == nil && len(o.returnedParked) == 0
}

// mayStartCalls reports whether calls may be started.
func (o *laneOwner) mayStartCalls() bool { return o.drainUntil.IsZero() && o.sender.acceptsCalls() }

// nextDue returns when there is something to do if nothing else happens.
func (o *laneOwner) nextDue() time.Time {
	next := time.Now().Add(o.sender.cfg.LeaseTTL)
	earlier := func(at time.Time) {
		if at.Before(o.retryAt) {
			at = o.retryAt
		}
		if at.Before(next) {
			next = at
		}
	}
	stopping := !o.drainUntil.IsZero()
	if stopping && o.drained() {
		return time.Now()
	}
	if c := o.chunk; c != nil {
		switch {
		case c.committing, c.finished(o.mayStartCalls()):
			earlier(time.Time{})
		case c.underWay > 0:
			earlier(c.lastActivity.Add(chunkPatience))
		}
		if c.next < len(c.rows) && !stopping && !o.sender.acceptsCalls() {
			earlier(time.Now().Add(o.sender.cfg.PollInterval)) // until the sink takes calls again
		}
	} else if o.newRows && !stopping {
		earlier(time.Now().Add(o.pollWait()))
	}
	if len(o.returnedParked) > 0 || len(o.keysToPromote) > 0 || !o.swept {
		earlier(time.Time{})
	}
	if o.parkedDue && !stopping {
		at := time.Now().Add(o.pollWait())
		if o.parkedDueAt.After(at) {
			at = o.parkedDueAt
		}
		earlier(at)
	}
	if stopping && o.drainUntil.Before(next) {
		next = o.drainUntil
	}
	return next
}

// pollWait is how long to wait before existing work is looked at: 0 if the sink takes calls.
func (o *laneOwner) pollWait() time.Duration {
	if o.sender.acceptsCalls() {
		return 0
	}
	return o.sender.cfg.PollInterval
}

// runDue does what is due, at most one transaction of each kind.
func (o *laneOwner) runDue(now time.Time) error {
	if !o.cursorKnown {
		if err := o.loadCursor(); err != nil {
			return err
		}
	}
	if !now.Before(o.sweepAt) {
		o.swept, o.sweepAt = false, now.Add(sweepEvery)
	}
	if len(o.keysToPromote) > 0 || !o.swept {
		if err := o.promoteBlockedCalls(); err != nil {
			return err
		}
	}
	open := o.mayStartCalls()
	if due := o.parkedDue && open && !now.Before(o.parkedDueAt); due || len(o.returnedParked) > 0 {
		if err := o.settleAndPick(due, 0); err != nil {
			return err
		}
	}
	if c := o.chunk; c != nil {
		if !c.committing && !c.finished(open) && (c.underWay == 0 || now.Sub(c.lastActivity) < chunkPatience) {
			return nil
		}
		return o.finishChunk()
	}
	if o.newRows && open {
		return o.readPass()
	}
	return nil
}

// collectReturned takes in the calls that have returned, and begins those that waited for them, in
// the same slots.
func (o *laneOwner) collectReturned() {
	now, free := time.Now(), 0
	var next []*callAttempt
	for _, a := range o.returned.takeAll() {
		if behind := o.callReturned(a, now, free); behind != nil {
			next = append(next, behind)
		} else {
			free++
		}
	}
	o.startCalls(next...)
	o.sender.slots.release(free)
}

// callReturned takes in a call that has returned, after free others gave up their slots. It returns
// the call that may be made in its place, or nil if there is none.
func (o *laneOwner) callReturned(a *callAttempt, now time.Time, free int) *callAttempt {
	o.underWay--
	if a.parked != 0 {
		o.returnedParked = append(o.returnedParked, a)
		return nil
	}
	a.state = attemptReturned
	c := o.chunk
	if c == nil || a.chunk != c {
		// The chunk did not wait for it: it is in the parked table by now, and its settlement finds
		// it there by its row.
		o.returnedParked = append(o.returnedParked, a)
		return nil
	}
	c.underWay--
	c.lastActivity = now
	if next := c.nextOfKey(a); next != nil && o.drainUntil.IsZero() && o.sender.keepsSlot(free) {
		return next
	}
	return nil
}

// handleDBError handles the error of a transaction. If the lane was taken over, the owner stops. A
// fault that waiting does not heal is returned. Any other error is reported and followed by another
// try. The chunk stays meanwhile, with its calls under way or returned. If the transaction has
// committed after all, the next try finds the version that it wrote.
func (o *laneOwner) handleDBError(err error) error {
	switch {
	case guard.SQLState(err) == codeRebase:
		return fmt.Errorf("%w: %w", ErrRebase, err)
	case needsOperator(err), errors.Is(err, errRowsGone), errors.Is(err, ErrRebase):
		return err
	case errors.Is(err, errReplaced):
		o.endLease(errReplaced)
		return nil
	}
	d := o.dbBackoff.NextBackOff()
	o.sender.emit.failed(err, d)
	o.retryAt = time.Now().Add(d)
	return nil
}

// awaitCalls waits until every call has returned, so that this relay never has two calls of one row
// under way. Their results are dropped: the lease is over, and the rows are sent again under the
// same keys.
func (o *laneOwner) awaitCalls() error {
	halted := o.releaseRequested
	var grace <-chan time.Time
	for o.underWay > 0 {
		select {
		case <-o.returned.signal:
			n := len(o.returned.takeAll())
			o.underWay -= n
			o.sender.slots.release(n)
		case <-halted:
			halted = nil
			timer := time.NewTimer(o.sender.returnGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return fmt.Errorf("%w: %d calls %v after their context ended", ErrStuck, o.underWay, o.sender.returnGrace)
		}
	}
	return nil
}
