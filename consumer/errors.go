package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/hook"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Reasons of a disposition that no row has; the others are in package parked.
const (
	reasonDuplicate  = "duplicate"           // the message is skipped, not parked
	reasonSkipped    = "skipped"             // the record is no message: see ErrSkip
	reasonUnparkable = "it cannot be parked" // the partition halts
)

// disposition is what becomes of a message that is not applied.
type disposition struct {
	reason   string
	err      error
	attempts int
	wait     time.Duration // until the next attempt, if the message is retried
	waitsFor pgtype.UUID   // the ordering key of an earlier parked message that it waits for
	quiet    bool          // Config.OnParked is not called: see judgeUnanswered
}

// parks reports whether a row is made of the message. Others leave no trace but the position.
func (v *disposition) parks() bool { return v.reason != reasonDuplicate && v.reason != reasonSkipped }

func (v *disposition) parkedState() string {
	switch v.reason {
	case parked.Failed:
		return parked.Retrying
	case parked.Behind:
		return parked.Blocked
	}
	return parked.Waiting
}

// blockedError means that a message would have to be set aside, but Config.OnFailure forbids it.
type blockedError struct{ *disposition }

func (e *blockedError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }

func (e *blockedError) Unwrap() error { return e.err }

// brakeError means that a message is not given up, because the partition has to halt first.
type brakeError struct{ *disposition }

func (e *brakeError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }

func (e *brakeError) Unwrap() error { return e.err }

// givenUpReason returns the reason for which a message is given up, from the failure of its last
// attempt.
func givenUpReason(f *handlerFailure) string {
	if isHopeless(f.err) && !f.lost {
		return parked.Permanent
	}
	return parked.Exhausted
}

// SQLSTATEs of the schema onlyonce.
const (
	codeFenceLost   = "OO001" // another owner, or another transaction, has moved the position
	codeRaceLost    = "23505" // at the fence: another one from the same position has committed
	codeKeyNotFresh = "23505" // at the claim: a key of the optimistic claim is not new
	codeTooOld      = "OO003" // a key of the batch may be forgotten
	codeBlocked     = "OO006" // an ordering key is blocked by a parked message
)

// SQLSTATEs of PostgreSQL (Appendix A) that are not the message's fault: the transaction runs
// again.
const (
	codeLockTimeout = "55P03"
	codeDeadlock    = "40P01"
	classResources  = "53"    // insufficient resources
	codeOwnLimit    = "53400" // in that class, but the statement's own: temp_file_limit
	// Sessions that the server ends.
	codeAdminShutdown      = "57P01" // an administrator or a fast shutdown
	codeCrashShutdown      = "57P02" // another session has crashed
	codeNotNow             = "57P03" // the server is starting or stopping
	codeIdleTimeout        = "25P03" // idle_in_transaction_session_timeout
	codeTransactionTimeout = "25P04" // transaction_timeout
	classData              = "22"    // data exceptions
	classIntegrity         = "23"    // integrity constraint violations
)

// ErrConfig is wrapped by each error that New returns for a wrong argument or field.
var ErrConfig = errors.New("consumer: invalid configuration")

// errFenced means that the first statement of a transaction raised: its owner was replaced, or its
// work is already done.
var errFenced = errors.New("fenced")

// Permanent marks an error that no retry will repair, for example an order with an unknown product.
// The message is parked and not tried again. Nil stays nil.
//
// Only the error of a run with the message alone in its transaction counts. After an error in a
// batch, even in a batch of one message, the message runs alone at once, and the result of that run
// decides.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

func (e *permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether an error was marked by [Permanent].
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// isHopeless reports whether no retry will repair an error: the handler has marked it, or it is a
// mistake of the program that each run repeats. For example, the handler sends a COMMIT or enqueues
// two calls with one name.
func isHopeless(err error) bool { return IsPermanent(err) || guard.IsMisuse(err) }

// RetryAfter marks an error that should not be retried before d has passed, for example because of
// a remote's Retry-After header. It counts as an attempt, like any other error. Under
// [ParkOrderingKey] only the message's ordering key waits; otherwise the partition does. If d is 0
// or negative, the error is returned as it is. A d above 24 hours counts as 24 hours. Nil stays
// nil.
//
// Like [Permanent], it counts only from a run with the message alone: after an error in a batch
// that run follows at once, whatever d is.
func RetryAfter(err error, d time.Duration) error {
	if err == nil || d <= 0 {
		return err
	}
	return &retryAfterError{err, min(d, maxRetryAfter)}
}

// maxRetryAfter is the longest wait that a handler may ask for. If a stored due time is further
// ahead, a wrong clock has written it (T9).
const maxRetryAfter = 24 * time.Hour

type retryAfterError struct {
	error
	after time.Duration
}

func (e *retryAfterError) Unwrap() error { return e.error }

// waitAtLeast returns the wait that an error asks for, or d, the policy's wait, if that is longer.
func waitAtLeast(err error, d time.Duration) time.Duration {
	if r, is := errors.AsType[*retryAfterError](err); is {
		return max(d, r.after)
	}
	return d
}

// FailMessage marks the error of one message in a [BatchHandler]; use errors.Join for several. The
// transaction rolls back. The consumer then tries the messages before m without it, and m alone.
// Nil stays nil.
func FailMessage(m *Message, err error) error {
	if err == nil || m == nil {
		return err
	}
	return &messageError{m, err}
}

type messageError struct {
	m   *Message
	err error
}

func (e *messageError) Error() string {
	return fmt.Sprintf("message at %s/%d/%d: %v", e.m.Topic, e.m.Partition, e.m.Offset, e.err)
}

func (e *messageError) Unwrap() error { return e.err }

// firstFailed returns the index of the first message that err marks as failed, or -1 if it marks
// none of them.
func firstFailed(err error, msgs []*Message) int {
	first := len(msgs)
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // it walks the whole tree itself
		case nil:
			return
		case *messageError:
			for i, m := range msgs {
				if m.Topic == e.m.Topic && m.Partition == e.m.Partition && m.Offset == e.m.Offset {
					first = min(first, i)
				}
			}
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	if first == len(msgs) {
		return -1
	}
	return first
}

// errMoved means that this process still owns the position, but it is not where the process
// thought. An operator has set it, or an earlier attempt with an unknown outcome has committed.
// Continue from the database's position.
var errMoved = errors.New("the position was moved")

// errPaused means that an operator has paused the partition.
var errPaused = errors.New("paused")

// errChanged means that a handler has changed the bytes of its message in place, so the message
// must be read again from the log.
var errChanged = errors.New("the handler has changed its message's bytes in place: the message is read " +
	"again, and handlers get copies from now on")

// Errors of handlers that take too long.
var (
	// ErrHandlerTimeout is the error of a handler whose context ended because Config.HandlerTimeout
	// or Config.BatchTimeout had passed.
	ErrHandlerTimeout = errors.New("consumer: handler took too long")

	// ErrHandlerHung is the error of a handler that did not return within Config.HangTimeout after
	// the end of its context. Run and Live return it too while such a handler is still running.
	ErrHandlerHung = errors.New("consumer: handler does not return although its context has ended")
	errGoexit      = hook.ErrGoexit
)

// Unavailable marks an error that is no message's fault and that passes by itself, for example
// because a schema registry is away. The attempt rolls back and counts against no message, and
// nothing is parked: the consumer tries again, with the waits of Config.Backoff. A partition that
// meets nothing else for Config.BlockedAfter halts as [HaltBlocked], so that an operator notices,
// and continues by itself once an attempt succeeds. Mark only errors that end without a new
// version of the program: the mark wins over [Permanent]. Nil stays nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err}
}

type unavailableError struct{ err error }

func (e *unavailableError) Error() string { return e.err.Error() }

func (e *unavailableError) Unwrap() error { return e.err }

func isUnavailable(err error) bool { return errors.As(err, new(*unavailableError)) }

// handlerFailure is the error of an attempt that was rolled back because of the handler or its
// statements.
type handlerFailure struct {
	index int // message whose handler returned the error, -1 if it is not known
	err   error
	lost  bool // the connection was lost meanwhile
}

func (f *handlerFailure) Error() string { return f.err.Error() }

func (f *handlerFailure) Unwrap() error { return f.err }

// hindrance is the error of an attempt that failed for a reason that may be no message's fault. The
// server refused it (no room, other transactions in the way, or an administrator), Config.OnBegin
// or OnParked failed, or the handler returned [Unavailable]. It counts against no message.
type hindrance struct {
	err   error
	index int // message whose handler met it, -1 if it is not known
}

func (h *hindrance) Error() string { return h.err.Error() }

// keptOut reports whether the transaction was not let in: a take-over or an operator's command is
// ahead of it, and waits for other transactions of the owner, perhaps as long as one may last.
// Giving up here loses nothing (T14).
func (h *hindrance) keptOut() bool {
	failed, is := errors.AsType[*guard.Failure](h.err)
	return is && failed.Step == stepFence && sqlState(failed) == codeLockTimeout
}

func (h *hindrance) Unwrap() error { return h.err }

// sqlState returns the SQLSTATE of a failure, or "" if there is none or the server sent none.
func sqlState(failed *guard.Failure) string {
	if failed == nil {
		return ""
	}
	return guard.SQLState(failed.Err)
}

// endsWork reports whether err ends the work on this partition, so that there is no other attempt.
func endsWork(err error) bool {
	var f *handlerFailure
	var h *hindrance
	if errors.As(err, &f) || errors.As(err, &h) {
		return false // a user's function may return any error, even these
	}
	var halt *HaltError
	return errors.As(err, &halt) ||
		errors.Is(err, source.ErrOwnershipLost) ||
		errors.Is(err, errMoved) ||
		errors.Is(err, context.Canceled)
}
