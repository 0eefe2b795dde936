package guard

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Queue adds a write whose answer nobody waits for.
func (t *Tx) Queue(sql string, args ...any) {
	if t.ready(sql) != nil {
		return // kept as the failure of the attempt
	}
	t.Engine("", sql, args...)
}

// Exec sends what is queued and one statement more, and returns that one's tag.
func (t *Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.ready(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	if t.single(args) {
		tag, err := t.conn.Exec(ctx, sql, args...)
		t.answered(tag, err)
		return tag, t.err()
	}
	t.Engine("", sql, args...)
	r := t.send(ctx)
	tag := r.skip(len(r.queries))
	r.finish()
	return tag, t.err()
}

// single reports whether a statement may go by itself rather than as a pipeline of one, which costs the client about a
// third more. Only one with parameters, and without options of pgx in front of them: pgx sends the others by the simple protocol, in which
// a text may hold several statements, and the last of them may be COMMIT.
func (t *Tx) single(args []any) bool {
	if t.batch.Len() > 0 || len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryRewriter, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

// answered takes note of the answer to a single statement.
func (t *Tx) answered(tag pgconn.CommandTag, err error) {
	if err != nil {
		t.fail("", err)
	} else {
		t.judge(tag)
	}
	t.check()
	t.abandon()
}

// Query sends what is queued and one query more, and returns its rows.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.ready(sql); err != nil {
		return failedRows{err: err}, err
	}
	r := t.query(ctx, "", sql, args)
	return r, r.Err()
}

// QueryRow is Query for one row; its error comes with Scan.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.ready(sql); err != nil {
		return row{failedRows{err: err}}
	}
	return row{t.query(ctx, "", sql, args)}
}

// SendBatch sends what is queued, and then the user's batch.
func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := t.ready(q.SQL); err != nil {
			return failedBatch{err}
		}
	}
	if err := t.flush(ctx); err != nil {
		return failedBatch{err}
	}
	r := &result{tx: t, batch: t.conn.SendBatch(ctx, b)}
	t.open = r
	return userBatch{r}
}

// CopyFrom sends what is queued, and then the rows by COPY.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := t.ready(""); err != nil {
		return 0, err
	}
	if err := t.flush(ctx); err != nil {
		return 0, err
	}
	n, err := t.conn.CopyFrom(ctx, table, columns, src)
	if err != nil {
		t.fail("", err)
	}
	t.check()
	return n, t.err()
}

// flush sends what is queued and reads the answers.
func (t *Tx) flush(ctx context.Context) error {
	if t.batch.Len() == 0 {
		return t.err()
	}
	r := t.send(ctx)
	r.skip(len(r.queries))
	r.finish()
	return t.err()
}

// query sends what is queued and one statement more, and leaves its rows to be read.
func (t *Tx) query(ctx context.Context, step, sql string, args []any) *result {
	var r *result
	var err error
	if step == "" && t.single(args) {
		r = &result{tx: t}
		r.rows, err = t.conn.Query(ctx, sql, args...)
	} else {
		t.Engine(step, sql, args...)
		r = t.send(ctx)
		r.skip(len(r.queries) - 1)
		if t.failure != nil {
			r.finish()
			return r
		}
		r.rows, err = r.batch.Query()
	}
	r.next++
	if err != nil {
		r.failed(err)
		r.finish()
		return r
	}
	t.open = r
	return r
}

// send puts the queued statements on the wire.
func (t *Tx) send(ctx context.Context) *result {
	r := &result{tx: t, steps: t.steps, queries: t.batch.QueuedQueries}
	r.batch = t.conn.SendBatch(ctx, t.batch)
	t.batch, t.steps = &pgx.Batch{}, nil
	return r
}

// err is the failure as an error: a nil *Failure must not become an error that is not nil.
func (t *Tx) err() error {
	if t.failure == nil {
		return nil
	}
	return t.failure
}

// undone reports whether err means that a statement was not executed, rather than that its answer could not be scanned
// into the caller's variables, or that a callback of the caller's returned it.
func (t *Tx) undone(err error) bool {
	var server *pgconn.PgError
	var local pgx.ErrPreprocessingBatch
	return errors.As(err, &server) || errors.As(err, &local) || t.conn.PgConn().IsClosed()
}

// check compares the connection's status with what it must be while the transaction is open.
func (t *Tx) check() {
	if t.failure != nil {
		return
	}
	switch pc := t.conn.PgConn(); {
	case pc.IsClosed():
		t.fail("", pgconn.ErrConnClosed)
	case pc.TxStatus() == 'E':
		t.fail("", pgx.ErrTxCommitRollback)
	case pc.TxStatus() != 'T':
		t.fail("", ErrEnded)
	}
}

// abandon closes the connection where a handler has ended the transaction: whatever else it holds, it is not ours any more.
func (t *Tx) abandon() {
	if errors.Is(t.err(), ErrEnded) {
		_ = t.conn.Close(context.Background())
	}
}
