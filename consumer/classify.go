package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// isRefusal reports whether a SQLSTATE says nothing about a message, however often it comes (D1).
func (e *engine) isRefusal(state string, h *handlerRun) bool {
	switch {
	case guard.RunAgain(state), state == codeLockTimeout:
		return true // other transactions are in the way
	case strings.HasPrefix(state, classResources):
		return state != codeOwnLimit // the server has no room
	case state == codeAdminShutdown, state == codeNotNow, state == codeTransactionTimeout:
		return true // an administrator ends sessions
	case state == codeIdleTimeout:
		return h.took < e.c.cfg.Timeouts.Idle // the server's own setting, not Config's
	case state == codeCrashShutdown:
		return !e.exclusive // another session has crashed: a neighbour's, unless there was none
	}
	return false
}

// classifyFailure decides whose fault a rolled back attempt is: the handler's (*handlerFailure),
// the server's or of something else that is away (*hindrance), or that of the way to the server.
func (e *engine) classifyFailure(
	work context.Context,
	o *outcome,
	h *handlerRun,
	failed *guard.Failure,
	lost bool,
) error {
	switch {
	case work.Err() != nil:
		return context.Cause(work) // given up while it ran: no fault of the message
	case h.timeoutErr != nil:
		return &handlerFailure{index: h.failedIndex, err: h.timeoutErr}
	case failed == nil && isUnavailable(h.err):
		return &hindrance{h.err, h.failedIndex}
	case failed == nil:
		return &handlerFailure{index: h.failedIndex, err: h.err, lost: lost}
	case failed.Step != "" && failed.Step != stepSeal && primary.Refused(failed):
		return failed // the way leads to a standby, which has refused the fence (T12)
	case e.isRefusal(sqlState(failed), h), failed.Step == stepHook && !lost:
		return &hindrance{failed, h.failedIndex}
	case failed.Step == "" && h.err != nil && errors.Is(h.err, failed):
		return &handlerFailure{index: h.failedIndex, err: h.err, lost: lost}
	case failed.Step == "":
		// A statement's error counts before the handler's.
		return &handlerFailure{index: -1, err: failed, lost: lost}
	case o.handlerCalled && (lost || endedContext(failed)):
		// Perhaps a message kills connections, or its handler has ended the context of its own
		// statement, which sends the engine's too; the count will show it.
		return &handlerFailure{index: -1, err: failed, lost: lost}
	case errors.Is(failed, context.Canceled), h.hookFailed && endedContext(failed):
		return &hindrance{failed, h.failedIndex} // a hook has ended its own; work goes on
	case failed.Step == stepPark && keyTakenMeanwhile(failed):
		return &hindrance{failed, -1}
	case failed.Step == stepPark && idTaken(failed):
		return &hindrance{fmt.Errorf("%w (%s)", failed, sequenceBehind), -1}
	case failed.Step == stepPark &&
		(strings.HasPrefix(sqlState(failed), classData) || strings.HasPrefix(sqlState(failed), classIntegrity)):
		// The table refuses the message, and always will.
		return &handlerFailure{index: -1, err: &blockedError{&disposition{reason: reasonUnparkable, err: failed.Err}}}
	case failed.Step == stepSeal && sqlState(failed) != "" && o.handlerCalled:
		return &handlerFailure{index: -1, err: failed} // a deferred constraint
	case sqlState(failed) != "":
		// The engine's statements are the same for every message, but their number is not.
		return &hindrance{failed, -1}
	}
	return failed
}

// keyTakenMeanwhile reports whether a row was refused because another transaction has parked one
// under its key since the statement began. The next attempt sees that one (W7).
func keyTakenMeanwhile(failed *guard.Failure) bool {
	var refused *pgconn.PgError
	return errors.As(failed.Err, &refused) && refused.ConstraintName == "parked_key_unresolved"
}

// sequenceBehind is why an id is taken that the database has just given out.
const sequenceBehind = "the sequence onlyonce.parked_id_seq is behind, because logical replication does not " +
	"copy sequences: " +
	"run `onlyonce outbox rebase`, which raises each; the message is not at fault"

// idTaken reports whether the id that a sequence gave to a row of onlyonce.parked is another row's
// (S6).
func idTaken(failed *guard.Failure) bool {
	var refused *pgconn.PgError
	return errors.As(failed.Err, &refused) && refused.ConstraintName == "parked_pkey"
}

// endedContext reports whether err is that of a context.
func endedContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
