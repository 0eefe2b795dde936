package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
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

// step is a statement of the engine's in a pipeline.
type step struct {
	at   int // index of the statement
	name string
	into []any // what its row is scanned into; nil: it is not read
}

// Failure is the first thing that went wrong in a transaction; after it nothing more is sent.
type Failure struct {
	// Step is the engine's step that failed, "hook" for a statement of [Tx.Hook], empty for one of the handler's.
	Step string
	// Err is the error, a *pgconn.PgError where the server said so.
	Err error
}

func (f *Failure) Error() string {
	if f.Step == stepUser {
		return fmt.Sprintf("statement of the handler: %v", f.Err)
	}
	return fmt.Sprintf("%s: %v", f.Step, f.Err)
}

func (f *Failure) Unwrap() error { return f.Err }

// Errors of a handler that does what it must not do.
var (
	ErrControl  = errors.New("transaction control belongs to the engine: no BEGIN, COMMIT, ROLLBACK, SAVEPOINT or PREPARE TRANSACTION in a handler")
	ErrEnded    = errors.New("the handler ended the engine's transaction")
	ErrClosed   = errors.New("transaction used after its handler returned")
	ErrRowsOpen = errors.New("rows of an earlier query are still open: close them first")
	// ErrSavepoints keeps a transaction within the 64 subtransactions that a backend's snapshot cache holds.
	ErrSavepoints = errors.New("more than 60 savepoints in one transaction: they would slow down every session of the server")
)

// Tx is a guarded transaction on one connection. It is for one goroutine at a time, but for [Tx.Abandon].
type Tx struct {
	conn       *pgx.Conn
	batch      *pgx.Batch
	steps      []step // which statements of batch are the engine's, or a hook's
	who        string // step of what comes through the handler's methods
	failure    *Failure
	closed     atomic.Bool // atomic for what a handler has left running: it is refused
	abandoned  atomic.Bool
	committed  bool
	open       *result // results that the handler has not closed yet
	savepoints int

	origin    dedupe.Origin
	hasOrigin bool
	marks     map[[16]byte]struct{}
	late      []lateItem // what is written right before the seal
}

// Begin opens a transaction on a connection that is in none. BEGIN travels with the first statement that is sent.
func Begin(conn *pgx.Conn) *Tx {
	t := &Tx{conn: conn, batch: &pgx.Batch{}, steps: make([]step, 0, 8)}
	t.Engine(stepBegin, "begin")
	return t
}

// Engine queues a statement of the engine's under the name of a step.
func (t *Tx) Engine(step, sql string, args ...any) {
	if step != "" {
		t.note(step)
	}
	t.batch.Queue(sql, args...)
}

// EngineInto queues a statement of the engine's that returns a row. The row is scanned into dest when its answer is read: no later than Commit returns.
func (t *Tx) EngineInto(dest []any, name, sql string, args ...any) {
	t.steps = append(t.steps, step{t.batch.Len(), name, dest})
	t.batch.Queue(sql, args...)
}

// note says whose statement is queued next.
func (t *Tx) note(name string) { t.steps = append(t.steps, step{at: t.batch.Len(), name: name}) }

// EngineRow sends what is queued and one more statement of the engine's, and returns its row.
func (t *Tx) EngineRow(ctx context.Context, step, sql string, args ...any) pgx.Row {
	return t.query(ctx, step, sql, args).row()
}

// Hook calls fn, whose statements through the handler's methods fail under the step "hook" and not as the handler's.
func (t *Tx) Hook(fn func() error) error {
	t.who = stepHook
	defer func() { t.who = stepUser }()
	err := fn()
	if t.open != nil {
		t.open.finish() // or the handler's first statement would find them open
	}
	if err != nil {
		t.fail(stepHook, err)
	}
	return err
}

// Failure returns what went wrong first, nil if nothing did.
func (t *Tx) Failure() *Failure { return t.failure }

// SetOrigin says which inbound message the statements from here on are about.
func (t *Tx) SetOrigin(o dedupe.Origin) {
	t.origin, t.hasOrigin, t.marks = o, true, nil
}

// ClearOrigin says that no message is being handled.
func (t *Tx) ClearOrigin() { t.origin, t.hasOrigin, t.marks = dedupe.Origin{}, false, nil }

// Origin returns the inbound message being handled; ok is false between messages.
func (t *Tx) Origin() (o dedupe.Origin, ok bool) { return t.origin, t.hasOrigin }

// Mark notes a derived identity and reports whether it is the first such one since SetOrigin.
func (t *Tx) Mark(id [16]byte) bool {
	if _, there := t.marks[id]; there {
		return false
	}
	if t.marks == nil {
		t.marks = make(map[[16]byte]struct{})
	}
	t.marks[id] = struct{}{}
	return true
}

// lateItem is what one statement writes together with all others of its type.
type lateItem struct {
	item  any
	write func(items []any) (sql string, args []any)
}

// Late keeps an item that is written right before the seal, together with the items of its type of all messages, by the one statement that
// write makes of them. What a savepoint undoes is forgotten. An error of that statement counts as the handler's.
func (t *Tx) Late(item any, write func(items []any) (sql string, args []any)) error {
	if err := t.ready(""); err != nil {
		return err
	}
	t.late = append(t.late, lateItem{item, write})
	return nil
}

// queueLate queues a statement for each type of item. They come in the order of the types' names, whatever came first here, because they take
// locks: two transactions that write both kinds must not wait for each other.
func (t *Tx) queueLate() {
	of := map[string][]any{}
	write := map[string]func([]any) (string, []any){}
	for _, l := range t.late {
		name := reflect.TypeOf(l.item).String()
		of[name], write[name] = append(of[name], l.item), l.write
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		sql, args := write[name](of[name])
		t.batch.Queue(sql, args...)
	}
}

// CloseHandler ends the handler's use of the transaction; the engine may still commit or roll back.
func (t *Tx) CloseHandler() {
	t.closed.Store(true)
	if t.open != nil {
		t.open.finish()
	}
}

// Abandon cuts the connection under a handler that does not return, from another goroutine: the server rolls back, and
// whatever the handler still tries fails. Nothing else of the transaction may be used by that goroutine.
func (t *Tx) Abandon() {
	t.abandoned.Store(true)
	_ = t.conn.PgConn().Conn().Close() // the handler finds out; there is nobody else to tell
}

// Commit seals and commits, and returns nil if and only if the transaction has committed. After any error the outcome
// is either "not committed" (the server said so) or unknown (see [Tx.Lost]). The caller still calls Rollback, which
// does nothing after a commit.
func (t *Tx) Commit(timeout time.Duration) error {
	t.CloseHandler()
	if t.failure != nil {
		return t.failure
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if len(t.late) > 0 {
		t.queueLate()
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
	return nil
}

// Rollback leaves the connection out of any transaction, or closed if that cannot be done within the timeout.
func (t *Tx) Rollback(timeout time.Duration) {
	t.CloseHandler()
	pc := t.conn.PgConn()
	if pc.IsClosed() || pc.TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := t.conn.Exec(ctx, "rollback"); err != nil || pc.TxStatus() != 'I' {
		_ = t.conn.Close(ctx) // nothing can be done about a connection that does not close; the pool drops it
	}
}

// Committed reports whether Commit returned nil.
func (t *Tx) Committed() bool { return t.committed }

// Lost reports whether the connection is gone, so that nobody has told what became of the statements last sent.
func (t *Tx) Lost() bool { return t.conn.PgConn().IsClosed() }

// Fail ends the transaction with an error of the engine's own.
func (t *Tx) Fail(step string, err error) { t.fail(step, err) }

// fail keeps the first failure.
func (t *Tx) fail(step string, err error) {
	if t.failure == nil {
		t.failure = &Failure{Step: step, Err: err}
	}
}

// ready says whether the handler may send something now.
func (t *Tx) ready(sql string) error {
	if t.closed.Load() || t.abandoned.Load() {
		return ErrClosed
	}
	if t.failure != nil {
		return t.failure
	}
	switch {
	case t.open != nil:
		t.fail(t.who, ErrRowsOpen)
	case controls(sql):
		t.fail(t.who, fmt.Errorf("%w: %.40q", ErrControl, sql))
	}
	return t.err()
}
