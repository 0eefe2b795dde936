// Package ops is what an operator asks of a database of onlyonce and decides about it, as Go
// functions. The program onlyonce and the console call them, and so can your own tools.
//
// # Databases
//
// Each function takes a [DB]: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn. It uses one
// connection at a time, checks first that the schema fits this code (see [migrations.Check]), and
// sends its statements unprepared, so that a pooler in transaction mode will do. Functions that only
// ask read one snapshot in a read-only transaction, and work on a standby.
//
// # Decisions
//
// A function that changes something takes a [By]: who decides, and why. It works out what it would
// do under locks, does it and writes a row of onlyonce.audit, all in one transaction at READ
// COMMITTED. An error means that nothing was changed, with one exception: [ErrOutcomeUnknown].
//
// With By.DryRun it works out the same without locks, in a read-only transaction, and returns it. A
// tool shows that to a person, and passes it as Shown to the second call, where the input has that
// field: the call then fails with [ErrChanged] if it would do something else by now.
//
//	seen, err := ops.PauseCursor(ctx, pool, ops.By{DryRun: true}, where)
//	// show seen, and ask
//	done, err := ops.PauseCursor(ctx, pool, ops.By{Actor: "ann", Reason: "INC-9"}, where)
//
// A transaction waits for a row in use for at most 10 seconds, and ends after 30 seconds, if its
// function does not say otherwise. A context that ends sooner cancels it before COMMIT; COMMIT itself
// is not cut off.
//
// # Errors
//
// An error that a person can act on is an [*Error]: what is the case, and what to do about it. What
// it says about options names them as the program's flags: -new-key is the field NewKey. Ask for its
// kind with errors.Is. Other errors come from the database or the context.
//
// Functions of this package may be called concurrently, from several processes too.
package ops
