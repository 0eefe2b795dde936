package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// serveLeased runs the handler under a lease (H18). expired is a record whose owner's lease has run
// out, or nil.
func (req *servedRequest) serveLeased(expired *storedRecord) reply {
	for range recordLookupLimit {
		l, err := req.claimOrTakeOver(expired)
		if err != nil {
			return problemReply(codeStoreUnavailable, err)
		}
		if l != nil {
			return req.runUnderLease(l)
		}
		var rep reply // another request was faster
		var answered bool
		if expired, rep, answered = req.replyFromStore(); answered {
			return rep
		}
	}
	return inProgressReply(time.Second)
}

// claimOrTakeOver claims a free key, or takes it over from an owner whose lease has ended. It
// returns nil if another request was faster.
func (req *servedRequest) claimOrTakeOver(rec *storedRecord) (*lease.Lease, error) {
	// Not cancelled with the client: a claim that is cut off may have succeeded, and the key would
	// then be locked until the lease ends.
	ctx, cancel := context.WithTimeout(req.ctx, req.layer.cfg.AcquireTimeout)
	defer cancel()
	l := &lease.Lease{Nonce: req.token.String(), Sent: time.Now()}
	if rec == nil {
		err := req.layer.pool.QueryRow(ctx, claimSQL, codec.UUID(req.id), req.scope.Tenant, req.subject.Scope,
			req.fingerprint, codec.UUID(req.token), req.ttl, req.layer.cfg.LeaseTTL, req.home()).Scan(&l.ID, &l.Epoch)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, nil
		}
		if err != nil {
			req.layer.forgetPlace(req.scope.Tenant, err)
			return nil, fmt.Errorf("idempotency: claiming a key: %w", err)
		}
	} else {
		var epoch *int64
		err := req.layer.pool.QueryRow(ctx, takeOverSQL, rec.lease, rec.epoch, codec.UUID(req.token), req.layer.cfg.LeaseTTL,
			req.home()).Scan(&epoch)
		if err != nil {
			return nil, fmt.Errorf("idempotency: taking over a key: %w", err)
		}
		if epoch == nil {
			return nil, nil
		}
		l.ID, l.Epoch = rec.lease, *epoch
	}
	return l, nil
}

// runUnderLease runs the handler under a lease, again if the database asks for it.
func (req *servedRequest) runUnderLease(l *lease.Lease) reply {
	for reruns := 0; ; reruns++ {
		run := req.newRun()
		out := run.runLeasedOnce(l, req.newRecorder(req.bodyLimit()))
		if run.renewed != nil {
			l = run.renewed
		}
		if !out.rerun {
			return out.reply
		}
		if reruns == rerunLimit || run.held.lossError() != nil {
			req.releaseKey(l)
			return out.reply
		}
	}
}

// runLeasedOnce runs the handler once. Its lease and connection are given back however it ends,
// also by a panic or runtime.Goexit.
func (run *handlerRun) runLeasedOnce(l *lease.Lease, rec *recorder) runOutcome {
	ctx, cancel := context.WithCancelCause(run.work)
	defer cancel(nil)
	run.held = run.layer.leases.startRenewing(l, cancel)
	defer run.layer.leases.stopRenewing(run.held)
	defer run.endTx()
	returned := false
	defer func() {
		switch {
		case returned:
		default:
			if run.openStep() == stepAside {
				run.setAside(l)
				return
			}
			run.endTx()
			run.releaseKey(l)
		}
	}()
	if p := run.runHandler(ctx, rec); p != nil {
		panic(p)
	}
	returned = true
	return run.completeLeased(l, rec)
}

// completeLeased stores the handler's answer, or releases the key.
func (run *handlerRun) completeLeased(l *lease.Lease, rec *recorder) runOutcome {
	if err := fault.Point(fault.RequestHandled); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	if run.held.lossError() != nil {
		return finalOutcome(inProgressReply(time.Second)) // the new owner goes on
	}
	if run.openStep() == stepAside {
		return finalOutcome(run.setAside(l))
	}
	decision := run.decideKept(rec)
	if decision.part == keepNothing {
		run.endTx()
		if !decision.outcome.rerun {
			run.releaseKey(l)
		}
		return decision.outcome
	}
	answer, err := run.encodeResponse(run, rec)
	if err != nil {
		run.endTx()
		run.releaseKey(l)
		return finalOutcome(problemReply(codeRolledBack, err))
	}
	if decision.part == keepAnswer && run.tx != nil {
		if err := run.tx.Revert(run.ctx); err != nil {
			out := run.outcomeOfFailure(err)
			run.endTx()
			if !out.rerun {
				run.releaseKey(l)
			}
			return out
		}
	}
	return run.writeRecord(l, handlerReply(Created, rec), answer)
}

// writeRecord writes the record, in the handler's transaction if it has one. If the answer to
// COMMIT is lost, it writes the record again: the first statement that succeeds ends the lease, and
// the other one fails because of that.
func (run *handlerRun) writeRecord(l *lease.Lease, rep reply, answer recordedAnswer) runOutcome {
	retry := retryBackoff()
	deadline := time.Now().Add(run.layer.cfg.Timeouts.Commit)
	hasWrites := run.tx != nil // the handler's writes are only in the first transaction
	// From here on this transaction locks the lease. If COMMIT hangs, a renewal would wait for it,
	// and all other renewals with it.
	run.layer.leases.stopRenewing(run.held)
	for {
		err := run.writeRecordOnce(l, answer)
		switch {
		case err == nil:
			return finalOutcome(run.withExpiry(rep))
		case mustRerun(err):
			if hasWrites {
				return runOutcome{reply: rerunsUsedUp(err), rerun: true}
			}
		case guard.SQLState(err) == fenceLost:
			return finalOutcome(run.replyAfterFence(rep))
		case guard.SQLState(err) == stepUnknown:
			run.endTx()
			run.releaseKey(l)
			return finalOutcome(unkeptReply(rep, err))
		case !run.commitUnanswered() && hasWrites:
			run.endTx()
			run.releaseKey(l)
			return finalOutcome(problemReply(codeRolledBack, err))
		}
		lost := run.tx != nil && run.tx.Lost()
		run.endTx()
		if hasWrites && lost {
			return run.resolveLeasedCommit(l, rep, err)
		}
		if time.Now().After(deadline) {
			return finalOutcome(problemReply(codeCommitUnknown, err))
		}
		time.Sleep(retry.NextBackOff())
	}
}

// commitUnanswered reports whether an error leaves the outcome of a COMMIT open, or means that the
// server could not be reached.
func (run *handlerRun) commitUnanswered() bool {
	return run.tx == nil || run.tx.Lost()
}

func (run *handlerRun) writeRecordOnce(l *lease.Lease, answer recordedAnswer) error {
	if run.tx == nil {
		ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
		err := run.beginTx(ctx, "")
		cancel()
		if err != nil {
			return err
		}
		run.tx.Engine(stepOpen, openSQL, append(slices.Clip(run.layer.timeoutArgs), nil)...)
	}
	run.tx.SealBy([]any{&run.expires}, stepRecord, finishSQL, codec.UUID(run.id), l.ID, l.Epoch, l.Nonce, answer.bytes, answer.sealed,
		run.lookInterval(), run.callKeys, run.callSinks, run.callLanes, answer.refusal)
	return run.tx.Commit(run.layer.cfg.Timeouts.Commit)
}

// resolveLeasedCommit finds out whether the COMMIT of a handler's writes succeeded. Raising the
// lease's epoch decides it: that waits for the old transaction, which locks the lease last. If the
// old transaction committed, the lease is gone.
func (run *handlerRun) resolveLeasedCommit(l *lease.Lease, rep reply, cause error) runOutcome {
	retry := retryBackoff()
	deadline := time.Now().Add(run.layer.cfg.Timeouts.Commit)
	for time.Now().Before(deadline) {
		rec, err := run.layer.findRecord(run.ctx, run.id)
		switch {
		case err != nil:
		case rec != nil && rec.state == stateCompleted && rec.token == run.token:
			rep.expires = rec.expires
			return finalOutcome(rep)
		case rec == nil || rec.state != stateRunning || rec.nonce == nil || *rec.nonce != run.token:
			return finalOutcome(inProgressReply(time.Second))
		default:
			sent := time.Now()
			if epoch, err := run.raiseOwnEpoch(l); err == nil && epoch != 0 { // the old transaction has not locked the lease, and cannot do so any more
				run.renewed = &lease.Lease{ID: l.ID, Epoch: epoch, Nonce: l.Nonce, Sent: sent}
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

func (req *servedRequest) raiseOwnEpoch(l *lease.Lease) (epoch int64, err error) {
	ctx, cancel := context.WithTimeout(req.ctx, req.layer.cfg.AcquireTimeout)
	defer cancel()
	err = req.layer.pool.QueryRow(ctx, raiseOwnEpochSQL, l.ID, l.Epoch, l.Nonce, req.layer.cfg.LeaseTTL).Scan(&epoch)
	return epoch, err
}

// replyAfterFence answers if the fence did not hold: either an earlier COMMIT of this request
// succeeded after all, or another process has taken the request over.
func (run *handlerRun) replyAfterFence(rep reply) reply {
	run.endTx()
	rec, err := run.layer.findRecord(run.ctx, run.id)
	if err == nil && rec != nil && rec.state == stateCompleted && rec.token == run.token {
		rep.expires = rec.expires
		return rep
	}
	return inProgressReply(time.Second)
}

// releaseKey gives the key back, so that the next request runs at once. If it fails, the lease ends
// by itself.
func (req *servedRequest) releaseKey(l *lease.Lease) {
	ctx, cancel := context.WithTimeout(req.ctx, req.layer.cfg.AcquireTimeout)
	defer cancel()
	if _, err := req.layer.pool.Exec(ctx, releaseSQL, codec.UUID(req.id), l.ID, l.Epoch, l.Nonce); err != nil && guard.SQLState(err) != fenceLost {
		req.layer.reportError(fmt.Errorf("idempotency: releasing a key: %w", err))
	}
}

// setAside sets the request aside for an operator.
func (run *handlerRun) setAside(l *lease.Lease) reply {
	run.endTx()
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	_, err := run.layer.pool.Exec(ctx, reconcileSQL, codec.UUID(run.id), l.ID, l.Epoch, l.Nonce)
	return problemReply(codeCommitUnknown, err)
}
