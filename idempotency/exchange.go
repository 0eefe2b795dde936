package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/lease"
)

// exchange is one request on its way through the layer.
type exchange struct {
	endpoint *endpoint
	layer    *Layer
	w        http.ResponseWriter
	request  *http.Request
	method   string
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
	origin  dedupe.Origin
	ctx     context.Context // the request's, without its end

	runs  int
	woken func() // called behind COMMIT

	// While a handler runs.
	tx      *guard.Tx
	live    atomic.Pointer[guard.Tx] // the same, for who cuts it
	conn    *pgxpool.Conn
	held    *held        // lease mode
	renewed *lease.Lease // the same lease under a later epoch
	bare    bool         // nothing is kept: FailOpen
	aside   bool         // a step's outcome is unknown for good
	late    bool         // its context had ended when it returned
}

type exchangeKey struct{}

// ErrNoTx says that a request has no transaction: it did not come through a [Layer], or through one that let it pass
// (another method, FailOpen).
var ErrNoTx = errors.New("idempotency: the request has no transaction")

// Tx returns the transaction that a request's effects belong to. It commits together with the request's record when the handler has
// answered 2xx or 3xx, and is rolled back otherwise; the answer leaves behind the COMMIT. It is the same type as a consumer's: outbox.Enqueue
// derives the keys of calls from the request's key.
//
// It comes with the request, and not as an argument, because the handler is net/http's, which has none to spare, and so has every middleware
// between the layer and the handler. It is valid until the handler returns, and for one goroutine.
//
// In lease mode the transaction begins with the first call of Tx, which comes behind the last [Step]: no external call is made
// while a transaction is open.
func Tx(r *http.Request) (consumer.Tx, error) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok || x.bare {
		return nil, ErrNoTx
	}
	if x.tx == nil {
		if err := x.open(r.Context()); err != nil {
			return nil, err
		}
	}
	return x.tx, nil
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
	x.tx.SetOrigin(x.origin)
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
	x.conn, x.tx = conn, guard.Begin(conn.Conn())
	x.live.Store(x.tx)
	if level != "" {
		x.tx.Engine(stepIsolation, isolationSQL[level])
	}
	return nil
}

func (x *exchange) bounds() []any {
	c := &x.layer.cfg
	return []any{millis(c.LockTimeout), millis(c.StatementTimeout), millis(c.IdleTimeout)}
}

// letGo ends what is left of the transaction, and gives the connection back.
func (x *exchange) letGo() {
	if x.tx != nil {
		x.live.Store(nil)
		x.tx.Rollback(x.layer.cfg.AcquireTimeout)
		x.conn.Release()
		x.tx, x.conn = nil, nil
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
// when that one does.
func (x *exchange) attempt() (rep reply, first <-chan struct{}) {
	mine, first := x.layer.flights.begin(x.id)
	if !mine {
		return inProgress(time.Second), first
	}
	defer x.layer.flights.end(x.id)
	if x.endpoint.route.Mode == Leased {
		return x.leased(), nil
	}
	return x.transactional(), nil
}

// call runs the handler. A panic is the caller's to raise again.
func (x *exchange) call(ctx context.Context, rec *recorder) (panicked any) {
	x.runs++
	ctx, cancel := context.WithTimeout(ctx, x.endpoint.route.MaxHandlerTime)
	defer cancel()
	hangs := time.AfterFunc(x.endpoint.route.MaxHandlerTime+hangGrace, x.abandon)
	defer hangs.Stop()
	defer func() { panicked, x.late = recover(), ctx.Err() != nil }()
	x.endpoint.next.ServeHTTP(rec, x.clone(ctx))
	return nil
}

// abandon takes the connection and the key from a handler that does not heed the end of its context (H11).
func (x *exchange) abandon() {
	if x.held != nil {
		x.held.lose()
	}
	if tx := x.live.Load(); tx != nil {
		tx.Abandon()
	}
}

// hangGrace is how long a handler may go on after its context has ended before its connection is cut.
const hangGrace = 5 * time.Second

// unprotected runs a request without a key that needs none.
func (x *exchange) unprotected() reply {
	if x.endpoint.route.Mode == Leased {
		return x.bypass(newRecorder(maxStored))
	}
	for reruns := 0; ; reruns++ {
		if out := x.run(newRecorder(maxStored), false); !out.rerun || reruns == rerunLimit {
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
