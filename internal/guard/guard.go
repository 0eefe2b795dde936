package guard

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
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

// engineStep is a statement in a pipeline that is not simply the handler's.
type engineStep struct {
	index   int // index of the statement
	name    string
	counted bool  // the engine's are not, and the handler's that it did not write itself
	dest    []any // what its row is scanned into; nil: it is not read
}

// Tx is a guarded transaction on one connection, as the engine has it. It is for one goroutine at a
// time, but for [Tx.Abandon]; handlers get a [Handle] of it. The methods of Handle call through the
// handle that was lent last: [Begin] lends the first one.
type Tx struct {
	*Handle

	// Report, if set, is called for a statement without an answer that a handler has queued after
	// its return. It may be called from any goroutine.
	Report func(error)

	conn           *pgx.Conn
	gate           callGate
	batch          *pgx.Batch
	steps          []engineStep // which statements of batch are the engine's, or a hook's
	step           string       // step of what comes through the handler's methods
	failure        *Failure
	committed      bool
	sticky         bool    // a statement was sent that leaves something in the session
	openResult     *result // results that the handler has not closed yet
	savepoints     int
	openSavepoints []openSavepoint // savepoints that are open
	statements     int             // statements of handlers so far, sent or queued
	turnStarts     []int           // by turn: the value of statements when it began

	originAsked  atomic.Bool
	firstUses    map[[16]byte]struct{}
	beforeCommit []beforeCommitItem // what is written right before the seal
	sealedBy     *engineSeal        // nil: onlyonce.seal() seals
}

// Begin opens a transaction on a connection that is in none. BEGIN travels with the first statement
// that is sent. The caller ends it on each path: with Rollback, also after Commit, or with Abandon.
// The connection stays the caller's, who gives it back after that.
func Begin(conn *pgx.Conn) *Tx {
	t := &Tx{conn: conn, batch: &pgx.Batch{}, steps: make([]engineStep, 0, 4), turnStarts: make([]int, 0, 4)}
	t.gate.idle.L = &t.gate.mu
	t.Lend(nil)
	t.Engine(stepBegin, "begin")
	return t
}

// Engine queues a statement of the engine's under the name of a step.
func (t *Tx) Engine(name, sql string, args ...any) {
	t.steps = append(t.steps, engineStep{index: t.batch.Len(), name: name})
	t.batch.Queue(sql, args...)
}

// SealBy has a statement of the engine's seal the transaction, in place of onlyonce.seal(). Commit
// sends it after everything else. It returns a row, which is scanned into dest no later than Commit
// returns. An argument that is a func() any is called for its value once the items of BeforeCommit
// are written.
func (t *Tx) SealBy(dest []any, name, sql string, args ...any) {
	t.sealedBy = &engineSeal{name: name, sql: sql, args: args, dest: dest}
}

// engineSeal is what [Tx.SealBy] was called with.
type engineSeal struct {
	name, sql  string
	args, dest []any
}

// queueSeal queues the statement that seals.
func (t *Tx) queueSeal() {
	by := t.sealedBy
	if by == nil {
		t.Engine(stepSeal, sealSQL)
		return
	}
	t.steps = append(t.steps, engineStep{index: t.batch.Len(), name: by.name, dest: by.dest})
	args := slices.Clone(by.args)
	for i, arg := range args {
		if value, later := arg.(func() any); later {
			args[i] = value()
		}
	}
	t.batch.Queue(by.sql, args...)
}

// queueStatement queues a statement of the handler's, or of a hook's.
func (t *Tx) queueStatement(sql string, args []any) {
	if t.step != stepUser {
		t.steps = append(t.steps, engineStep{index: t.batch.Len(), name: t.step, counted: true})
	}
	t.statements++
	t.batch.Queue(sql, args...)
}

// EngineRow sends what is queued and one more statement of the engine's, and returns its row. The
// caller scans it before anything else is sent: that closes it.
func (t *Tx) EngineRow(ctx context.Context, step, sql string, args ...any) pgx.Row {
	t.Engine(step, sql, args...)
	return singleRow{t.queryLast(ctx)}
}

// Hook calls fn with a handle of its own, whose statements fail under the step "hook" and not as
// the handler's.
func (t *Tx) Hook(fn func(h *Handle) error) error {
	t.TakeBack()
	t.step = stepHook
	defer func() { t.step = stepUser }()
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

// Origin returns the inbound message being handled; ok is false where there is none.
func (h *Handle) Origin() (o origin.Origin, ok bool) {
	if h.origin == nil {
		return origin.Origin{}, false
	}
	h.tx.originAsked.Store(true)
	return *h.origin, true
}

// OriginAsked reports whether a handler has called Origin, as one that enqueues calls does.
func (t *Tx) OriginAsked() bool { return t.originAsked.Load() }

// Abandon cuts the connection under a handler that does not return, from another goroutine: the
// server rolls back, and whatever the handler still tries fails. Nothing else of the transaction
// may be used by that goroutine.
func (t *Tx) Abandon() {
	t.gate.mu.Lock()
	t.gate.abandoned = true
	t.gate.ended = true
	t.gate.mu.Unlock()
	_ = t.conn.PgConn().Conn().Close() // the handler finds out by itself
}

// Commit seals and commits, and returns nil if and only if the transaction has committed. After any
// error the outcome is either "not committed" (the server said so) or unknown (see [Tx.Lost]). The
// caller still calls Rollback, which does nothing after a commit (T3, T5).
func (t *Tx) Commit(timeout time.Duration) error {
	t.TakeBack()
	if lost := t.endCalls(); lost != nil {
		t.breakTx(lost)
	}
	if t.failure != nil {
		return t.failure
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if len(t.beforeCommit) > 0 {
		t.queueBeforeCommit()
	}
	t.queueSeal()
	t.Engine(stepCommit, "commit")
	r := t.sendQueued(ctx)
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
	t.closeIfSticky(ctx)
	return nil
}

// Rollback leaves the connection out of any transaction and with the session that it came with, or
// closed if that cannot be had within the timeout (T5).
func (t *Tx) Rollback(timeout time.Duration) {
	t.TakeBack()
	_ = t.endCalls() // nothing is to be committed
	pc := t.conn.PgConn()
	t.gate.mu.Lock()
	abandoned := t.gate.abandoned
	t.gate.mu.Unlock()
	clean := !t.sticky && !abandoned
	if pc.IsClosed() || clean && pc.TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if abandoned { // its socket is closed, which the pool does not know
		_ = t.conn.Close(ctx)
		return
	}
	if pc.TxStatus() != 'I' {
		if _, err := t.conn.Exec(ctx, "rollback"); err != nil || pc.TxStatus() != 'I' {
			// Nothing can be done about a connection that does not close; the pool drops it.
			_ = t.conn.Close(ctx)
			return
		}
	}
	t.closeIfSticky(ctx)
}

// closeIfSticky closes a connection in whose session a handler has left something, so that the next
// one to have it does not meet that. Not DISCARD ALL: it would also undo what the pool's
// AfterConnect has set (T6).
func (t *Tx) closeIfSticky(ctx context.Context) {
	if t.sticky {
		_ = t.conn.Close(ctx) // see Rollback
	}
}

// Committed reports whether Commit returned nil.
func (t *Tx) Committed() bool { return t.committed }

// Lost reports whether the connection is gone, so that the outcome of the statements last sent is
// unknown.
func (t *Tx) Lost() bool { return t.conn.PgConn().IsClosed() }

// checkStatement says whether the handler may send something now, and takes note of what the
// statement leaves in the session.
func (t *Tx) checkStatement(sql string) error {
	if t.failure != nil {
		return t.failure
	}
	control, leaves := classifyStatement(sql)
	switch {
	case t.openResult != nil:
		t.failAt(t.step, t.statements, sql, ErrRowsOpen)
	case control:
		t.failAt(t.step, t.statements, sql, ErrControl)
	}
	t.sticky = t.sticky || leaves
	return t.failureErr()
}
