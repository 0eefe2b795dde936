package idempotency

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/fault"
)

// recordLookupLimit is how often a record is looked up that another process has just written.
const recordLookupLimit = 20

// serveTransactional runs the handler and writes its record in one transaction (H17).
func (req *servedRequest) serveTransactional() reply {
	reruns := 0
	for n := range recordLookupLimit {
		if n > 0 {
			if _, rep, answered := req.replyFromStore(); answered {
				return rep
			}
		}
		out := req.newRun().runTransactional(req.newRecorder(req.bodyLimit()), true)
		switch {
		case out.recorded:
		case out.rerun && reruns < rerunLimit:
			reruns++
		default:
			return out.reply
		}
	}
	return inProgressReply(time.Second)
}

// runTransactional runs the handler once, in a transaction of its own. claimed is false if the
// request has no key.
func (run *handlerRun) runTransactional(rec *recorder, claimed bool) runOutcome {
	defer run.endTx()
	bounded, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	reserved := run.reserveConn(bounded)
	cancel()
	if !reserved {
		return finalOutcome(problemReply(codeOverCapacity, nil))
	}
	if out, ready := run.openTx(claimed); !ready {
		return out
	}
	if claimed && run.derivesCalls() {
		run.lendOrigin()
	}
	run.tx.Checkpoint()
	if p := run.runHandler(run.work, rec); p != nil {
		panic(p)
	}
	if err := fault.Point(fault.RequestHandled); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	decision := run.decideKept(rec)
	if decision.part == keepNothing {
		return decision.outcome
	}
	if decision.part == keepAnswer {
		if err := run.tx.Revert(run.ctx); err != nil {
			return run.outcomeOfFailure(err)
		}
	}
	if !claimed {
		return run.commitRecord(handlerReply(Bypassed, rec))
	}
	answer, err := run.encodeResponse(run, rec)
	if err != nil {
		return finalOutcome(problemReply(codeRolledBack, err))
	}
	run.tx.SealBy([]any{&run.expires}, stepRecord, completeSQL, codec.UUID(run.id), run.scope.Tenant, run.subject.Scope, run.fingerprint, codec.UUID(run.token), answer.bytes, answer.sealed, run.ttl,
		run.lookInterval(), run.operation != "", run.callKeys, run.callSinks, run.callLanes, answer.refusal)
	return run.commitRecord(handlerReply(Created, rec))
}

// lendOrigin has the keys of the handler's calls derive from the request's key, and notes the calls
// for its record.
func (run *handlerRun) lendOrigin() {
	from := run.origin
	from.Calls = &run.calls
	run.tx.Lend(&from)
}

// operationLook is how often the purge looks whether a request's operation has ended, at least.
const operationLook = time.Hour

// lookInterval returns how often the purge looks whether what the request has begun is settled.
// Between two looks and the record's end remotes can forget the keys of its calls (H26, H31).
func (run *handlerRun) lookInterval() time.Duration {
	look := run.ttl
	if run.derivesCalls() {
		look -= run.handler.route.KeyWindow
	}
	if run.operation != "" {
		look = min(look, operationLook)
	}
	return look
}

// callKeys, callSinks and callLanes return what the record keeps of the calls that its transaction
// has written, nil if there are none. They are called after these were written.
func (run *handlerRun) callKeys() any {
	keys := run.calls.Keys
	if keys == nil {
		return nil
	}
	return codec.Array(len(keys), func(i int) pgtype.UUID { return codec.UUID(keys[i]) })
}

func (run *handlerRun) callSinks() any {
	sinks := run.calls.Sinks
	if sinks == nil {
		return nil
	}
	return codec.Array(len(sinks), func(i int) pgtype.Text { return pgtype.Text{String: sinks[i], Valid: true} })
}

func (run *handlerRun) callLanes() any {
	lanes := run.calls.Lanes
	if lanes == nil {
		return nil
	}
	return codec.Array(len(lanes), func(i int) pgtype.Int2 { return pgtype.Int2{Int16: lanes[i], Valid: true} })
}

// openTx begins a transaction and takes the key in it, if there is one. If the key is not free, or
// the store cannot be reached, ready is false.
func (run *handlerRun) openTx(claimed bool) (out runOutcome, ready bool) {
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	if err := run.beginTx(ctx, run.handler.route.Isolation); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err)), false
	}
	if !claimed {
		run.openUnkeyed()
		return out, true
	}
	n, err := run.claimKey(ctx)
	if mustRerun(err) { // a purge has deleted the expired record since the snapshot
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}, false
	}
	if err != nil {
		run.layer.forgetPlace(run.scope.Tenant, err)
		return finalOutcome(problemReply(codeStoreUnavailable, fmt.Errorf("idempotency: claiming a key: %w", err))), false
	}
	return runOutcome{reply: inProgressReply(time.Second), recorded: n == claimRecorded}, n == claimMine
}

// The results of onlyonce.http_begin.
const (
	claimBusy     = 0
	claimMine     = 1
	claimRecorded = 2
)

// claimKey takes the key's lock, and then looks for a record.
func (run *handlerRun) claimKey(ctx context.Context) (n int, err error) {
	args := slices.Concat([]any{codec.UUID(run.id)}, run.layer.timeoutArgs, []any{run.home()})
	err = run.tx.EngineRow(ctx, stepClaim, beginSQL, args...).Scan(&n)
	return n, err
}

// openUnkeyed opens the transaction of a request without a key.
func (run *handlerRun) openUnkeyed() {
	run.tx.Engine(stepOpen, openSQL, append(slices.Clip(run.layer.timeoutArgs), run.home())...)
}

// commitRecord commits the transaction. The answer is sent only after it (H12).
func (run *handlerRun) commitRecord(rep reply) runOutcome {
	sent := time.Now()
	err := run.tx.Commit(run.layer.cfg.Timeouts.Commit)
	lost := err != nil && run.tx.Lost()
	switch {
	case err == nil:
		if run.onCommit != nil {
			run.onCommit()
		}
		run.layer.recentKeys.add(run.id)
		return finalOutcome(run.withExpiry(rep))
	case lost && run.key == "": // it cannot be looked up, and a retry could apply it twice
		unknown := problemReply(codeCommitUnknown, err)
		unknown.retryAfter, unknown.final = 0, true
		return finalOutcome(unknown)
	case lost:
		return run.resolveCommit(rep, sent, err)
	case isRecordExists(err):
		return runOutcome{reply: inProgressReply(time.Second), recorded: true}
	case mustRerun(err):
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}
	}
	return finalOutcome(problemReply(codeRolledBack, err)) // a deferred constraint of the handler's tables failed
}

// withExpiry adds to a first answer the time until which it is stored.
func (req *servedRequest) withExpiry(rep reply) reply {
	if rep.mark == Created {
		rep.expires = &req.expires
	}
	return rep
}

// resolveCommit finds out whether a COMMIT without an answer succeeded (T4). The old transaction
// holds the key's lock. Whichever transaction gets that lock next knows that the old one has ended,
// and its next statement sees whether there is a record. Until this request gets the lock, the
// outcome is unknown. It stays unknown if the record would have expired by now, and perhaps was
// deleted: sent is a time before it was written (H17).
func (run *handlerRun) resolveCommit(rep reply, sent time.Time, cause error) runOutcome {
	run.endTx()
	retry := retryBackoff()
	deadline := time.Now().Add(run.layer.cfg.Timeouts.Commit)
	for time.Now().Before(deadline) {
		n, err := run.claimKeyAlone()
		switch {
		case err == nil && n == claimMine && time.Since(sent) >= run.ttl:
			return finalOutcome(problemReply(codeCommitUnknown, cause))
		case err == nil && n == claimMine:
			return runOutcome{reply: problemReply(codeRolledBack, cause), rerun: true}
		case err == nil && n == claimRecorded:
			rec, err := run.layer.findRecord(run.ctx, run.id)
			if err == nil && rec != nil && rec.token == run.token {
				rep.expires = rec.expires
				return finalOutcome(rep)
			}
			if err == nil {
				return runOutcome{reply: inProgressReply(time.Second), recorded: true}
			}
		}
		time.Sleep(retry.NextBackOff())
	}
	return finalOutcome(problemReply(codeCommitUnknown, cause))
}

// claimKeyAlone claims the key in a transaction of its own.
func (run *handlerRun) claimKeyAlone() (int, error) {
	defer run.endTx()
	ctx, cancel := context.WithTimeout(run.ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	if err := run.beginTx(ctx, pgx.ReadCommitted); err != nil { // a snapshot from before the lock would not show the record
		return 0, err
	}
	return run.claimKey(ctx)
}
