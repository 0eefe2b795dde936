package guard

import (
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// Failure is the first thing that went wrong in a transaction; after it nothing more is sent.
type Failure struct {
	// Step is the engine's step that failed, "hook" for a statement of [Tx.Hook], empty for one of
	// the handler's.
	Step string
	// Number is the place of the handler's statement among those of its turn, from 1; 0 where the
	// error is of none, or of the engine's.
	Number int
	// SQL is how the statement begins, without its parameters; empty where the error is of none.
	SQL string
	// Err is the error, a *pgconn.PgError where the server said so.
	Err error
}

func (f *Failure) Error() string {
	whose := f.Step
	if whose == stepUser {
		whose = "handler"
	}
	switch {
	case f.SQL == "":
		return fmt.Sprintf("%s: %v", whose, f.Err)
	case f.Number == 0:
		return fmt.Sprintf("statement of the %s (%s): %v", whose, f.SQL, f.Err)
	}
	return fmt.Sprintf("statement %d of the %s (%s): %v", f.Number, whose, f.SQL, f.Err)
}

func (f *Failure) Unwrap() error { return f.Err }

// Errors of a handler that does what it must not do.
var (
	ErrControl = errors.New("transaction control belongs to the engine: no BEGIN, COMMIT, ROLLBACK, " +
		"SAVEPOINT or PREPARE TRANSACTION in a handler")
	ErrEnded    = errors.New("the handler ended the engine's transaction")
	ErrClosed   = errors.New("transaction used after its handler returned")
	ErrRowsOpen = errors.New("rows of an earlier query are still open, perhaps in another goroutine: close them first")
	// ErrForked: two calls overlapped. Both fail: which of them came first, and whether the second
	// one would have found what the first one wrote, is chance.
	ErrForked = errors.New("two calls at once on one transaction: it is for one goroutine at a time, and " +
		"callbacks of a batch or of CopyFrom cannot call it")
	// ErrUnderWay: the handler returned before one of its goroutines had its answer.
	ErrUnderWay = errors.New("the handler returned while a call on its transaction was under way: wait for " +
		"the goroutines that it has started")
	// ErrOption is wrapped by the refusal of an option of pgx.
	ErrOption = errors.New("option of pgx that this transaction does not take")
	// ErrSavepoints keeps a transaction within the 64 subtransactions that a backend's snapshot
	// cache holds.
	ErrSavepoints = errors.New("more than 60 savepoints in one transaction: they would slow down every " +
		"session of the server")
)

// unforgivable lists what no savepoint undoes.
var unforgivable = []error{
	ErrControl,
	ErrEnded,
	ErrClosed,
	ErrRowsOpen,
	ErrForked,
	ErrGoroutine,
	ErrUnderWay,
	ErrSavepoints,
}

// Failure returns what went wrong first, nil if nothing did.
func (t *Tx) Failure() *Failure { return t.failure }

// Fail ends the transaction with an error of the engine's own.
func (t *Tx) Fail(step string, err error) { t.fail(step, err) }

// fail keeps the first failure.
func (t *Tx) fail(step string, err error) { t.failAt(step, -1, "", err) }

// failAt is fail for a statement, at its place among those of handlers; a place below 0 is none. An
// error of the seal is a deferred trigger's: a standby has refused an earlier statement (T12).
func (t *Tx) failAt(step string, at int, sql string, err error) {
	if t.failure != nil {
		return
	}
	t.failure = &Failure{Step: step, Err: err}
	if step != stepUser && step != stepHook { // what a handler waits for may be its own statement
		t.failure.Err = primary.Mark(t.conn.Config(), err)
	}
	if step != stepUser && step != stepSeal {
		primary.Note(t.conn, err)
	}
	if step == stepUser || step == stepHook {
		t.failure.SQL = excerpt(sql)
		if at >= 0 {
			t.failure.Number = t.numberInTurn(at)
		}
	}
}
