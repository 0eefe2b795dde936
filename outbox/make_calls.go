package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/seal"
)

// laneCalls makes the calls of a lane, in goroutines of their own. It belongs to the goroutine of
// the lane's owner.
type laneCalls struct {
	lane *heldLane
	// ctx is the context of calls. The end of the drain cuts it off while the lease is still held.
	ctx      context.Context
	cutOff   context.CancelFunc
	underWay int // started, and not taken in yet
	returned returnedCalls
}

func newLaneCalls(lane *heldLane) *laneCalls {
	c := &laneCalls{lane: lane, returned: returnedCalls{signal: make(chan struct{}, 1)}}
	c.ctx, c.cutOff = context.WithCancel(lane.ctx)
	return c
}

// start makes calls, for each of which the caller has taken a slot. New calls are made together if
// the sink is a Batcher. Each other call is made in a goroutine of its own. A parked call is always
// made alone, so that if it brings the sink down again, it affects no other call.
func (c *laneCalls) start(calls ...*callAttempt) {
	var together []*callAttempt
	for _, a := range calls {
		a.lane, a.bound = c.lane, a
		if a.chunk != nil {
			a.state = attemptUnderWay
			a.chunk.underWay++
		}
		c.underWay++
		if c.lane.sink.batcher != nil && a.parked == 0 {
			together = append(together, a)
		} else {
			go c.makeCall(a)
		}
	}
	if len(together) > 0 {
		go c.makeBatch(together)
	}
}

// take returns the calls that have returned since it was called last. Their slots are the caller's.
func (c *laneCalls) take() []*callAttempt {
	calls := c.returned.takeAll()
	c.underWay -= len(calls)
	for _, a := range calls {
		a.releasePermit(c.lane.sink.rates)
	}
	return calls
}

// await waits until every call has returned, so that this relay never has two calls of one row
// under way. Their results are dropped: the lease is over, and the rows are sent again under the
// same keys.
func (c *laneCalls) await() error {
	releaseRequested := c.lane.releaseRequested
	var grace <-chan time.Time
	for c.underWay > 0 {
		select {
		case <-c.returned.signal:
			c.lane.sink.slots.release(len(c.take()))
		case <-releaseRequested:
			releaseRequested = nil
			timer := time.NewTimer(c.lane.sink.returnGrace)
			defer timer.Stop()
			grace = timer.C
		case <-grace:
			return fmt.Errorf("outbox: a sink does not return: %d calls %v after their context ended", c.underWay, c.lane.sink.returnGrace)
		}
	}
	return nil
}

// returnedCalls holds calls of a lane that have returned, until the lane's goroutine takes them in.
// add never waits.
type returnedCalls struct {
	mu     sync.Mutex
	calls  []*callAttempt
	signal chan struct{} // holds a token while there are any
}

func (r *returnedCalls) add(a *callAttempt) {
	r.mu.Lock()
	r.calls = append(r.calls, a)
	first := len(r.calls) == 1
	r.mu.Unlock()
	if first {
		select {
		case r.signal <- struct{}{}:
		default:
		}
	}
}

func (r *returnedCalls) takeAll() []*callAttempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// goroutineEnded is the reason if a sink ends the goroutine that it is called in.
const goroutineEnded = "the sink ended its goroutine"

// panicked is the result of a call that panics: a panic must not end all other calls. The row keeps
// only the type, because the value may be a payload.
func panicked(v any) Result {
	return Failure(fmt.Sprintf("it panicked (%T)", v), fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
}

// makeCall makes one attempt, or completes or reconciles a call. No transaction is open (T10),
// except a completion's own.
func (c *laneCalls) makeCall(a *callAttempt) {
	defer c.returned.add(a) // deferred, because a sink may end its goroutine
	a.result = Failure(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil { // a failpoint's, or a Sealer's
			a.result = panicked(v)
		}
	}()
	ctx, cancel := context.WithTimeout(c.ctx, c.lane.sink.limits.Timeout)
	defer cancel()
	switch {
	case a.completing():
		c.observe(ctx, a, c.complete)
	case a.reconciling:
		c.observe(ctx, a, c.reconcile)
	case c.prepareCall(a):
		c.observe(ctx, a, c.send)
	}
}

// observe runs an attempt between its hooks, also if it panics or ends its goroutine.
func (c *laneCalls) observe(ctx context.Context, a *callAttempt, attempt func(context.Context, *callAttempt)) {
	ctx = c.lane.sink.emit.attemptStart(ctx, a)
	defer func() {
		if v := recover(); v != nil {
			a.result = panicked(v)
		}
		c.lane.sink.emit.attemptEnd(ctx, a)
	}()
	attempt(ctx, a)
}

// prepareCall prepares an attempt, and reports whether the sink is to make it. If not, a.result has
// the reason.
func (c *laneCalls) prepareCall(a *callAttempt) bool {
	if err := a.mayStart(); err != nil {
		a.result = Failure(err.Error(), err)
		return false
	}
	if !c.openBody(a) {
		return false
	}
	a.mayHaveLeft = true
	if err := fault.Point(fault.RelayCalling); err != nil {
		a.result = Failure(err.Error(), err)
		return false
	}
	return true
}

// recordResult records the sink's result of an attempt.
func (a *callAttempt) recordResult(r Result) {
	a.result = r
	if err := fault.Point(fault.RelayCalled); err != nil {
		a.result = Failure(err.Error(), err)
	}
	switch r := a.result; {
	case r.Outcome == Delivered || r.Outcome == Rejected:
		a.lane.sink.rates.noteAnswered()
	case r.Outcome == Retry && r.RetryAfter > 0 && r.Holds != HoldsCall:
		a.lane.sink.rates.hold(callsOf{tenant: a.Tenant}, r.RetryAfter, r.Holds)
	}
}

// send makes one attempt at a call.
func (c *laneCalls) send(ctx context.Context, a *callAttempt) {
	a.recordResult(c.lane.sink.sink.Send(ctx, &a.Delivery))
}

// makeBatch makes one attempt at each of several calls, by one SendBatch. Each call returns once:
// a second result for a call, or one that comes after SendBatch has returned, is ignored.
func (c *laneCalls) makeBatch(calls []*callAttempt) {
	var mu sync.Mutex
	under := slices.Clone(calls)   // nil: returned
	var contexts []context.Context // of the attempts, once they have begun
	emit := c.lane.sink.emit
	ended := func(i int, r Result) {
		mu.Lock()
		a := under[i]
		under[i] = nil
		mu.Unlock()
		if a != nil {
			a.recordResult(r)
			if i < len(contexts) {
				emit.attemptEnd(contexts[i], a)
			}
			c.returned.add(a)
		}
	}
	rest := Failure(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil {
			rest = panicked(v)
		}
		for i := range under {
			ended(i, rest)
		}
	}()
	for i, a := range calls {
		if !c.prepareCall(a) {
			under[i] = nil
			c.returned.add(a)
		}
	}
	under = slices.DeleteFunc(under, func(a *callAttempt) bool { return a == nil })
	all := make([]*Delivery, len(under))
	for i, a := range under {
		all[i], a.together = &a.Delivery, len(under)
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.lane.sink.limits.Timeout)
	defer cancel()
	if emit.hooks.AttemptStart != nil || emit.hooks.AttemptEnd != nil {
		for _, a := range under {
			contexts = append(contexts, emit.attemptStart(ctx, a))
		}
	}
	if len(all) > 0 {
		c.lane.sink.batcher.SendBatch(ctx, all, ended)
	}
	rest = Failure("the sink did not say how the call ended", nil)
}

// openBody decrypts a body that is sealed, under the key that it was sealed under (O13). If it
// cannot be opened, a.result has the reason, no call is made and no attempt counts. A body that
// will never open waits for an operator. After any other error another try may help, for example
// once the key is deployed.
func (c *laneCalls) openBody(a *callAttempt) bool {
	if !a.sealed {
		return true
	}
	body, err := []byte(nil), errors.New("RelayConfig.Sealer is not set, and the call was sealed")
	if c.lane.sink.cfg.Sealer != nil {
		body, err = c.lane.sink.cfg.Sealer.Open(a.firstKey, a.Body)
	}
	if err == nil {
		a.Body, a.sealed = body, false
		return true
	}
	a.unopened = true
	reason := "the body cannot be opened: " + err.Error()
	if a.result = Failure(reason, err); errors.Is(err, seal.ErrValue) {
		a.result = Failure(reason, Permanent(err))
	}
	return false
}
