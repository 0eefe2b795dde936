package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/origin"
)

// sealSQL judges deferred constraints and allows the COMMIT behind it. One row of void.
const sealSQL = `select onlyonce.seal()`

// Names of the engine's steps; a handler's statements have none.
const (
	stepUser       = ""
	stepBegin      = "begin"
	stepHook       = "hook"
	stepCheckpoint = "checkpoint"
	stepSeal       = "seal"
	stepCommit     = "commit"
)

// step is a statement in a pipeline that is not simply the handler's.
type step struct {
	at      int // index of the statement
	name    string
	counted bool  // the engine's are not, and the handler's that it did not write itself
	into    []any // what its row is scanned into; nil: it is not read
}

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
	ErrControl  = errors.New("transaction control belongs to the engine: no BEGIN, COMMIT, ROLLBACK, SAVEPOINT or PREPARE TRANSACTION in a handler")
	ErrEnded    = errors.New("the handler ended the engine's transaction")
	ErrClosed   = errors.New("transaction used after its handler returned")
	ErrRowsOpen = errors.New("rows of an earlier query are still open, perhaps in another goroutine: close them first")
	// ErrForked: two calls overlapped. Both fail: which of them came first, and whether the second
	// one would have found what the first one wrote, is chance.
	ErrForked = errors.New("two calls at once on one transaction: it is for one goroutine at a time, and callbacks of a batch or of CopyFrom cannot call it")
	// ErrUnderWay: the handler returned before one of its goroutines had its answer.
	ErrUnderWay = errors.New("the handler returned while a call on its transaction was under way: wait for the goroutines that it has started")
	// ErrOption is wrapped by the refusal of an option of pgx.
	ErrOption = errors.New("option of pgx that this transaction does not take")
	// ErrSavepoints keeps a transaction within the 64 subtransactions that a backend's snapshot
	// cache holds.
	ErrSavepoints = errors.New("more than 60 savepoints in one transaction: they would slow down every session of the server")
)

// broken lists what no savepoint undoes.
var broken = []error{ErrControl, ErrEnded, ErrClosed, ErrRowsOpen, ErrForked, ErrGoroutine, ErrUnderWay, ErrSavepoints}

// Tx is a guarded transaction on one connection, as the engine has it. It is for one goroutine at a
// time, but for [Tx.Abandon]; handlers get a [Handle] of it. The methods of Handle call through the
// handle that was lent last: [Begin] lends the first one.
type Tx struct {
	*Handle

	// Report, if set, is called for a statement without an answer that a handler has queued after
	// its return. It may be called from any goroutine.
	Report func(error)

	conn       *pgx.Conn
	gate       gate
	batch      *pgx.Batch
	steps      []step // which statements of batch are the engine's, or a hook's
	who        string // step of what comes through the handler's methods
	failure    *Failure
	committed  bool
	sticky     bool    // a statement was sent that leaves something in the session
	open       *result // results that the handler has not closed yet
	savepoints int
	levels     []level // savepoints that are open
	stated     int     // statements of handlers so far, sent or queued
	turns      []int   // what stated was when each turn began

	firstUses    map[[16]byte]struct{}
	beforeCommit []beforeCommitItem // what is written right before the seal
}

// Begin opens a transaction on a connection that is in none. BEGIN travels with the first statement
// that is sent.
func Begin(conn *pgx.Conn) *Tx {
	t := &Tx{conn: conn, batch: &pgx.Batch{}, steps: make([]step, 0, 8)}
	t.gate.idle.L = &t.gate.mu
	t.Lend(nil)
	t.Engine(stepBegin, "begin")
	return t
}

// Engine queues a statement of the engine's under the name of a step.
func (t *Tx) Engine(name, sql string, args ...any) {
	t.steps = append(t.steps, step{at: t.batch.Len(), name: name})
	t.batch.Queue(sql, args...)
}

// EngineInto queues a statement of the engine's that returns a row. The row is scanned into dest
// when its answer is read: no later than Commit returns.
func (t *Tx) EngineInto(dest []any, name, sql string, args ...any) {
	t.steps = append(t.steps, step{at: t.batch.Len(), name: name, into: dest})
	t.batch.Queue(sql, args...)
}

// state queues a statement of the handler's, or of a hook's.
func (t *Tx) state(sql string, args []any) {
	if t.who != stepUser {
		t.steps = append(t.steps, step{at: t.batch.Len(), name: t.who, counted: true})
	}
	t.stated++
	t.batch.Queue(sql, args...)
}

// EngineRow sends what is queued and one more statement of the engine's, and returns its row.
func (t *Tx) EngineRow(ctx context.Context, step, sql string, args ...any) pgx.Row {
	t.Engine(step, sql, args...)
	return row{t.last(ctx)}
}

// Hook calls fn with a handle of its own, whose statements fail under the step "hook" and not as
// the handler's.
func (t *Tx) Hook(fn func(h *Handle) error) error {
	t.TakeBack()
	t.who = stepHook
	defer func() { t.who = stepUser }()
	err := func() error {
		defer t.TakeBack() // or the handler's first statement would find rows open
		return fn(t.Lend(nil))
	}()
	t.Lend(nil)
	if err != nil {
		t.fail(stepHook, err)
	}
	return err
}

// Failure returns what went wrong first, nil if nothing did.
func (t *Tx) Failure() *Failure { return t.failure }

// Origin returns the inbound message being handled; ok is false where there is none.
func (h *Handle) Origin() (o origin.Origin, ok bool) {
	if h.origin == nil {
		return origin.Origin{}, false
	}
	return *h.origin, true
}

// FirstUse notes a derived identity and reports whether it is the first such one of this turn.
// Where the handle is refused it reports true: what is to be written under that identity says why.
func (h *Handle) FirstUse(id [16]byte) bool {
	if h.enter() != nil {
		return true
	}
	defer h.leave(nil)
	t := h.tx
	if _, there := t.firstUses[id]; there {
		return false
	}
	if t.firstUses == nil {
		t.firstUses = make(map[[16]byte]struct{})
	}
	t.firstUses[id] = struct{}{}
	return true
}

// beforeCommitItem is what one statement writes together with all others of its type.
type beforeCommitItem struct {
	item  any
	write func(items []any) (sql string, args []any)
}

// BeforeCommit keeps an item that is written right before the seal, together with the items of its
// type of all messages, by the one statement that write makes of them. What a savepoint undoes is
// forgotten. An error of that statement counts as the handler's.
func (h *Handle) BeforeCommit(item any, write func(items []any) (sql string, args []any)) (err error) {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.leave(&err)
	t := h.tx
	if err := t.ready(""); err != nil {
		return err
	}
	t.beforeCommit = append(t.beforeCommit, beforeCommitItem{item, write})
	return nil
}

// queueBeforeCommit queues a statement for each type of item. They come in the order of the types'
// names, whatever came first here, because they take locks: two transactions that write both kinds
// must not wait for each other.
func (t *Tx) queueBeforeCommit() {
	of := map[string][]any{}
	write := map[string]func([]any) (string, []any){}
	for _, l := range t.beforeCommit {
		name := reflect.TypeOf(l.item).String()
		of[name], write[name] = append(of[name], l.item), l.write
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		sql, args := write[name](of[name])
		t.Engine(stepUser, sql, args...)
	}
}

// Abandon cuts the connection under a handler that does not return, from another goroutine: the
// server rolls back, and whatever the handler still tries fails. Nothing else of the transaction
// may be used by that goroutine.
func (t *Tx) Abandon() {
	t.gate.mu.Lock()
	t.gate.cut, t.gate.sealed = true, true
	t.gate.mu.Unlock()
	_ = t.conn.PgConn().Conn().Close() // the handler finds out by itself
}

// Commit seals and commits, and returns nil if and only if the transaction has committed. After any
// error the outcome is either "not committed" (the server said so) or unknown (see [Tx.Lost]). The
// caller still calls Rollback, which does nothing after a commit.
func (t *Tx) Commit(timeout time.Duration) error {
	t.TakeBack()
	if lost := t.seals(); lost != nil {
		t.breaks(lost)
	}
	if t.failure != nil {
		return t.failure
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if len(t.beforeCommit) > 0 {
		t.queueBeforeCommit()
	}
	t.Engine(stepSeal, sealSQL)
	t.Engine(stepCommit, "commit")
	r := t.send(ctx)
	tag := r.skip(len(r.queries))
	r.finish()
	if t.failure != nil {
		return t.failure
	}
	if tag.String() != "COMMIT" {
		t.fail(stepCommit, fmt.Errorf("COMMIT was answered with %q: %w", tag, pgx.ErrTxCommitRollback))
		return t.failure
	}
	t.committed = true
	t.cleanse(ctx)
	return nil
}

// Rollback leaves the connection out of any transaction and with the session that it came with, or
// closed if that cannot be had within the timeout.
func (t *Tx) Rollback(timeout time.Duration) {
	t.TakeBack()
	_ = t.seals() // nothing is to be committed
	pc := t.conn.PgConn()
	if pc.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if pc.TxStatus() != 'I' {
		if _, err := t.conn.Exec(ctx, "rollback"); err != nil || pc.TxStatus() != 'I' {
			// Nothing can be done about a connection that does not close; the pool drops it.
			_ = t.conn.Close(ctx)
			return
		}
	}
	t.cleanse(ctx)
}

// cleanse closes a connection in whose session a handler has left something, so that the next one
// to have it does not meet that. Not DISCARD ALL: it would also undo what the pool's AfterConnect
// has set.
func (t *Tx) cleanse(ctx context.Context) {
	if t.sticky {
		_ = t.conn.Close(ctx) // see Rollback
	}
}

// Committed reports whether Commit returned nil.
func (t *Tx) Committed() bool { return t.committed }

// Lost reports whether the connection is gone, so that the outcome of the statements last sent is
// unknown.
func (t *Tx) Lost() bool { return t.conn.PgConn().IsClosed() }

// Fail ends the transaction with an error of the engine's own.
func (t *Tx) Fail(step string, err error) { t.fail(step, err) }

// fail keeps the first failure.
func (t *Tx) fail(step string, err error) { t.failAt(step, -1, "", err) }

// failAt is fail for a statement, at its place among those of handlers; a place below 0 is none.
func (t *Tx) failAt(step string, at int, sql string, err error) {
	if t.failure != nil {
		return
	}
	t.failure = &Failure{Step: step, Err: err}
	if step == stepUser || step == stepHook {
		t.failure.SQL = excerpt(sql)
		if at >= 0 {
			t.failure.Number = t.numbered(at)
		}
	}
}

// ready says whether the handler may send something now, and takes note of what the statement
// leaves in the session.
func (t *Tx) ready(sql string) error {
	if t.failure != nil {
		return t.failure
	}
	control, leaves := classify(sql)
	switch {
	case t.open != nil:
		t.failAt(t.who, t.stated, sql, ErrRowsOpen)
	case control:
		t.failAt(t.who, t.stated, sql, ErrControl)
	}
	t.sticky = t.sticky || leaves
	return t.err()
}
