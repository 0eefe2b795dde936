package idempotency

import (
	"bytes"
	"context"
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
	abandoning := time.AfterFunc(run.handler.route.HandlerTimeout+abandonGrace, func() { defer close(abandoned); run.abandon() })
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
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(run.body)), int64(len(run.body)), nil
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
