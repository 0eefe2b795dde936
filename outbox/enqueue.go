package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
)

// Errors of [Enqueue] besides [ErrCall]. Each means that the transaction must be rolled back.
var (
	// ErrTwice: one transaction, or one message, asks for two calls of one name to one sink. Set Call.ID to tell
	// them apart. SQLSTATE OO005 where the database found it.
	ErrTwice = errors.New("outbox: two calls of one name: set Call.ID to tell them apart")
	// ErrConflict: the call was enqueued before, with other bytes, and those may have been sent. SQLSTATE OO004. In a
	// consumer's handler it comes from the statement that waits next, or from the commit.
	ErrConflict = errors.New("outbox: the call was enqueued before with other bytes")
	// ErrNoTransaction: Enqueue was given a connection that is in no transaction.
	ErrNoTransaction = errors.New("outbox: Enqueue needs the transaction of the effects")
)

// SQLSTATEs of onlyonce.enqueue and onlyonce.hold.
const (
	codeFenceLost = "OO001"
	codeConflict  = "OO004"
	codeTwice     = "OO005"
)

// enqueueSQL writes one call. In: key, tenant, scope, sink, name, method, target, header names, header values, body.
// Out: one row of void. Relies on the unique index on onlyonce.outbox.key, and waits there for an uncommitted row of the
// same key; any isolation level, above READ COMMITTED that wait may end in 40001.
const enqueueSQL = `select onlyonce.enqueue($1::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// handlerTx is what the transaction of a consumer's handler has besides dedupe.Tx.
type handlerTx interface {
	// Origin is the inbound message that is being handled; ok is false where there is none.
	Origin() (o dedupe.Origin, ok bool)
	// Queue sends a write with whatever is sent next; its error surfaces there.
	Queue(sql string, args ...any)
	// Mark notes an identity, and reports whether it is the first such one of this message in this attempt.
	Mark(key [16]byte) bool
}

// Enqueue writes a call in the caller's transaction, together with the effects that ask for it: when that commits a relay
// sends the call, until the remote has given a final answer, always under the same key and with the same bytes; when
// it rolls back nothing is ever sent.
//
// In a consumer's handler the key derives from the message, so the call is the same however often the message is
// handled. In a transaction of your own (a [pgx.Tx]) there is no message: Call.ID and Call.Scope are required and
// stand for it.
//
// A call that was enqueued before in another transaction is not written again: Enqueue returns nil if its bytes are
// the same, and [ErrConflict] if they differ, for as long as the row is kept (RelayConfig.Retention). While another
// transaction holds an uncommitted call under the key, Enqueue waits until that one ends: set
// lock_timeout, or a deadline on ctx, to bound that.
func Enqueue(ctx context.Context, tx dedupe.Tx, call Call) error {
	if err := inTransaction(tx); err != nil {
		return err
	}
	var origin dedupe.Origin
	handler, inbound := tx.(handlerTx)
	if inbound {
		origin, inbound = handler.Origin()
	}
	r, err := freeze(call, origin, inbound)
	if err != nil {
		return err
	}
	args := []any{r.key.String(), r.tenant, r.scope, r.sink, r.name, r.method, r.target, r.headerNames, r.headerValues, r.body}
	if inbound {
		// Told here and not by the database, so that the error is returned at the line that has the fault.
		if !handler.Mark(r.key) {
			return fmt.Errorf("%w: %q to sink %q, twice from one message", ErrTwice, r.name, r.sink)
		}
		handler.Queue(enqueueSQL, args...)
		return nil
	}
	if _, err := tx.Exec(ctx, enqueueSQL, args...); err != nil {
		switch sqlState(err) {
		case codeTwice:
			return fmt.Errorf("%w: %w", ErrTwice, err)
		case codeConflict:
			return fmt.Errorf("%w: %w", ErrConflict, err)
		}
		return fmt.Errorf("outbox: enqueue: %w", err)
	}
	return nil
}

// inTransaction refuses what has the methods of a transaction and is none: the call would commit by itself, whatever
// becomes of the effects.
func inTransaction(tx dedupe.Tx) error {
	switch c := tx.(type) {
	case nil:
		return fmt.Errorf("%w: it is nil", ErrNoTransaction)
	case *pgxpool.Pool:
		return fmt.Errorf("%w: a pool is none", ErrNoTransaction)
	case *pgxpool.Conn:
		return inTransaction(c.Conn())
	case *pgx.Conn:
		if c.PgConn().TxStatus() == 'I' {
			return fmt.Errorf("%w: this connection is in none", ErrNoTransaction)
		}
	}
	return nil
}

// sqlState is the SQLSTATE of an error of the server's, "" for any other.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}
