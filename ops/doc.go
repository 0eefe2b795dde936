// Package ops has an operator's queries and decisions about a database of onlyonce, as Go
// functions. For example, [Status] shows the progress of the work, [Redrive] tries parked messages
// again, and [PauseSink] stops calls to a remote that is down. The program onlyonce and the console
// call these functions, and so can your own tools.
//
// # Databases
//
// Each function takes a [DB]: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn. It uses one
// connection at a time, and first checks that the schema fits this code (see [migrations.Check]).
// It sends its statements unprepared, so it works through a pooler in transaction mode. Functions
// that only read use one snapshot in a read-only transaction, and work on a standby.
//
// # Decisions
//
// A function that changes something takes a [By]: who decides, and why. In one transaction at READ
// COMMITTED it takes locks, computes the change, applies it, and writes a row of onlyonce.audit.
// After an error the database is unchanged, with one exception: [ErrOutcomeUnknown].
//
// With By.DryRun it computes the same change without locks, in a read-only transaction, and returns
// it. Your tool shows the change to a person. If the input has a field Shown, pass the result there
// in the second call: if the change would differ by now, that call fails with [ErrChanged].
//
//	seen, err := ops.PauseCursor(ctx, pool, ops.By{DryRun: true}, where)
//	// show seen, and ask
//	done, err := ops.PauseCursor(ctx, pool, ops.By{Actor: "ann", Reason: "INC-9"}, where)
//
// A transaction ends after 30 seconds, unless its function documents otherwise, and after its waits
// for locks. It waits for a lock for as long as a transaction of an owner may last by its
// consumer's Config (2 to 3 minutes by default), and 30 seconds more. If the context ends sooner,
// the function cancels the transaction before COMMIT, but does not interrupt COMMIT itself.
//
// # Stability
//
// The decisions, [Status], [ExplainKey], [ExplainPosition], [Examine], their inputs and their
// errors are stable. The structs of results are experimental: a version may add, move and rename
// fields. Their JSON names are those of the program onlyonce, and stable.
//
// # Errors
//
// An error that a person can act on is an [*Error]: the reason, and the remedy. It names options as
// the program's flags, for example -new-key for the field NewKey. Test its kind with errors.Is.
// Other errors come from the database or the context.
//
// Functions of this package are safe for concurrent use, also by several processes.
//
// Numbers in brackets, for example (K3), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package ops
