package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"
)

// Sink sends calls to one remote. It is the relay's one seam outward; packages httpsink and kafkasink have one each. A sink makes
// single attempts and says how they ended: retries, order in time, bookkeeping and fencing are the relay's.
type Sink interface {
	// Name is what Call.Sink says.
	Name() string

	// Limits are asked for once, by NewRelay.
	Limits() Limits

	// Send makes one attempt at a call and says how it ended. It is called from several goroutines at once.
	//
	// It must send the key, and the frozen parts of the call as they are (the key may go into the body, where the
	// remote looks for it there, always in the same way); it must not try again by itself, nor use a
	// client that does (an attempt must be journaled before it is made); and it must return soon
	// after ctx has ended, as it does after Limits.Timeout, or when the relay loses its lease or stops.
	// It should call d.MayStart right before the first byte leaves. It must not keep or change d.
	Send(ctx context.Context, d *Delivery) Result
}

// Readier is a Sink that knows when calls are of no use, because its remote is down. The relay asks it each time before it
// picks rows: a row that is not picked has no attempt counted, and its key's window has not begun.
type Readier interface {
	Sink
	// Ready is how many calls may be under way at once now: 0 for none, more than RelayConfig.Concurrency for as many
	// as there are. It must not block. While it is 0 it is asked again at each poll. Calls that are under way go on.
	Ready() int
}

// Batcher is a Sink that makes attempts at many calls for less than one by one. The relay hands it whatever it has slots for
// (RelayConfig.Concurrency); parked calls it sends one by one, by Send. A type that embeds a Batcher to change Send must change SendBatch too.
type Batcher interface {
	Sink
	// SendBatch makes one attempt at each of several calls, and says of each how it ended, by its index: as soon as it is known, because the
	// slot is free then, once, from any goroutine, and before SendBatch returns. No two calls have one ordering key. What is said of
	// Send holds for each call; ctx ends after Limits.Timeout for all of them.
	SendBatch(ctx context.Context, calls []*Delivery, ended func(i int, r Result))
}

// Limits are what a relay must know about a sink's remote.
type Limits struct {
	// KeyWindow is for how long after it has first seen a key the remote still recognises it, by its documentation. No
	// call is started when its key may have been forgotten: the row is parked for reconciliation
	// instead. Too long a value lets a late retry apply a second time; too short a one
	// gives up early. [Forever] where keys are never forgotten. Required.
	KeyWindow time.Duration
	// Timeout is how long one attempt may take. Required. It counts against KeyWindow: an attempt is started only
	// if it would end inside.
	Timeout time.Duration
}

// Forever is the KeyWindow of a remote that never forgets a key: one that keeps it in a unique column, say.
const Forever time.Duration = math.MaxInt64

// startWindow is how long after a row's first attempt another one may be started: the remote's window less an attempt's
// own length and a margin (one hundredth of the window, at most a minute) for clocks that do not run alike.
func (l Limits) startWindow() time.Duration {
	if l.KeyWindow == Forever {
		return Forever
	}
	return l.KeyWindow - min(l.KeyWindow/100, time.Minute) - l.Timeout
}

// Delivery is one attempt at one call, as a sink gets it. All but Attempt is the same in each attempt.
type Delivery struct {
	// Key is the idempotency key: a UUID in its canonical form of 36 characters.
	Key string
	// ID is the row's id, for logs.
	ID            int64
	Tenant, Scope string
	Sink, Name    string
	Method        string
	Target        string
	Header        http.Header
	Body          []byte
	// Order is the stored form of Call.OrderingKey, empty where there is none: what a sink with several ways to the remote keeps
	// together. The relay makes such calls one after another.
	Order string
	// Trace is the W3C trace context of the transaction that asked for the call: traceparent, and tracestate in a second line. The
	// sink sends it with the call. Empty: there is none.
	Trace string
	// Capture asks for Result.Response.
	Capture bool
	// Attempt counts from 1.
	Attempt int

	bound interface{ mayStart() error } // nil: no bounds (a sink's own tests)
}

// MayStart returns an error if the call must not be started any more: [ErrWindow] or [ErrLease]. The relay asks before
// it calls Send; a sink asks again right before the first byte leaves, because connecting may take its time and a
// process may be stopped at any instruction. A sink that is told no returns RetryLater with that error.
func (d *Delivery) MayStart() error {
	if d.bound == nil {
		return nil
	}
	return d.bound.mayStart()
}

// Errors of [Delivery.MayStart].
var (
	// ErrWindow: the remote may have forgotten the key.
	ErrWindow = errors.New("outbox: the remote may have forgotten the key: no call was made")
	// ErrLease: this relay may have been replaced.
	ErrLease = errors.New("outbox: the relay's lease has ended: no call was made")
)

// Outcome is how an attempt ended.
type Outcome int

// Outcomes. The zero value is none of them and is treated as Retry, never as success.
const (
	// Delivered: the remote has accepted the call. Final.
	Delivered Outcome = iota + 1
	// Retry: the remote did not answer, or not finally. It may have applied the call.
	Retry
	// Rejected: the remote has answered that it does not and will not apply the call. Final; the call is parked.
	Rejected
)

// String is the outcome's name in lower case.
func (o Outcome) String() string {
	switch o {
	case Delivered:
		return "delivered"
	case Retry:
		return "retry"
	case Rejected:
		return "rejected"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Result is what Send returns.
type Result struct {
	Outcome Outcome
	// Reason is kept in the row: one short line for operators, without payloads and without secrets.
	Reason string
	// Err is the whole error, for events only; it is not stored.
	Err error
	// Response is the remote's answer to a call that was delivered, where Delivery.Capture asks for it.
	Response *Response
	// RetryAfter is what the remote asked for, 0 if it did not. The relay never waits less than its own
	// backoff, nor more than an hour on a remote's word.
	RetryAfter time.Duration
}

// RetryLater is the result of an attempt that was not made, or whose end is not known.
func RetryLater(reason string, err error) Result {
	return Result{Outcome: Retry, Reason: reason, Err: err}
}

// Reject is the result of a call that the remote refused for good, or that cannot be sent as it is.
func Reject(reason string, err error) Result {
	return Result{Outcome: Rejected, Reason: reason, Err: err}
}
