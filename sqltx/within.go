package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Within calls fn with a *sql.Tx over a handler's transaction, for writes by GORM, sqlc, ent and
// plain database/sql. They commit with the message's id and position, or not at all.
//
//	func handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
//		if err := sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
//			return queries.WithTx(sqlTx).HoldStock(ctx, string(m.Value))
//		}); err != nil {
//			return err
//		}
//		return outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Body: m.Value})
//	}
//
// tx is the transaction of a consumer's handler or batch handler, of the function of [dedupe.Do],
// or of a webhook's or an HTTP endpoint's handler. For any other, the error wraps
// [dedupe.ErrNoTransaction]. You may use tx and the *sql.Tx in turn. Enqueue calls with package
// outbox through tx, also inside of fn: they take their identity from the message. A call enqueued
// with [Enqueue] through the *sql.Tx needs a Scope and an ID of its own, as everywhere else.
//
// Within returns fn's error, and does not undo fn's writes: return that error from the handler, or
// call Within in tx.Savepoint. It also returns an error, and fails the attempt, if ctx has ended
// when fn returns: see "Contexts" in the package's documentation.
//
// The rules of the handler's transaction hold:
//
//   - Commit and Rollback fail the message as permanent, and so do BEGIN, COMMIT and their like as
//     statements. SAVEPOINT, RELEASE and ROLLBACK TO are allowed, as statements of their own: GORM
//     and other libraries use them to nest transactions. They mean what they mean in SQL: names are
//     folded unless they are quoted, and a savepoint is still open after ROLLBACK TO. Only those
//     that were set in this call can be named. Together with those of tx.Savepoint, 60 may be set
//     in a transaction.
//   - A failed statement fails the attempt, even if fn swallows its error, unless a savepoint
//     undoes it.
//   - Only the goroutine that called Within uses the *sql.Tx. Calls of other goroutines fail, and
//     the attempt with them, even if they take turns.
//   - After fn has returned, every use is [sql.ErrTxDone].
//
// Values are those of pgx's own driver for database/sql (package stdlib). One text is one
// statement. A statement prepared on a *sql.DB cannot be used in it (sql.Tx.Stmt), because
// database/sql takes that for a statement of another database (T6).
func Within(ctx context.Context, tx dedupe.GuardedTx, fn func(ctx context.Context, sqlTx *sql.Tx) error) (err error) {
	var handle *guard.Handle
	if of, ok := tx.(interface{ Guarded() *guard.Handle }); ok {
		handle = of.Guarded()
	}
	if handle == nil {
		return fmt.Errorf("sqltx: Within: tx: %w: %T is not one of a handler's", dedupe.ErrNoTransaction, tx)
	}
	c := &conn{handle: handle, goroutine: guard.GoroutineID()}
	db := sql.OpenDB(c)
	defer func() { _ = db.Close() }() // ends a goroutine of database/sql; c has nothing to close
	// With ctx, database/sql would roll back when that ends, from a goroutine of its own.
	sqlTx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("sqltx: Within: %w", err)
	}
	defer c.end(sqlTx)
	if err := fn(ctx, sqlTx); err != nil {
		return c.attribute(err)
	}
	if ctx.Err() != nil {
		return c.handle.Refuse(fmt.Errorf("sqltx: Within: statements may not have been sent: %w", context.Cause(ctx)))
	}
	return nil
}

// end ends the *sql.Tx, and not the transaction. It waits for calls that are under way and closes
// rows.
func (c *conn) end(sqlTx *sql.Tx) {
	c.over.Store(true)
	_ = sqlTx.Rollback() // of c, which does nothing now
	if len(c.saved) > 0 {
		c.handle.Forget(c.saved[0].point)
	}
}

// attribute adds to an error which statement it is of. Libraries get the server's errors bare.
func (c *conn) attribute(err error) error {
	failed := c.handle.Failed()
	switch {
	case failed == nil, errors.Is(err, failed), !errors.Is(err, failed.Err):
		return err
	case err.Error() == failed.Err.Error():
		return failed
	}
	return fmt.Errorf("%w; %w", err, failed)
}

// bare is the server's error as pgx's own driver returns it. Some libraries look for its type and
// do not unwrap, for example GORM with TranslateError.
func bare(err error) error {
	if failed, is := errors.AsType[*guard.Failure](err); is {
		if server, ok := failed.Err.(*pgconn.PgError); ok { //nolint:errorlint // and for nothing that is around it
			return server
		}
	}
	return err
}

// conn is the driver's connection, and the transaction on it, over a handler's transaction.
// Database/sql has one call at a time on it.
type conn struct {
	handle    *guard.Handle
	goroutine uint64 // the only one that may use it
	over      atomic.Bool
	saved     []saved // savepoints that are open, outermost first
}

// saved is a savepoint under the name that its user gave it.
type saved struct {
	name  string
	point *guard.Saved
}

// admit refuses what another goroutine sends. Database/sql lets it wait for a call that is under
// way and not overlap, so that the order of their statements would be chance (T6).
func (c *conn) admit() error {
	if guard.GoroutineID() != c.goroutine {
		return c.handle.Refuse(guard.ErrGoroutine)
	}
	return nil
}
