// Package sqltx is for programs that write through GORM, sqlx, sqlc, ent, bun or plain
// database/sql. [Within] gives a handler a *sql.Tx over its transaction. [Do] is a loop of your own
// around one message, and [Claim] and [Enqueue] are for transactions of your own, with pgx's stdlib
// driver or lib/pq.
//
// [Do] is the whole loop of a message: a transaction with its bounds, the claim, your function,
// COMMIT, and another attempt if the database requests one or the answer to COMMIT was lost. In a
// transaction of your own:
//
//	err := db.Transaction(func(g *gorm.DB) error {
//		tx, err := gormtx.Of(g) // its own module, sqltx/gormtx
//		if err != nil {
//			return err
//		}
//		key := dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf(payload)}
//		outcome, err := sqltx.Claim(ctx, tx, key)
//		switch {
//		case err != nil:
//			return err // rolled back; deliver again
//		case outcome == dedupe.Duplicate:
//			return nil // it was applied before
//		case outcome == dedupe.Conflict:
//			return setAside(g, id, payload) // another payload under the same id: never skip it
//		}
//		if err := g.Create(&order).Error; err != nil {
//			return err
//		}
//		call := outbox.Call{Sink: "payments", Name: "charge", Scope: "checkout", ID: id, Body: charge}
//		return sqltx.Enqueue(ctx, tx, call)
//	})
//
// # Nested transactions
//
// GORM and other libraries turn a transaction inside a transaction into a savepoint. Rolling back a
// savepoint that was set after the claim undoes effects and keeps the claim:
//
//	BEGIN; claim(k): fresh; SAVEPOINT; effects; ROLLBACK TO SAVEPOINT; COMMIT
//	the redelivery is a duplicate, and its effects were never written
//
// So if a savepoint after the claim was rolled back, roll back the whole transaction and run it
// again. Never claim a second time in one transaction to find out: a transaction sees its own
// claims, so the answer is [dedupe.Duplicate], whether the effects are there or not.
//
// # In a handler
//
// The *sql.Tx of [Within] is no second transaction: its driver sends each statement through the
// handler's transaction, which guards it like every other statement (T6).
//
//	sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
//		queries.WithTx(sqlTx)                                  // sqlc
//		gorm.Open(postgres.New(postgres.Config{Conn: sqlTx}))  // GORM, or a session: see below
//		entsql.Conn{ExecQuerier: sqlTx}                        // ent, in a dialect.Driver
//
// A session of a program's own *gorm.DB keeps its settings:
//
//	g := program.Session(&gorm.Session{NewDB: true, Context: ctx})
//	g.Statement.ConnPool = sqlTx
//
// # Contexts
//
// Database/sql rolls a transaction back by itself if the context of its BeginTx ends: a goroutine
// of its own calls Rollback at any moment. So Within begins with a context that does not end. These
// effects of contexts remain:
//
//	the handler's context ends ...
//	before a statement is sent      database/sql returns the context's error and does not call the
//	                                driver. fn may overlook it: so Within fails the attempt if its
//	                                context has ended when fn returns.
//	while a statement is under way  pgx cuts the connection; the attempt has failed.
//	while rows are open             a goroutine of database/sql closes them, under the lock that
//	                                all calls of the driver take; if rows are still on their way,
//	                                pgx cuts the connection. If the handler calls its transaction
//	                                directly at that moment, the two calls overlap: both fail, and
//	                                the attempt.
//	after fn has returned           the *sql.Tx is over, and database/sql holds no more of it.
//
// The same holds for a context that fn derives, with one exception: if it ends before a statement
// is sent, only the statement's error shows that. Do not overlook it.
//
// # Why a package of its own
//
// The engine's only interface to the database is pgx. A second engine for another interface would
// be a second place for each rule. So this package does not claim or enqueue by itself. It gives
// the transaction the three methods that packages dedupe and outbox need, and those run the same
// statements with the same hashes, frozen bytes and checks. Only the form of arguments and answers
// differs. Drivers of database/sql do not agree on arrays, so this package sends them as text in
// PostgreSQL's own notation, which the server parses by the parameter's type. Programs that do not
// import this package do not link it.
//
// # What it defends against
//
// A claim outside the transaction of its effects. It would commit by itself:
//
//	claim commits; the process is killed; the redelivery is a duplicate, and its effects were never written
//
// So [StdTx] has Commit and Rollback, which this package never calls: *sql.DB and *sql.Conn have
// neither, and do not compile.
//
// An error that the caller cannot recognize. lib/pq has its own type of errors, so a conflict found
// by the server would not be [outbox.ErrConflict], and a serialization failure not a
// *pgconn.PgError. So each error with an SQLSTATE is both: the driver's own, and a *pgconn.PgError
// with that code.
//
// # Limits
//
// Outside of [Within] there is no guarded transaction. Your code can end the transaction between
// the claim and the effects, swallow a failed statement, or ignore an error of Commit. Do notices
// the first two before its COMMIT. It cannot undo statements that your code has committed by then.
// (PostgreSQL answers COMMIT of a failed transaction with ROLLBACK; pgx and lib/pq both return an
// error then.) There is no origin either: calls need a Scope and an ID, as in any transaction of
// your own.
//
// Numbers in brackets, for example (T6), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
//
// Under REPEATABLE READ and SERIALIZABLE a claim or a call may end in SQLSTATE 40001. Several calls
// in one transaction may end in 40P01. In both cases run the transaction again from its beginning.
package sqltx
