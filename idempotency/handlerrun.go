package idempotency

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// handlerRun is one run of a request's handler. Runs of one request follow one another, for example
// after a serialization failure.
type handlerRun struct {
	*servedRequest

	// asking is held while a goroutine of the handler asks for the transaction or begins a step.
	// After the handler's return, none gets either.
	asking   sync.Mutex
	steps    map[string]stepState // by name; nil before the first one
	returned atomic.Bool

	// What the handler has called, while asking was held.
	decision  decision
	reference string // stored in place of the body
	operation string // the answer is the 202 of this operation

	calls origin.Calls // that the transaction has written

	mu   sync.Mutex // for tx and conn: abandon reads tx while the handler runs
	tx   *guard.Tx
	conn *primary.Conn

	connReserved bool // of the tenant's share, see reserveConn

	held *heldLease // lease mode

	unprotected bool // no record is kept: it has no key
	late        bool // the handler's context had ended when it returned
}

// newRun returns a run of the handler that has not begun.
func (req *servedRequest) newRun() *handlerRun {
	return &handlerRun{servedRequest: req}
}

// runKey is the context key of a [handlerRun]. The run and not the request is in the context, so
// that goroutines which an earlier run has left cannot get the transaction of a later run.
type runKey struct{}

// decision is what a handler has decided about its answer. Without one, the status decides.
type decision int

const (
	byStatus decision = iota
	decidedFinal
	decidedTransient
)

// runHandler runs the handler. If it panics, runHandler returns the value, and the caller must
// panic with it again (H11).
func (run *handlerRun) runHandler(ctx context.Context, rec *recorder) (panicked any) {
	run.runs++
	ctx, cancel := context.WithTimeout(ctx, run.handler.route.HandlerTimeout)
	defer cancel()
	abandoned := make(chan struct{})
	abandoning := time.AfterFunc(run.handler.route.HandlerTimeout+abandonGrace, func() {
		defer close(abandoned)
		run.abandon()
	})
	defer func() {
		panicked, run.late = recover(), ctx.Err() != nil
		run.asking.Lock()
		run.returned.Store(true)
		run.asking.Unlock()
		if run.tx != nil {
			run.tx.TakeBack() // waits for calls of the handler's goroutines, until abandon cuts them off
		}
		if !abandoning.Stop() {
			<-abandoned // abandon must not cut the connection of the next user
		}
	}()
	run.perform(run, ctx, rec)
	return nil
}

// serveHandler calls the route's handler.
func (run *handlerRun) serveHandler(ctx context.Context, rec *recorder) {
	r := run.handlerRequest(ctx)
	defer func() {
		if r.MultipartForm != nil { // net/http removes only the files of its own request
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	run.handler.next.ServeHTTP(rec, r)
}

// abandon takes the key and the connection from a handler that ignores the end of its context
// (H11).
func (run *handlerRun) abandon() {
	run.mu.Lock()
	tx := run.tx
	run.mu.Unlock()
	if tx != nil {
		tx.Abandon()
	}
	if run.held != nil {
		run.held.markLost() // its lease is no longer renewed, and ends
	}
	if run.flight != nil {
		run.layer.flights.end(run.flight)
	}
}

// abandonGrace is how long a handler may go on after its context has ended, before its connection
// is cut.
const abandonGrace = 5 * time.Second

// handlerRequest returns the request that the handler gets: with the body from its start, and with
// the run in its context.
func (run *handlerRun) handlerRequest(ctx context.Context) *http.Request {
	r := run.http.Clone(context.WithValue(ctx, runKey{}, run))
	r.Body = io.NopCloser(bytes.NewReader(run.body))
	r.ContentLength = int64(len(run.body))
	r.TransferEncoding = nil
	if len(run.body) == 0 {
		r.Body = http.NoBody
	}
	return r
}

// stepState is how far a step of a run is. The greater of two states decides about the request.
type stepState int

const (
	stepDone    stepState = iota // its outcome is known
	stepRunning                  // its name is taken
	stepFailed                   // its outcome is unknown, and it may be tried again
	stepAside                    // its outcome is unknown, and an operator has to decide
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
			// the answer speaks of writes that were rolled back
			return keptDecision{outcome: run.outcomeOfFailure(failure)}
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
	return rec.exceeded() ||
		len(rec.body()) > route.MaxResponse && run.reference == "" && !route.AllowLargeOnce && !route.DiscardBody
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
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusMisdirectedRequest, http.StatusLocked, http.StatusTooEarly,
		http.StatusTooManyRequests: // may differ the next time
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
