// Package ops is what an operator can look up in a database of onlyonce and decide about it, as Go
// functions. For example [Status] shows where the work is, [Redrive] tries parked messages again,
// and [PauseSink] stops calls to a remote that is down. The program onlyonce and the console call
// these functions, and so can your own tools.
//
// # Databases
//
// Each function takes a [DB]: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn. It uses one
// connection at a time, and first checks that the schema fits this code (see [migrations.Check]).
// It sends its statements unprepared, so that it works through a pooler in transaction mode.
// Functions that only read use one snapshot in a read-only transaction, and work on a standby.
//
// # Decisions
//
// A function that changes something takes a [By]: who decides, and why. In one transaction at READ
// COMMITTED it takes locks, works out the change, makes it, and writes a row of onlyonce.audit. An
// error means that nothing was changed, with one exception: [ErrOutcomeUnknown].
//
// With By.DryRun it works out the same without locks, in a read-only transaction, and returns it.
// Your tool shows that to a person. If the input has a field Shown, pass the result there in the
// second call: that call fails with [ErrChanged] if it would do something else by now.
//
//	seen, err := ops.PauseCursor(ctx, pool, ops.By{DryRun: true}, where)
//	// show seen, and ask
//	done, err := ops.PauseCursor(ctx, pool, ops.By{Actor: "ann", Reason: "INC-9"}, where)
//
// A transaction waits for a locked row for at most 10 seconds, and ends after 30 seconds, unless
// its function documents otherwise. If the context ends sooner, the transaction is canceled before
// COMMIT; COMMIT itself is not interrupted.
//
// # Stability
//
// The decisions, [Status], [ExplainKey], [ExplainPosition], [Examine], their inputs and their
// errors stay as they are. The structs of results are experimental: a version may add, move and
// rename fields. Their JSON names are those of the program onlyonce, and stay.
//
// # Errors
//
// An error that a person can act on is an [*Error]: the reason, and the remedy. It names options as
// the program's flags, for example -new-key for the field NewKey. Test its kind with errors.Is.
// Other errors come from the database or the context.
//
// Functions of this package may be called concurrently, from several processes too.
package ops
