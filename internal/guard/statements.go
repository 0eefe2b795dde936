package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Queue adds a write whose answer is not awaited. A write that is queued after the handler has
// returned is lost: it is reported (see [Tx.Report]), and the transaction fails if it has not ended
// yet.
func (h *Handle) Queue(sql string, args ...any) {
	if err := h.beginCall(); err != nil {
		if errors.Is(err, ErrClosed) {
			h.tx.reportStray(sql)
		}
		return // what overlaps fails the attempt
	}
	defer h.endCall(nil)
	t := h.tx
	if t.checkStatement(sql) != nil {
		return // kept as the failure of the attempt
	}
	opts, args, _, err := t.options(args)
	if err == nil && len(opts) > 0 {
		err = fmt.Errorf("%w: %T in Queue", ErrOption, opts[0])
	}
	if err != nil {
		t.failAt(t.step, t.statements, sql, err)
		return
	}
	t.queueStatement(sql, args)
}

// Exec sends what is queued and one statement more, and returns that one's tag.
func (h *Handle) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := h.beginCall(); err != nil {
		return tag, err
	}
	defer h.endCall(&err)
	t := h.tx
	if err := t.checkStatement(sql); err != nil {
		return tag, err
	}
	opts, args, rewriter, err := t.options(args)
	if i := slices.IndexFunc(opts, isFormats); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %T in Exec, which returns no rows", ErrOption, opts[i])
	}
	if err != nil {
		t.failAt(t.step, t.statements, sql, err)
		return tag, t.failureErr()
	}
	// Pgx sends others by the simple protocol, whatever their mode; see options.
	single := len(args) > 0 && !rewriter
	if single && len(opts) > 0 {
		if err := t.flush(ctx); err != nil {
			return tag, err
		}
		args = slices.Concat(opts, args)
	}
	if single && t.batch.Len() == 0 {
		at := t.statements
		t.statements++
		tag, err = t.conn.Exec(ctx, sql, args...)
		t.noteAnswer(at, sql, tag, err)
		return tag, t.failureErr()
	}
	t.queueStatement(sql, args)
	r := t.sendQueued(ctx)
	tag = r.skip(len(r.queries))
	r.finish()
	return tag, t.failureErr()
}

// options takes pgx's options apart: those that only a statement by itself can have, and the
// arguments, with a query rewriter (pgx.NamedArgs) in front if there is one.
//
// A statement may go by itself rather than as a pipeline of one, which costs the client about a
// third more. It must not go by the simple protocol, in which a text may hold several statements,
// and the last of them may be COMMIT: pgx sends what has no arguments that way, and what asks for
// it. The latter is refused.
func (t *Tx) options(all []any) (opts, args []any, rewriter bool, err error) {
	mode := false
	for i, a := range all {
		switch a := a.(type) {
		case pgx.QueryExecMode:
			mode = true
			if a == pgx.QueryExecModeSimpleProtocol {
				return nil, nil, false, fmt.Errorf("%w: pgx.QueryExecModeSimpleProtocol: one text could be "+
					"several statements, and the last one COMMIT", ErrOption)
			}
			opts = append(opts, a)
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			opts = append(opts, a)
		case pgx.QueryRewriter:
			rewriter = true
			args = []any{a}
		default:
			if i == 0 {
				return nil, all, false, nil
			}
			args = append(args, all[i:]...)
			all = nil
		}
		if all == nil {
			break
		}
	}
	if len(opts) > 0 && !mode && t.conn.Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		opts = nil // formats mean nothing there
	}
	return opts, args, rewriter, nil
}

func isFormats(opt any) bool {
	switch opt.(type) {
	case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return true
	}
	return false
}

// noteAnswer takes note of the answer to a single statement.
func (t *Tx) noteAnswer(at int, sql string, tag pgconn.CommandTag, err error) {
	if err != nil {
		t.failAt(t.step, at, sql, err)
	} else {
		t.refuseEndTag(t.step, at, sql, tag)
	}
	t.checkStatus()
	t.closeIfEnded()
}

// Query sends what is queued and one query more, and returns its rows.
func (h *Handle) Query(ctx context.Context, sql string, args ...any) (_ pgx.Rows, err error) {
	if err := h.beginCall(); err != nil {
		return failedRows{err: err}, err
	}
	defer h.endCall(&err)
	if err := h.tx.checkStatement(sql); err != nil {
		return failedRows{err: err}, err
	}
	r := h.tx.query(ctx, sql, args)
	return guardedRows{r, h}, r.Err()
}

// QueryRow is Query for one row; its error comes with Scan.
func (h *Handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := h.Query(ctx, sql, args...)
	if err != nil {
		return singleRow{failedRows{err: err}}
	}
	return singleRow{rows}
}

// SendBatch sends what is queued, and then the user's batch.
func (h *Handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.beginCall(); err != nil {
		return failedBatch{err}
	}
	var err error
	defer h.endCall(&err)
	t := h.tx
	for _, q := range b.QueuedQueries {
		if err = t.checkStatement(q.SQL); err != nil {
			return failedBatch{err}
		}
		if opts, _, _, err := t.options(q.Arguments); err != nil || len(opts) > 0 {
			if err == nil {
				err = fmt.Errorf("%w: %T in a batch", ErrOption, opts[0])
			}
			t.failAt(t.step, t.statements, q.SQL, err)
			return failedBatch{t.failureErr()}
		}
	}
	if err = t.flush(ctx); err != nil {
		return failedBatch{err}
	}
	r := &result{tx: t, step: t.step, queries: b.QueuedQueries, base: t.statements}
	t.statements += b.Len()
	r.batch = t.conn.SendBatch(ctx, r.trackedBatch())
	// Arguments that do not fit and a context that has ended are neither the server's errors nor
	// the connection's. Until its results are closed, a batch that is under way keeps the
	// connection busy.
	r.unsent = b.Len() > 0 && !t.conn.PgConn().IsBusy()
	t.openResult = r
	return guardedBatch{r, h}
}

// trackedBatch is the user's batch, with callbacks by which Close says at which statement it is.
func (r *result) trackedBatch() *pgx.Batch {
	b := &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, len(r.queries))}
	for i, q := range r.queries {
		one := *q
		one.Fn = func(results pgx.BatchResults) error {
			r.next = i
			if q.Fn != nil {
				return q.Fn(results)
			}
			_, err := results.Exec()
			return err
		}
		b.QueuedQueries[i] = &one
	}
	return b
}

// CopyFrom sends what is queued, and then the rows by COPY.
func (h *Handle) CopyFrom(
	ctx context.Context,
	table pgx.Identifier,
	columns []string,
	src pgx.CopyFromSource,
) (n int64, err error) {
	if err := h.beginCall(); err != nil {
		return 0, err
	}
	defer h.endCall(&err)
	t := h.tx
	if err := t.checkStatement(""); err != nil {
		return 0, err
	}
	if err := t.flush(ctx); err != nil {
		return 0, err
	}
	at := t.statements
	t.statements++
	n, err = t.conn.CopyFrom(ctx, table, columns, src)
	if err != nil {
		t.failAt(t.step, at, "copy "+table.Sanitize(), err)
	}
	t.checkStatus()
	return n, t.failureErr()
}
