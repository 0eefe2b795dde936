package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/outcome"
)

// Sink sends calls to one remote. Packages httpsink and kafkasink have one each. A sink makes
// single attempts and reports how they ended. The relay is responsible for retries, order in time,
// bookkeeping and fencing.
type Sink interface {
	// Name is the name that calls give in Call.Sink.
	Name() string

	// Limits is called once, by [NewRelay].
	Limits() Limits

	// Send makes one attempt at a call and reports how it ended. It must be safe for concurrent
	// use.
	//
	// It must send the key, and the frozen parts of the call as they are. If the remote reads the
	// key from the body, Send may put it there, always in the same way. It must not retry by
	// itself, nor use a client that does, because an attempt must be journaled before it is made.
	// It should call d.MayStart right before the first byte leaves. It must not keep or change a.
	//
	// ctx ends after Limits.Timeout, or when the relay loses its lease or stops. Send must return
	// soon after that.
	Send(ctx context.Context, a *Attempt) Result
}

// Batcher is a Sink for which many attempts together cost less than one by one. The relay gives it
// as many calls as there are free slots (RelayConfig.Concurrency). Parked calls are sent one by
// one, by Send. A type that embeds a Batcher to change Send must change SendBatch too.
type Batcher interface {
	Sink
	// SendBatch makes one attempt at each of several calls. For each it calls ended once, with the
	// call's index, from any goroutine, and before SendBatch returns. It should do so as soon as
	// the result is known, because that frees the call's slot within a millisecond: the slots of
	// results that come at once are freed together. No two calls have the same ordering key. The
	// rules of Send hold for each call. ctx ends after Limits.Timeout for all of them.
	SendBatch(ctx context.Context, calls []*Attempt, ended func(i int, r Result))
}

// Preflighter is a sink that can ask its remote, before a relay begins, whether and how calls may
// be lost.
type Preflighter interface {
	Sink
	// Preflight returns warnings, which the relay logs. The relay begins whatever they are. It
	// gives up when ctx ends.
	Preflight(ctx context.Context) (warnings []string)
}

// Limits are the properties of a sink's remote that a relay needs.
type Limits struct {
	// KeyWindow is how long the remote recognises a key after it has first seen it, by its
	// documentation. 24 hours, for example, is common. If the remote may have forgotten a call's
	// key, no call is started: the row is parked for reconciliation instead. If KeyWindow is too
	// long, a late retry may be applied a second time. If it is too short, the relay gives up
	// early. Use [Forever] if keys are never forgotten. Required.
	KeyWindow time.Duration

	// Timeout is how long one attempt may take. It counts against KeyWindow: an attempt is started
	// only if it would end within the window. Required.
	Timeout time.Duration
}

// Forever is the KeyWindow of a remote that never forgets a key, for example because it keeps keys
// in a unique column.
const Forever time.Duration = math.MaxInt64

// startWindow is how long after a row's first attempt another one may be started. It is the
// remote's window, less the length of an attempt, less a margin for clocks that do not run alike:
// one hundredth of the window, at most a minute.
func (l Limits) startWindow() time.Duration {
	if l.KeyWindow == Forever {
		return Forever
	}
	return l.KeyWindow - min(l.KeyWindow/100, time.Minute) - l.Timeout
}

// windowBound is null for [Forever].
func windowBound(window time.Duration) *time.Duration {
	if window == Forever {
		return nil
	}
	return &window
}

// Attempt is one attempt at one call, as the relay gives it to a sink. All but Number is the same
// in each attempt.
type Attempt struct {
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
	// Order is the stored form of Call.OrderingKey, or empty if there is none. A sink that has
	// several routes to the remote, for example partitions, keeps calls with the same Order
	// together. The relay makes such calls one after another.
	Order string
	// Trace is the W3C trace context of the transaction that asked for the call: a traceparent, and
	// a tracestate in a second line if there is one. The sink sends it with the call. Empty if
	// there is none.
	Trace string
	// Capture asks for Result.Response.
	Capture bool
	// Number counts from 1.
	Number int

	bound interface{ mayStart() error } // nil: no bounds (in a sink's own tests)
}

// MayStart returns an error that wraps [ErrNotStarted] if the call must not be started any more.
// The relay asks before it calls Send. A sink asks again right before the first byte leaves,
// because connecting may take long and a process may be stopped at any instruction. If the sink
// gets an error, it returns [Failure] with that error.
func (a *Attempt) MayStart() error {
	if a.bound == nil {
		return nil
	}
	return a.bound.mayStart()
}

// ErrNotStarted is wrapped by the error of an attempt that was not started. The errors of
// [Attempt.MayStart] wrap it: the remote may have forgotten the key, or another relay may have
// replaced this one. A sink may return another error that wraps it if it did not come to this call
// at all, for example because the time of a batch was over. The result is [Postponed] then, as
// [Failure] returns it, and the attempt is not counted.
var ErrNotStarted = errors.New("outbox: no call was made")

var (
	errWindow = fmt.Errorf("%w: the remote may have forgotten the key", ErrNotStarted)
	errLease  = fmt.Errorf("%w: the relay's lease has ended", ErrNotStarted)
)

// AttemptOutcome is how an attempt ended.
type AttemptOutcome int

// Outcomes. A sink classifies the one attempt that it has made; the relay remembers the others
// (O6). The zero value is not an outcome. It is treated as Retry, never as success.
const (
	// Delivered: the remote has accepted the call. Final.
	Delivered AttemptOutcome = iota + 1
	// Retry: there was no answer, or no final one. The remote may have applied the call. It is sent
	// again under its key.
	Retry
	// Rejected: this attempt was refused. The remote has not applied it, and another one would end
	// alike. That says nothing of earlier attempts: a gateway that refuses one knows no keys. The
	// call is parked, and waits for an operator, who learns whether an earlier attempt is open.
	Rejected
	// Postponed: this attempt was not applied, for example because there was no connection. The
	// call is sent again, however old its key is, if no earlier attempt is open. The attempt is
	// counted, so that the call waits longer each time, unless it was not even started: its error
	// wraps [ErrNotStarted] then.
	Postponed
	// Never: the remote remembers the key, and has answered that it has applied no attempt under it
	// and will not. Final, for earlier attempts too. The call is parked.
	Never
	// Unsafe: the remote may have applied the call, and another attempt may apply it again. The
	// call is parked in state reconcile.
	Unsafe
)

// answers is what each outcome says.
var answers = map[AttemptOutcome]outcome.Answer{
	Delivered: {Applied: outcome.WasApplied},
	Retry:     {Again: true},
	Rejected:  {Applied: outcome.NotApplied},
	Postponed: {Applied: outcome.NotApplied, Again: true},
	Never:     {Applied: outcome.NotApplied, OfTheKey: true},
	Unsafe:    {},
}

// answer is what an outcome says. A value that is no outcome says no more than Retry.
func (o AttemptOutcome) answer() outcome.Answer {
	if a, is := answers[o]; is {
		return a
	}
	return answers[Retry]
}

// String is the outcome's name in lower case.
func (o AttemptOutcome) String() string {
	switch o {
	case Delivered:
		return "delivered"
	case Retry:
		return "retry"
	case Rejected:
		return "rejected"
	case Postponed:
		return "postponed"
	case Never:
		return "never"
	case Unsafe:
		return "unsafe"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Result is the end of an attempt, as Send returns it.
type Result struct {
	Outcome AttemptOutcome
	// Reason is kept in the row. It is one short line for operators, without payloads and secrets,
	// for example "status 503".
	Reason string
	// Err is the whole error, for events only; it is not stored.
	Err error
	// Response is the remote's answer to a call that was delivered, if Attempt.Capture asks for
	// it.
	Response *Response
	// RetryAfter is how long the remote asks the relay to wait, or 0 if it does not. The relay
	// never waits less than its own backoff, nor more than an hour because a remote asks.
	RetryAfter time.Duration
	// HoldFor is how long the calls that RetryScope selects wait if the remote does not say so
	// by RetryAfter. The attempt is counted then, so the call itself waits longer each time.
	HoldFor time.Duration
	// HoldReason says to operators why the calls that RetryScope selects wait, in a few words,
	// without payloads and secrets. Empty means that the remote asked for it.
	HoldReason string
	// Unseen means that whoever remembers the keys cannot know the call's by this attempt, so that
	// the key's window does not begin with it: no byte has left, or a broker that remembers no keys
	// has refused it. An error that wraps [ErrNotStarted] says so too. Defaults to false.
	Unseen bool
	// RetryScope selects the other calls that wait for RetryAfter too, in all relays. Unless it is
	// RetryCall, the attempt is not counted. Defaults to RetryCall (K6).
	RetryScope RetryScope
}

// Response is a remote's answer to a call that asked for it (Call.Capture).
type Response struct {
	Status int
	// Header holds those headers of the answer that the sink keeps.
	Header http.Header
	// Body is at most 64 KiB.
	Body []byte
}

// headerLines returns the header as a row keeps it.
func (r *Response) headerLines() string {
	names, values, _ := frozen.Headers(r.Header)
	return frozen.Lines(names, values)
}

// RetryScope selects the calls that wait because a remote asked for it.
type RetryScope int

const (
	// RetryCall holds only the call itself.
	RetryCall RetryScope = iota
	// RetryTenant holds the calls of the call's tenant, or of the sink if it has none.
	RetryTenant
	// RetryAuto holds the calls of the call's tenant, and then lets one of them be under way at a
	// time, until one is delivered or rejected. If calls of three tenants get this result, and none
	// was delivered or rejected in between, it holds all calls of the sink, for 10 s at most. So
	// the calls of one customer, with one account or two, do not hold up those of others. If the
	// call has no tenant, it holds the sink for the whole time.
	RetryAuto
	// RetrySink holds all calls of the sink, and then lets one be under way at a time, until one is
	// delivered or rejected. It is for failures that no call can cause, for example a refused
	// connection.
	RetrySink
)

// Failure is the result of an attempt that was not made or failed: Retry, for which the remote may
// have applied it. It is Postponed if err wraps [ErrNotStarted], and Rejected if err is
// [Permanent]: if the remote has refused it, or it cannot be sent as it is. For reason and err see
// [Result].
func Failure(reason string, err error) Result {
	r := Result{Outcome: Retry, Reason: reason, Err: err}
	switch {
	case isPermanent(err):
		r.Outcome = Rejected
	case errors.Is(err, ErrNotStarted):
		r.Outcome = Postponed
	}
	return r
}

// BrokerFailure is [Failure] for a sink whose remote is a broker that remembers no keys: those who
// read its messages do. notStored says that the error shows that the broker has not stored the
// message; the attempt is then not counted. A refused attempt is [Result.Unseen] too.
func BrokerFailure(reason string, err error, notStored bool) Result {
	r := Failure(reason, err)
	if r.Outcome == Retry && notStored {
		r.Outcome = Postponed
	}
	r.Unseen = r.Outcome == Postponed || r.Outcome == Rejected
	return r
}

// notStarted reports whether an attempt was not started, so that it is not counted (O6). One that
// came too late is, so that the relay waits longer each time while clocks disagree.
func (r Result) notStarted() bool {
	return r.Outcome == Postponed && errors.Is(r.Err, ErrNotStarted) && !errors.Is(r.Err, errWindow)
}

type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

// Permanent marks an error that no retry will repair. A [Sink] returns it by way of [Failure];
// RelayConfig.Complete returns it, for example, if it cannot decode the answer. The call is parked,
// and waits for an operator. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

func isPermanent(err error) bool { return errors.As(err, new(permanentError)) }
