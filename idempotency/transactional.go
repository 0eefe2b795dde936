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
// lookLimit is how often a record is looked up that another process has just written.
const (
	rerunLimit = 3
	lookLimit  = 20
)

// outcome is the result of one run of the handler.
type outcome struct {
	reply    reply
	rerun    bool // the database asks for the whole transaction again
	recorded bool // a record was written under the key meanwhile: look at it
}

func ended(r reply) outcome { return outcome{reply: r} }

// transactional runs the handler and writes its record in one transaction (H17).
func (x *exchange) transactional() reply {
	limit := x.endpoint.route.MaxResponse
	if x.endpoint.route.NoStoreBody {
		limit = maxStored
	}
	reruns := 0
	for n := range lookLimit {
		if n > 0 {
			if _, rep, known := x.recall(); known {
				return rep
			}
		}
		out := x.run(x.record(limit), true)
		switch {
		case out.recorded:
		case out.rerun && reruns < rerunLimit:
			reruns++
		default:
			return out.reply
		}
	}
	return inProgress(time.Second)
}

// run runs the handler once, in a transaction of its own. claimed is false if the request has no
// key.
func (x *exchange) run(rec *recorder, claimed bool) outcome {
	if share := x.layer.share(x.scope.Tenant); share > 0 {
		ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
		mine := x.layer.flights.connect(ctx, x.scope.Tenant, share)
		cancel()
		if !mine {
			return ended(refusal(codeOverCapacity, nil))
		}
		defer x.layer.flights.disconnect(x.scope.Tenant)
	}
	defer x.endTx()
	if err := x.acquire(x.ctx, x.endpoint.route.Isolation); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	if !claimed {
		x.tx.Engine(stepOpen, openSQL, x.bounds()...)
	} else if n, err := x.claim(); err != nil {
		return ended(refusal(codeStoreUnavailable, fmt.Errorf("idempotency: claiming a key: %w", err)))
	} else if n != claimMine {
		return outcome{reply: inProgress(time.Second), recorded: n == claimRecorded}
	}
	if claimed && !x.derived { // a derived key expires here long before the remote forgets the call
		x.tx.Lend(&x.origin)
	}
	x.tx.Checkpoint()
	if err := fault.Point(fault.RequestClaimed); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	if p := x.call(x.ctx, rec); p != nil {
		panic(p)
	}
	if err := fault.Point(fault.RequestHandled); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	v := x.verdict(rec)
	if v.keep == keepNothing {
		return v.outcome
	}
	if v.keep == keepAnswer {
		if err := x.tx.Revert(x.ctx); err != nil {
			return x.failed(err)
		}
	}
	if !claimed {
		return x.commit(answer(Bypassed, rec))
	}
	stored, sealed, err := x.envelope(rec)
	if err != nil {
		return ended(refusal(codeRolledBack, err))
	}
	x.tx.EngineInto([]any{&x.expires}, stepRecord, completeSQL, uuid.UUID(x.id), x.scope.Tenant, x.subject.Scope, x.fingerprint, x.token, stored, sealed, x.ttl)
	return x.commit(answer(Created, rec))
}

// share returns how many connections the handlers of a tenant may hold at once; 0 means any number.
func (l *Layer) share(tenant string) int {
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

// claim takes the key's lock, and then looks for a record.
func (x *exchange) claim() (n int, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	err = x.tx.EngineRow(ctx, stepClaim, beginSQL, append([]any{uuid.UUID(x.id)}, x.bounds()...)...).Scan(&n)
	return n, err
}

// keeping is what is kept of a run (docs/http.md, section 3).
type keeping int

const (
	keepNothing keeping = iota
	keepAnswer          // the answer, without the handler's writes
	keepAll
)

type verdict struct {
	keep    keeping
	outcome outcome // of keepNothing
}

// verdict decides what is kept of a run: by the state of the transaction first, then by the status.
func (x *exchange) verdict(rec *recorder) verdict {
	status := rec.status()
	keep := keepPolicy(status, &x.endpoint.route)
	if x.late { // H11: the handler returned too late, so its answer does not count
		keep = keepNothing
		if status < http.StatusInternalServerError {
			return verdict{outcome: ended(refusal(codeRolledBack, errLate))}
		}
	}
	if tx := x.tx; tx != nil && tx.Failure() != nil {
		switch f := tx.Failure(); {
		case toRerun(f) || tx.Lost() || status < http.StatusBadRequest:
			return verdict{outcome: x.failed(f)} // the answer speaks of writes that were rolled back
		case keep == keepAll:
			keep = keepAnswer
		}
	}
	if rec.overflow() { // the body is cut off
		return verdict{outcome: ended(refusal(codeResponseTooLarge, nil))}
	}
	if keep == keepNothing {
		return verdict{outcome: ended(answer(Released, rec))}
	}
	return verdict{keep: keep}
}

// errLate is why an answer was not sent.
var errLate = errors.New("idempotency: the handler answered after Route.MaxHandlerTime")

// conflicting is the answer if the transaction must run again and reruns are used up (H17).
func conflicting(err error) reply {
	rep := refusal(codeRolledBack, err)
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

// failed answers for a transaction that the server refused or lost before COMMIT was sent, so that
// none of it took effect.
func (x *exchange) failed(err error) outcome {
	switch {
	case toRerun(err):
		return outcome{reply: conflicting(err), rerun: true}
	case x.tx.Lost() && !x.late: // if the handler is late, pgx has cut the connection
		return ended(refusal(codeStoreUnavailable, err))
	}
	return ended(refusal(codeRolledBack, err))
}

// commit commits the transaction. The answer is sent only after it.
func (x *exchange) commit(rep reply) outcome {
	if err := fault.Point(fault.RequestSealing); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	err := x.tx.Commit(x.layer.cfg.CommitTimeout)
	if err == nil {
		err = fault.Point(fault.RequestCommitted)
	}
	lost := err != nil && (x.tx.Lost() || errors.Is(err, fault.ErrInjected))
	switch {
	case err == nil:
		if x.woken != nil {
			x.woken()
		}
		x.layer.seen.add(x.id)
		return ended(x.withExpiry(rep))
	case lost && x.key == "": // it cannot be looked up, and a retry could apply it twice
		unknown := refusal(codeCommitUnknown, err)
		unknown.retryAfter, unknown.final = 0, true
		return ended(unknown)
	case lost:
		return x.resolve(rep, err)
	case recorded(err):
		return outcome{reply: inProgress(time.Second), recorded: true}
	case toRerun(err):
		return outcome{reply: conflicting(err), rerun: true}
	}
	return ended(refusal(codeRolledBack, err)) // a deferred constraint of the handler's tables failed
}

// withExpiry adds to a first answer the time until which it is stored.
func (x *exchange) withExpiry(rep reply) reply {
	if rep.mark == Created {
		rep.expires = &x.expires
	}
	return rep
}

// resolve finds out whether a COMMIT without an answer succeeded (T4). The old transaction holds
// the key's lock. Whichever transaction gets that lock next knows that the old one has ended, and
// its next statement sees whether there is a record. Until this request gets the lock, the outcome
// is unknown.
func (x *exchange) resolve(rep reply, cause error) outcome {
	x.endTx()
	retry := pauses()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	for time.Now().Before(deadline) {
		n, err := x.claimAlone()
		switch {
		case err == nil && n == claimMine:
			return outcome{reply: refusal(codeRolledBack, cause), rerun: true}
		case err == nil && n == claimRecorded:
			rec, err := x.layer.look(x.ctx, x.id)
			if err == nil && rec != nil && rec.token == x.token {
				rep.expires = rec.expires
				return ended(rep)
			}
			if err == nil {
				return outcome{reply: inProgress(time.Second), recorded: true}
			}
		}
		time.Sleep(retry.NextBackOff())
	}
	return ended(refusal(codeCommitUnknown, cause))
}

// claimAlone claims the key in a transaction of its own.
func (x *exchange) claimAlone() (int, error) {
	defer x.endTx()
	if err := x.acquire(x.ctx, pgx.ReadCommitted); err != nil { // a snapshot from before the lock would not show the record
		return 0, err
	}
	return x.claim()
}
