package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/primary"
)

const (
	claimFirstRuns = 32 // transactions that claim first after a duplicate was found
	rerunLimit     = 5  // immediate runs after serialization failures and deadlocks
)

// runAttempt runs the transaction until it has committed or has failed. It returns a
// *handlerFailure because of the handler, errFenced, or another error because of a fault of the
// server or of the way to it.
func (e *engine) runAttempt(work context.Context, a *attempt) error {
	a.done.Messages, a.done.Alone, a.done.Topic, a.done.Partition = len(a.msgs), a.alone, e.id.Topic, e.id.Partition
	ctx := begin(work, e.c.cfg.Hooks.AttemptStart, a.done.Batch)
	started := time.Now()
	work, err := e.prepare(ctx, a)
	if err == nil {
		err = e.transact(work, a)
	}
	a.done.Duration = time.Since(started)
	end(ctx, e.c.cfg.Hooks.AttemptEnd, a.done, err)
	return err
}

// acquireConn takes a connection from the pool.
func (e *engine) acquireConn(work context.Context) (*pooledConn, error) {
	bounded, cancel := e.c.bounded(work)
	defer cancel()
	conn, err := e.c.pool.Acquire(bounded) // which may ping it
	if err != nil {
		return nil, fmt.Errorf("getting a connection: %w", err)
	}
	return &pooledConn{conn: conn}, nil
}

// indexCallsSQL notes the keys of a portion of the calls in the outbox's log; see the function's
// comment in the migration. It is a transaction of its own. Out: a row if some are left.
const indexCallsSQL = `select 1 where not onlyonce.index_calls()`

// indexCalls prepares the look for calls of messages that may have been handled before (O1): each
// call that such a message asks for is looked for by its key. Without this the look would find the
// same, and read the whole log each time.
func (e *engine) indexCalls(work context.Context, conn *primary.Conn) error {
	for {
		bounded, cancel := e.c.bounded(work)
		left, err := conn.Exec(bounded, indexCallsSQL)
		cancel()
		switch {
		case err != nil:
			return fmt.Errorf("noting the keys of calls: %w", err)
		case left.RowsAffected() == 0:
			return nil
		}
	}
}

// looksForCalls reports whether calls of these messages are looked for in the log.
func (e *engine) looksForCalls(msgs []*Message) bool {
	return slices.ContainsFunc(msgs, func(m *Message) bool { return m.Offset < e.redoUntil || m.replay > 0 && !m.resend })
}

// transact repeats the transaction after serialization failures, and after the optimistic claim has
// found a duplicate.
func (e *engine) transact(work context.Context, a *attempt) error {
	slot, err := e.acquireConn(work)
	if err != nil {
		return err
	}
	defer func() { slot.release() }()
	looks := e.looksForCalls(a.msgs)
	index := looks && e.c.enqueues.Load()
	first := caution{claim: a.alone || a.disposition != nil || e.c.batch != nil || e.c.cfg.ClaimFirst || e.claimFirstLeft > 0}
	first.order = first.claim
	for run := 0; ; run++ {
		a.done.Handled, a.done.Duplicates, a.done.Parked, a.done.Skipped = 0, 0, 0, 0
		a.parked, a.outcomes, a.blockedKeys, a.handlerCalled = nil, a.outcomes[:0], nil, false
		if slot.conn.Conn().IsClosed() { // the run before has left state in its session
			slot.release() // first, because the pool may have no other
			fresh, err := e.acquireConn(work)
			if err != nil {
				return err
			}
			slot = fresh
		}
		if index {
			if err := e.indexCalls(work, slot.conn); err != nil {
				return err
			}
			index, looks = false, false
		}
		tx := guard.Begin(slot.conn.Conn())
		tx.Report = e.c.logStray
		h := e.fillTransaction(work, tx, a, first)
		if h.hung {
			slot.abandon(tx)
			return e.reportHung(work, h, e.c.batch == nil)
		}
		if e.bytesChanged(a) {
			e.c.rollback(tx)
			return errChanged
		}
		if tx.OriginAsked() {
			e.c.enqueues.Store(true)
			if looks { // the first time that a handler asks for calls: others need no keys noted
				e.c.rollback(tx)
				index = true
				continue
			}
		}
		if h.err == nil && tx.Failure() == nil {
			_ = e.c.commit(tx) // kept as the failure
		}
		failed, lost := tx.Failure(), tx.Lost()
		if h.err == nil && tx.Committed() {
			e.adjustCaution(a)
			return nil
		}
		e.c.rollback(tx)
		state := sqlState(failed)
		switch {
		case run < rerunLimit && guard.RunAgain(state):
			if state == codeDeadlock && e.deadlocked != nil {
				e.deadlocked()
			}
			continue // the whole transaction, handler included
		case failed != nil && !first.claim && (failed.Step == stepClaim && state == codeKeyNotFresh || failed.Step == stepAge && state == codeTooOld):
			first, a.done.Fallback, e.claimFirstLeft = caution{claim: true, order: true}, true, claimFirstRuns
			continue
		case failed != nil && !first.order && failed.Step == stepOrder && state == codeBlocked:
			first.order, a.done.Fallback = true, true
			continue
		case failed != nil && failed.Step == stepFence && (state == codeFenceLost || state == codeRaceLost):
			return errFenced
		}
		return e.classifyFailure(work, a, h, failed, lost)
	}
}

// adjustCaution records what a committed transaction means for the next ones.
func (e *engine) adjustCaution(a *attempt) {
	switch {
	case a.done.Duplicates > 0:
		e.claimFirstLeft = claimFirstRuns
	case e.claimFirstLeft > 0:
		e.claimFirstLeft--
	}
}

// fillTransaction queues or sends everything up to the handler's last statement, and returns the
// result of the handlers (T1, D6).
func (e *engine) fillTransaction(work context.Context, tx *guard.Tx, a *attempt, first caution) *handlerRun {
	h := &handlerRun{failedIndex: -1}
	before, cancel := e.c.bounded(work) // up to the handler
	defer cancel()
	if e.c.onBegin(before, tx) != nil {
		h.hookFailed = before.Err() == nil
		return h
	}
	a.fence(tx)
	dispositions := e.findIDs(a.msgs)
	e.skipStillParked(before, tx, a, dispositions)
	if !a.skipClaim && tx.Failure() == nil {
		e.claimKeys(before, tx, a.msgs, dispositions, first.claim)
	}
	if tx.Failure() == nil {
		e.checkAge(before, tx, a, dispositions, first.claim)
	}
	if tx.Failure() == nil {
		e.checkOrder(before, tx, a, dispositions, first.order)
	}
	if tx.Failure() != nil {
		return h
	}
	if at, err := e.firstBraked(a, dispositions); err != nil {
		h.failedIndex, h.err = at, err
		return h
	}
	// Each run has its own copies of the messages. If a handler changes a field, another run does
	// not see it, and it is not parked.
	own := make([]Message, 0, len(a.msgs))
	fresh, index := make([]*Message, 0, len(a.msgs)), make([]int, 0, len(a.msgs))
	for i, m := range a.msgs {
		v := dispositions[i]
		if v == nil {
			v = a.disposition
		}
		switch {
		case v == nil:
			own = append(own, e.c.forProgram(m))
			a.outcomes = append(a.outcomes, "")
			fresh, index = append(fresh, &own[len(own)-1]), append(index, i)
			continue
		case v.reason == reasonDuplicate:
			a.done.Duplicates++
			continue
		case v.reason == reasonSkipped:
			a.done.Skipped++
			continue
		case a.alreadyParked || e.c.cfg.OnFailure == BlockPartition:
			h.failedIndex, h.err = i, &blockedError{v}
			return h
		}
		e.park(tx, m, v)
		event := ParkedEvent{TopicPartition: source.TopicPartition{Topic: m.Topic, Partition: m.Partition}, Offset: m.Offset, Reason: ParkReason(v.reason), State: ParkState(v.parkedState()), Err: v.err}
		event.ID = e.parkingID(m, v.reason, 0)
		if quiet := a.disposition != nil && a.disposition.quiet; !quiet {
			if late, err := e.c.onParked(work, tx, m, event); err != nil || tx.Failure() != nil {
				h.failedIndex, h.hookFailed = i, !late
				return h
			}
		}
		a.parked = append(a.parked, event)
		a.outcomes = append(a.outcomes, v.reason)
		if v.reason == parked.Behind {
			a.blockedKeys = append(a.blockedKeys, v.waitsFor)
		}
	}
	a.done.Parked = len(a.parked)
	if len(fresh) == 0 {
		return h
	}
	a.handlerCalled = true
	h = e.runHandlers(work, tx, fresh, index)
	if !h.hung {
		a.done.Handled = h.handled
	}
	return h
}

// forProgram returns the message for a function of the program: a copy, in which it may assign
// fields (D6).
func (c *Consumer) forProgram(m *Message) Message {
	own := *m
	if c.copyBytes.Load() {
		own.ownBytes()
	}
	return own
}

// onBegin calls Config.OnBegin.
func (c *Consumer) onBegin(ctx context.Context, tx *guard.Tx) error {
	if c.cfg.OnBegin == nil {
		return nil
	}
	c.setTimeouts(tx)
	return tx.Hook(func(h *guard.Handle) error { return callApart(func() error { return c.cfg.OnBegin(ctx, h) }) })
}

// onParked calls Config.OnParked if the message is left to an operator, in the transaction that
// parks it. Each call has a bound of its own: all calls of a batch may take longer than one bound.
// late reports whether that bound has ended (D3).
func (c *Consumer) onParked(work context.Context, tx *guard.Tx, m *Message, event ParkedEvent) (late bool, err error) {
	if c.cfg.OnParked == nil || event.State != StateWaiting {
		return false, nil
	}
	ctx, cancel := c.bounded(work)
	defer cancel()
	own := c.forProgram(m)
	err = tx.Hook(func(h *guard.Handle) error {
		err := callApart(func() error { return c.cfg.OnParked(ctx, h, &own, event) })
		if err != nil {
			err = fmt.Errorf("Config.OnParked: %w", err)
		}
		return err
	})
	return ctx.Err() != nil, err
}

// setTimeouts queues the transaction's timeouts right after BEGIN, so that they hold for OnBegin,
// and end a session whose client goes silent there (T7). The fence sets them again, in case OnBegin
// has changed them. It uses SET, which takes no snapshot, so that OnBegin can still choose the
// isolation level; set_config would take one.
//
// Without OnBegin the fence alone sets them. It comes in one pipeline with BEGIN, so the session is
// never idle in between, and each fence sets them before it waits for a row's lock. The fence
// itself has no statement_timeout then, and ends by the client's bound.
func (c *Consumer) setTimeouts(tx *guard.Tx) {
	t := &c.cfg.Timeouts
	tx.Bound(stepBegin, t.Lock, t.Statement, t.Idle)
}

// logStray logs a write that a handler queued after it had returned (T6). If the transaction has
// ended, nothing else would report it.
func (c *Consumer) logStray(err error) {
	c.cfg.Logger.Error("onlyonce: a handler queued a statement after it had returned; it was not sent", "scope", c.cfg.Scope, "error", err)
}

// commit and rollback end a transaction, detached from any request (T5).
func (c *Consumer) commit(tx *guard.Tx) error { return tx.Commit(c.cfg.Timeouts.Commit) }

func (c *Consumer) rollback(tx *guard.Tx) { tx.Rollback(c.cfg.Timeouts.Commit) }

// pooledConn is a connection of the pool that may have to be left to a handler that does not
// return.
type pooledConn struct {
	conn *primary.Conn
	once sync.Once
}

func (s *pooledConn) release() { s.once.Do(s.conn.Release) }

// abandon takes the connection out of the pool and cuts it.
func (s *pooledConn) abandon(tx *guard.Tx) {
	s.once.Do(func() {
		s.conn.Hijack() // the pool may open another one
		tx.Abandon()
	})
}
