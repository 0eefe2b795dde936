// Package sqltx claims keys and enqueues calls in a transaction of database/sql: for programs whose effects go through
// GORM, sqlx, sqlc, ent, bun or plain *sql.Tx, with pgx's stdlib driver or lib/pq.
//
//	err := db.Transaction(func(g *gorm.DB) error {
//		tx := g.Statement.ConnPool.(sqltx.Tx)
//		outcome, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf(payload)})
//		switch {
//		case err != nil:
//			return err // rolled back; deliver again
//		case outcome == dedupe.Duplicate:
//			return nil // somebody has applied it
//		case outcome == dedupe.Conflict:
//			return setAside(g, id, payload) // another payload under the same id: never skip it
//		}
//		if err := g.Create(&order).Error; err != nil {
//			return err
//		}
//		return sqltx.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Scope: "checkout", ID: id, Body: charge})
//	})
//
// # Nested transactions
//
// GORM makes a savepoint of a transaction inside a transaction, and so do others. One that was set behind the claim and is rolled back
// undoes effects, and leaves the claim:
//
//	BEGIN; claim(k): fresh; SAVEPOINT; effects; ROLLBACK TO SAVEPOINT; COMMIT
//	the redelivery is a duplicate, and its effects were never written
//
// So when a savepoint behind the claim was rolled back, roll back, and run the whole transaction again. Never claim a second time in one
// transaction to find out: the answer is [dedupe.Duplicate], because a transaction sees its own claims, and says nothing of the effects.
//
// # Why a package of its own
//
// The one seam to the database is pgx.Tx, and a second engine for another one would be a second place for each rule. So nothing is
// claimed or enqueued here. The transaction is given the three methods that packages dedupe and outbox ask for, and those run
// the same statements with the same hashes, frozen bytes and checks. What differs is only how arguments and answers travel:
// database/sql has no arrays that all drivers agree on, so they go as text in PostgreSQL's own notation, which the
// server reads by the parameter's type. Who does not use database/sql links none of it.
//
// # What it defends against
//
// A claim outside the transaction of its effects. It would commit by itself:
//
//	claim commits; the process is killed; the redelivery is a duplicate, and its effects were never written
//
// So [Tx] has Commit and Rollback, which are never called here: *sql.DB and *sql.Conn have neither, and do not compile.
//
// An error that the caller cannot tell. lib/pq has a type of errors of its own, so a conflict found by the server would not be
// [outbox.ErrConflict], and a serialization failure not a *pgconn.PgError. Each error that carries an SQLSTATE is therefore both:
// the driver's own, and a *pgconn.PgError with that code.
//
// # What it cannot do
//
// It is not the guarded transaction of a consumer's handler. Nothing keeps your code from ending the transaction between the claim
// and the effects, from swallowing a failed statement, or from taking an error of Commit for success, and no seal refuses such a
// COMMIT. (PostgreSQL answers COMMIT of a failed transaction with ROLLBACK; of the two drivers pgx makes an error of that, and lib/pq
// does too.) There is no origin either: calls need a Scope and an ID, as in any transaction of your own. A consumer's handler cannot
// be given a *sql.Tx: its transaction is pipelined on a connection of pgx, and stays there.
//
// Under REPEATABLE READ and SERIALIZABLE a claim or a call may end in SQLSTATE 40001, with several calls in one transaction in 40P01: run the
// transaction again from its beginning.
package sqltx
