package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/dedupe"
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
	// may violate a constraint, say. A transaction has at most 60, because more than 64 subtransactions slow down the
	// whole server (PostgreSQL documentation, "Subtransactions").
	Savepoint(ctx context.Context, fn func() error) error
}

// For returns tx for one message of a batch: calls that are enqueued through it derive their keys from that message, and
// are the same however the batch is cut the next time. A [Handler] does not need it.
func For(tx Tx, m *Message) Tx {
	return &forMessage{Tx: tx, origin: m.origin(), marks: map[[16]byte]struct{}{}}
}

// forMessage has what package outbox looks for.
type forMessage struct {
	Tx
	origin dedupe.Origin
	marks  map[[16]byte]struct{}
}

func (t *forMessage) Origin() (dedupe.Origin, bool) { return t.origin, true }

func (t *forMessage) Mark(id [16]byte) bool {
	_, there := t.marks[id]
	t.marks[id] = struct{}{}
	return !there
}
