package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// Tx is the transaction that a handler works in: a [pgx.Tx] without Commit, Rollback and Conn, because the handler's
// writes, the claim of its message and the position commit together or not at all. It is valid until the
// handler returns, and for one goroutine at a time. It has the methods that sqlc's DBTX asks for.
//
// Statements that control the transaction (COMMIT, ROLLBACK, BEGIN, SAVEPOINT, PREPARE TRANSACTION and so on) are
// refused before they are sent. SET CONSTRAINTS ALL IMMEDIATE fails with SQLSTATE OO002: name the constraints.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)

	// Queue adds a write whose answer the handler does not need. Queued statements travel with the next statement that
	// waits for an answer, or with the COMMIT: a batch whose handlers only queue is one round trip. Should
	// one fail, the whole attempt fails, whatever the handler returned.
	Queue(sql string, args ...any)

	// Savepoint calls fn, whose writes through this transaction are undone when it returns an error or one of its
	// statements fails; that error is returned and the transaction goes on. For what may fail by design: an insert that
	// may violate a constraint, say. Serialization failures and deadlocks (40001, 40P01) are not forgiven: the whole transaction
	// runs again. A transaction has at most 60, those of all messages of a batch together, because more than 64
	// subtransactions slow down the whole server (PostgreSQL documentation, "Subtransactions"); the 61st fails, and the
	// batch is divided there. With one in each message set Config.BatchSize to 60 at most.
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

// For returns tx for one message of a batch: calls that are enqueued through it derive their keys from that message, and
// are the same however the batch is cut the next time. A [Handler] does not need it.
func For(tx Tx, m *Message) Tx { return &forMessage{tx, m.origin()} }

// forMessage has what package outbox looks for.
type forMessage struct {
	Tx
	origin dedupe.Origin
}

func (t *forMessage) Origin() (dedupe.Origin, bool) { return t.origin, true }

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
