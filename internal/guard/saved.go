package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrGoroutine is for layers over a handle that cannot see two calls overlap, because they let one
// wait for the other: see [Handle.Refuse].
var ErrGoroutine = errors.New("the transaction is for the goroutine that its function was called in")

// Guarded is the handle itself. Types around a handle have this method too.
func (h *Handle) Guarded() *Handle { return h }

// Refuse fails the transaction for good, with an error of a layer over the handle (T6).
func (h *Handle) Refuse(refused error) (err error) {
	if err := h.beginCall(); err != nil {
		return err
	}
	defer h.endCall(&err)
	h.tx.breakTx(refused)
	return h.tx.failureErr()
}

// Failed is what went wrong first, nil if nothing did, or if the handle is not valid any more.
func (h *Handle) Failed() *Failure {
	if h.beginCall() != nil {
		return nil
	}
	defer h.endCall(nil)
	return h.tx.failure
}

// Saved is a savepoint of code that sets and ends savepoints by statements of its own, and does not
// call [Handle.Savepoint]. It behaves as a savepoint of SQL does.
type Saved struct {
	name  string
	marks map[[16]byte]struct{}
	late  int
}

// Save sets a savepoint. It is open until it, or one that was set before it, is released, or one
// that was set before it is gone back to, or it is forgotten.
func (h *Handle) Save(ctx context.Context) (*Saved, error) {
	name, marks, late, err := h.beginSavepoint(ctx, false)
	if err != nil {
		return nil, err
	}
	return &Saved{name, marks, late}, nil
}

// Release keeps what was written since the savepoint was set. The savepoint and those that were set
// after it end. If a statement has failed, Release fails too and changes nothing, as in SQL.
func (h *Handle) Release(ctx context.Context, s *Saved) (err error) {
	if err := h.beginCall(); err != nil {
		return err
	}
	defer h.endCall(&err)
	t := h.tx
	at, err := t.openAt(s)
	if err != nil {
		return err
	}
	if t.failure != nil {
		return t.failure
	}
	t.Engine(t.step, "release savepoint "+s.name)
	// If a statement that was queued before fails, the savepoint is still open.
	if err := t.flush(ctx); err != nil {
		return err
	}
	foreign := t.usedByOthers(at)
	t.openSavepoints = t.openSavepoints[:at]
	if foreign && at > 0 {
		t.openSavepoints[at-1].foreign = true
	}
	return nil
}

// Undo undoes what was written since the savepoint was set, failed statements included. Savepoints
// that were set after it end, and it stays open, as in SQL. It returns an error if the transaction
// has failed for good; see [Handle.Savepoint].
func (h *Handle) Undo(ctx context.Context, s *Saved) (err error) {
	if err := h.beginCall(); err != nil {
		return err
	}
	defer h.endCall(&err)
	t := h.tx
	at, err := t.openAt(s)
	if err != nil {
		return err
	}
	if t.usedByOthers(at) {
		t.breakTx(ErrForked)
	}
	if t.failure != nil && !t.undoable() {
		return t.failure
	}
	t.openSavepoints = t.openSavepoints[:at+1]
	// The savepoint keeps its own copy, because it may be gone back to again.
	return t.rollbackTo(ctx, "rollback to savepoint "+s.name, maps.Clone(s.marks), s.late)
}

// FailNoSavepoint fails the transaction as the server does if a statement names a savepoint that is
// not open: until a savepoint is gone back to. The server is not asked, because the names of its
// savepoints are others (see [Handle.Save]).
func (h *Handle) FailNoSavepoint(sql, name string) (err error) {
	if err := h.beginCall(); err != nil {
		return err
	}
	defer h.endCall(&err)
	t := h.tx
	none := &pgconn.PgError{Severity: "ERROR", Code: "3B001", Message: fmt.Sprintf("savepoint %q does not exist", name)}
	if t.failure == nil {
		t.failAt(t.step, t.statements, sql, none)
	}
	return t.failureErr()
}

// openAt finds a savepoint among those that are open. A savepoint of [Handle.Savepoint] within it
// is in its way: the function of that one has not returned.
func (t *Tx) openAt(s *Saved) (at int, err error) {
	if t.openResult != nil {
		t.openResult.finish()
	}
	at = slices.IndexFunc(t.openSavepoints, func(o openSavepoint) bool { return o.name == s.name })
	if at < 0 || slices.ContainsFunc(t.openSavepoints[at:], func(o openSavepoint) bool { return o.ofFunction }) {
		t.breakTx(ErrForked)
		return 0, t.failureErr()
	}
	return at, nil
}

// usedByOthers reports whether another goroutine has used the transaction in a savepoint, or in one
// that was set after it.
func (t *Tx) usedByOthers(at int) bool {
	return slices.ContainsFunc(t.openSavepoints[at:], func(o openSavepoint) bool { return o.foreign })
}

// Forget leaves a savepoint that was not ended to the end of the transaction, or of a savepoint
// around it. It sends nothing.
func (h *Handle) Forget(s *Saved) {
	if h.beginCall() != nil {
		return // and nothing more will be done with it
	}
	defer h.endCall(nil)
	t := h.tx
	for i, l := range t.openSavepoints {
		if l.name == s.name {
			t.openSavepoints = t.openSavepoints[:i]
			return
		}
	}
}
