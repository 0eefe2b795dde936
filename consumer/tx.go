package consumer

import (
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
)

// Tx is a handler's transaction. It is a [pgx.Tx] without Commit, Rollback and Conn, because the
// handler's writes, the claim of its message and the position commit together or not at all. It is
// valid until the handler returns. It has the methods of sqlc's DBTX.
//
// Use it from one goroutine at a time; goroutines may take turns. If two calls overlap, both fail,
// and so does the attempt. Reading rows and reading the results of a batch are calls too. So are
// calls from a callback of a batch, or from the source of CopyFrom, while these run. A handler must
// wait for the goroutines that it has started: if one is in a call when the handler returns, the
// attempt fails. After the handler has returned, every call fails, also during the handler of a
// later message.
//
// Statements that control the transaction are refused before they are sent, for example COMMIT,
// ROLLBACK, BEGIN, SAVEPOINT and PREPARE TRANSACTION. SET CONSTRAINTS ALL IMMEDIATE fails with
// SQLSTATE OO002: name the constraints instead.
//
// State that a statement leaves in the session would affect later messages on the same connection.
// So the consumer closes the connection after the transaction if a statement began with SET (not
// SET LOCAL), RESET, PREPARE, DEALLOCATE, DISCARD, LISTEN, UNLISTEN, LOAD, CREATE TEMP without ON
// COMMIT DROP, or DECLARE with WITH HOLD. A new connection costs some milliseconds. State that a
// function leaves is not noticed, for example by set_config or pg_advisory_lock. SET LOCAL lasts
// until the transaction ends, so later messages of the batch see it unless their handlers set it
// too: for example a tenant's variable of row security.
//
// Exec and Query take pgx's options: each pgx.QueryExecMode except QueryExecModeSimpleProtocol, and
// query rewriters (pgx.NamedArgs). Query also takes the formats of results. Queue and SendBatch
// take rewriters only. Any other option is refused, with an error that names it.
type Tx = dedupe.GuardedTx

// TxFor returns tx for one message of a batch. Calls enqueued through it derive their keys from
// that message, so the keys are the same however the batch is divided the next time. A [Handler]
// does not need it.
func TxFor(tx Tx, m *Message) Tx { return &forMessage{tx, m.origin()} }

// forMessage has the methods that package outbox looks for.
type forMessage struct {
	Tx
	origin origin.Origin
}

func (t *forMessage) Origin() (origin.Origin, bool) { return t.origin, true }

// Guarded is the handle below, for package sqltx; nil if tx is a user's own Tx.
func (t *forMessage) Guarded() *guard.Handle {
	if below, ok := t.Tx.(interface{ Guarded() *guard.Handle }); ok {
		return below.Guarded()
	}
	return nil
}

// BeforeCommit passes on rows to write right before the seal.
func (t *forMessage) BeforeCommit(item any, write func(items []any) (sql string, args []any)) error {
	if all, ok := t.Tx.(interface {
		BeforeCommit(any, func([]any) (string, []any)) error
	}); ok {
		return all.BeforeCommit(item, write)
	}
	sql, args := write([]any{item})
	t.Queue(sql, args...)
	return nil
}

// FirstUse records the first use of an identity, in the transaction: a savepoint that is undone
// takes its marks back. An identity contains its message, so the marks of all messages can be kept
// together. If tx is a user's own Tx, the database finds a second use.
func (t *forMessage) FirstUse(id [16]byte) bool {
	all, ok := t.Tx.(interface{ FirstUse(id [16]byte) bool })
	return !ok || all.FirstUse(id)
}
