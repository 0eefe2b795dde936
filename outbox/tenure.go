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

// Reasons why a tenure ends early.
var (
	errReplaced = errors.New("another relay took the lease over")
	errExpired  = errors.New("the lease was not renewed in time")
)

// tenure is the time for which a relay holds a lane. One goroutine reads the lane's passes,
// journals, settles and tries parked calls again, one transaction after the other. Calls are made
// in goroutines of their own, which change nothing but their flights.
type tenure struct {
	s     *sender
	lane  int16
	lease *lease.Lease
	err   error // result of run, read by the sender

	// ctx ends with the lease, and calls end with it. It does not end when Run's context does, so
	// that work under way is finished.
	ctx context.Context
	end context.CancelCauseFunc
	// callCtx is the context of calls. The end of the drain cuts it off while the lease is still
	// held.
	callCtx  context.Context
	endCalls context.CancelFunc
	// deadline is when the relay stops by itself, by its monotonic clock; watch ends ctx then.
	deadline atomic.Pointer[time.Time]
	watch    *time.Timer

	halting atomic.Bool // the lane is to be given back
	halted  chan struct{}
	kick    chan news

	cursor   cursor
	seen     atomic.Int64 // cursor.version, for the sender
	known    bool         // cursor is what the database has
	refs     []ref        // rows of the pass that are not fetched yet
	more     bool         // the pass may hold rows after refs
	wide     bool         // the next pass may hold many rows
	chunk    *chunk
	fresh    bool // there are rows after the pass, or may be
	due      bool // parked calls are due, or may be
	dueAt    time.Time
	starved  bool // parked calls are due, and there was no slot for them
	fed      bool // the last slot went to a parked call: the next one is for a new call
	returned returns
	calling  int // calls under way: those of the chunk and those of parked rows

	retries map[int64]*flight // parked rows under way, by their ids: none of them is picked again
	late    map[int64]*flight // rows of the log that their chunk did not wait for, likewise
	done    []*flight         // of both, returned and not settled
	promote []uuid.UUID       // ordering keys whose next row may be tried
	swept   bool
	// When blocked keys are swept again: a process may die after it settled a call and before it
	// promoted.
	sweepAt time.Time

	notBefore time.Time // after a database error, or while the sink takes no calls
	pause     *backoff.ExponentialBackOff
	stopAt    time.Time // when the drain is over; zero: not stopping
	cut       bool      // the drain is over, calls were cut off
}

func newTenure(ctx context.Context, s *sender, l *lease.Lease, lane int16) *tenure {
	t := &tenure{
		s: s, lane: lane, lease: l,
		halted: make(chan struct{}), kick: make(chan news, 1),
		returned: returns{there: make(chan struct{}, 1)},
		retries:  map[int64]*flight{}, late: map[int64]*flight{},
		due: true, fresh: true, wide: true,
		pause: s.pauses(),
	}
	t.ctx, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.callCtx, t.endCalls = context.WithCancel(t.ctx)
	t.watch = time.AfterFunc(s.cfg.LeaseTTL, func() { t.end(errExpired) })
	t.extend(l.Sent)
	return t
}

// extend moves the deadline (O5). It counts from when the renewal was *sent*, which is before the
// database started to count the ttl by its own clock. A tenth of the ttl is kept for clocks that do
// not run alike.
func (t *tenure) extend(sent time.Time) {
	deadline := sent.Add(t.s.cfg.LeaseTTL - t.s.cfg.LeaseTTL/10)
	t.deadline.Store(&deadline)
	t.watch.Reset(time.Until(deadline))
}

// halt makes the tenure give the lane back: no new call is started.
func (t *tenure) halt() {
	if !t.halting.Swap(true) {
		close(t.halted)
	}
}

// notify passes on what a scout has found.
func (t *tenure) notify(n news) {
	select {
	case t.kick <- n:
	default: // one is waiting; the next poll finds what only this one says
	}
}

// run serves until the lease ends or the lane is to be given back. It returns an error for faults
// that waiting does not heal.
func (t *tenure) run() error {
	err := t.serve()
	cause := context.Cause(t.ctx) // nil: the lease is still held
	t.watch.Stop()
	t.end(nil)
	t.endCalls()
	if cause != nil {
		t.s.tell.lease(LeaseChange{Lane: int(t.lane), Epoch: t.lease.Epoch, Err: cause})
	}
	if stuck := t.join(); stuck != nil {
		return errors.Join(err, stuck) // without a release, because the call may still be going on
	}
	if errors.Is(cause, errReplaced) {
		return err
	}
	bounded, cancel := t.s.detached(t.ctx)
	defer cancel()
	released := fault.Point(fault.RelayReleasing)
	if released == nil {
		released = t.lease.Release(bounded, t.s.pool)
	}
	if released != nil {
		t.s.tell.failed(fmt.Errorf("releasing lane %d, whose lease ends by itself: %w", t.lane, released), 0)
	} else if cause == nil {
		t.s.tell.lease(LeaseChange{Lane: int(t.lane), Epoch: t.lease.Epoch})
	}
	return err
}

// serve is the loop. It returns when the lease has ended, or when the lane is to be given back and
// everything is settled. For a fault that waiting does not heal it returns an error.
func (t *tenure) serve() error {
	halted := t.halted
	timer := time.NewTimer(0)
	defer timer.Stop()
	for t.ctx.Err() == nil {
		now := time.Now()
		if !t.stopAt.IsZero() {
			if t.drained() {
				return nil
			}
			if !now.Before(t.stopAt) {
				if t.cut {
					// A sink does not return (join says so), or the database does not answer.
					return nil
				}
				t.cut, t.stopAt = true, now.Add(t.s.joinGrace)
				t.endCalls() // the results come in at once and are settled below
			}
		}
		if !now.Before(t.notBefore) {
			if err := t.step(now); err != nil {
				if err = t.failed(err); err != nil {
					return err
				}
			} else {
				t.pause.Reset()
			}
		}
		var slot <-chan struct{}
		starved := t.starved && t.known && !now.Before(t.notBefore)
		begins := t.chunk != nil && !t.chunk.ending && t.chunk.next < len(t.chunk.rows)
		if (starved || begins) && t.starting() {
			slot = t.s.slots.freed
		}
		timer.Reset(time.Until(t.next()))
		select {
		case <-slot:
			switch {
			case t.s.take(1) == 0: // another lane was first
			case starved && !(begins && t.fed):
				t.fed = true
				if err := t.retryTurn(true, 1); err != nil {
					if err = t.failed(err); err != nil {
						return err
					}
				}
			default:
				t.fed = false
				t.startNext()
			}
		case <-t.returned.there:
			t.land()
		case <-timer.C:
		case n := <-t.kick:
			t.fresh = t.fresh || n.Fresh
			if n.Due {
				t.dueIn(0) // perhaps by an operator, long before the next one known here
			}
			if n.Lost && t.chunk == nil { // otherwise the chunk's turn finds out
				t.known, t.due, t.swept = false, true, false
				t.dueAt = time.Time{}
			}
		case <-halted:
			halted = nil
			t.stopAt = time.Now().Add(t.s.cfg.DrainTimeout)
		case <-t.ctx.Done():
		}
	}
	return nil
}

// drained reports whether nothing is left to be settled before the lane is given back.
func (t *tenure) drained() bool { return t.calling == 0 && t.chunk == nil && len(t.done) == 0 }

// starting reports whether calls may be started.
func (t *tenure) starting() bool { return t.stopAt.IsZero() && t.s.open() }

// next returns when there is something to do if nothing else happens.
func (t *tenure) next() time.Time {
	next := time.Now().Add(t.s.cfg.LeaseTTL)
	earlier := func(at time.Time) {
		if at.Before(t.notBefore) {
			at = t.notBefore
		}
		if at.Before(next) {
			next = at
		}
	}
	stopping := !t.stopAt.IsZero()
	if stopping && t.drained() {
		return time.Now()
	}
	if c := t.chunk; c != nil {
		switch {
		case c.ending, c.finished(t.starting()):
			earlier(time.Time{})
		case c.flying > 0:
			earlier(c.last.Add(patience))
		}
		if c.next < len(c.rows) && !stopping && !t.s.open() {
			earlier(time.Now().Add(t.s.cfg.PollInterval)) // until the sink takes calls again
		}
	} else if t.fresh && !stopping {
		earlier(time.Now().Add(t.closedFor()))
	}
	if len(t.done) > 0 || len(t.promote) > 0 || !t.swept {
		earlier(time.Time{})
	}
	if t.due && !stopping {
		at := time.Now().Add(t.closedFor())
		if t.dueAt.After(at) {
			at = t.dueAt
		}
		earlier(at)
	}
	if stopping && t.stopAt.Before(next) {
		next = t.stopAt
	}
	return next
}

// closedFor is how long to wait before existing work is looked at: 0 if the sink takes calls.
func (t *tenure) closedFor() time.Duration {
	if t.s.open() {
		return 0
	}
	return t.s.cfg.PollInterval
}

// step does what is due, at most one transaction of each kind.
func (t *tenure) step(now time.Time) error {
	if !t.known {
		if err := t.load(); err != nil {
			return err
		}
	}
	if !now.Before(t.sweepAt) {
		t.swept, t.sweepAt = false, now.Add(sweepEvery)
	}
	if len(t.promote) > 0 || !t.swept {
		if err := t.promoteBlocked(); err != nil {
			return err
		}
	}
	open := t.starting()
	if due := t.due && open && !now.Before(t.dueAt); due || len(t.done) > 0 {
		if err := t.retryTurn(due, 0); err != nil {
			return err
		}
	}
	if c := t.chunk; c != nil {
		if !c.ending && !c.finished(open) && (c.flying == 0 || now.Sub(c.last) < patience) {
			return nil
		}
		return t.finish()
	}
	if t.fresh && open {
		return t.freeze()
	}
	return nil
}

// land takes in the calls that have returned, and begins those that waited for them, in the same
// slots.
func (t *tenure) land() {
	now, free := time.Now(), 0
	var next []*flight
	for _, f := range t.returned.take() {
		if behind := t.landed(f, now, free); behind != nil {
			next = append(next, behind)
		} else {
			free++
		}
	}
	t.launch(next...)
	t.s.slots.give(free)
}

// landed takes in a call that has returned, after free others gave up their slots. It returns the
// call that may be made in its place, or nil if there is none.
func (t *tenure) landed(f *flight, now time.Time, free int) *flight {
	t.calling--
	if f.parked != 0 {
		t.done = append(t.done, f)
		return nil
	}
	f.state = flightDone
	c := t.chunk
	if c == nil || f.chunk != c {
		// The chunk did not wait for it: it is in the parked table by now, and its settlement finds
		// it there by its row.
		t.done = append(t.done, f)
		return nil
	}
	c.flying--
	c.last = now
	if next := c.followers(f); next != nil && t.stopAt.IsZero() && t.s.keeps(free) {
		return next
	}
	return nil
}

// failed handles the error of a transaction. If the lane was taken over, the tenure ends. A fault
// that waiting does not heal is returned. Any other error is reported and followed by another try.
// The chunk stays meanwhile, with its calls under way or returned. If the transaction has committed
// after all, the next try finds the version that it wrote.
func (t *tenure) failed(err error) error {
	switch {
	case guard.SQLState(err) == codeRebase:
		return fmt.Errorf("%w: %w", ErrRebase, err)
	case incurable(err), errors.Is(err, errGone), errors.Is(err, ErrRebase):
		return err
	case errors.Is(err, errReplaced):
		t.end(errReplaced)
		return nil
	}
	d := t.pause.NextBackOff()
	t.s.tell.failed(err, d)
	t.notBefore = time.Now().Add(d)
	return nil
}

// join waits until every call has returned, so that this relay never has two calls of one row under
// way. Their results are dropped: the lease is over, and the rows are sent again under the same
// keys.
func (t *tenure) join() error {
	halted := t.halted
	var grace <-chan time.Time
	for t.calling > 0 {
		select {
		case <-t.returned.there:
			n := len(t.returned.take())
			t.calling -= n
			t.s.slots.give(n)
		case <-halted:
			halted = nil
			timer := time.NewTimer(t.s.joinGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return fmt.Errorf("%w: %d calls %v after their context ended", ErrStuck, t.calling, t.s.joinGrace)
		}
	}
	return nil
}
