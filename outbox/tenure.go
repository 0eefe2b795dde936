package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// purgeEvery is how often a relay looks for rows to delete.
const purgeEvery = time.Minute

// Reasons why a tenure ends early.
var (
	errReplaced = errors.New("another relay took the lease over")
	errExpired  = errors.New("the lease was not renewed in time")
)

// tenure is the time for which a worker holds its sink's lease. One goroutine renews, journals, settles and deletes, one
// statement after the other, so that its share lock on the lease (onlyonce.hold) never stands in the way of its own
// renewal; each call has a goroutine of its own, which touches nothing but its flight.
type tenure struct {
	w     *worker
	lease *lease
	// ctx ends with the lease, and calls with it. It does not end when Run's context does: work in hand is finished.
	ctx context.Context
	end context.CancelCauseFunc
	// calls are made under callCtx, which the end of the drain cuts off while the lease still stands.
	callCtx  context.Context
	endCalls context.CancelFunc
	// deadline is when the relay stops on its own, by its monotonic clock; watch ends ctx then.
	deadline atomic.Pointer[time.Time]
	watch    *time.Timer

	flights map[int64]*flight // picked and not yet settled: none of them is picked again
	calling int               // flights whose call has not returned
	results chan *flight      // has room for all of them, so that a call that returns late never blocks
	done    []*flight         // returned, to be settled in the next turn

	renewAt, pollAt, purgeAt time.Time
	notBefore                time.Time // after a database error
	pause                    *backoff.ExponentialBackOff
	stopAt                   time.Time // when the drain is over; zero: not stopping
	cut                      bool      // the drain is over, calls were cut off
}

// flight is one attempt at one row.
type flight struct {
	Delivery
	age      time.Duration // since the first attempt, by the database's clock
	notAfter time.Time     // when the call may no longer start; zero: no bound
	result   Result
}

func newTenure(ctx context.Context, w *worker, l *lease) *tenure {
	t := &tenure{
		w: w, lease: l,
		flights: map[int64]*flight{},
		results: make(chan *flight, w.cfg.Concurrency),
		renewAt: l.sent.Add(w.cfg.LeaseTTL / 3),
		pause:   w.pauses(),
	}
	t.ctx, t.end = context.WithCancelCause(context.WithoutCancel(ctx))
	t.callCtx, t.endCalls = context.WithCancel(t.ctx)
	t.watch = time.AfterFunc(time.Until(t.extend(l.sent)), func() { t.end(errExpired) })
	return t
}

// extend moves the deadline (O5). It counts from when the renewal was *sent*, which is before the database counted the
// ttl from its own clock, and keeps a tenth of the ttl for clocks that do not run alike.
func (t *tenure) extend(sent time.Time) time.Time {
	deadline := sent.Add(t.w.cfg.LeaseTTL - t.w.cfg.LeaseTTL/10)
	t.deadline.Store(&deadline)
	return deadline
}

// run serves until the lease or ctx ends. Its error is a fault that waiting does not heal.
func (t *tenure) run(ctx context.Context) error {
	err := t.serve(ctx)
	cause := context.Cause(t.ctx) // nil: the lease still stands
	t.watch.Stop()
	t.end(nil)
	t.endCalls()
	if cause != nil {
		t.w.tell.lease(LeaseChange{Epoch: t.lease.epoch, Err: cause})
	}
	if stuck := t.join(ctx); stuck != nil {
		return errors.Join(err, stuck) // and no release: the call may still be going on
	}
	if errors.Is(cause, errReplaced) {
		return err
	}
	bounded, cancel := t.w.detached(ctx)
	defer cancel()
	if released := t.lease.release(bounded, t.w.pool); released != nil {
		t.w.tell.failed(fmt.Errorf("releasing the lease, which ends by itself: %w", released), 0)
	} else if cause == nil {
		t.w.tell.lease(LeaseChange{Epoch: t.lease.epoch})
	}
	return err
}

// serve is the loop. It returns when the lease has ended, when ctx has and everything is settled, or with a fault that
// waiting does not heal.
func (t *tenure) serve(ctx context.Context) error {
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for t.ctx.Err() == nil {
		now := time.Now()
		stopping := !t.stopAt.IsZero()
		if stopping && len(t.flights) == 0 {
			return nil
		}
		if stopping && !now.Before(t.stopAt) {
			if t.cut {
				return nil // a sink does not return (join says so), or the database does not answer
			}
			t.cut, t.stopAt = true, now.Add(t.w.joinGrace)
			t.endCalls() // the results come in at once and are settled below
		}
		if err := t.step(now, stopping); err != nil {
			return err
		}

		timer.Reset(time.Until(t.next()))
		select {
		case f := <-t.results:
			t.landed(f)
		case <-timer.C:
		case <-t.w.wake:
			t.pollAt = now
		case <-stop:
			stop = nil
			t.stopAt = time.Now().Add(t.w.cfg.DrainTimeout)
		case <-t.ctx.Done():
		}
	}
	return nil
}

// step does what is due, at most one thing of each kind.
func (t *tenure) step(now time.Time, stopping bool) error {
	if !now.Before(t.renewAt) {
		if err := t.renew(); err != nil {
			return err
		}
	}
	if t.ctx.Err() != nil || now.Before(t.notBefore) {
		return nil //nolint:nilerr // serve sees that the lease has ended
	}
	want := 0
	if !stopping && (len(t.done) > 0 || !now.Before(t.pollAt)) {
		want = t.room(now)
	}
	if len(t.done) > 0 || want > 0 {
		return t.turn(want)
	}
	if !stopping && !now.Before(t.purgeAt) {
		return t.purge()
	}
	return nil
}

// room is how many rows to pick. It puts the next poll off if the sink wants none, or step would be due at once again.
func (t *tenure) room(now time.Time) int {
	limit := t.w.cfg.Concurrency
	if r, ok := t.w.sink.(Readier); ok {
		limit = min(limit, r.Ready())
	}
	if limit <= t.calling && t.calling < t.w.cfg.Concurrency {
		t.pollAt = now.Add(t.w.cfg.PollInterval)
	}
	return max(limit-t.calling, 0)
}

// next is when step has something to do, should nothing else happen.
func (t *tenure) next() time.Time {
	if !t.stopAt.IsZero() && len(t.flights) == 0 {
		return time.Time{} // serve ends
	}
	next := t.renewAt
	earlier := func(at time.Time) {
		if at.Before(t.notBefore) {
			at = t.notBefore
		}
		if at.Before(next) {
			next = at
		}
	}
	if len(t.done) > 0 {
		earlier(time.Time{})
	}
	if t.stopAt.IsZero() {
		if t.calling < t.w.cfg.Concurrency {
			earlier(t.pollAt)
		}
		earlier(t.purgeAt)
	} else if t.stopAt.Before(next) {
		next = t.stopAt
	}
	return next
}

// landed takes in a call that has returned, and whatever else has, so that they are settled together.
func (t *tenure) landed(f *flight) {
	for {
		t.calling--
		t.done = append(t.done, f)
		select {
		case f = <-t.results:
		default:
			return
		}
	}
}

// renew prolongs the lease.
func (t *tenure) renew() error {
	sent := time.Now()
	bounded, cancel := t.w.detached(t.ctx)
	defer cancel()
	ours, err := t.lease.renew(bounded, t.w.pool, t.w.cfg.LeaseTTL)
	switch {
	case err != nil:
		t.renewAt = time.Now().Add(t.w.cfg.LeaseTTL / 30)
		return t.failed(fmt.Errorf("renewing the lease: %w", err))
	case !ours:
		t.end(errReplaced)
		return nil
	}
	t.renewAt = sent.Add(t.w.cfg.LeaseTTL / 3)
	t.watch.Reset(time.Until(t.extend(sent)))
	return nil
}

// failed judges the error of a transaction: fenced off, a fault that waiting does not heal (returned), or one that is
// told and followed by another try.
func (t *tenure) failed(err error) error {
	if sqlState(err) == codeFenceLost {
		t.end(errReplaced)
		return nil
	}
	if incurable(err) {
		return err
	}
	d := t.pause.NextBackOff()
	t.w.tell.failed(err, d)
	t.notBefore = time.Now().Add(d)
	return nil
}

// start makes a call in a goroutine of its own.
func (t *tenure) start(f *flight) {
	f.mayStart = func() error {
		now := time.Now()
		if !now.Before(*t.deadline.Load()) || t.ctx.Err() != nil {
			return ErrLease
		}
		if !f.notAfter.IsZero() && !now.Before(f.notAfter) {
			return ErrWindow
		}
		return nil
	}
	t.calling++
	go func() {
		defer func() { t.results <- f }() // deferred: a sink may end its goroutine
		f.result = RetryLater("the sink ended its goroutine", nil)
		t.call(f)
	}()
}

// call makes one attempt. No transaction is open (T10).
func (t *tenure) call(f *flight) {
	defer func() {
		if v := recover(); v != nil {
			// A call that panics must not take every other call with it; its row keeps the type only, the
			// value may be a payload.
			f.result = RetryLater(fmt.Sprintf("the sink panicked (%T)", v), fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	if err := f.MayStart(); err != nil {
		f.result = RetryLater(err.Error(), err)
		return
	}
	ctx, cancel := context.WithTimeout(t.callCtx, t.w.limits.Timeout)
	defer cancel()
	f.result = t.w.sink.Send(ctx, &f.Delivery)
}

// join waits until every call has returned, so that this relay never has two calls of one row under way. Their results are
// dropped: the lease is over, and the rows are sent again under the same keys.
func (t *tenure) join(ctx context.Context) error {
	stop := ctx.Done()
	var grace <-chan time.Time
	for t.calling > 0 {
		select {
		case <-t.results:
			t.calling--
		case <-stop:
			stop = nil
			timer := time.NewTimer(t.w.joinGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return fmt.Errorf("%w: %d calls %v after their context ended", ErrStuck, t.calling, t.w.joinGrace)
		}
	}
	return nil
}
