package idempotency

import (
	"errors"
	"net/http"
)

// runOutcome is the result of one run of the handler.
type runOutcome struct {
	reply    reply
	rerun    bool // the database asks for the whole transaction again
	recorded bool // another request has taken the key or written its record meanwhile: look again
	giveBack bool // nothing is kept, and nothing of the run can come any more: the key is free
}

func finalOutcome(r reply) runOutcome { return runOutcome{reply: r} }

// undoneOutcome is the outcome of a run of which nothing is kept.
func undoneOutcome(r reply) runOutcome { return runOutcome{reply: r, giveBack: true} }

// rerunLimit is how often a handler runs again after serialization failures and deadlocks.
const rerunLimit = 3

// keptPart is which part of a run is kept (docs/http.md, section 3).
type keptPart int

const (
	keepNothing keptPart = iota
	keepAnswer           // the answer, without the handler's writes
	keepAll
)

// keptDecision is what decideKept decides.
type keptDecision struct {
	part    keptPart
	outcome runOutcome // if part is keepNothing
}

// decideKept decides what is kept of a run: by the state of the transaction first, then by the
// status (H11, H15).
func (run *handlerRun) decideKept(rec *recorder) keptDecision {
	status := rec.status()
	keep := keepPolicy(status, &run.handler.route, run.decision)
	if run.decision == decidedTransient && status < http.StatusBadRequest {
		return keptDecision{outcome: undoneOutcome(problemReply(codeRolledBack, errTransientSuccess))}
	}
	if run.late { // H11: the handler returned too late, so its answer does not count
		keep = keepNothing
		if status < http.StatusInternalServerError {
			return keptDecision{outcome: undoneOutcome(problemReply(codeRolledBack, errLate))}
		}
	}
	if tx := run.tx; tx != nil && tx.Failure() != nil {
		switch failure := tx.Failure(); {
		case mustRerun(failure) || tx.Lost() || status < http.StatusBadRequest:
			return keptDecision{outcome: run.outcomeOfFailure(failure)} // the answer speaks of writes that were rolled back
		case keep == keepAll:
			keep = keepAnswer
		}
	}
	if run.tooLong(rec) {
		return keptDecision{outcome: undoneOutcome(problemReply(codeResponseTooLarge, nil))}
	}
	if keep == keepNothing {
		return keptDecision{outcome: undoneOutcome(handlerReply(Released, rec))}
	}
	return keptDecision{part: keep}
}

// unkeptReply replies to a request whose answer is not kept, because a step's outcome is unknown.
// An answer below 400 would report an effect that was undone, so it is not sent.
func unkeptReply(rep reply, why error) reply {
	if rep.status < http.StatusBadRequest {
		return problemReply(codeRolledBack, why)
	}
	rep.mark = Released
	return rep
}

// tooLong reports whether the answer must not be sent because of its length (H15). A body that was
// cut off is never sent.
func (run *handlerRun) tooLong(rec *recorder) bool {
	route := &run.handler.route
	return rec.exceeded() || len(rec.body()) > route.MaxResponse && run.reference == "" && !route.AllowLargeOnce && !route.DiscardBody
}

// keepPolicy returns what is kept of an answer with a status. The handler's own decision comes
// first (H27, H11).
func keepPolicy(status int, route *Route, own decision) keptPart {
	switch {
	case own == decidedTransient:
		return keepNothing
	case own == decidedFinal && status >= 400 && !route.KeepWrites:
		return keepAnswer
	case own == decidedFinal:
		return keepAll
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked,
		http.StatusTooEarly, http.StatusTooManyRequests: // may differ the next time
		return keepNothing
	}
	switch {
	case status >= 500:
		return keepNothing
	case status >= 400 && !route.KeepWrites:
		return keepAnswer
	}
	return keepAll
}

// errLate is why an answer was not sent.
var errLate = errors.New("idempotency: the handler answered after Route.HandlerTimeout")

// outcomeOfFailure answers for a transaction that the server refused or lost before COMMIT was
// sent, so that none of it took effect.
func (run *handlerRun) outcomeOfFailure(err error) runOutcome {
	switch {
	case mustRerun(err):
		return runOutcome{reply: rerunsUsedUp(err), rerun: true}
	case run.tx.Lost() && !run.late: // if the handler is late, pgx has cut the connection
		return undoneOutcome(problemReply(codeStoreUnavailable, err))
	}
	return undoneOutcome(problemReply(codeRolledBack, err))
}

// rerunsUsedUp is the answer if the transaction must run again and reruns are used up (H17).
func rerunsUsedUp(err error) reply {
	rep := problemReply(codeRolledBack, err)
	rep.status = http.StatusServiceUnavailable
	return rep
}
