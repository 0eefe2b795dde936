package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Steps of the engine's statements.
const (
	stepBegin = "begin" // see guard
	stepFence = "fence"
	stepClaim = "claim"
	stepOrder = "order"
	stepPark  = "park"
	stepHook  = "hook" // Config.OnBegin, see guard
	stepSeal  = "seal"
)

const (
	claimsAhead = 32 // transactions that claim first after a duplicate was found
	rerunLimit  = 5  // immediate runs after serialization failures and deadlocks
)

// failure is the error of an attempt that was rolled back because of the handler or its statements.
type failure struct {
	index int // message whose handler returned the error, -1 if it is not known
	err   error
	lost  bool // the connection was lost meanwhile
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// hindrance is the error of an attempt that the server refused for a reason that may be no
// message's fault: no room, other transactions in the way, or an administrator. It counts against
// no message.
type hindrance struct {
	failed *guard.Failure
	index  int // message whose handler met it, -1 if it is not known
}

func (h *hindrance) Error() string { return h.failed.Error() }
func (h *hindrance) Unwrap() error { return h.failed }

// hinders reports whether a SQLSTATE says nothing about a message, however often it comes.
func (e *engine) hinders(state string, h *handling) bool {
	switch {
	case guard.RunAgain(state), state == codeLockTimeout:
		return true // other transactions are in the way
	case strings.HasPrefix(state, classResources):
		return state != codeOwnLimit // the server has no room
	case state == codeAdminShutdown, state == codeNotNow, state == codeTransactionTimeout:
		return true // an administrator ends sessions
	case state == codeIdleTimeout:
		return h.took < e.c.cfg.IdleTimeout // the server's own setting, not Config's
	case state == codeCrashShutdown:
		return !e.alone // another session has crashed: a neighbour's, unless there was none
	}
	return false
}

// errFenced means that the first statement of a transaction raised: its owner was replaced, or its
// work is already done.
var errFenced = errors.New("fenced")

// engine runs the transactions of one owned partition. Two goroutines have one each: the worker,
// which reads the log, and the retrier, which reads parked messages. The attempt's fence makes each
// of their messages take effect once.
type engine struct {
	c     *Consumer
	id    Identity
	cur   *cursor // what this process owns; nil before the first raise
	state *partitionState
	brake *brake

	inTopic bool // ids count within the topic (K8)

	// redoUntil is the offset below which messages may have been handled before: in a history that
	// the database has lost, or before an operator set the position back (O6).
	redoUntil int64

	hand     *hand
	alone    bool // the current attempt is the only one of this process
	cautious int  // transactions for which the claim goes first, after duplicates were found
}

// attempt is the work of one transaction.
type attempt struct {
	msgs    []*Message
	next    int64 // position after the messages, if they come from the log
	alone   bool  // one message by itself: only such an attempt counts against a message
	verdict *verdict

	// fence queues the transaction's first statements, which raise OO001 unless this is the first
	// and only application.
	fence func(tx *guard.Tx)
	// inPlace means that the message is parked already, so no verdict parks it again.
	inPlace bool
	// unclaimed leaves the claim out, because the fence has made it.
	unclaimed bool

	ran    bool // a handler was called
	done   BatchDone
	parked []Parked
	behind []pgtype.UUID // ordering keys of messages that were parked because an earlier one is
}

// attempt runs the transaction until it has committed or has failed. It returns a *failure because
// of the handler, errFenced, or another error because of a fault of the server or of the way to it.
func (e *engine) attempt(work context.Context, a *attempt) error {
	a.done.Messages, a.done.Alone, a.done.Topic, a.done.Partition = len(a.msgs), a.alone, e.id.Topic, e.id.Partition
	ctx := e.c.traceAttempt(work, a.done)
	started := time.Now()
	err := e.rerun(ctx, a)
	a.done.Duration = time.Since(started)
	e.c.traceAttemptEnd(ctx, a.done, err)
	return err
}

// connect takes a connection from the pool.
func (e *engine) connect(work context.Context) (*connection, error) {
	bounded, cancel := e.c.bounded(work)
	defer cancel()
	conn, err := e.c.pool.Acquire(bounded) // which may ping it
	if err != nil {
		return nil, fmt.Errorf("getting a connection: %w", err)
	}
	return &connection{conn: conn}, nil
}

// rerun repeats the transaction after serialization failures, and after the optimistic claim has
// found a duplicate.
func (e *engine) rerun(work context.Context, a *attempt) error {
	slot, err := e.connect(work)
	if err != nil {
		return err
	}
	defer func() { slot.release() }()
	if err := fault.Point(fault.Connected); err != nil {
		return err
	}
	claimFirst := a.alone || a.verdict != nil || e.c.batch != nil || e.c.cfg.ClaimFirst || e.cautious > 0
	for run := 0; ; run++ {
		a.done.Handled, a.done.Duplicates, a.done.Parked = 0, 0, 0
		a.parked, a.behind, a.ran = nil, nil, false
		if slot.conn.Conn().IsClosed() { // the run before has left state in its session
			slot.release() // first, because the pool may have no other
			fresh, err := e.connect(work)
			if err != nil {
				return err
			}
			slot = fresh
		}
		tx := guard.Begin(slot.conn.Conn())
		tx.Report = e.c.strayed
		e.c.timeouts(tx)
		h := e.transact(work, tx, a, claimFirst)
		if h.hung {
			slot.abandon(tx)
			return e.hung(work, h)
		}
		if h.changed {
			e.c.rollback(tx)
			return errChanged
		}
		if h.err == nil && tx.Failure() == nil {
			if err := fault.Point(fault.Sealing); err != nil {
				tx.Fail(stepSeal, err)
			} else {
				_ = e.c.commit(tx) // kept as the failure
			}
		}
		failed, lost := tx.Failure(), tx.Lost()
		if h.err == nil && tx.Committed() {
			e.settled(a)
			return fault.Point(fault.Committed)
		}
		e.c.rollback(tx)
		if err := fault.Point(fault.RolledBack); err != nil {
			return err
		}

		state := sqlState(failed)
		switch {
		case run < rerunLimit && guard.RunAgain(state):
			continue // the whole transaction, handler included
		case failed != nil && !claimFirst && (failed.Step == stepClaim && state == codeKeyNotFresh || failed.Step == stepOrder && state == codeBlocked):
			claimFirst, a.done.Fallback, e.cautious = true, true, claimsAhead
			continue
		case failed != nil && failed.Step == stepFence && (state == codeFenceLost || state == codeRaceLost):
			return errFenced
		}
		return e.blame(work, a, h, failed, lost)
	}
}

// settled records what a committed transaction means for the next ones.
func (e *engine) settled(a *attempt) {
	switch {
	case a.done.Duplicates > 0 || len(a.behind) > 0:
		e.cautious = claimsAhead
	case e.cautious > 0:
		e.cautious--
	}
}

// transact queues or sends everything up to the handler's last statement, and returns the result of
// the handlers.
func (e *engine) transact(work context.Context, tx *guard.Tx, a *attempt, claimFirst bool) *handling {
	h := &handling{failedAt: -1}
	before, cancel := e.c.bounded(work) // up to the handler
	defer cancel()
	if hook := e.c.cfg.OnBegin; hook != nil {
		if err := tx.Hook(func(h *guard.Handle) error { return protect(func() error { return hook(before, h) }) }); err != nil {
			return h
		}
	}
	a.fence(tx)
	verdicts := e.judgeKeys(a.msgs)
	if !a.unclaimed {
		e.claim(before, tx, a.msgs, verdicts, claimFirst)
	}
	if tx.Failure() == nil {
		e.order(before, tx, a, verdicts, claimFirst)
	}
	if err := fault.Point(fault.Fenced); err != nil {
		tx.Fail(stepFence, err)
	}
	if tx.Failure() != nil {
		return h
	}
	if at, err := e.braked(a, verdicts); err != nil {
		h.failedAt, h.err = at, err
		return h
	}
	// Each run has its own copies of the messages. If a handler changes a field, another run does
	// not see it, and it is not parked.
	own := make([]Message, 0, len(a.msgs))
	fresh, index := make([]*Message, 0, len(a.msgs)), make([]int, 0, len(a.msgs))
	for i, m := range a.msgs {
		v := verdicts[i]
		if v == nil {
			v = a.verdict
		}
		switch {
		case v == nil:
			own = append(own, *m)
			fresh, index = append(fresh, &own[len(own)-1]), append(index, i)
			continue
		case v.reason == reasonDuplicate:
			a.done.Duplicates++
			continue
		case a.inPlace || e.c.cfg.OnFailure == BlockPartition:
			h.failedAt, h.err = i, &blockedError{v}
			return h
		}
		e.park(tx, m, v)
		a.parked = append(a.parked, Parked{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Reason: v.reason, State: v.state(), Err: v.err})
		if v.reason == parked.Behind {
			a.behind = append(a.behind, v.order)
		}
		if err := fault.Point(fault.Parking); err != nil {
			tx.Fail(stepPark, err)
			return h
		}
	}
	a.done.Parked = len(a.parked)
	if len(fresh) == 0 {
		return h
	}
	a.ran = true
	changed := e.protectContents(a.msgs, fresh)
	h = e.run(work, tx, fresh, index)
	if !h.hung {
		a.done.Handled = h.handled
		h.changed = changed != nil && changed()
	}
	return h
}

// blame decides whose fault a rolled back attempt is: the handler's (*failure), the server's, or
// that of the way to it.
func (e *engine) blame(work context.Context, a *attempt, h *handling, failed *guard.Failure, lost bool) error {
	switch {
	case work.Err() != nil:
		return context.Cause(work) // given up while it ran: no fault of the message
	case h.overdue != nil:
		return &failure{index: h.failedAt, err: h.overdue}
	case failed == nil:
		return &failure{index: h.failedAt, err: h.err, lost: lost}
	case failed.Step != stepHook && e.hinders(sqlState(failed), h):
		return &hindrance{failed, h.failedAt}
	case failed.Step == "" && h.err != nil && errors.Is(h.err, failed):
		return &failure{index: h.failedAt, err: h.err, lost: lost}
	case failed.Step == "":
		// A statement's error counts before the handler's.
		return &failure{index: -1, err: failed, lost: lost}
	case lost && a.ran:
		// Perhaps a message kills connections; the count will show it.
		return &failure{index: -1, err: failed, lost: true}
	case failed.Step == stepPark && (strings.HasPrefix(sqlState(failed), classData) || strings.HasPrefix(sqlState(failed), classIntegrity)):
		// The table refuses the message, and always will.
		return &failure{index: -1, err: &blockedError{&verdict{reason: reasonUnparkable, err: failed.Err}}}
	case failed.Step == stepSeal && sqlState(failed) != "":
		return &failure{index: -1, err: failed} // a deferred constraint
	case failed.Step != stepHook && sqlState(failed) != "":
		// The engine's statements are the same for every message, but their number is not.
		return &hindrance{failed, -1}
	}
	return failed
}
