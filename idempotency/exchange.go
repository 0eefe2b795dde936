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

// exchange is one request on its way through the layer.
type exchange struct {
	endpoint *endpoint
	layer    *Layer
	w        http.ResponseWriter
	request  *http.Request
	body     []byte
	scope    Scope
	detail   string

	key         string
	keyed       bool // the client sent the key
	derived     bool
	ttl         time.Duration
	subject     subject
	fingerprint []byte
	id          [16]byte
	token       uuid.UUID
	expires     time.Time // when the record expires that this request has written
	origin      origin.Origin
	ctx         context.Context // the request's, but not cancelled with it

	runs   int
	woken  func() // called after COMMIT
	flight *flight

	turn  sync.Mutex          // held while a goroutine of the handler asks for the transaction or begins a step, one after another, and not after the handler's return
	steps map[string]struct{} // the names of this run's steps: running, or done

	// Used while a handler runs. Only tx is read by another goroutine, see abandon.
	mu      sync.Mutex
	tx      *guard.Tx
	conn    *pgxpool.Conn
	held    *held        // lease mode
	renewed *lease.Lease // the same lease under a later epoch
	bare    bool         // no record is kept: FailOpen, or no key
	aside   bool         // a step's outcome is unknown and cannot be found out
	late    bool         // the handler's context had ended when it returned
	over    atomic.Bool  // the handler has returned; goroutines that it left running get no transaction and no step
}

type exchangeKey struct{}

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
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok || x.bare {
		return nil, ErrNoTx
	}
	x.turn.Lock()
	defer x.turn.Unlock()
	switch {
	case x.over.Load():
		return nil, guard.ErrClosed
	case r.Context().Value(runKey{}) != x.runs:
		return nil, guard.ErrClosed
	}
	if x.tx == nil {
		if err := x.open(r.Context()); err != nil {
			return nil, err
		}
	}
	return x.tx.Handle, nil
}

// open begins the transaction of a request in lease mode.
func (x *exchange) open(ctx context.Context) error {
	if err := x.held.alive(); err != nil {
		return err
	}
	if err := x.acquire(ctx, x.endpoint.route.Isolation); err != nil {
		return err
	}
	x.tx.Engine(stepOpen, openSQL, x.bounds()...)
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

// acquire takes a connection from the pool and opens a transaction on it.
func (x *exchange) acquire(ctx context.Context, level pgx.TxIsoLevel) error {
	bounded, cancel := context.WithTimeout(ctx, x.layer.cfg.AcquireTimeout)
	defer cancel()
	conn, err := x.layer.pool.Acquire(bounded)
	if err != nil {
		return fmt.Errorf("idempotency: connecting: %w", err)
	}
	x.mu.Lock()
	x.conn, x.tx = conn, guard.Begin(conn.Conn())
	x.tx.Report = x.strayed
	x.mu.Unlock()
	if level != "" {
		x.tx.Engine(stepIsolation, isolationSQL[level])
	}
	return nil
}

// strayed logs a statement that a handler queued after its return (T6).
func (x *exchange) strayed(err error) {
	x.layer.cfg.Logger.Error("onlyonce: a request's handler queued a statement after it had returned; it was not sent", "route", x.endpoint.route.Pattern, "error", err)
}

func (x *exchange) bounds() []any {
	c := &x.layer.cfg
	return []any{guard.Millis(c.LockTimeout), guard.Millis(c.StatementTimeout), guard.Millis(c.IdleTimeout)}
}

// endTx rolls back the transaction, if it is still open, and gives the connection back.
func (x *exchange) endTx() {
	if x.tx != nil {
		x.tx.Rollback(x.layer.cfg.AcquireTimeout)
		x.conn.Release()
		x.mu.Lock()
		x.tx, x.conn = nil, nil
		x.mu.Unlock()
	}
}

// once runs the request, or answers from the record of the first one.
func (x *exchange) once() reply {
	flights := &x.layer.flights
	route := &x.endpoint.route
	if !flights.enter(x.scope.Tenant, x.layer.cfg.TenantLimit) {
		return refusal(codeOverCapacity, nil)
	}
	defer flights.leave(x.scope.Tenant)
	deadline := time.Now().Add(route.Wait)
	for n := 0; ; n++ {
		rep, first := x.attempt()
		if rep.code != codeInProgress || route.Wait == 0 || time.Until(deadline) <= 0 {
			return rep
		}
		if !flights.wait(x.request.Context(), x.id, x.scope.Tenant, first, n, deadline) {
			return rep
		}
	}
}

// attempt looks at the key once, and runs the handler if the key is free. If another request of
// this process has the key, first is closed when that one ends. Stored answers are read without
// taking the key, so that copies that arrive together do not wait for each other.
func (x *exchange) attempt() (rep reply, first <-chan struct{}) {
	flights, route := &x.layer.flights, &x.endpoint.route
	var expired *record
	down := false
	if route.Mode == Leased || x.layer.cache != nil || x.layer.seen.has(x.id) {
		if first := flights.look(x.id); first != nil {
			return inProgress(time.Second), first
		}
		var known bool
		if expired, rep, known = x.recall(); known {
			if down = rep.code == codeStoreUnavailable && route.FailOpen; !down {
				return rep, nil
			}
		}
	}
	if x.flight, first = flights.begin(x.id); x.flight == nil {
		if !x.layer.seen.has(x.id) {
			if _, rep, known := x.recall(); known && rep.mark == Replayed {
				return rep, nil
			}
		}
		return inProgress(time.Second), first
	}
	defer flights.end(x.flight)
	switch {
	case down:
		x.layer.failed(rep.failed)
		return x.bypass(x.record(maxStored)), nil
	case route.Mode == Leased:
		return x.leased(expired), nil
	}
	return x.transactional(), nil
}

// recall answers from the record, if there is one. In lease mode, a record whose owner's lease has
// ended is returned as expired, to be taken over.
func (x *exchange) recall() (expired *record, rep reply, known bool) {
	if rep, known := x.cached(); known {
		return nil, rep, true
	}
	rec, err := x.layer.look(x.ctx, x.id)
	if err != nil {
		return nil, refusal(codeStoreUnavailable, err), true
	}
	if rec == nil {
		return nil, reply{}, false
	}
	rep = x.fromRecord(rec) // a different request under such a key gets 422 as usual
	if x.endpoint.route.Mode == Leased && rec.free && rep.code == codeInProgress {
		return rec, reply{}, false
	}
	return nil, rep, true
}

// record makes the ResponseWriter for one run of the handler.
func (x *exchange) record(limit int) *recorder { return newRecorderOver(limit, x.w.Header()) }

// call runs the handler. If it panics, call returns the value, and the caller must panic with it
// again.
func (x *exchange) call(ctx context.Context, rec *recorder) (panicked any) {
	x.turn.Lock()
	x.runs++
	x.over.Store(false)
	x.steps = make(map[string]struct{})
	x.turn.Unlock()
	ctx, cancel := context.WithTimeout(ctx, x.endpoint.route.MaxHandlerTime)
	defer cancel()
	abandoned := make(chan struct{})
	hangs := time.AfterFunc(x.endpoint.route.MaxHandlerTime+hangGrace, func() { defer close(abandoned); x.abandon() })
	defer func() {
		panicked, x.late = recover(), ctx.Err() != nil
		x.turn.Lock()
		x.over.Store(true)
		x.turn.Unlock()
		if x.tx != nil {
			x.tx.TakeBack() // waits for calls of the handler's goroutines, until abandon cuts them off
		}
		if !hangs.Stop() {
			<-abandoned // abandon must not cut the connection of the next user
		}
	}()
	r := x.clone(ctx)
	defer func() {
		if r.MultipartForm != nil { // net/http removes only the files of its own request
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	x.endpoint.next.ServeHTTP(rec, r)
	return nil
}

// abandon takes the key and the connection from a handler that ignores the end of its context
// (H11).
func (x *exchange) abandon() {
	x.mu.Lock()
	tx := x.tx
	x.mu.Unlock()
	if tx != nil {
		tx.Abandon()
	}
	if x.held != nil {
		x.held.lose() // its lease is no longer renewed, and ends
	}
	if x.flight != nil {
		x.layer.flights.end(x.flight)
	}
}

// hangGrace is how long a handler may go on after its context has ended, before its connection is
// cut.
const hangGrace = 5 * time.Second

// unprotected runs a request that has no key and needs none.
func (x *exchange) unprotected() reply {
	if x.endpoint.route.Mode == Leased {
		return x.bypass(x.record(maxStored))
	}
	for reruns := 0; ; reruns++ {
		if out := x.run(x.record(maxStored), false); !out.rerun || reruns == rerunLimit {
			return out.reply
		}
	}
}

// bypass runs the handler without the store (H5, H22).
func (x *exchange) bypass(rec *recorder) reply {
	x.bare = true
	if p := x.call(x.ctx, rec); p != nil {
		panic(p)
	}
	if rec.overflow() {
		return refusal(codeResponseTooLarge, nil)
	}
	return answer(Bypassed, rec)
}
