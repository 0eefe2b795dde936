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

// returns holds calls of a tenure that have returned, until the tenure's goroutine takes them in.
// put never waits.
type returns struct {
	mu    sync.Mutex
	calls []*flight
	there chan struct{} // holds a token while there are any
}

func (r *returns) put(f *flight) {
	r.mu.Lock()
	r.calls = append(r.calls, f)
	first := len(r.calls) == 1
	r.mu.Unlock()
	if first {
		select {
		case r.there <- struct{}{}:
		default:
		}
	}
}

func (r *returns) take() []*flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

// launch makes calls, for each of which the caller has taken a slot. New calls are made together if
// the sink is a Batcher. Each other call is made in a goroutine of its own. A parked call is always
// made alone, so that if it brings the sink down again, it affects no other call.
func (t *tenure) launch(calls ...*flight) {
	var together []*flight
	for _, f := range calls {
		f.t, f.bound = t, f
		if f.chunk != nil {
			f.state = flightFlying
			f.chunk.flying++
		}
		t.calling++
		if t.s.batcher != nil && f.parked == 0 {
			together = append(together, f)
		} else {
			go t.attempt(f)
		}
	}
	if len(together) > 0 {
		go t.attemptAll(together)
	}
}

// mayStart is Delivery.MayStart.
func (f *flight) mayStart() error {
	now := time.Now()
	if !now.Before(*f.t.deadline.Load()) || f.t.ctx.Err() != nil {
		return ErrLease
	}
	if !f.notAfter.IsZero() && !now.Before(f.notAfter) {
		return ErrWindow
	}
	return nil
}

// goroutineEnded is the reason if a sink ends the goroutine that it is called in.
const goroutineEnded = "the sink ended its goroutine"

// panicked is the result of a call that panics: a panic must not end all other calls. The row keeps
// only the type, because the value may be a payload.
func panicked(v any) Result {
	return RetryLater(fmt.Sprintf("it panicked (%T)", v), fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
}

// attempt does the work of a flight. No transaction is open (T10), except a completion's own.
func (t *tenure) attempt(f *flight) {
	defer t.returned.put(f) // deferred, because a sink may end its goroutine
	f.result = RetryLater(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil {
			f.result = panicked(v)
		}
	}()
	ctx, cancel := context.WithTimeout(t.callCtx, t.s.limits.Timeout)
	defer cancel()
	if f.work == nil {
		f.work = t.send
	}
	f.work(ctx, f)
}

// ready prepares an attempt, and reports whether the sink is to make it. If not, f.result has the
// reason.
func (t *tenure) ready(f *flight) bool {
	if err := f.mayStart(); err != nil {
		f.result = RetryLater(err.Error(), err)
		return false
	}
	if !t.open(f) {
		return false
	}
	f.made = true
	if err := fault.Point(fault.RelayCalling); err != nil {
		f.result = RetryLater(err.Error(), err)
		return false
	}
	return true
}

// ended records the sink's result of an attempt.
func (f *flight) ended(r Result) {
	f.result = r
	if err := fault.Point(fault.RelayCalled); err != nil {
		f.result = RetryLater(err.Error(), err)
	}
}

// send makes one attempt at a call.
func (t *tenure) send(ctx context.Context, f *flight) {
	if t.ready(f) {
		f.ended(t.s.sink.Send(ctx, &f.Delivery))
	}
}

// attemptAll makes one attempt at each of several calls, by one SendBatch. Each call returns once:
// a second result for a call, or one that comes after SendBatch has returned, is ignored.
func (t *tenure) attemptAll(calls []*flight) {
	var mu sync.Mutex
	under := slices.Clone(calls) // nil: returned
	ended := func(i int, r Result) {
		mu.Lock()
		f := under[i]
		under[i] = nil
		mu.Unlock()
		if f != nil {
			f.ended(r)
			t.returned.put(f)
		}
	}
	rest := RetryLater(goroutineEnded, nil)
	defer func() {
		if v := recover(); v != nil {
			rest = panicked(v)
		}
		for i := range under {
			ended(i, rest)
		}
	}()
	for i, f := range calls {
		if !t.ready(f) {
			under[i] = nil
			t.returned.put(f)
		}
	}
	under = slices.DeleteFunc(under, func(f *flight) bool { return f == nil })
	all := make([]*Delivery, len(under))
	for i, f := range under {
		all[i] = &f.Delivery
	}
	ctx, cancel := context.WithTimeout(t.callCtx, t.s.limits.Timeout)
	defer cancel()
	if len(all) > 0 {
		t.s.batcher.SendBatch(ctx, all, ended)
	}
	rest = RetryLater("the sink did not say how the call ended", nil)
}

// open decrypts a body that is sealed, under the key that it was sealed under (O13). If it cannot
// be opened, f.result has the reason, no call is made and no attempt counts. A body that will never
// open waits for an operator. After any other error another try may help, for example once the key
// is deployed.
func (t *tenure) open(f *flight) bool {
	if !f.sealed {
		return true
	}
	body, err := []byte(nil), errors.New("RelayConfig.Sealer is not set")
	if t.s.cfg.Sealer != nil {
		body, err = t.s.cfg.Sealer.Open(f.sealedAs, f.Body)
	}
	if err == nil {
		f.Body, f.sealed = body, false
		return true
	}
	f.unopened = true
	reason := "the body cannot be opened: " + err.Error()
	if f.result = RetryLater(reason, err); errors.Is(err, seal.ErrValue) {
		f.result = Reject(reason, err)
	}
	return false
}
