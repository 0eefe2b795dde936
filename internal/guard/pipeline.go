package guard

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// flush sends what is queued and reads the answers.
func (t *Tx) flush(ctx context.Context) error {
	if t.batch.Len() == 0 {
		return t.failureErr()
	}
	r := t.sendQueued(ctx)
	r.skip(len(r.queries))
	r.finish()
	return t.failureErr()
}

// query sends what is queued and one statement of the handler's more, and leaves its rows to be
// read.
func (t *Tx) query(ctx context.Context, sql string, args []any) *result {
	opts, args, rewriter, err := t.options(args)
	if err == nil && len(opts) > 0 {
		err = t.flush(ctx)
		args = slices.Concat(opts, args)
	}
	if err != nil {
		t.failAt(t.step, t.statements, sql, err)
		return &result{tx: t, step: t.step, finished: true}
	}
	plain := len(args) == 0 || rewriter
	if t.batch.Len() > 0 || plain && len(opts) == 0 {
		t.queueStatement(sql, args)
		return t.queryLast(ctx)
	}
	r := &result{tx: t, step: t.step, queries: []*pgx.QueuedQuery{{SQL: sql}}, base: t.statements}
	t.statements++
	rows, err := t.conn.Query(ctx, sql, args...)
	return r.keepRows(rows, err)
}

// queryLast sends what is queued and leaves the rows of the last statement to be read.
func (t *Tx) queryLast(ctx context.Context) *result {
	r := t.sendQueued(ctx)
	r.skip(len(r.queries) - 1)
	if t.failure != nil {
		r.finish()
		return r
	}
	rows, err := r.batch.Query()
	return r.keepRows(rows, err)
}

// keepRows has the rows of the statement that is next.
func (r *result) keepRows(rows pgx.Rows, err error) *result {
	r.rows = rows
	if err != nil {
		r.keepFailure(err)
		r.finish()
		return r
	}
	r.tx.openResult = r
	return r
}

// sendQueued puts the queued statements on the wire.
func (t *Tx) sendQueued(ctx context.Context) *result {
	r := &result{
		tx:      t,
		step:    t.step,
		steps:   t.steps,
		queries: t.batch.QueuedQueries,
		base:    t.statements - t.batch.Len(),
	}
	for _, s := range t.steps {
		if !s.counted {
			r.base++
		}
	}
	r.batch = t.conn.SendBatch(ctx, t.batch)
	t.batch = &pgx.Batch{}
	t.steps = nil
	return r
}

// failureErr is the failure as an error: a nil *Failure must not become an error that is not nil.
func (t *Tx) failureErr() error {
	if t.failure == nil {
		return nil
	}
	return t.failure
}

// wasNotExecuted reports whether err means that a statement was not executed, rather than that its
// answer could not be scanned into the caller's variables, or that a callback of the caller's
// returned it.
func (t *Tx) wasNotExecuted(err error) bool {
	var server *pgconn.PgError
	var local pgx.ErrPreprocessingBatch
	return errors.As(err, &server) || errors.As(err, &local) || t.conn.PgConn().IsClosed()
}

// checkStatus compares the connection's status with what it must be while the transaction is open.
func (t *Tx) checkStatus() {
	if t.failure != nil {
		return
	}
	switch pc := t.conn.PgConn(); {
	case pc.IsClosed():
		t.fail(t.step, pgconn.ErrConnClosed)
	case pc.TxStatus() == 'E':
		t.fail(t.step, pgx.ErrTxCommitRollback)
	case pc.TxStatus() != 'T':
		t.fail(t.step, ErrEnded)
	}
}

// closeIfEnded closes the connection where a handler has ended the transaction: whatever else it
// holds, it is not ours any more.
func (t *Tx) closeIfEnded() {
	if errors.Is(t.failureErr(), ErrEnded) {
		_ = t.conn.Close(context.Background())
	}
}
