package guard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Queue adds a write whose answer nobody waits for.
func (t *Tx) Queue(sql string, args ...any) {
	if t.ready(sql) != nil {
		return // kept as the failure of the attempt
	}
	t.Engine(t.who, sql, args...)
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
	t.Engine(t.who, sql, args...)
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
		t.fail(t.who, err)
	} else {
		t.judge(t.who, tag)
	}
	t.check()
	t.drop()
}

// Query sends what is queued and one query more, and returns its rows.
func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.ready(sql); err != nil {
		return failedRows{err: err}, err
	}
	r := t.query(ctx, t.who, sql, args)
	return r, r.Err()
}

// QueryRow is Query for one row; its error comes with Scan.
func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.ready(sql); err != nil {
		return row{failedRows{err: err}}
	}
	return row{t.query(ctx, t.who, sql, args)}
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
	r := &result{tx: t, who: t.who, batch: t.conn.SendBatch(ctx, b)}
	// Arguments that do not fit and a context that has ended are neither the server's errors nor the connection's. Until its results are
	// closed, a batch that is under way keeps the connection busy.
	r.unsent = b.Len() > 0 && !t.conn.PgConn().IsBusy()
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
		t.fail(t.who, err)
	}
	t.check()
	return n, t.err()
}

// Savepoint calls fn. When fn returns an error, or one of its statements fails, what fn did in the transaction is undone, and
// the transaction goes on; that error is returned. Errors that say that the transaction is broken, or must be run again, stay.
func (t *Tx) Savepoint(ctx context.Context, fn func() error) error {
	if err := t.ready(""); err != nil {
		return err
	}
	if t.savepoints++; t.savepoints > maxSavepoints {
		t.fail(t.who, ErrSavepoints)
		return t.err()
	}
	name := "onlyonce_" + strconv.Itoa(t.savepoints)
	t.Engine(t.who, "savepoint "+name)
	if err := t.flush(ctx); err != nil { // statements queued before fn are judged before it, and not undone with it
		return err
	}
	marks, late := maps.Clone(t.marks), len(t.late)
	returned := false
	defer func() {
		if !returned { // a panic, or Goexit: should somebody recover it, what fn wrote so far must not stay
			_ = t.undo(ctx, name, marks, late)
		}
	}()
	err := fn()
	returned = true
	if t.open != nil {
		t.open.finish()
	}
	if err == nil && t.failure == nil {
		t.Engine(t.who, "release savepoint "+name)
		err = t.flush(ctx)
	}
	switch {
	case err == nil && t.failure == nil:
		return nil
	case t.failure != nil && !t.forgivable():
		return t.failure
	case err == nil:
		err = t.failure
	}
	if broken := t.undo(ctx, name, marks, late); broken != nil {
		return broken
	}
	return err
}

// Checkpoint marks the place that [Tx.Revert] goes back to: what the engine has said so far stays, what comes behind does not. It
// costs no round trip of its own. Once in a transaction, before the handler's first statement.
func (t *Tx) Checkpoint() {
	t.savepoints++
	t.Engine(stepCheckpoint, "savepoint "+checkpoint)
}

// Revert undoes what was done since [Tx.Checkpoint], failed statements included, so that the engine can commit without it. It
// returns the transaction's failure where that is one that going back does not undo. The handler must have returned.
func (t *Tx) Revert(ctx context.Context) error {
	if i := slices.IndexFunc(t.steps, func(s step) bool { return s.name == stepCheckpoint }); i >= 0 && t.failure == nil { // nothing was sent since
		t.batch.QueuedQueries = t.batch.QueuedQueries[:t.steps[i].at]
		t.steps, t.marks, t.late = t.steps[:i], nil, nil
		return nil
	}
	return t.undo(ctx, checkpoint, nil, 0)
}

// undo goes back to a savepoint, unless the transaction has a failure that this does not undo.
func (t *Tx) undo(ctx context.Context, name string, marks map[[16]byte]struct{}, late int) error {
	if t.open != nil {
		t.open.finish()
	}
	if t.failure != nil && !t.forgivable() {
		return t.failure
	}
	t.failure, t.marks, t.late = nil, marks, t.late[:late]
	t.batch, t.steps = &pgx.Batch{}, nil // what was queued in fn and not sent
	// Not in the pipeline: a failed transaction takes a ROLLBACK TO and refuses to prepare the RELEASE behind it. Without arguments
	// Exec sends both as they are.
	if _, err := t.conn.Exec(ctx, "rollback to savepoint "+name+"; release savepoint "+name); err != nil {
		t.fail(t.who, err)
	}
	t.check()
	return t.err()
}

// checkpoint is the name of the engine's own savepoint.
const checkpoint = "onlyonce_0"

// maxSavepoints leaves a few of PostgreSQL's 64 cached subtransactions to triggers and functions of the user's, which open their own.
const maxSavepoints = 60

// forgivable reports whether the failure is one that ROLLBACK TO SAVEPOINT undoes. Serialization failures and deadlocks are none: they
// are no answer to what the handler asked, and only running the whole transaction again gives one.
func (t *Tx) forgivable() bool {
	if RunAgain(SQLState(t.failure.Err)) {
		return false
	}
	for _, broken := range []error{ErrControl, ErrEnded, ErrClosed, ErrRowsOpen, ErrSavepoints} {
		if errors.Is(t.failure, broken) {
			return false
		}
	}
	return !t.conn.PgConn().IsClosed() && t.conn.PgConn().TxStatus() != 'I'
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
	if step == t.who && t.single(args) {
		r = &result{tx: t, who: t.who}
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
	r := &result{tx: t, who: t.who, steps: t.steps, queries: t.batch.QueuedQueries}
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
		t.fail(t.who, pgconn.ErrConnClosed)
	case pc.TxStatus() == 'E':
		t.fail(t.who, pgx.ErrTxCommitRollback)
	case pc.TxStatus() != 'T':
		t.fail(t.who, ErrEnded)
	}
}

// drop closes the connection where a handler has ended the transaction: whatever else it holds, it is not ours any more.
func (t *Tx) drop() {
	if errors.Is(t.err(), ErrEnded) {
		_ = t.conn.Close(context.Background())
	}
}
