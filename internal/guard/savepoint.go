package guard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Savepoint calls fn. When fn returns an error, or one of its statements fails, what fn did in the
// transaction is undone, and the transaction goes on; that error is returned. Errors that say that
// the transaction is broken, or must be run again, stay.
//
// If another goroutine writes while fn runs, its writes would be undone without its knowledge: in
// that case the whole transaction fails.
func (h *Handle) Savepoint(ctx context.Context, fn func() error) error {
	name, marks, late, err := h.beginSavepoint(ctx, true)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		// A panic, or Goexit. If it is recovered, what fn wrote so far must not stay.
		if !returned {
			_ = h.endSavepoint(ctx, name, marks, late, errUnwinding)
		}
	}()
	err = fn()
	returned = true
	return h.endSavepoint(ctx, name, marks, late, err)
}

// errUnwinding is the error in place of a panic.
var errUnwinding = errors.New("the savepoint's function did not return")

// beginSavepoint sets a savepoint. ofFunction: of [Handle.Savepoint].
func (h *Handle) beginSavepoint(ctx context.Context, ofFunction bool) (
	name string, marks map[[16]byte]struct{}, late int, err error,
) {
	if err := h.beginCall(); err != nil {
		return "", nil, 0, err
	}
	defer h.endCall(&err)
	t := h.tx
	if err := t.checkStatement(""); err != nil {
		return "", nil, 0, err
	}
	if t.savepoints++; t.savepoints > maxSavepoints {
		t.fail(t.step, ErrSavepoints)
		return "", nil, 0, t.failureErr()
	}
	name = "onlyonce_" + strconv.Itoa(t.savepoints)
	t.Engine(t.step, "savepoint "+name)
	// Statements queued before fn are judged before it, and not undone with it.
	if err := t.flush(ctx); err != nil {
		return "", nil, 0, err
	}
	t.openSavepoints = append(t.openSavepoints, openSavepoint{
		name:       name,
		goroutine:  GoroutineID(),
		ofFunction: ofFunction,
	})
	return name, maps.Clone(t.firstUses), len(t.beforeCommit), nil
}

// endSavepoint releases a savepoint, or goes back to it where fn or one of its statements has
// failed.
func (h *Handle) endSavepoint(
	ctx context.Context,
	name string,
	marks map[[16]byte]struct{},
	late int,
	err error,
) (result error) {
	if refused := h.beginCall(); refused != nil {
		return refused
	}
	defer h.endCall(&result)
	t := h.tx
	if t.openResult != nil {
		t.openResult.finish()
	}
	n := len(t.openSavepoints) - 1
	// Another goroutine's savepoint lies within this one, or around it.
	if n < 0 || t.openSavepoints[n].name != name {
		t.breakTx(ErrForked)
		return t.failureErr()
	}
	foreign := t.openSavepoints[n].foreign
	t.openSavepoints = t.openSavepoints[:n]
	if foreign && n > 0 { // going back to the one around it would undo the same statements
		t.openSavepoints[n-1].foreign = true
	}
	if err == nil && t.failure == nil {
		t.Engine(t.step, "release savepoint "+name)
		err = t.flush(ctx)
	}
	switch {
	case err == nil && t.failure == nil:
		return nil
	case t.failure != nil && !t.undoable():
		return t.failure
	case foreign:
		t.breakTx(ErrForked)
		return t.failureErr()
	case err == nil:
		err = t.failure
	}
	if broken := t.rollbackTo(ctx, backAndRelease(name), marks, late); broken != nil {
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
	if i := slices.IndexFunc(t.steps, func(s engineStep) bool { return s.name == stepCheckpoint }); i >= 0 &&
		t.failure == nil {
		t.batch.QueuedQueries = t.batch.QueuedQueries[:t.steps[i].index]
		t.steps = t.steps[:i]
		t.firstUses = nil
		t.beforeCommit = nil
		return nil
	}
	return t.rollbackTo(ctx, backAndRelease(checkpoint), nil, 0)
}

// backAndRelease goes back to a savepoint, and ends it.
func backAndRelease(name string) string {
	return "rollback to savepoint " + name + "; release savepoint " + name
}

// rollbackTo goes back to a savepoint by a text of our own, unless the transaction has a failure
// that this does not undo.
func (t *Tx) rollbackTo(ctx context.Context, sql string, marks map[[16]byte]struct{}, late int) error {
	if t.openResult != nil {
		t.openResult.finish()
	}
	if t.failure != nil && !t.undoable() {
		return t.failure
	}
	t.failure = nil
	t.firstUses = marks
	t.beforeCommit = t.beforeCommit[:late]
	// what was queued in fn and not sent
	t.batch = &pgx.Batch{}
	t.steps = nil
	// Not in the pipeline: a failed transaction takes a ROLLBACK TO and refuses to prepare the
	// RELEASE behind it. Without arguments Exec sends both as they are.
	if _, err := t.conn.Exec(ctx, sql); err != nil {
		t.fail(t.step, err)
	}
	t.checkStatus()
	return t.failureErr()
}

// checkpoint is the name of the engine's own savepoint.
const checkpoint = "onlyonce_0"

// maxSavepoints leaves a few of PostgreSQL's 64 cached subtransactions to triggers and functions of
// the user's, which open their own.
const maxSavepoints = 60

// undoable reports whether the failure is one that ROLLBACK TO SAVEPOINT undoes. Serialization
// failures and deadlocks are none: they are no answer to what the handler asked, and only running
// the whole transaction again gives one.
func (t *Tx) undoable() bool {
	if RunAgain(SQLState(t.failure.Err)) {
		return false
	}
	for _, b := range unforgivable {
		if errors.Is(t.failure, b) {
			return false
		}
	}
	return !t.conn.PgConn().IsClosed() && t.conn.PgConn().TxStatus() != 'I'
}
