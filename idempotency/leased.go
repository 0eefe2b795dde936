package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// serveLeased runs the handler under a lease (H18). expired is a record whose owner's lease has run
// out, or nil.
func (x *servedRequest) serveLeased(expired *storedRecord) reply {
	for range recordLookupLimit {
		l, err := x.claimOrTakeOver(expired)
		if err != nil {
			return problemReply(codeStoreUnavailable, err)
		}
		if l != nil {
			return x.runUnderLease(l)
		}
		var rep reply // another request was faster
		var known bool
		if expired, rep, known = x.replyFromStore(); known {
			return rep
		}
	}
	return inProgressReply(time.Second)
}

// claimOrTakeOver claims a free key, or takes it over from an owner whose lease has ended. It
// returns nil if another request was faster.
func (x *servedRequest) claimOrTakeOver(rec *storedRecord) (*lease.Lease, error) {
	// Not cancelled with the client: a claim that is cut off may have succeeded, and the key would
	// then be locked until the lease ends.
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	l := &lease.Lease{Nonce: x.token.String(), Sent: time.Now()}
	if rec == nil {
		err := x.layer.pool.QueryRow(ctx, claimSQL, uuid.UUID(x.id), x.scope.Tenant, x.subject.Scope, x.fingerprint, x.token, x.ttl, x.layer.cfg.LeaseTTL).Scan(&l.ID, &l.Epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("idempotency: claiming a key: %w", err)
		}
	} else {
		var epoch *int64
		if err := x.layer.pool.QueryRow(ctx, takeOverSQL, rec.lease, rec.epoch, x.token, x.layer.cfg.LeaseTTL).Scan(&epoch); err != nil {
			return nil, fmt.Errorf("idempotency: taking over a key: %w", err)
		}
		if epoch == nil {
			return nil, nil
		}
		l.ID, l.Epoch = rec.lease, *epoch
	}
	return l, fault.Point(fault.RequestLeased)
}

// runUnderLease runs the handler under a lease, again if the database asks for it.
func (x *servedRequest) runUnderLease(l *lease.Lease) reply {
	limit := x.handler.route.MaxResponse
	if x.handler.route.TombstoneLarge || x.handler.route.NoStoreBody {
		limit = maxStored
	}
	for reruns := 0; ; reruns++ {
		x.outcomeUnknown, x.renewed = false, nil
		out := x.runLeasedOnce(l, x.newRecorder(limit))
		if x.renewed != nil {
			l = x.renewed
		}
		if !out.rerun {
			return out.reply
		}
		if reruns == rerunLimit || x.held.lossError() != nil {
			x.releaseKey(l)
			return out.reply
		}
	}
}

// runLeasedOnce runs the handler once. Its lease and connection are given back however it ends,
// also by a panic or runtime.Goexit.
func (x *servedRequest) runLeasedOnce(l *lease.Lease, rec *recorder) runOutcome {
	ctx, cancel := context.WithCancelCause(x.ctx)
	defer cancel(nil)
	x.held = x.layer.leases.hold(l, cancel)
	defer x.layer.leases.release(x.held)
	defer x.endTx()
	returned := false
	defer func() {
		switch {
		case returned:
		case x.outcomeUnknown:
			x.setAside(l)
		default:
			x.endTx()
			x.releaseKey(l)
		}
	}()
	if p := x.runHandler(ctx, rec); p != nil {
		panic(p)
	}
	returned = true
	return x.completeLeased(l, rec)
}

// completeLeased stores the handler's answer, or releases the key.
func (x *servedRequest) completeLeased(l *lease.Lease, rec *recorder) runOutcome {
	if err := fault.Point(fault.RequestHandled); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	if x.held.lossError() != nil {
		return finalOutcome(inProgressReply(time.Second)) // the new owner goes on
	}
	if x.outcomeUnknown {
		return finalOutcome(x.setAside(l))
	}
	v := x.decideKept(rec)
	if v.keep == keepNothing {
		x.endTx()
		if !v.outcome.rerun {
			x.releaseKey(l)
		}
		return v.outcome
	}
	stored, sealed, err := x.encodeResponse(rec)
	if err != nil {
		x.endTx()
		x.releaseKey(l)
		return finalOutcome(problemReply(codeRolledBack, err))
	}
	if v.keep == keepAnswer && x.tx != nil {
		if err := x.tx.Revert(x.ctx); err != nil {
			out := x.outcomeOfFailure(err)
			x.endTx()
			if !out.rerun {
				x.releaseKey(l)
			}
			return out
		}
	}
	return x.writeRecord(l, handlerReply(Created, rec), stored, sealed)
}

// writeRecord writes the record, in the handler's transaction if it has one. If the answer to
// COMMIT is lost, it writes the record again: the first statement that succeeds ends the lease, and
// the other one fails because of that.
func (x *servedRequest) writeRecord(l *lease.Lease, rep reply, stored []byte, sealed bool) runOutcome {
	retry := retryBackoff()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	written := x.tx != nil // the handler's writes are only in the first transaction
	// From here on this transaction locks the lease. If COMMIT hangs, a renewal would wait for it,
	// and all other renewals with it.
	x.layer.leases.release(x.held)
	for {
		err := x.writeRecordOnce(l, stored, sealed)
		switch {
		case err == nil:
			return finalOutcome(x.withExpiry(rep))
		case mustRerun(err):
			if written {
				return runOutcome{reply: rerunsUsedUp(err), rerun: true}
			}
		case guard.SQLState(err) == fenceLost:
			return finalOutcome(x.replyAfterFence(rep))
		case !x.commitUnanswered(err) && written:
			x.endTx()
			x.releaseKey(l)
			return finalOutcome(problemReply(codeRolledBack, err))
		}
		lost := x.tx != nil && x.tx.Lost()
		x.endTx()
		if written && (lost || errors.Is(err, fault.ErrInjected)) {
			return x.resolveLeasedCommit(l, rep, err)
		}
		if time.Now().After(deadline) {
			return finalOutcome(problemReply(codeCommitUnknown, err))
		}
		time.Sleep(retry.NextBackOff())
	}
}

// commitUnanswered reports whether an error leaves the outcome of a COMMIT open, or means that the
// server could not be reached.
func (x *servedRequest) commitUnanswered(err error) bool {
	return x.tx == nil || x.tx.Lost() || errors.Is(err, fault.ErrInjected)
}

func (x *servedRequest) writeRecordOnce(l *lease.Lease, stored []byte, sealed bool) error {
	if x.tx == nil {
		if err := x.beginTx(x.ctx, ""); err != nil {
			return err
		}
		x.tx.Engine(stepOpen, openSQL, x.timeoutArgs()...)
	}
	x.tx.EngineInto([]any{&x.expires}, stepRecord, finishSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce, stored, sealed)
	if err := fault.Point(fault.RequestSealing); err != nil {
		return err
	}
	if err := x.tx.Commit(x.layer.cfg.CommitTimeout); err != nil {
		return err
	}
	return fault.Point(fault.RequestCommitted)
}

// resolveLeasedCommit finds out whether the COMMIT of a handler's writes succeeded. Raising the
// lease's epoch decides it: that waits for the old transaction, which locks the lease last. If the
// old transaction committed, the lease is gone.
func (x *servedRequest) resolveLeasedCommit(l *lease.Lease, rep reply, cause error) runOutcome {
	retry := retryBackoff()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	for time.Now().Before(deadline) {
		rec, err := x.layer.findRecord(x.ctx, x.id)
		switch {
		case err != nil:
		case rec != nil && rec.state == stateCompleted && rec.token == x.token:
			rep.expires = rec.expires
			return finalOutcome(rep)
		case rec == nil || rec.state != stateRunning || rec.nonce == nil || *rec.nonce != x.token:
			return finalOutcome(inProgressReply(time.Second))
		default:
			sent := time.Now()
			if epoch, err := x.raiseOwnEpoch(l); err == nil && epoch != 0 { // the old transaction has not locked the lease, and cannot do so any more
				x.renewed = &lease.Lease{ID: l.ID, Epoch: epoch, Nonce: l.Nonce, Sent: sent}
				return runOutcome{reply: problemReply(codeRolledBack, cause), rerun: true}
			}
		}
		time.Sleep(retry.NextBackOff())
	}
	return finalOutcome(problemReply(codeCommitUnknown, cause))
}

// raiseOwnEpochSQL raises the epoch of an owner's own lease, so that no statement that the owner
// has sent before can succeed any more. In: lease, epoch, nonce, ttl. Out: the new epoch, or no
// row. Waits for a transaction that holds the lease.
const raiseOwnEpochSQL = `
update onlyonce.leases set epoch = epoch + 1, until = clock_timestamp() + $4 where id = $1 and epoch = $2 and nonce = $3 returning epoch`

func (x *servedRequest) raiseOwnEpoch(l *lease.Lease) (epoch int64, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	err = x.layer.pool.QueryRow(ctx, raiseOwnEpochSQL, l.ID, l.Epoch, l.Nonce, x.layer.cfg.LeaseTTL).Scan(&epoch)
	return epoch, err
}

// replyAfterFence answers if the fence did not hold: either an earlier COMMIT of this request
// succeeded after all, or another process has taken the request over.
func (x *servedRequest) replyAfterFence(rep reply) reply {
	x.endTx()
	rec, err := x.layer.findRecord(x.ctx, x.id)
	if err == nil && rec != nil && rec.state == stateCompleted && rec.token == x.token {
		rep.expires = rec.expires
		return rep
	}
	return inProgressReply(time.Second)
}

// releaseKey gives the key back, so that the next request runs at once. If it fails, the lease ends
// by itself.
func (x *servedRequest) releaseKey(l *lease.Lease) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	if _, err := x.layer.pool.Exec(ctx, releaseSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce); err != nil && guard.SQLState(err) != fenceLost {
		x.layer.reportError(fmt.Errorf("idempotency: giving a key back: %w", err))
	}
}

// setAside sets the request aside for an operator.
func (x *servedRequest) setAside(l *lease.Lease) reply {
	x.endTx()
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	_, err := x.layer.pool.Exec(ctx, reconcileSQL, uuid.UUID(x.id), l.ID, l.Epoch, l.Nonce)
	return problemReply(codeCommitUnknown, err)
}
