package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// laneOwner works on a lane for as long as this relay holds it. Its goroutine reads the lane's
// passes, journals, settles and tries parked calls again, one transaction after the other. Calls
// are made in goroutines of their own, which change nothing but their callAttempt.
type laneOwner struct {
	sink       *relaySink
	lane       *heldLane
	reader     *passReader
	chunk      *chunk // of the pass, whose calls are being made; nil: none
	parked     *parkedCalls
	promotions *keyPromotions
	calls      *laneCalls
	wakeups    chan wakeup
	err        error // result of run, read by the sender

	parkedHadSlot bool // the last slot went to a parked call: the next one is for a new call
	retry         dbRetry
	drainUntil    time.Time // zero: not stopping
	callsCutOff   bool      // the drain is over
}

// dbRetry is when to try again after a database error.
type dbRetry struct {
	at    time.Time
	waits *backoff.ExponentialBackOff
}

// postpone emits an error and puts the next try off.
func (r *dbRetry) postpone(emit emitter, err error) {
	d := primary.Wait(err, r.waits.NextBackOff())
	emit.failed(err, d)
	r.at = time.Now().Add(d)
}

func newLaneOwner(ctx context.Context, sink *relaySink, l *lease.Lease, number int16) *laneOwner {
	lane := holdLane(ctx, sink, l, number)
	promotions := &keyPromotions{lane: lane}
	return &laneOwner{
		sink: sink, lane: lane,
		reader:     &passReader{lane: lane, newRows: true, expectMany: true},
		parked:     newParkedCalls(lane, promotions),
		promotions: promotions,
		calls:      newLaneCalls(lane),
		wakeups:    make(chan wakeup, 1),
		retry:      dbRetry{waits: sink.newBackoff()},
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
	o.sink.halts.set(o.lane.number, nil)
	cause := o.lane.stop()
	o.calls.cutOff()
	if cause != nil {
		o.lane.emitLost(cause)
	}
	if stuck := o.calls.await(); stuck != nil {
		return errors.Join(err, stuck) // without a release, because the call may still be going on
	}
	if errors.Is(cause, errReplaced) {
		return err
	}
	if failed := o.lane.release(); failed != nil {
		o.sink.emit.failed(fmt.Errorf("releasing lane %d, whose lease ends by itself: %w", o.lane.number, failed), 0)
	} else if cause == nil {
		o.lane.emitLost(nil)
	}
	return err
}

// serve is the loop. It returns when the lease has ended, or when the lane is to be given back and
// everything is settled. For a fault that waiting does not heal it returns an error.
func (o *laneOwner) serve() error {
	releaseRequested := o.lane.releaseRequested
	timer := time.NewTimer(0)
	defer timer.Stop()
	for o.lane.ctx.Err() == nil {
		now := time.Now()
		if o.stopped(now) {
			return nil
		}
		if err := o.runDue(now); err != nil {
			return err
		}
		parkedNeedSlot := o.parked.needSlot && o.reader.cursorKnown && !now.Before(o.retry.at)
		rowsNeedSlot := o.chunk != nil && !o.chunk.committing && o.chunk.hasNext()
		var slot <-chan struct{}
		if (parkedNeedSlot || rowsNeedSlot) && o.mayStartCalls() && !o.sink.waitsForRate() {
			slot = o.sink.slots.freed
		}
		timer.Reset(time.Until(o.nextDue()))
		select {
		case <-slot:
			if err := o.useSlot(parkedNeedSlot, rowsNeedSlot); err != nil {
				return err
			}
		case <-o.calls.returned.signal:
			o.collectReturned()
		case <-timer.C:
		case w := <-o.wakeups:
			o.handleWakeup(w)
		case <-releaseRequested:
			releaseRequested = nil
			o.drainUntil = time.Now().Add(o.sink.cfg.DrainTimeout)
		case <-o.lane.ctx.Done():
		}
	}
	return nil
}

// stopped reports whether the lane is to be given back now: if everything is settled, or if calls
// were cut off at the end of the drain and are not settled a while later.
func (o *laneOwner) stopped(now time.Time) bool {
	switch {
	case o.drainUntil.IsZero():
		return false
	case o.drained():
		return true
	case now.Before(o.drainUntil):
		return false
	case o.callsCutOff:
		return true // a sink does not return (laneCalls.await says so), or the database does not answer
	}
	o.callsCutOff, o.drainUntil = true, now.Add(o.sink.returnGrace)
	o.calls.cutOff() // the results come in at once, and the loop settles them
	return false
}

// drained reports whether nothing is left to be settled before the lane is given back.
func (o *laneOwner) drained() bool {
	return o.calls.underWay == 0 && o.chunk == nil && len(o.parked.returned) == 0
}

// mayStartCalls reports whether calls may be started.
func (o *laneOwner) mayStartCalls() bool { return o.drainUntil.IsZero() && o.sink.slots.open() }

// handleWakeup notes what there is to do.
func (o *laneOwner) handleWakeup(w wakeup) {
	o.reader.newRows = o.reader.newRows || w.Fresh
	o.parked.noteWaiting(w.waiting...)
	if w.Due {
		o.parked.dueIn(0) // perhaps by an operator, long before the next one known here
	}
	if w.Lost && o.chunk == nil { // otherwise the move of the cursor after the chunk finds out
		o.reader.cursorKnown = false
		o.promotions.sweep()
		o.parked.due, o.parked.dueAt = true, time.Time{}
	}
}

// useSlot makes a parked call or a new one in a slot that became free, in turn if there are both.
func (o *laneOwner) useSlot(parkedNeedSlot, rowsNeedSlot bool) error {
	if o.sink.slots.acquire(1) == 0 {
		return nil // another lane was first
	}
	o.parkedHadSlot = parkedNeedSlot && !(rowsNeedSlot && o.parkedHadSlot)
	if !o.parkedHadSlot {
		o.startRows()
		return nil
	}
	if err := o.tryParkedCalls(true, 1); err != nil {
		return o.handleDBError(err)
	}
	return nil
}

// nextDue returns when there is something to do if nothing else happens.
func (o *laneOwner) nextDue() time.Time {
	next := time.Now().Add(o.sink.cfg.LeaseTTL)
	earlier := func(at time.Time) {
		if at.Before(o.retry.at) {
			at = o.retry.at
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
		if c.hasNext() && !stopping && o.pollWait() > 0 {
			earlier(time.Now().Add(o.pollWait())) // until the sink takes calls again
		}
		if at, waits := o.chunkWaits(); waits {
			earlier(at)
		}
	} else if o.reader.newRows && !stopping {
		earlier(time.Now().Add(o.pollWait()))
	}
	if len(o.parked.returned) > 0 || o.promotions.pending() {
		earlier(time.Time{})
	}
	if o.mayRelease() {
		earlier(time.Now().Add(o.pollWait()))
	}
	if o.parked.due && !stopping {
		at := time.Now().Add(o.pollWait())
		if o.parked.dueAt.After(at) {
			at = o.parked.dueAt
		}
		earlier(at)
	}
	if stopping && o.drainUntil.Before(next) {
		next = o.drainUntil
	}
	return next
}

// pollWait is how long to wait before existing work is looked at: 0 if the sink takes calls. If the
// sink's rate has a permit before, the sender wakes the lane.
func (o *laneOwner) pollWait() time.Duration {
	if o.sink.slots.open() && !o.sink.waitsForRate() {
		return 0
	}
	return o.sink.cfg.PollInterval
}

// runDue does what is due, unless the wait after a database error goes on. It returns an error for
// a fault that waiting does not heal.
func (o *laneOwner) runDue(now time.Time) error {
	if now.Before(o.retry.at) {
		return nil
	}
	if err := o.runTransactions(now); err != nil {
		return o.handleDBError(err)
	}
	o.sink.halts.set(o.lane.number, nil)
	o.retry.waits.Reset()
	return nil
}

// runTransactions does what is due, at most one transaction of each kind.
func (o *laneOwner) runTransactions(now time.Time) error {
	if !o.reader.cursorKnown {
		if err := o.reader.loadCursor(); err != nil {
			return err
		}
		o.chunk = nil
	}
	o.promotions.scheduleSweep(now)
	if o.promotions.pending() {
		n, err := o.promotions.run()
		if err != nil {
			return err
		}
		if n > 0 {
			o.parked.dueIn(0)
		}
	}
	open := o.mayStartCalls()
	due := o.parked.due && !now.Before(o.parked.dueAt) || o.mayRelease()
	if due = due && open; due || len(o.parked.returned) > 0 {
		if err := o.tryParkedCalls(due, 0); err != nil {
			return err
		}
	}
	switch {
	case o.chunk != nil && (o.chunk.toBeCommitted(now, open) || o.chunkOutlived(now)):
		return o.finishChunk()
	case o.chunk == nil && o.reader.newRows && open && !o.sink.waitsForRate():
		return o.readPass()
	}
	return nil
}

// mayRelease reports whether calls that wait for a rate may be made now, if there is a slot.
func (o *laneOwner) mayRelease() bool {
	return len(o.parked.waiting) > 0 && !o.parked.needSlot && o.mayStartCalls() && o.parked.releasable()
}

// chunkLife is how long a chunk may wait for the sink's rate before it is read anew, and at most a
// quarter of the window of its keys.
const chunkLife = 10 * time.Second

// chunkOutlived reports whether the chunk has waited for the sink's rate for too long.
func (o *laneOwner) chunkOutlived(now time.Time) bool {
	until, waits := o.chunkWaits()
	return waits && !now.Before(until)
}

// chunkWaits reports whether the whole rest of the chunk waits for the sink's rate, and until when
// it may. Then it is read anew: the windows of its keys count from when it was read, and none of
// the calls that wait was made (O14).
func (o *laneOwner) chunkWaits() (until time.Time, waits bool) {
	waits = o.chunk.hasNext() && o.chunk.underWay == 0 && o.sink.rates.available(allCalls) == 0
	return o.chunk.readAt.Add(min(chunkLife, o.sink.limits.startWindow()/4)), waits
}

// tryParkedCalls settles parked calls, picks due ones, and makes them.
func (o *laneOwner) tryParkedCalls(pick bool, slots int) error {
	calls, err := o.parked.settleAndPick(pick, slots)
	o.calls.start(calls...)
	return err
}

// collectReturned takes in the calls that have returned, and begins those that waited for them, in
// the same slots.
func (o *laneOwner) collectReturned() {
	now, free := time.Now(), 0
	var next []*callAttempt
	for _, a := range o.calls.take() {
		if follower := o.callReturned(a, now, free); follower != nil {
			next = append(next, follower)
		} else {
			free++
		}
	}
	o.calls.start(next...)
	o.sink.slots.release(free)
}

// callReturned takes in a call that has returned, after free others gave up their slots. It returns
// the call that may be made in its place, or nil if there is none.
func (o *laneOwner) callReturned(a *callAttempt, now time.Time, free int) *callAttempt {
	if a.parked == 0 {
		a.state = attemptReturned
	}
	c := o.chunk
	if c == nil || a.chunk != c {
		// It was picked, or the chunk did not wait for it. Then it is in the parked table by now,
		// and its settlement finds it there by its row.
		o.parked.returned = append(o.parked.returned, a)
		return nil
	}
	c.underWay--
	c.lastActivity = now
	next := c.nextOfKey(a)
	if next == nil || !o.drainUntil.IsZero() || !o.sink.slots.keep(free) {
		return nil
	}
	if !next.takePermit(o.sink.rates) {
		o.sink.rates.refund()
		c.setFollowerAside(next)
		return nil
	}
	return next
}

// handleDBError handles the error of a transaction. If the lane was taken over, the owner stops. If
// the log is another cluster's, the lane halts (O3): it looks again until an operator has rebased.
// A fault that waiting does not heal is returned. Any other error is emitted and followed by
// another try. The chunk stays meanwhile, with its calls under way or returned. If the transaction
// has committed after all, the next try finds the version that it wrote.
func (o *laneOwner) handleDBError(err error) error {
	switch {
	case guard.SQLState(err) == codeRebase || errors.Is(err, ErrRebase):
		err = fmt.Errorf("%w: lane %d of sink %s", ErrRebase, o.lane.number, o.sink.name)
		if o.sink.halts.set(o.lane.number, err) {
			o.sink.cfg.Logger.Error("onlyonce: a lane of the outbox has halted", "sink", o.sink.name, "lane", o.lane.number, "error", err)
		}
		o.reader.cursorKnown = o.chunk != nil // or else it is compared again, and the lane goes on once it was rebased
	case needsOperator(err), errors.Is(err, errRowsGone):
		return err
	case errors.Is(err, errReplaced):
		o.lane.end(errReplaced)
		return nil
	}
	o.retry.postpone(o.sink.emit, err)
	return nil
}
