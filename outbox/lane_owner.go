package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// laneOwner works on a lane for as long as this relay holds it. Its goroutine runs five clocks, one
// after the other: calls that are overdue, the cursor, promotions, parked calls, and the pass.
// Calls are made in goroutines of their own, which change nothing but their callAttempt.
type laneOwner struct {
	sink       *relaySink
	lane       *heldLane
	pass       *lanePass
	parked     *parkedCalls
	promotions *keyPromotions
	calls      *laneCalls
	clocks     clocks
	wakeups    chan wakeup
	err        error // result of run, read by the sender

	parkedHadSlot bool      // the last slot went to a parked call: the next one is for a new call
	drainUntil    time.Time // zero: not stopping
	callsCutOff   bool      // the drain is over
}

// wakeup is a row of pollWorkSQL, or what else there is to do in a lane.
type wakeup struct {
	Lane       int16
	Fresh, Due bool
	Lost       bool // a failover has lost commits of the cursor, and no new row need follow

	waiting []gate.Key // whose calls wait for a rate in the lane
}

func newLaneOwner(ctx context.Context, sink *relaySink, l *lease.Lease, number int16) *laneOwner {
	lane := holdLane(ctx, sink, l, number)
	o := &laneOwner{
		sink:       sink,
		lane:       lane,
		promotions: newKeyPromotions(lane),
		calls:      newLaneCalls(lane),
		wakeups:    make(chan wakeup, 1),
	}
	o.parked = newParkedCalls(lane, o.promotions, o.calls)
	o.pass = &lanePass{
		lane:   lane,
		reader: &passReader{lane: lane, firstRead: readRefList},
		parked: o.parked,
		calls:  o.calls,
	}
	o.clocks = clocks{waits: primary.Backoff(sink.cfg.LeaseTTL), all: pace.Clocks{
		{Due: o.calls.due, Run: o.calls.giveUp},
		{Due: o.pass.reader.due, Run: o.pass.reader.loadCursor},
		{Due: o.promotions.due, Run: o.promote},
		{Due: o.parked.due, Run: o.parked.run},
		{Due: o.pass.due, Run: o.pass.run},
	}}
	return o
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
	o.calls.await()
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
		if err := o.runDue(time.Now()); err != nil {
			return err
		}
		now := time.Now()
		if o.stopped(now) {
			return nil
		}
		next := o.clocks.next(now)
		var slot <-chan struct{}
		parkedNeedSlot := o.parked.needSlot && o.pass.reader.state != passUnknown && !now.Before(o.clocks.retryAt)
		rowsNeedSlot := o.pass.needsSlot()
		if rowsNeedSlot && o.pass.waitsForRoom() {
			rowsNeedSlot = false
			if look := now.Add(lookForRoom); look.Before(next) {
				next = look
			}
		}
		switch {
		case !o.drainUntil.IsZero():
			if o.drainUntil.Before(next) {
				next = o.drainUntil
			}
		case !parkedNeedSlot && !rowsNeedSlot:
		case o.sink.gate.TakesCalls():
			slot = o.sink.gate.Freed()
		default:
			if poll := now.Add(o.sink.cfg.PollInterval); poll.Before(next) {
				next = poll
			}
		}
		timer.Reset(time.Until(next))
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
	case o.calls.underWay == 0 && o.pass.chunk == nil && len(o.parked.returned) == 0:
		return true
	case now.Before(o.drainUntil):
		return false
	case o.callsCutOff:
		return true // the database does not answer
	}
	o.callsCutOff = true
	o.drainUntil = now.Add(o.sink.returnGrace)
	o.calls.cutOff() // the results come in at once, and the loop settles them
	return false
}

// handleWakeup notes what there is to do.
func (o *laneOwner) handleWakeup(w wakeup) {
	if w.Fresh {
		o.pass.reader.noteNewRows()
	}
	o.parked.noteWaiting(w.waiting...)
	if w.Due {
		o.parked.dueIn(0) // perhaps by an operator, long before the next one known here
	}
	if w.Lost && o.pass.chunk == nil { // otherwise the move of the cursor after the chunk finds out
		o.pass.reader.state = passUnknown
		o.promotions.sweep()
		o.parked.dueAt = time.Time{}
	}
}

// useSlot makes a parked call, or new ones, in slots that became free, in turn if there are both.
func (o *laneOwner) useSlot(parkedNeedSlot, rowsNeedSlot bool) error {
	parkedNext := parkedNeedSlot && !(rowsNeedSlot && o.parkedHadSlot)
	wanted := 1
	if !parkedNext {
		wanted = o.pass.wantedSlots()
	}
	tickets := o.sink.gate.Take(wanted)
	if len(tickets) == 0 {
		return nil // another lane was first
	}
	o.parkedHadSlot = parkedNext
	if !o.parkedHadSlot {
		o.pass.startRows(tickets)
		return nil
	}
	if err := o.parked.turn(true, tickets); err != nil {
		return o.handleDBError(err)
	}
	return nil
}

// runDue runs the due clocks, unless the relay is backing off after a database error. It returns an
// error for a fault that waiting does not heal.
func (o *laneOwner) runDue(now time.Time) error {
	if now.Before(o.clocks.retryAt) {
		return nil
	}
	if err := o.clocks.run(now); err != nil {
		return o.handleDBError(err)
	}
	o.sink.halts.set(o.lane.number, nil)
	return nil
}

// promote makes parked calls due that waited for another one.
func (o *laneOwner) promote() error {
	n, err := o.promotions.run()
	if n > 0 {
		o.parked.dueIn(0)
	}
	return err
}

// collectReturned takes in the calls that have returned, ends their tickets, and begins those that
// waited for them, with the same tickets.
func (o *laneOwner) collectReturned() {
	type pair struct{ before, next *callAttempt }
	var pairs []pair
	var done []*gate.Ticket
	now := time.Now()
	for _, a := range o.calls.take() {
		if next := o.pass.callReturned(a, now); next != nil {
			pairs = append(pairs, pair{a, next})
			continue
		}
		done = append(done, a.ticket)
		a.ticket = nil
	}
	o.sink.gate.Done(done...)
	var follow []*callAttempt
	for _, p := range pairs {
		if o.pass.follow(p.before, p.next) {
			follow = append(follow, p.next)
		}
	}
	o.calls.start(follow...)
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
			o.sink.cfg.Logger.Error("onlyonce: a lane of the outbox has halted",
				"sink", o.sink.name, "lane", o.lane.number, "error", err)
		}
		if o.pass.chunk == nil { // it is compared again, and the lane goes on once it was rebased
			o.pass.reader.state = passUnknown
		}
	case needsOperator(err), errors.Is(err, errRowsGone):
		return err
	case errors.Is(err, errReplaced):
		o.lane.end(errReplaced)
		return nil
	}
	o.clocks.postpone(o.sink.emit, err)
	return nil
}
