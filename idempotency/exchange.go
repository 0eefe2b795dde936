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

	key     string
	keyed   bool // the client chose the key
	derived bool
	ttl     time.Duration
	subject subject
	print   []byte
	id      [16]byte
	token   uuid.UUID
	expires time.Time // of the record that this request has made
	origin  origin.Origin
	ctx     context.Context // the request's, without its end

	runs   int
	woken  func() // called behind COMMIT
	flight *flight

	turn  sync.Mutex          // goroutines of a handler ask for its transaction, and begin steps, one after another, and not when it has returned
	steps map[string]struct{} // of this run, by name: under way, or done

	// While a handler runs. Only tx is read by another goroutine, see abandon.
	mu      sync.Mutex
	tx      *guard.Tx
	conn    *pgxpool.Conn
	held    *held        // lease mode
	renewed *lease.Lease // the same lease under a later epoch
	bare    bool         // nothing is kept: FailOpen
	aside   bool         // a step's outcome is unknown for good
	late    bool         // its context had ended when it returned
	over    atomic.Bool  // it has returned: what it has left running gets nothing more
}

type exchangeKey struct{}

// runKey is the number of the handler's run that a request belongs to: what an earlier one has left running gets nothing of a later one.
type runKey struct{}

// ErrNoTx says that a request has no transaction: it did not come through a [Layer], or through one that let it pass
// (another method, FailOpen).
var ErrNoTx = errors.New("idempotency: the request has no transaction")

// Tx returns the transaction that a request's effects belong to. It commits together with the request's record when the handler has
// answered 2xx or 3xx, and is rolled back otherwise; the answer leaves behind the COMMIT. It is the same type as a consumer's: outbox.Enqueue
// derives the keys of calls from the request's key.
//
// It comes with the request, and not as an argument, because the handler is net/http's, which has none to spare, and so has every middleware
// between the layer and the handler. It is valid until the handler returns, and for one goroutine at a time: see [consumer.Tx].
//
// In lease mode the transaction begins with the first call of Tx, which comes behind the last [Step]: no external call is made
// while a transaction is open.
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

// Steps of the layer's statements.
const (
	stepIsolation = "isolation"
	stepOpen      = "open"
	stepClaim     = "claim"
	stepRecord    = "record"
)

// acquire takes a connection and opens a transaction on it.
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

// strayed logs a write that a handler has queued when it had returned (T6).
func (x *exchange) strayed(err error) {
	x.layer.cfg.Logger.Error("onlyonce: a request's handler queued a statement after it had returned; it was not sent", "route", x.endpoint.route.Pattern, "error", err)
}

func (x *exchange) bounds() []any {
	c := &x.layer.cfg
	return []any{guard.Millis(c.LockTimeout), guard.Millis(c.StatementTimeout), guard.Millis(c.IdleTimeout)}
}

// letGo ends what is left of the transaction, and gives the connection back.
func (x *exchange) letGo() {
	if x.tx != nil {
		x.tx.Rollback(x.layer.cfg.AcquireTimeout)
		x.conn.Release()
		x.mu.Lock()
		x.tx, x.conn = nil, nil
		x.mu.Unlock()
	}
}

// once runs the request, or answers with what became of the first one.
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

// attempt is one look at the key and, if nobody has it, one run of the handler. Where somebody in this process has it, first ends
// when that one does. Answers that are stored are read without taking the key: those who ask for one at the same time do not exclude
// one another.
func (x *exchange) attempt() (rep reply, first <-chan struct{}) {
	flights, route := &x.layer.flights, &x.endpoint.route
	var left *record
	down := false
	if route.Mode == Leased || x.layer.cache != nil || x.layer.seen.has(x.id) {
		if first := flights.look(x.id); first != nil {
			return inProgress(time.Second), first
		}
		var known bool
		if left, rep, known = x.recall(); known {
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
		return x.leased(left), nil
	}
	return x.transactional(), nil
}

// recall answers from a record, where there is one. One that was left by its owner in lease mode is returned, to be taken over.
func (x *exchange) recall() (left *record, rep reply, known bool) {
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
	rep = x.judge(rec) // another request under the key of one that was left is refused like any other
	if x.endpoint.route.Mode == Leased && rec.free && rep.code == codeInProgress {
		return rec, reply{}, false
	}
	return nil, rep, true
}

// record makes the ResponseWriter of one run of the handler.
func (x *exchange) record(limit int) *recorder { return newRecorderOver(limit, x.w.Header()) }

// call runs the handler. A panic is the caller's to raise again.
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
			x.tx.TakeBack() // waits for goroutines of the handler that are in a call, until abandon cuts them off
		}
		if !hangs.Stop() {
			<-abandoned // or it would cut the connection of whoever has it next
		}
	}()
	r := x.clone(ctx)
	defer func() {
		if r.MultipartForm != nil { // net/http removes the files of its own request only
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	x.endpoint.next.ServeHTTP(rec, r)
	return nil
}

// abandon sees to it that a handler which does not heed the end of its context keeps neither the key nor the connection (H11).
func (x *exchange) abandon() {
	x.mu.Lock()
	tx := x.tx
	x.mu.Unlock()
	if tx != nil {
		tx.Abandon()
	}
	if x.held != nil {
		x.held.lose() // its lease is not renewed any more, and ends
	}
	if x.flight != nil {
		x.layer.flights.end(x.flight)
	}
}

// hangGrace is how long a handler may go on after its context has ended before its connection is cut.
const hangGrace = 5 * time.Second

// unprotected runs a request without a key that needs none.
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
