package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// Response is a remote's answer to a call that asked for it (Call.Capture).
type Response struct {
	Status int
	// Header holds those headers of the answer that the sink keeps.
	Header http.Header
	// Body is at most 64 KiB.
	Body []byte
}

// headerLines returns the header as a row keeps it.
func (r *Response) headerLines() string {
	names, values, _ := frozen.Headers(r.Header)
	return frozen.Lines(names, values)
}

// completeSQL is the fence of a completion; see the function's comment in the migration. It settles
// the call's row, so that the completion's writes commit once, together with that. If another call
// has the row's id by now (see settleSQL), it asks for row 0, which there is not: OO001. In: lease,
// epoch, nonce, id of the parked row, attempt; the three timeouts; the call's key.
const completeSQL = `
select onlyonce.settle($1, $2, $3::uuid, coalesce((select p.id from onlyonce.parked p where p.id = $4 and p.key = $9::uuid), 0), $5, null, null, $6, $7, $8)`

// complete passes an answer to RelayConfig.Complete, in a transaction that settles the call.
func (c *laneCalls) complete(ctx context.Context, a *callAttempt) {
	if c.lane.sink.cfg.Complete == nil {
		a.result = Failure("RelayConfig.Complete is not set, and the call asks for it (Call.Capture)", nil)
		return
	}
	if !c.openBody(a) {
		return
	}
	// The transaction keeps the lease locked, so RelayConfig.Complete must return before the next
	// renewal.
	ctx, cancel := context.WithTimeout(ctx, c.lane.sink.dbTimeout)
	defer cancel()
	select {
	case c.lane.sink.completing <- struct{}{}: // leaves some connections to renew leases and to move cursors
		defer func() { <-c.lane.sink.completing }()
	case <-ctx.Done():
		a.result = Failure("RelayConfig.Complete was not called: other completions held the connections that it may use", ctx.Err())
		return
	}
	conn, err := c.lane.sink.pool.Acquire(ctx)
	if err != nil {
		a.result = Failure("RelayConfig.Complete was not called: the pool gave no connection", err)
		return
	}
	defer conn.Release()
	tx := guard.Begin(conn.Conn())
	defer tx.Rollback(c.lane.sink.dbTimeout)
	ms := guard.Millis(c.lane.sink.dbTimeout)
	tx.Engine("fence", completeSQL, c.lane.lease.ID, c.lane.lease.Epoch, c.lane.lease.Nonce, a.parked, a.Attempt, ms, ms, ms, codec.UUID(a.key))
	// If the database loses this transaction, calls that it enqueues may have been made since the
	// call was first made, and not before (O6).
	tx.Report = func(err error) {
		c.lane.sink.cfg.Logger.Error("onlyonce: RelayConfig.Complete queued a statement after it had returned; it was not sent", "sink", a.Sink, "error", err)
	}
	handle := tx.Lend(&origin.Origin{Tenant: a.Tenant, Scope: a.Scope, ID: "completion of " + a.Key, Time: a.readAt.Add(-a.age),
		Trace: a.Trace, TraceOf: c.lane.sink.cfg.Trace})
	err = c.lane.sink.cfg.Complete(ctx, handle, &a.Delivery, a.answer)
	tx.TakeBack()
	if failed := tx.Failure(); failed != nil && (err == nil || !errors.Is(err, failed)) {
		err = errors.Join(failed, err)
	}
	if err == nil {
		err = tx.Commit(c.lane.sink.dbTimeout)
	}
	if err == nil {
		a.result = Result{Outcome: Delivered}
		return
	}
	a.result = Failure("completion: "+err.Error(), fmt.Errorf("outbox: completing call %s: %w", a.Key, err))
}
