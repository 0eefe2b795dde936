package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Queue adds a write whose answer is not awaited. A write that is queued after the handler has
// returned is lost: it is reported (see [Tx.Report]), and the transaction fails if it has not ended
// yet.
func (h *Handle) Queue(sql string, args ...any) {
	if err := h.enter(); err != nil {
		if errors.Is(err, ErrClosed) {
			h.tx.straying(sql)
		}
		return // what overlaps fails the attempt
	}
	defer h.leave(nil)
	t := h.tx
	if t.ready(sql) != nil {
		return // kept as the failure of the attempt
	}
	opts, args, _, err := t.options(args)
	if err == nil && len(opts) > 0 {
		err = fmt.Errorf("%w: %T in Queue", ErrOption, opts[0])
	}
	if err != nil {
		t.failAt(t.who, t.stated, sql, err)
		return
	}
	t.state(sql, args)
}

// Exec sends what is queued and one statement more, and returns that one's tag.
func (h *Handle) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if err := h.enter(); err != nil {
		return tag, err
	}
	defer h.leave(&err)
	t := h.tx
	if err := t.ready(sql); err != nil {
		return tag, err
	}
	opts, args, rewriter, err := t.options(args)
	if i := slices.IndexFunc(opts, isFormats); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %T in Exec, which returns no rows", ErrOption, opts[i])
	}
	if err != nil {
		t.failAt(t.who, t.stated, sql, err)
		return tag, t.err()
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
		at := t.stated
		t.stated++
		tag, err = t.conn.Exec(ctx, sql, args...)
		t.answered(at, sql, tag, err)
		return tag, t.err()
	}
	t.state(sql, args)
	r := t.send(ctx)
	tag = r.skip(len(r.queries))
	r.finish()
	return tag, t.err()
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
			if mode = true; a == pgx.QueryExecModeSimpleProtocol {
				return nil, nil, false, fmt.Errorf("%w: pgx.QueryExecModeSimpleProtocol: one text could be several statements, and the last one COMMIT", ErrOption)
			}
			opts = append(opts, a)
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			opts = append(opts, a)
		case pgx.QueryRewriter:
			rewriter, args = true, []any{a}
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

// answered takes note of the answer to a single statement.
func (t *Tx) answered(at int, sql string, tag pgconn.CommandTag, err error) {
	if err != nil {
		t.failAt(t.who, at, sql, err)
	} else {
		t.judge(t.who, at, sql, tag)
	}
	t.check()
	t.drop()
}

// Query sends what is queued and one query more, and returns its rows.
func (h *Handle) Query(ctx context.Context, sql string, args ...any) (_ pgx.Rows, err error) {
	if err := h.enter(); err != nil {
		return failedRows{err: err}, err
	}
	defer h.leave(&err)
	if err := h.tx.ready(sql); err != nil {
		return failedRows{err: err}, err
	}
	r := h.tx.query(ctx, sql, args)
	return guarded{r, h}, r.Err()
}

// QueryRow is Query for one row; its error comes with Scan.
func (h *Handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := h.Query(ctx, sql, args...)
	if err != nil {
		return row{failedRows{err: err}}
	}
	return row{rows}
}

// SendBatch sends what is queued, and then the user's batch.
func (h *Handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.enter(); err != nil {
		return failedBatch{err}
	}
	var err error
	defer h.leave(&err)
	t := h.tx
	for _, q := range b.QueuedQueries {
		if err = t.ready(q.SQL); err != nil {
			return failedBatch{err}
		}
		if opts, _, _, err := t.options(q.Arguments); err != nil || len(opts) > 0 {
			if err == nil {
				err = fmt.Errorf("%w: %T in a batch", ErrOption, opts[0])
			}
			t.failAt(t.who, t.stated, q.SQL, err)
			return failedBatch{t.err()}
		}
	}
	if err = t.flush(ctx); err != nil {
		return failedBatch{err}
	}
	r := &result{tx: t, who: t.who, queries: b.QueuedQueries, base: t.stated}
	t.stated += b.Len()
	r.batch = t.conn.SendBatch(ctx, r.followed())
	// Arguments that do not fit and a context that has ended are neither the server's errors nor
	// the connection's. Until its results are closed, a batch that is under way keeps the
	// connection busy.
	r.unsent = b.Len() > 0 && !t.conn.PgConn().IsBusy()
	t.open = r
	return userBatch{r, h}
}

// followed is the user's batch, with callbacks by which Close says at which statement it is.
func (r *result) followed() *pgx.Batch {
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
func (h *Handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (n int64, err error) {
	if err := h.enter(); err != nil {
		return 0, err
	}
	defer h.leave(&err)
	t := h.tx
	if err := t.ready(""); err != nil {
		return 0, err
	}
	if err := t.flush(ctx); err != nil {
		return 0, err
	}
	at := t.stated
	t.stated++
	n, err = t.conn.CopyFrom(ctx, table, columns, src)
	if err != nil {
		t.failAt(t.who, at, "copy "+table.Sanitize(), err)
	}
	t.check()
	return n, t.err()
}

// Savepoint calls fn. When fn returns an error, or one of its statements fails, what fn did in the
// transaction is undone, and the transaction goes on; that error is returned. Errors that say that
// the transaction is broken, or must be run again, stay.
//
// What another goroutine writes while fn runs would be undone with it, and that goroutine does not
// learn of it: then nothing is forgiven, and the transaction fails.
func (h *Handle) Savepoint(ctx context.Context, fn func() error) error {
	name, marks, late, err := h.begin(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		// A panic, or Goexit. If it is recovered, what fn wrote so far must not stay.
		if !returned {
			_ = h.end(ctx, name, marks, late, errUnwinding)
		}
	}()
	err = fn()
	returned = true
	return h.end(ctx, name, marks, late, err)
}

// errUnwinding is the error in place of a panic.
var errUnwinding = errors.New("the savepoint's function did not return")

// begin sets a savepoint.
func (h *Handle) begin(ctx context.Context) (name string, marks map[[16]byte]struct{}, late int, err error) {
	if err := h.enter(); err != nil {
		return "", nil, 0, err
	}
	defer h.leave(&err)
	t := h.tx
	if err := t.ready(""); err != nil {
		return "", nil, 0, err
	}
	if t.savepoints++; t.savepoints > maxSavepoints {
		t.fail(t.who, ErrSavepoints)
		return "", nil, 0, t.err()
	}
	name = "onlyonce_" + strconv.Itoa(t.savepoints)
	t.Engine(t.who, "savepoint "+name)
	// Statements queued before fn are judged before it, and not undone with it.
	if err := t.flush(ctx); err != nil {
		return "", nil, 0, err
	}
	t.levels = append(t.levels, level{name: name, by: GoroutineID()})
	return name, maps.Clone(t.firstUses), len(t.beforeCommit), nil
}

// end releases a savepoint, or goes back to it where fn or one of its statements has failed.
func (h *Handle) end(ctx context.Context, name string, marks map[[16]byte]struct{}, late int, err error) (told error) {
	if refused := h.enter(); refused != nil {
		return refused
	}
	defer h.leave(&told)
	t := h.tx
	if t.open != nil {
		t.open.finish()
	}
	n := len(t.levels) - 1
	// Another goroutine's savepoint lies within this one, or around it.
	if n < 0 || t.levels[n].name != name {
		t.breaks(ErrForked)
		return t.err()
	}
	foreign := t.levels[n].foreign
	t.levels = t.levels[:n]
	if err == nil && t.failure == nil {
		t.Engine(t.who, "release savepoint "+name)
		err = t.flush(ctx)
	}
	switch {
	case err == nil && t.failure == nil:
		return nil
	case t.failure != nil && !t.forgivable():
		return t.failure
	case foreign:
		t.breaks(ErrForked)
		return t.err()
	case err == nil:
		err = t.failure
	}
	if broken := t.undo(ctx, name, marks, late); broken != nil {
		return broken
	}
	return err
}

// Checkpoint marks the place that [Tx.Revert] goes back to: what the engine has said so far stays,
// what comes behind does not. It costs no round trip of its own. Once in a transaction, before the
// handler's first statement.
func (t *Tx) Checkpoint() {
	t.savepoints++
	t.Engine(stepCheckpoint, "savepoint "+checkpoint)
}

// Revert undoes what was done since [Tx.Checkpoint], failed statements included, so that the engine
// can commit without it. It returns the transaction's failure where that is one that going back
// does not undo. The handler must have returned.
func (t *Tx) Revert(ctx context.Context) error {
	// Nothing was sent since.
	if i := slices.IndexFunc(t.steps, func(s step) bool { return s.name == stepCheckpoint }); i >= 0 && t.failure == nil {
		t.batch.QueuedQueries = t.batch.QueuedQueries[:t.steps[i].at]
		t.steps, t.firstUses, t.beforeCommit = t.steps[:i], nil, nil
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
	t.failure, t.firstUses, t.beforeCommit = nil, marks, t.beforeCommit[:late]
	t.batch, t.steps = &pgx.Batch{}, nil // what was queued in fn and not sent
	// Not in the pipeline: a failed transaction takes a ROLLBACK TO and refuses to prepare the
	// RELEASE behind it. Without arguments Exec sends both as they are.
	if _, err := t.conn.Exec(ctx, "rollback to savepoint "+name+"; release savepoint "+name); err != nil {
		t.fail(t.who, err)
	}
	t.check()
	return t.err()
}

// checkpoint is the name of the engine's own savepoint.
const checkpoint = "onlyonce_0"

// maxSavepoints leaves a few of PostgreSQL's 64 cached subtransactions to triggers and functions of
// the user's, which open their own.
const maxSavepoints = 60

// forgivable reports whether the failure is one that ROLLBACK TO SAVEPOINT undoes. Serialization
// failures and deadlocks are none: they are no answer to what the handler asked, and only running
// the whole transaction again gives one.
func (t *Tx) forgivable() bool {
	if RunAgain(SQLState(t.failure.Err)) {
		return false
	}
	for _, b := range broken {
		if errors.Is(t.failure, b) {
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

// query sends what is queued and one statement of the handler's more, and leaves its rows to be
// read.
func (t *Tx) query(ctx context.Context, sql string, args []any) *result {
	opts, args, rewriter, err := t.options(args)
	if err == nil && len(opts) > 0 {
		err = t.flush(ctx)
		args = slices.Concat(opts, args)
	}
	if err != nil {
		t.failAt(t.who, t.stated, sql, err)
		return &result{tx: t, who: t.who, finished: true}
	}
	if t.batch.Len() > 0 || len(opts) == 0 && (len(args) == 0 || rewriter) {
		t.state(sql, args)
		return t.last(ctx)
	}
	r := &result{tx: t, who: t.who, queries: []*pgx.QueuedQuery{{SQL: sql}}, base: t.stated}
	t.stated++
	rows, err := t.conn.Query(ctx, sql, args...)
	return r.opened(rows, err)
}

// last sends what is queued and leaves the rows of the last statement to be read.
func (t *Tx) last(ctx context.Context) *result {
	r := t.send(ctx)
	r.skip(len(r.queries) - 1)
	if t.failure != nil {
		r.finish()
		return r
	}
	rows, err := r.batch.Query()
	return r.opened(rows, err)
}

// opened has the rows of the statement that is next.
func (r *result) opened(rows pgx.Rows, err error) *result {
	r.rows = rows
	if err != nil {
		r.failed(err)
		r.finish()
		return r
	}
	r.tx.open = r
	return r
}

// send puts the queued statements on the wire.
func (t *Tx) send(ctx context.Context) *result {
	r := &result{tx: t, who: t.who, steps: t.steps, queries: t.batch.QueuedQueries, base: t.stated - t.batch.Len()}
	for _, s := range t.steps {
		if !s.counted {
			r.base++
		}
	}
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

// undone reports whether err means that a statement was not executed, rather than that its answer
// could not be scanned into the caller's variables, or that a callback of the caller's returned it.
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

// drop closes the connection where a handler has ended the transaction: whatever else it holds, it
// is not ours any more.
func (t *Tx) drop() {
	if errors.Is(t.err(), ErrEnded) {
		_ = t.conn.Close(context.Background())
	}
}
