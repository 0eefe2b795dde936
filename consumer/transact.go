package consumer

import (
	"context"
	"errors"
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

// run runs the plan's transaction until it has committed or has failed, and finds out whether an
// earlier run had done it.
func (e *engine) run(work context.Context, p *plan) outcome {
	o := e.runWithHooks(work, p)
	defer e.brake.Ended(p)
	if errors.Is(o.err, errFenced) || errors.Is(o.err, errChanged) {
		if err := p.fence.explain(work, o.err); err != nil {
			o.err = err
		} else {
			o = e.doneBefore(p, o)
		}
	}
	if o.err == nil {
		p.fence.committed(p, &o)
	}
	return o
}

// runWithHooks prepares the plan and runs its transaction, between the hooks of an attempt.
func (e *engine) runWithHooks(work context.Context, p *plan) (o outcome) {
	hooks := &e.c.cfg.Hooks
	ctx := begin(work, hooks.AttemptStart, e.batch(p))
	started := time.Now()
	handlers := ctx
	var err error
	if e.c.cfg.Prepare != nil && p.park == nil {
		handlers, err = e.prepare(ctx, p)
	}
	if err == nil {
		o = e.transact(handlers, p)
	} else {
		o = e.newOutcome(p)
		o.err = err
	}
	o.result.Duration = time.Since(started)
	end(ctx, hooks.AttemptEnd, o.result, o.err)
	return o
}

// acquireConn takes a connection from the pool. The caller ends it, by release or abandon.
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
// comment in the migration. It is a transaction of its own. In: how many. Out: a row if some are
// left.
const indexCallsSQL = `select 1 where not onlyonce.index_calls($1)`

// indexedAtOnce is how many keys of calls one statement notes at most, or somewhat more.
const indexedAtOnce = 5000

// indexCalls prepares the look for calls of messages that may have been handled before (O1): each
// call that such a message asks for is looked for by its key. Without this the look would find the
// same, and read the whole log each time.
func (e *engine) indexCalls(work context.Context, conn *primary.Conn) error {
	err := e.indexed.All(work, func(most int) (int, error) {
		bounded, cancel := e.c.bounded(work)
		defer cancel()
		left, err := conn.Exec(bounded, indexCallsSQL, most)
		return most * int(left.RowsAffected()), err
	})
	if err != nil {
		return fmt.Errorf("noting the keys of calls: %w", err)
	}
	return nil
}

// looksForCalls reports whether calls of these messages are looked for in the log.
func (e *engine) looksForCalls(msgs []*Message) bool {
	return slices.ContainsFunc(msgs, func(m *Message) bool {
		return m.Offset < e.redoUntil || m.replay > 0 && !m.resend
	})
}

// transact repeats the transaction after serialization failures, and after the optimistic claim has
// found a duplicate.
func (e *engine) transact(work context.Context, p *plan) (o outcome) {
	held, err := e.acquireConn(work)
	if err != nil {
		o = e.newOutcome(p)
		o.err = err
		return o
	}
	defer func() { held.release() }() // the one that is held by then
	looks := e.looksForCalls(p.msgs)
	index := looks && e.c.enqueues.Load()
	first := e.firstCaution(p)
	fallback := false
	for run := 0; ; run++ {
		o = e.newOutcome(p)
		o.result.Fallback = fallback
		if held.conn.Conn().IsClosed() { // the run before has left state in its session
			held.release() // first, because the pool may have no other
			fresh, err := e.acquireConn(work)
			if err != nil {
				o.err = err
				return o
			}
			held = fresh
		}
		if index {
			if o.err = e.indexCalls(work, held.conn); o.err != nil {
				return o
			}
			index = false
			looks = false
		}
		tx := guard.Begin(held.conn.Conn())
		tx.Report = e.c.logStray
		h := e.fillTransaction(work, tx, p, first, &o)
		if h.hung {
			held.abandon(tx)
			o.err = e.reportHung(work, h, e.c.batch == nil)
			return o
		}
		if e.bytesChanged(p) {
			e.c.rollback(tx)
			o.err = errChanged
			return o
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
		failed := tx.Failure()
		lost := tx.Lost()
		if h.err == nil && tx.Committed() {
			e.adjustCaution(&o)
			return o
		}
		e.c.rollback(tx)
		if again, next := e.runsAgain(run, first, failed); again {
			fallback = fallback || next != first
			first = next
			continue
		}
		if fenceRaised(failed) {
			o.err = errFenced
		} else {
			o.err = e.classifyFailure(work, &o, h, failed, lost)
		}
		return o
	}
}

// firstCaution returns with how much caution a plan is run for the first time.
func (e *engine) firstCaution(p *plan) caution {
	claims := e.c.batch != nil || e.c.cfg.ClaimFirst || e.claimFirstLeft > 0
	if claims || p.alone || p.park != nil {
		return caution{claim: true, order: true}
	}
	return caution{}
}

// runsAgain reports whether a run that failed is repeated at once, whole, handler included: after a
// serialization failure or a deadlock, and with more caution (next) if the server has raised
// because there was too little.
func (e *engine) runsAgain(run int, first caution, failed *guard.Failure) (again bool, next caution) {
	state := sqlState(failed)
	switch {
	case run < rerunLimit && guard.RunAgain(state):
		if state == codeDeadlock && e.deadlocked != nil {
			e.deadlocked()
		}
		return true, first
	case failed == nil:
		return false, first
	case !first.claim && failed.Step == stepClaim && state == codeKeyNotFresh,
		!first.claim && failed.Step == stepAge && state == codeTooOld:
		e.claimFirstLeft = claimFirstRuns
		return true, caution{claim: true, order: true}
	case !first.order && failed.Step == stepOrder && state == codeBlocked:
		return true, caution{claim: first.claim, order: true}
	}
	return false, first
}

// fenceRaised reports whether the fence has raised because the plan is done, or is not this
// owner's.
func fenceRaised(failed *guard.Failure) bool {
	state := sqlState(failed)
	return failed != nil && failed.Step == stepFence && (state == codeFenceLost || state == codeRaceLost)
}

// adjustCaution records what a committed transaction means for the next ones.
func (e *engine) adjustCaution(o *outcome) {
	switch {
	case o.result.Duplicates > 0:
		e.claimFirstLeft = claimFirstRuns
	case e.claimFirstLeft > 0:
		e.claimFirstLeft--
	}
}

// fillTransaction queues or sends everything up to the handler's last statement, notes in o what
// that does, and returns the result of the handlers (T1, D6).
func (e *engine) fillTransaction(work context.Context, tx *guard.Tx, p *plan, first caution, o *outcome) *handlerRun {
	h := &handlerRun{failedIndex: -1}
	before, cancel := e.c.bounded(work) // up to the handler
	defer cancel()
	if e.c.onBegin(before, tx) != nil {
		h.hookFailed = before.Err() == nil
		return h
	}
	p.fence.queue(tx)
	dispositions := e.findIDs(p.msgs)
	e.skipStillParked(before, tx, p, dispositions)
	if !p.skipClaim && tx.Failure() == nil {
		e.claimKeys(before, tx, p.msgs, dispositions, first.claim)
	}
	if tx.Failure() == nil {
		e.checkAge(before, tx, p, dispositions, first.claim)
	}
	if tx.Failure() == nil {
		e.checkOrder(before, tx, p, dispositions, first.order)
	}
	if tx.Failure() != nil {
		return h
	}
	if at, err := e.firstBraked(p, dispositions); err != nil {
		h.failedIndex = at
		h.err = err
		return h
	}
	// Each run has its own copies of the messages. If a handler changes a field, another run does
	// not see it, and it is not parked.
	own := make([]Message, 0, len(p.msgs))
	fresh := make([]*Message, 0, len(p.msgs))
	index := make([]int, 0, len(p.msgs))
	for i, m := range p.msgs {
		v := dispositions[i]
		if v == nil {
			v = p.park
		}
		switch {
		case v == nil:
			own = append(own, e.c.forProgram(m))
			o.reasons = append(o.reasons, "")
			fresh = append(fresh, &own[len(own)-1])
			index = append(index, i)
			continue
		case v.reason == reasonDuplicate:
			o.result.Duplicates++
			continue
		case v.reason == reasonSkipped:
			o.result.Skipped++
			continue
		case p.alreadyParked || e.c.cfg.OnFailure == BlockPartition:
			h.failedIndex = i
			h.err = &blockedError{v}
			return h
		}
		if failed, late := e.parkInTx(work, tx, p, m, v, o); failed {
			h.failedIndex = i
			h.hookFailed = !late
			return h
		}
	}
	o.result.Parked = len(o.parked)
	if len(fresh) == 0 {
		return h
	}
	o.handlerCalled = true
	h = e.runHandlers(work, tx, fresh, index)
	if !h.hung {
		o.result.Handled = h.handled
	}
	return h
}

// parkInTx parks a message, calls Config.OnParked, and notes that in o. It reports whether that has
// failed; late is as of onParked.
func (e *engine) parkInTx(work context.Context, tx *guard.Tx, p *plan, m *Message, v *disposition, o *outcome,
) (failed, late bool) {
	e.park(tx, m, v)
	event := ParkedEvent{
		TopicPartition: source.TopicPartition{Topic: m.Topic, Partition: m.Partition},
		Offset:         m.Offset,
		Reason:         ParkReason(v.reason),
		State:          ParkState(v.parkedState()),
		Err:            v.err,
		ID:             e.parkingID(m, v.reason, 0),
	}
	if quiet := p.park != nil && p.park.quiet; !quiet {
		late, err := e.c.onParked(work, tx, m, event)
		if err != nil || tx.Failure() != nil {
			return true, late
		}
	}
	o.parked = append(o.parked, event)
	o.reasons = append(o.reasons, v.reason)
	if v.reason == parked.Behind {
		o.blockedKeys = append(o.blockedKeys, v.waitsFor)
	}
	return false, false
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
	c.cfg.Logger.Error("onlyonce: a handler queued a statement after it had returned; it was not sent",
		"scope", c.cfg.Scope, "error", err)
}

// commit and rollback end a transaction, detached from any request (T5).
func (c *Consumer) commit(tx *guard.Tx) error { return tx.Commit(c.cfg.Timeouts.Commit) }

func (c *Consumer) rollback(tx *guard.Tx) { tx.Rollback(c.cfg.Timeouts.Commit) }

// pooledConn is a connection of the pool that may have to be left to a handler that does not
// return. Whoever has acquired it ends it once, by release or abandon; the later call does nothing.
type pooledConn struct {
	conn *primary.Conn
	once sync.Once
}

func (p *pooledConn) release() { p.once.Do(p.conn.Release) }

// abandon takes the connection out of the pool and cuts it.
func (p *pooledConn) abandon(tx *guard.Tx) {
	p.once.Do(func() {
		p.conn.Hijack() // the pool may open another one
		tx.Abandon()
	})
}
