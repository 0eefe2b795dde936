package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// rerunLimit is how often a handler runs again after serialization failures and deadlocks.
const rerunLimit = 3

// recordLookupLimit is how often a record is looked up that another process has just written.
const recordLookupLimit = 20

// runOutcome is the result of one run of the handler.
type runOutcome struct {
	reply    reply
	rerun    bool // the database asks for the whole transaction again
	recorded bool // a record was written under the key meanwhile: look at it
}

func finalOutcome(r reply) runOutcome { return runOutcome{reply: r} }

// serveTransactional runs the handler and writes its record in one transaction (H17).
func (x *servedRequest) serveTransactional() reply {
	limit := x.handler.route.MaxResponse
	if x.handler.route.NoStoreBody {
		limit = maxStored
	}
	reruns := 0
	for n := range recordLookupLimit {
		if n > 0 {
			if _, rep, known := x.replyFromStore(); known {
				return rep
			}
		}
		out := x.runTransactional(x.newRecorder(limit), true)
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
func (x *servedRequest) runTransactional(rec *recorder, claimed bool) runOutcome {
	if share := x.layer.tenantConnLimit(x.scope.Tenant); share > 0 {
		ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
		mine := x.layer.flights.reserveConn(ctx, x.scope.Tenant, share)
		cancel()
		if !mine {
			return finalOutcome(problemReply(codeOverCapacity, nil))
		}
		defer x.layer.flights.releaseConn(x.scope.Tenant)
	}
	defer x.endTx()
	if err := x.beginTx(x.ctx, x.handler.route.Isolation); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	if !claimed {
		x.tx.Engine(stepOpen, openSQL, x.timeoutArgs()...)
	} else if n, err := x.claimKey(); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, fmt.Errorf("idempotency: claiming a key: %w", err)))
	} else if n != claimMine {
		return runOutcome{reply: inProgressReply(time.Second), recorded: n == claimRecorded}
	}
	if claimed && !x.keyDerived { // a derived key expires here long before the remote forgets the call
		x.tx.Lend(&x.origin)
	}
	x.tx.Checkpoint()
	if err := fault.Point(fault.RequestClaimed); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	if p := x.runHandler(x.ctx, rec); p != nil {
		panic(p)
	}
	if err := fault.Point(fault.RequestHandled); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	v := x.decideKept(rec)
	if v.keep == keepNothing {
		return v.outcome
	}
	if v.keep == keepAnswer {
		if err := x.tx.Revert(x.ctx); err != nil {
			return x.outcomeOfFailure(err)
		}
	}
	if !claimed {
		return x.commitRecord(handlerReply(Bypassed, rec))
	}
	stored, sealed, err := x.encodeResponse(rec)
	if err != nil {
		return finalOutcome(problemReply(codeRolledBack, err))
	}
	x.tx.EngineInto([]any{&x.expires}, stepRecord, completeSQL, uuid.UUID(x.id), x.scope.Tenant, x.subject.Scope, x.fingerprint, x.token, stored, sealed, x.ttl)
	return x.commitRecord(handlerReply(Created, rec))
}

// tenantConnLimit returns how many connections the handlers of a tenant may hold at once; 0 means
// any number.
func (l *Layer) tenantConnLimit(tenant string) int {
	if l.cfg.TenantConns > 0 || tenant == "" {
		return l.cfg.TenantConns
	}
	return max(1, int(l.pool.Config().MaxConns)/2)
}

// The results of onlyonce.http_begin.
const (
	claimBusy     = 0
	claimMine     = 1
	claimRecorded = 2
)

// claimKey takes the key's lock, and then looks for a record.
func (x *servedRequest) claimKey() (n int, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	err = x.tx.EngineRow(ctx, stepClaim, beginSQL, append([]any{uuid.UUID(x.id)}, x.timeoutArgs()...)...).Scan(&n)
	return n, err
}

// keeping is what is kept of a run (docs/http.md, section 3).
type keeping int

const (
	keepNothing keeping = iota
	keepAnswer          // the answer, without the handler's writes
	keepAll
)

type keptDecision struct {
	keep    keeping
	outcome runOutcome // of keepNothing
}

// decideKept decides what is kept of a run: by the state of the transaction first, then by the
// status.
func (x *servedRequest) decideKept(rec *recorder) keptDecision {
	status := rec.status()
	keep := keepPolicy(status, &x.handler.route)
	if x.late { // H11: the handler returned too late, so its answer does not count
		keep = keepNothing
		if status < http.StatusInternalServerError {
			return keptDecision{outcome: finalOutcome(problemReply(codeRolledBack, errLate))}
		}
	}
	if tx := x.tx; tx != nil && tx.Failure() != nil {
		switch f := tx.Failure(); {
		case mustRerun(f) || tx.Lost() || status < http.StatusBadRequest:
			return keptDecision{outcome: x.outcomeOfFailure(f)} // the answer speaks of writes that were rolled back
		case keep == keepAll:
			keep = keepAnswer
		}
	}
	if rec.exceeded() { // the body is cut off
		return keptDecision{outcome: finalOutcome(problemReply(codeResponseTooLarge, nil))}
	}
	if keep == keepNothing {
		return keptDecision{outcome: finalOutcome(handlerReply(Released, rec))}
	}
	return keptDecision{keep: keep}
}

// errLate is why an answer was not sent.
var errLate = errors.New("idempotency: the handler answered after Route.MaxHandlerTime")

// rerunsUsedUp is the answer if the transaction must run again and reruns are used up (H17).
func rerunsUsedUp(err error) reply {
	rep := problemReply(codeRolledBack, err)
	rep.status = http.StatusServiceUnavailable
	return rep
}

// keepPolicy returns what is kept of an answer with a status.
func keepPolicy(status int, route *Route) keeping {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked,
		http.StatusTooEarly, http.StatusTooManyRequests: // may differ the next time
		return keepNothing
	}
	switch {
	case status >= 500 && !route.StoreServerErrors:
		return keepNothing
	case status >= 500:
		return keepAnswer
	case status >= 400 && !route.KeepWrites:
		return keepAnswer
	}
	return keepAll
}

// outcomeOfFailure answers for a transaction that the server refused or lost before COMMIT was
// sent, so that none of it took effect.
func (x *servedRequest) outcomeOfFailure(err error) runOutcome {
	switch {
	case mustRerun(err):
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}
	case x.tx.Lost() && !x.late: // if the handler is late, pgx has cut the connection
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	return finalOutcome(problemReply(codeRolledBack, err))
}

// commitRecord commits the transaction. The answer is sent only after it.
func (x *servedRequest) commitRecord(rep reply) runOutcome {
	if err := fault.Point(fault.RequestSealing); err != nil {
		return finalOutcome(problemReply(codeStoreUnavailable, err))
	}
	err := x.tx.Commit(x.layer.cfg.CommitTimeout)
	if err == nil {
		err = fault.Point(fault.RequestCommitted)
	}
	lost := err != nil && (x.tx.Lost() || errors.Is(err, fault.ErrInjected))
	switch {
	case err == nil:
		if x.onCommit != nil {
			x.onCommit()
		}
		x.layer.recentKeys.add(x.id)
		return finalOutcome(x.withExpiry(rep))
	case lost && x.key == "": // it cannot be looked up, and a retry could apply it twice
		unknown := problemReply(codeCommitUnknown, err)
		unknown.retryAfter, unknown.final = 0, true
		return finalOutcome(unknown)
	case lost:
		return x.resolveCommit(rep, err)
	case isRecordExists(err):
		return runOutcome{reply: inProgressReply(time.Second), recorded: true}
	case mustRerun(err):
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}
	}
	return finalOutcome(problemReply(codeRolledBack, err)) // a deferred constraint of the handler's tables failed
}

// withExpiry adds to a first answer the time until which it is stored.
func (x *servedRequest) withExpiry(rep reply) reply {
	if rep.mark == Created {
		rep.expires = &x.expires
	}
	return rep
}

// resolveCommit finds out whether a COMMIT without an answer succeeded (T4). The old transaction
// holds the key's lock. Whichever transaction gets that lock next knows that the old one has ended,
// and its next statement sees whether there is a record. Until this request gets the lock, the
// outcome is unknown.
func (x *servedRequest) resolveCommit(rep reply, cause error) runOutcome {
	x.endTx()
	retry := retryBackoff()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	for time.Now().Before(deadline) {
		n, err := x.claimKeyAlone()
		switch {
		case err == nil && n == claimMine:
			return runOutcome{reply: problemReply(codeRolledBack, cause), rerun: true}
		case err == nil && n == claimRecorded:
			rec, err := x.layer.findRecord(x.ctx, x.id)
			if err == nil && rec != nil && rec.token == x.token {
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
func (x *servedRequest) claimKeyAlone() (int, error) {
	defer x.endTx()
	if err := x.beginTx(x.ctx, pgx.ReadCommitted); err != nil { // a snapshot from before the lock would not show the record
		return 0, err
	}
	return x.claimKey()
}
