package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// tenantConnLimit returns how many connections the handlers of a tenant may hold at once; 0 means
// any number.
func (l *Layer) tenantConnLimit(tenant string) int {
	if l.cfg.TenantConns > 0 || tenant == "" {
		return l.cfg.TenantConns
	}
	return max(1, l.pool.MaxConns()/2)
}

// ErrNoTx is returned if a request has no transaction: it did not come through a [Layer], or the
// layer let it pass without protection, for example because of its method.
var ErrNoTx = errors.New("idempotency: the request has no transaction: it did not come through a Layer, or " +
	"passed it without protection")

// ErrBusy is wrapped by the error of [TxOf] if other handlers of the request's tenant hold all of
// the tenant's connections. A handler should answer 429 or 503 with Retry-After.
var ErrBusy = errors.New("idempotency: no connection for the request")

// TxOf returns the transaction for a request's effects. If the handler answers 2xx or 3xx, it
// commits together with the request's record; Route.KeepWrites commits it for a final 4xx too.
// Otherwise it rolls back. The layer sends the answer after the COMMIT. The transaction has the
// type of a consumer's, so outbox.Enqueue can derive the keys of calls from the request's key.
//
// TxOf takes the request, because a net/http handler has no parameter for a transaction, and
// neither has the middleware between the layer and the handler. The transaction is valid until the
// handler returns. It is for one goroutine at a time, see [consumer.Tx].
//
// In lease mode the first call of TxOf begins the transaction, and waits for a connection of the
// tenant's (Config.TenantConns, [ErrBusy]). Call it after the last [Step], because a handler must
// not call a remote while a transaction is open (T6).
func TxOf(r *http.Request) (consumer.Tx, error) {
	run, ok := r.Context().Value(runKey{}).(*handlerRun)
	if !ok || run.unprotected {
		return nil, ErrNoTx
	}
	run.asking.Lock()
	defer run.asking.Unlock()
	if run.returned.Load() {
		return nil, guard.ErrClosed
	}
	if run.tx == nil {
		if err := run.beginLeasedTx(r.Context()); err != nil {
			return nil, err
		}
	}
	return run.tx.Handle, nil
}

// beginLeasedTx begins the transaction of a request in lease mode.
func (run *handlerRun) beginLeasedTx(ctx context.Context) error {
	if err := run.held.lossError(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, run.layer.cfg.AcquireTimeout)
	defer cancel()
	if !run.reserveConn(bounded) {
		return fmt.Errorf("%w: other handlers of the tenant hold all of its connections (Config.TenantConns)", ErrBusy)
	}
	if err := run.beginTx(bounded, run.handler.route.Isolation); err != nil {
		run.endTx()
		return err
	}
	run.tx.Engine(stepOpen, openSQL, append(slices.Clip(run.layer.timeoutArgs), nil)...)
	level, err := run.isolation(bounded)
	if err != nil {
		run.endTx()
		return err
	}
	if level != pgx.ReadCommitted {
		// http_finish could not lock a lease that was renewed after the transaction's snapshot. A
		// lease that is locked from here on needs no renewal: a take-over waits for the lock (H18).
		// It is locked at once, because the handler's first statement may come late.
		run.layer.leases.stopRenewing(run.held)
		l := run.held.lease
		_ = run.tx.EngineRow(bounded, stepHold, holdSQL, l.ID, l.Epoch, l.Nonce).Scan(nil) // kept as the failure
	}
	if run.derivesCalls() {
		run.lendOrigin()
	}
	run.tx.Checkpoint()
	return nil
}

// isolation returns the level of the transaction. If the route leaves it to the server, the layer
// asks for it once.
func (run *handlerRun) isolation(ctx context.Context) (level pgx.TxIsoLevel, err error) {
	if level = run.handler.route.Isolation; level != "" {
		return level, nil
	}
	if known, is := run.layer.serverLevel.Load().(pgx.TxIsoLevel); is {
		return known, nil
	}
	if err := run.tx.EngineRow(
		ctx,
		stepOpen,
		`select current_setting('transaction_isolation')`,
	).Scan(&level); err != nil {
		return "", err
	}
	run.layer.serverLevel.Store(level)
	return level, nil
}

// The names of the layer's own statements, for errors.
const (
	stepIsolation = "isolation"
	stepOpen      = "open"
	stepHold      = "hold"
	stepClaim     = "claim"
	stepRecord    = "record"
)

// beginTx takes a connection from the pool and opens a transaction on it. The caller has bounded
// ctx by Config.AcquireTimeout. The run ends both with endTx, on each path: see runHeld.
func (run *handlerRun) beginTx(ctx context.Context, level pgx.TxIsoLevel) error {
	conn, err := run.layer.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("idempotency: connecting: %w", err)
	}
	run.mu.Lock()
	run.conn, run.tx = conn, guard.Begin(conn.Conn())
	run.tx.Report = run.reportLateStatement
	run.mu.Unlock()
	if level != "" {
		run.tx.Engine(stepIsolation, isolationSQL[level])
	}
	return nil
}

// reportLateStatement logs a statement that a handler queued after its return (T6).
func (run *handlerRun) reportLateStatement(err error) {
	run.layer.cfg.Logger.Error("onlyonce: a request's handler queued a statement after it had returned; the "+
		"statement was not sent", "route", run.handler.route.Pattern, "error", err)
}

// endTx rolls back the transaction, if it is still open, and gives the connection back, with its
// place in the tenant's share.
func (run *handlerRun) endTx() {
	if run.connReserved {
		defer run.layer.flights.releaseConn(run.scope.Tenant)
		run.connReserved = false
	}
	if run.tx != nil {
		run.tx.Rollback(run.layer.cfg.AcquireTimeout)
		run.conn.Release()
		run.mu.Lock()
		run.tx = nil
		run.conn = nil
		run.mu.Unlock()
	}
}

// reserveConn waits until the handler may hold a connection of its tenant's share, which endTx
// gives back. It returns false if ctx ends first (H10).
func (run *handlerRun) reserveConn(ctx context.Context) bool {
	limit := run.layer.tenantConnLimit(run.scope.Tenant)
	run.connReserved = limit > 0 && run.layer.flights.reserveConn(ctx, run.scope.Tenant, limit)
	return limit == 0 || run.connReserved
}
