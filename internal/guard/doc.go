// Package guard holds the one transaction type that every handler works in: consumers, webhooks and
// the HTTP layer.
//
// # Protocol
//
// An engine opens a [Tx] with [Begin] and sends its own statements through [Tx.Engine] and
// [Tx.EngineRow]; the handler sends through Exec, Query, QueryRow, SendBatch, CopyFrom and Queue.
// What needs no answer is collected and travels with the next statement that does, or with the end:
// BEGIN, the fence, the claim, queued writes, the seal and COMMIT are then one pipeline and one
// round trip (PostgreSQL documentation, "Pipeline Mode" in the libpq chapter).
//
// # What it defends against
//
//   - A statement that failed and whose error the handler swallowed: the first failure is kept
//     ([Tx.Failure]), nothing more is sent, and Commit refuses. A failed transaction answers COMMIT
//     with the tag ROLLBACK and no error.
//   - A queued statement's error, which appears at a neighbour's statement: the failure is kept
//     with the statement's owner, and the engine lets it override what a handler returned.
//   - A handler that ends the transaction. Statements that control transactions are refused before
//     they are sent. That alone would trust a list of keywords, so every answer's command tag and
//     the connection's status are checked too, and the database has the last word: COMMIT fails
//     without onlyonce.seal(), which fails without the fence in the same transaction.
//   - A connection lost, or an answer that never came: Commit reports success only for COMMIT's own
//     command tag and a pipeline that closed without error; a deferred constraint may fail as late
//     as that.
//   - The request's context ending during COMMIT: COMMIT and ROLLBACK run detached, under a timeout
//     of their own. (Cancelling a COMMIT that waits for a synchronous standby commits locally
//     only.)
//   - A connection returned to its pool inside a transaction: Rollback leaves it idle or closed.
package guard
