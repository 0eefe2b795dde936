package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// servedRequest is one request on its way through the layer.
type servedRequest struct {
	handler *routeHandler
	layer   *Layer
	w       http.ResponseWriter
	http    *http.Request
	body    []byte
	scope   Scope
	detail  string

	key         string
	keySent     bool // the client sent the key
	keyDerived  bool
	ttl         time.Duration
	subject     fingerprintSubject
	fingerprint []byte
	id          [16]byte
	token       uuid.UUID
	expires     time.Time // when the record expires that this request has written
	origin      origin.Origin
	ctx         context.Context // the request's, but not cancelled with it

	runs     int
	onCommit func() // called after COMMIT
	flight   *flight

	asking sync.Mutex          // held while a goroutine of the handler asks for the transaction or begins a step, one after another, and not after the handler's return
	steps  map[string]struct{} // the names of this run's steps: running, or done

	// Used while a handler runs. Only tx is read by another goroutine, see abandon.
	mu             sync.Mutex
	tx             *guard.Tx
	conn           *pgxpool.Conn
	held           *heldLease   // lease mode
	renewed        *lease.Lease // the same lease under a later epoch
	unprotected    bool         // no record is kept: FailOpen, or no key
	outcomeUnknown bool         // a step's outcome is unknown and cannot be found out
	late           bool         // the handler's context had ended when it returned
	returned       atomic.Bool  // the handler has returned; goroutines that it left running get no transaction and no step
}

type servedRequestKey struct{}

// runKey is the context key of the number of the handler's run. Goroutines that an earlier run left
// behind must not get the transaction of a later run.
type runKey struct{}

// ErrNoTx is returned if a request has no transaction: it did not come through a [Layer], or the
// layer let it pass without protection, for example because of its method or Route.FailOpen.
var ErrNoTx = errors.New("idempotency: the request has no transaction")

// Tx returns the transaction for a request's effects. It commits together with the request's record
// if the handler answers 2xx or 3xx, and is rolled back otherwise; Route.KeepWrites commits it for
// a final 4xx too. The answer is sent after the COMMIT. The transaction has the type of a
// consumer's, so that outbox.Enqueue can derive the keys of calls from the request's key.
//
// Tx takes the request, because a net/http handler has no parameter for a transaction, and neither
// has the middleware between the layer and the handler. The transaction is valid until the handler
// returns. It is for one goroutine at a time, see [consumer.Tx].
//
// In lease mode the first call of Tx begins the transaction. Call it after the last [Step], because
// no external call may be made while a transaction is open.
func Tx(r *http.Request) (consumer.Tx, error) {
	x, ok := r.Context().Value(servedRequestKey{}).(*servedRequest)
	if !ok || x.unprotected {
		return nil, ErrNoTx
	}
	x.asking.Lock()
	defer x.asking.Unlock()
	switch {
	case x.returned.Load():
		return nil, guard.ErrClosed
	case r.Context().Value(runKey{}) != x.runs:
		return nil, guard.ErrClosed
	}
	if x.tx == nil {
		if err := x.beginLeasedTx(r.Context()); err != nil {
			return nil, err
		}
	}
	return x.tx.Handle, nil
}

// beginLeasedTx begins the transaction of a request in lease mode.
func (x *servedRequest) beginLeasedTx(ctx context.Context) error {
	if err := x.held.lossError(); err != nil {
		return err
	}
	if err := x.beginTx(ctx, x.handler.route.Isolation); err != nil {
		return err
	}
	x.tx.Engine(stepOpen, openSQL, x.timeoutArgs()...)
	x.tx.Lend(&x.origin)
	x.tx.Checkpoint()
	return nil
}

// The names of the layer's own statements, for errors.
const (
	stepIsolation = "isolation"
	stepOpen      = "open"
	stepClaim     = "claim"
	stepRecord    = "record"
)

// beginTx takes a connection from the pool and opens a transaction on it.
func (x *servedRequest) beginTx(ctx context.Context, level pgx.TxIsoLevel) error {
	bounded, cancel := context.WithTimeout(ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	conn, err := x.layer.pool.Acquire(bounded)
	if err != nil {
		return fmt.Errorf("idempotency: connecting: %w", err)
	}
	x.mu.Lock()
	x.conn, x.tx = conn, guard.Begin(conn.Conn())
	x.tx.Report = x.reportLateStatement
	x.mu.Unlock()
	if level != "" {
		x.tx.Engine(stepIsolation, isolationSQL[level])
	}
	return nil
}

// reportLateStatement logs a statement that a handler queued after its return (T6).
func (x *servedRequest) reportLateStatement(err error) {
	x.layer.cfg.Logger.Error("onlyonce: a request's handler queued a statement after it had returned; it was not sent", "route", x.handler.route.Pattern, "error", err)
}

func (x *servedRequest) timeoutArgs() []any {
	c := &x.layer.cfg
	return []any{guard.Millis(c.LockTimeout), guard.Millis(c.StatementTimeout), guard.Millis(c.IdleTimeout)}
}

// endTx rolls back the transaction, if it is still open, and gives the connection back.
func (x *servedRequest) endTx() {
	if x.tx != nil {
		x.tx.Rollback(x.layer.cfg.AcquireTimeout)
		x.conn.Release()
		x.mu.Lock()
		x.tx, x.conn = nil, nil
		x.mu.Unlock()
	}
}

// serveKeyed runs the request, or answers from the record of the first one.
func (x *servedRequest) serveKeyed() reply {
	flights := &x.layer.flights
	route := &x.handler.route
	if !flights.admit(x.scope.Tenant, x.layer.cfg.TenantLimit) {
		return problemReply(codeOverCapacity, nil)
	}
	defer flights.leave(x.scope.Tenant)
	deadline := time.Now().Add(route.Wait)
	for n := 0; ; n++ {
		rep, first := x.tryOnce()
		if rep.code != codeInProgress || route.Wait == 0 || time.Until(deadline) <= 0 {
			return rep
		}
		if !flights.wait(x.http.Context(), x.id, x.scope.Tenant, first, n, deadline) {
			return rep
		}
	}
}

// tryOnce looks at the key once, and runs the handler if the key is free. If another request of
// this process has the key, first is closed when that one ends. Stored answers are read without
// taking the key, so that copies that arrive together do not wait for each other.
func (x *servedRequest) tryOnce() (rep reply, first <-chan struct{}) {
	flights, route := &x.layer.flights, &x.handler.route
	var expired *storedRecord
	down := false
	if route.Mode == Leased || x.layer.cache != nil || x.layer.recentKeys.has(x.id) {
		if first := flights.running(x.id); first != nil {
			return inProgressReply(time.Second), first
		}
		var known bool
		if expired, rep, known = x.replyFromStore(); known {
			if down = rep.code == codeStoreUnavailable && route.FailOpen; !down {
				return rep, nil
			}
		}
	}
	if x.flight, first = flights.start(x.id); x.flight == nil {
		if !x.layer.recentKeys.has(x.id) {
			if _, rep, known := x.replyFromStore(); known && rep.mark == Replayed {
				return rep, nil
			}
		}
		return inProgressReply(time.Second), first
	}
	defer flights.end(x.flight)
	switch {
	case down:
		x.layer.reportError(rep.logged)
		return x.runUnprotected(x.newRecorder(maxStored)), nil
	case route.Mode == Leased:
		return x.serveLeased(expired), nil
	}
	return x.serveTransactional(), nil
}

// replyFromStore answers from the record, if there is one. In lease mode, a record whose owner's
// lease has ended is returned as expired, to be taken over.
func (x *servedRequest) replyFromStore() (expired *storedRecord, rep reply, known bool) {
	if rep, known := x.replyFromCache(); known {
		return nil, rep, true
	}
	rec, err := x.layer.findRecord(x.ctx, x.id)
	if err != nil {
		return nil, problemReply(codeStoreUnavailable, err), true
	}
	if rec == nil {
		return nil, reply{}, false
	}
	rep = x.replyFromRecord(rec) // a different request under such a key gets 422 as usual
	if x.handler.route.Mode == Leased && rec.leaseEnded && rep.code == codeInProgress {
		return rec, reply{}, false
	}
	return nil, rep, true
}

// newRecorder makes the ResponseWriter for one run of the handler.
func (x *servedRequest) newRecorder(limit int) *recorder { return newRecorderOver(limit, x.w.Header()) }

// runHandler runs the handler. If it panics, call returns the value, and the caller must panic with
// it again.
func (x *servedRequest) runHandler(ctx context.Context, rec *recorder) (panicked any) {
	x.asking.Lock()
	x.runs++
	x.returned.Store(false)
	x.steps = make(map[string]struct{})
	x.asking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, x.handler.route.MaxHandlerTime)
	defer cancel()
	abandoned := make(chan struct{})
	hangs := time.AfterFunc(x.handler.route.MaxHandlerTime+hangGrace, func() { defer close(abandoned); x.abandon() })
	defer func() {
		panicked, x.late = recover(), ctx.Err() != nil
		x.asking.Lock()
		x.returned.Store(true)
		x.asking.Unlock()
		if x.tx != nil {
			x.tx.TakeBack() // waits for calls of the handler's goroutines, until abandon cuts them off
		}
		if !hangs.Stop() {
			<-abandoned // abandon must not cut the connection of the next user
		}
	}()
	r := x.handlerRequest(ctx)
	defer func() {
		if r.MultipartForm != nil { // net/http removes only the files of its own request
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	x.handler.next.ServeHTTP(rec, r)
	return nil
}

// abandon takes the key and the connection from a handler that ignores the end of its context
// (H11).
func (x *servedRequest) abandon() {
	x.mu.Lock()
	tx := x.tx
	x.mu.Unlock()
	if tx != nil {
		tx.Abandon()
	}
	if x.held != nil {
		x.held.markLost() // its lease is no longer renewed, and ends
	}
	if x.flight != nil {
		x.layer.flights.end(x.flight)
	}
}

// hangGrace is how long a handler may go on after its context has ended, before its connection is
// cut.
const hangGrace = 5 * time.Second

// serveUnkeyed runs a request that has no key and needs none.
func (x *servedRequest) serveUnkeyed() reply {
	if x.handler.route.Mode == Leased {
		return x.runUnprotected(x.newRecorder(maxStored))
	}
	for reruns := 0; ; reruns++ {
		if out := x.runTransactional(x.newRecorder(maxStored), false); !out.rerun || reruns == rerunLimit {
			return out.reply
		}
	}
}

// runUnprotected runs the handler without the store (H5, H22).
func (x *servedRequest) runUnprotected(rec *recorder) reply {
	x.unprotected = true
	if p := x.runHandler(x.ctx, rec); p != nil {
		panic(p)
	}
	if rec.exceeded() {
		return problemReply(codeResponseTooLarge, nil)
	}
	return handlerReply(Bypassed, rec)
}
