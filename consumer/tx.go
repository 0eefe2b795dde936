package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// Tx is the transaction that a handler works in: a [pgx.Tx] without Commit, Rollback and Conn, because the handler's
// writes, the claim of its message and the position commit together or not at all. It is valid until the
// handler returns. It has the methods that sqlc's DBTX asks for.
//
// It is for one goroutine at a time: goroutines that take turns may use it. Two calls that overlap both fail, and the attempt with
// them; reading rows, and the results of a batch, are calls too. So are those from a callback of a batch, or from the source of
// CopyFrom, while these run. A handler waits for the goroutines that it has started: if one is in a call when the handler returns, the
// attempt fails. After its handler's return, also in the handler of a later message, each call fails.
//
// Statements that control the transaction (COMMIT, ROLLBACK, BEGIN, SAVEPOINT, PREPARE TRANSACTION and so on) are
// refused before they are sent. SET CONSTRAINTS ALL IMMEDIATE fails with SQLSTATE OO002: name the constraints.
//
// What a statement leaves in the session would be met by later messages on the same connection. So the connection is closed when the
// transaction has ended, if a statement began with SET (not SET LOCAL), RESET, PREPARE, DEALLOCATE, DISCARD, LISTEN, UNLISTEN, LOAD,
// CREATE TEMP without ON COMMIT DROP, or DECLARE with WITH HOLD. A new connection costs some milliseconds. State that a function
// leaves (set_config, pg_advisory_lock) is not seen.
//
// Exec and Query take pgx's options: each pgx.QueryExecMode but QueryExecModeSimpleProtocol, query rewriters (pgx.NamedArgs), and Query
// the formats of results too. Queue and SendBatch take rewriters only. Any other is refused by name.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)

	// Queue adds a write whose answer the handler does not need. Queued statements travel with the next statement that
	// waits for an answer, or with the COMMIT: a batch whose handlers only queue is one round trip. Should
	// one fail, the whole attempt fails, whatever the handler returned. A statement that is queued after the handler's return is not
	// sent: that is logged as an error, and the attempt fails if it has not ended.
	Queue(sql string, args ...any)

	// Savepoint calls fn, whose writes through this transaction are undone when it returns an error or one of its
	// statements fails; that error is returned and the transaction goes on. For what may fail by design: an insert that
	// may violate a constraint, say. Serialization failures and deadlocks (40001, 40P01) are not forgiven: the whole transaction
	// runs again. A transaction has at most 60, those of all messages of a batch together, because more than 64
	// subtransactions slow down the whole server (PostgreSQL documentation, "Subtransactions"); the 61st fails, and the
	// batch is divided there. With one in each message set Config.BatchSize to 60 at most. While fn runs only its goroutine uses the
	// transaction: what another one wrote meanwhile would be undone with it, so then nothing is forgiven, and the attempt fails.
	Savepoint(ctx context.Context, fn func() error) error
}

// timeouts queues the transaction's timeouts right behind BEGIN, with which they travel, so that they hold for OnBegin too, and end a session
// whose client went silent there (T7). The fence sets them once more, for whatever OnBegin made of them. SET takes no snapshot,
// so that OnBegin can still choose the isolation level; set_config would.
func (c *Consumer) timeouts(tx *guard.Tx) {
	for _, t := range []struct {
		name  string
		bound time.Duration
	}{{"lock_timeout", c.cfg.LockTimeout}, {"statement_timeout", c.cfg.StatementTimeout}, {"idle_in_transaction_session_timeout", c.cfg.IdleTimeout}} {
		tx.Engine(stepBegin, "set local "+t.name+" = "+guard.Millis(t.bound))
	}
}

// strayed logs a write that a handler has queued when it had returned (T6). If the transaction has ended nobody else can tell of it.
func (c *Consumer) strayed(err error) {
	c.cfg.Logger.Error("onlyonce: a handler queued a statement after it had returned; it was not sent", "scope", c.cfg.Scope, "error", err)
}

// For returns tx for one message of a batch: calls that are enqueued through it derive their keys from that message, and
// are the same however the batch is cut the next time. A [Handler] does not need it.
func For(tx Tx, m *Message) Tx { return &forMessage{tx, m.origin()} }

// forMessage has what package outbox looks for.
type forMessage struct {
	Tx
	origin origin.Origin
}

func (t *forMessage) Origin() (origin.Origin, bool) { return t.origin, true }

// Late hands on what is written right before the seal.
func (t *forMessage) Late(item any, write func(items []any) (sql string, args []any)) error {
	if all, ok := t.Tx.(interface {
		Late(any, func([]any) (string, []any)) error
	}); ok {
		return all.Late(item, write)
	}
	sql, args := write([]any{item})
	t.Queue(sql, args...)
	return nil
}

// Mark keeps the marks where a savepoint that is undone takes them back. An identity holds its message, so those of all messages lie
// together. Behind a Tx of the user's own the database finds out.
func (t *forMessage) Mark(id [16]byte) bool {
	all, ok := t.Tx.(interface{ Mark(id [16]byte) bool })
	return !ok || all.Mark(id)
}
