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

// rerunLimit is how often a handler runs again after serialization failures and deadlocks; lookLimit how often a record is looked for that
// somebody else has just written.
const (
	rerunLimit = 3
	lookLimit  = 20
)

// outcome is what one run came to.
type outcome struct {
	reply  reply
	rerun  bool // the database asks for the whole transaction again
	stands bool // a record was written under the key meanwhile: look at it
}

func ended(r reply) outcome { return outcome{reply: r} }

// transactional is H17.
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
		case out.stands:
		case out.rerun && reruns < rerunLimit:
			reruns++
		default:
			return out.reply
		}
	}
	return inProgress(time.Second)
}

// run runs the handler once in a transaction of its own; claimed says that the request has a key.
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
	defer x.letGo()
	if err := x.acquire(x.ctx, x.endpoint.route.Isolation); err != nil {
		return ended(refusal(codeStoreUnavailable, err))
	}
	if !claimed {
		x.tx.Engine(stepOpen, openSQL, x.bounds()...)
	} else if n, err := x.claim(); err != nil {
		return ended(refusal(codeStoreUnavailable, fmt.Errorf("idempotency: claiming a key: %w", err)))
	} else if n != claimMine {
		return outcome{reply: inProgress(time.Second), stands: n == claimStands}
	}
	if claimed && !x.derived { // of a derived key that has ended here the remote would remember the call
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
	x.tx.EngineInto([]any{&x.expires}, stepRecord, completeSQL, uuid.UUID(x.id), x.scope.Tenant, x.subject.Scope, x.print, x.token, stored, sealed, x.ttl)
	return x.commit(answer(Created, rec))
}

// share is how many connections a tenant's handlers may hold at once; 0: any number.
func (l *Layer) share(tenant string) int {
	if l.cfg.TenantConns > 0 || tenant == "" {
		return l.cfg.TenantConns
	}
	return max(1, int(l.pool.Config().MaxConns)/2)
}

// What onlyonce.http_begin returns.
const (
	claimBusy   = 0
	claimMine   = 1
	claimStands = 2
)

// claim takes the key's lock, and looks for a record behind it.
func (x *exchange) claim() (n int, err error) {
	ctx, cancel := context.WithTimeout(x.ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	err = x.tx.EngineRow(ctx, stepClaim, beginSQL, append([]any{uuid.UUID(x.id)}, x.bounds()...)...).Scan(&n)
	return n, err
}

// keeping is what of a run is kept (section 3 of the rules).
type keeping int

const (
	keepNothing keeping = iota
	keepAnswer          // the answer, and nothing that was written
	keepAll
)

type verdict struct {
	keep    keeping
	outcome outcome // of keepNothing
}

// verdict says what of a run is kept: the transaction decides first, and then the status.
func (x *exchange) verdict(rec *recorder) verdict {
	status := rec.status()
	keep := worth(status, &x.endpoint.route)
	if x.late { // H11: it was out of time, whatever it says now
		keep = keepNothing
		if status < http.StatusInternalServerError {
			return verdict{outcome: ended(refusal(codeRolledBack, errLate))}
		}
	}
	if tx := x.tx; tx != nil && tx.Failure() != nil {
		switch f := tx.Failure(); {
		case toRerun(f) || tx.Lost() || status < http.StatusBadRequest:
			return verdict{outcome: x.failed(f)} // what it answered is about writes that are not there
		case keep == keepAll:
			keep = keepAnswer
		}
	}
	if rec.overflow() { // what is there of it is not what the handler meant
		return verdict{outcome: ended(refusal(codeResponseTooLarge, nil))}
	}
	if keep == keepNothing {
		return verdict{outcome: ended(answer(Released, rec))}
	}
	return verdict{keep: keep}
}

// errLate says why an answer was not sent.
var errLate = errors.New("idempotency: the handler answered after Route.MaxHandlerTime")

// conflicting is the answer where the database goes on asking for the whole transaction to be run again (H17).
func conflicting(err error) reply {
	rep := refusal(codeRolledBack, err)
	rep.status = http.StatusServiceUnavailable
	return rep
}

// worth says what a status is worth keeping.
func worth(status int, route *Route) keeping {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked,
		http.StatusTooEarly, http.StatusTooManyRequests: // may be another the next time
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

// failed answers for a transaction that the server has refused or lost before COMMIT was sent, so that nothing of it stands.
func (x *exchange) failed(err error) outcome {
	switch {
	case toRerun(err):
		return outcome{reply: conflicting(err), rerun: true}
	case x.tx.Lost() && !x.late: // of one that is late pgx has cut the connection
		return ended(refusal(codeStoreUnavailable, err))
	}
	return ended(refusal(codeRolledBack, err))
}

// commit ends the transaction. The answer leaves only behind it.
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
		return ended(x.until(rep))
	case lost && x.key == "": // it has no key to be found by, and whoever sent it again might have it done twice
		unknown := refusal(codeCommitUnknown, err)
		unknown.retryAfter, unknown.final = 0, true
		return ended(unknown)
	case lost:
		return x.resolve(rep, err)
	case stands(err):
		return outcome{reply: inProgress(time.Second), stands: true}
	case toRerun(err):
		return outcome{reply: conflicting(err), rerun: true}
	}
	return ended(refusal(codeRolledBack, err)) // a deferred constraint: the handler's
}

// until says until when a first answer is given again, where it is.
func (x *exchange) until(rep reply) reply {
	if rep.mark == Created {
		rep.expires = &x.expires
	}
	return rep
}

// resolve finds out what became of a COMMIT that nobody answered (T4). The old transaction held the key's lock; whoever gets it
// knows that the old one has ended, and sees in the next statement whether its record stands. While it does not get the lock, it is not known.
func (x *exchange) resolve(rep reply, cause error) outcome {
	x.letGo()
	retry := pauses()
	deadline := time.Now().Add(x.layer.cfg.CommitTimeout)
	for time.Now().Before(deadline) {
		n, err := x.ask()
		switch {
		case err == nil && n == claimMine:
			return outcome{reply: refusal(codeRolledBack, cause), rerun: true}
		case err == nil && n == claimStands:
			rec, err := x.layer.look(x.ctx, x.id)
			if err == nil && rec != nil && rec.token == x.token {
				rep.expires = rec.expires
				return ended(rep)
			}
			if err == nil {
				return outcome{reply: inProgress(time.Second), stands: true}
			}
		}
		time.Sleep(retry.NextBackOff())
	}
	return ended(refusal(codeCommitUnknown, cause))
}

// ask claims the key in a transaction that does nothing else.
func (x *exchange) ask() (int, error) {
	defer x.letGo()
	if err := x.acquire(x.ctx, pgx.ReadCommitted); err != nil { // a snapshot from before the lock would not show the record
		return 0, err
	}
	return x.claim()
}
