package guard

import (
	"context"
	"errors"
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
// call [Handle.Savepoint].
type Saved struct {
	name  string
	marks map[[16]byte]struct{}
	late  int
}

// Save sets a savepoint. Savepoints are ended in reverse order, by one of Release, Undo and Forget.
func (h *Handle) Save(ctx context.Context) (*Saved, error) {
	name, marks, late, err := h.beginSavepoint(ctx)
	if err != nil {
		return nil, err
	}
	return &Saved{name, marks, late}, nil
}

// Release keeps what was written since the savepoint was set.
func (h *Handle) Release(ctx context.Context, s *Saved) error {
	return h.endSavepoint(ctx, s.name, s.marks, s.late, nil)
}

// errUndo is the error in place of a function's.
var errUndo = errors.New("rolled back to the savepoint")

// Undo undoes what was written since the savepoint was set, failed statements included. It returns
// an error if the transaction has failed for good; see [Handle.Savepoint].
func (h *Handle) Undo(ctx context.Context, s *Saved) error {
	err := h.endSavepoint(ctx, s.name, s.marks, s.late, errUndo)
	if errors.Is(err, errUndo) {
		return nil
	}
	return err
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
