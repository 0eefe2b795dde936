package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
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

// Completed is a call that the remote has accepted, with its answer.
type Completed struct {
	Key           string
	Tenant, Scope string
	Sink, Name    string
	Method        string
	Target        string
	Header        http.Header
	Body          []byte
	Response      *Response
	// Attempt counts all attempts: those at the call and those at its completion.
	Attempt int
}

// Tx is the transaction of a completion: a [pgx.Tx] without Commit, Rollback and Conn, the same
// that a consumer's handler gets.
type Tx interface {
	dedupe.Tx
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	// Queue adds a write whose result is not needed. It is sent with the next statement, or with
	// the commit.
	Queue(sql string, args ...any)
	// Savepoint calls fn. If fn returns an error or one of its statements fails, its writes are
	// undone.
	Savepoint(ctx context.Context, fn func() error) error
}

// permanentError marks an error of RelayConfig.Complete that another try does not heal.
type permanentError struct{ error }

func (p permanentError) Unwrap() error { return p.error }

// Permanent wraps an error of RelayConfig.Complete. The completion is not tried again, and waits
// for an operator. Use it, for example, if the answer cannot be decoded.
func Permanent(err error) error { return permanentError{err} }

// completeSQL is the fence of a completion; see the function's comment in the migration. It settles
// the call's row, so that the completion's writes commit once, together with that. If another call
// has the row's id by now (see settleSQL), it asks for row 0, which there is not: OO001. In: lease,
// epoch, nonce, id of the parked row, attempt; the three timeouts; the call's key.
const completeSQL = `
select onlyonce.settle($1, $2, $3::uuid, coalesce((select p.id from onlyonce.parked p where p.id = $4 and p.key = $9::uuid), 0), $5, null, null, $6, $7, $8)`

// complete passes an answer to RelayConfig.Complete, in a transaction that settles the call.
func (c *laneCalls) complete(ctx context.Context, a *callAttempt) {
	if c.lane.sink.cfg.Complete == nil {
		a.result = RetryLater("RelayConfig.Complete is not set, and the call asks for it (Call.Capture)", nil)
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
		a.result = RetryLater("RelayConfig.Complete was not called: other completions held the connections that it may use", ctx.Err())
		return
	}
	conn, err := c.lane.sink.pool.Acquire(ctx)
	if err != nil {
		a.result = RetryLater("RelayConfig.Complete was not called: the pool gave no connection", err)
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
	err = c.lane.sink.cfg.Complete(ctx, handle, &Completed{Key: a.Key, Tenant: a.Tenant, Scope: a.Scope, Sink: a.Sink, Name: a.Name, Method: a.Method, Target: a.Target,
		Header: a.Header, Body: a.Body, Response: a.answer, Attempt: a.Attempt})
	tx.TakeBack()
	if failed := tx.Failure(); failed != nil && (err == nil || !errors.Is(err, failed)) {
		err = errors.Join(failed, err)
	}
	if err == nil {
		err = tx.Commit(c.lane.sink.dbTimeout)
	}
	var final permanentError
	switch {
	case err == nil:
		a.result = Result{Outcome: Delivered}
	case errors.As(err, &final):
		a.result = Reject("completion: "+err.Error(), err)
	default:
		a.result = RetryLater("completion: "+err.Error(), fmt.Errorf("outbox: completing call %s: %w", a.Key, err))
	}
}
