package dedupe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/primary"
)

var (
	// ErrConfig is wrapped by every error about a [DoConfig].
	ErrConfig = errors.New("dedupe: invalid configuration")

	// ErrConflict is returned by [Do] if the key was claimed for another payload and
	// DoConfig.OnConflict is not set. Do wrote no data. One of the two producers is wrong: set the
	// message aside, and never skip it.
	ErrConflict = errors.New("dedupe: the key was claimed for another payload")

	// ErrOutcomeUnknown is wrapped by an error of [Do] if the transaction may have committed: the
	// answer to COMMIT was lost, and no later attempt learned the outcome. Do not acknowledge the
	// message: its next delivery learns the outcome, because it claims the same key.
	ErrOutcomeUnknown = errors.New("dedupe: it is unknown whether the transaction has committed")
)

// GuardedTx is the transaction that [Do] gives to its function, and consumers to their handlers: a
// [pgx.Tx] without Commit, Rollback and Conn, for one goroutine at a time. Package consumer calls
// it Tx, and says there which statements it refuses.
type GuardedTx interface {
	AnyTx
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)

	// Queue adds a write whose answer the handler does not need. Queued statements are sent with
	// the next statement that waits for an answer, or with the COMMIT. If all handlers of a batch
	// only queue, the batch is one round trip.
	//
	// If a queued statement fails, the whole attempt fails, whatever the handler returned. A
	// statement that is queued after the handler has returned is not sent. It is logged as an
	// error, and the attempt fails if it has not ended.
	Queue(sql string, args ...any)

	// Savepoint calls fn. If fn returns an error or one of its statements fails, fn's writes
	// through this transaction are undone, Savepoint returns the error, and the transaction
	// continues. Use it for statements that may fail by design, for example an insert that may
	// violate a constraint. After a serialization failure or a deadlock (40001, 40P01) the
	// transaction cannot continue: all of it runs again.
	//
	// A transaction has at most 60 savepoints, those of all messages of a batch together. The
	// reason is that more than 64 subtransactions slow down the whole server (PostgreSQL
	// documentation, "Subtransactions"). The 61st fails, and the batch is divided there. If each
	// message needs one, set Config.BatchSize to at most 60.
	//
	// While fn runs, only its goroutine may use the transaction. Writes of another goroutine would
	// be undone with fn's, so in that case the attempt fails.
	Savepoint(ctx context.Context, fn func() error) error
}

// Backoff bounds the pause before another attempt. It doubles from Min up to Max, with jitter. Each
// configuration that has a Backoff names the defaults of Min and Max.
type Backoff struct {
	Min, Max time.Duration
}

// Timeouts bound one transaction. They travel with BEGIN, so that they hold for its first statement
// too. All configurations with bounds of a transaction have them. Each is at least 1 ms and at most
// 1 hour; a consumer's may be longer.
type Timeouts struct {
	// Lock bounds each wait for a lock, for example for an uncommitted copy of the message
	// (lock_timeout). Defaults to 5 s.
	Lock time.Duration
	// Statement bounds each statement (statement_timeout). Defaults to 30 s.
	Statement time.Duration
	// Idle ends the transaction if its function or handler sends no statement for so long
	// (idle_in_transaction_session_timeout). It also bounds how long a process that was suspended
	// keeps its locks. Defaults to 60 s.
	Idle time.Duration
	// Commit bounds COMMIT and ROLLBACK, which the end of the caller's context does not cut short.
	// After it the outcome is unknown until the next attempt learns it. Defaults to 15 s.
	Commit time.Duration
}

// DoConfig configures [DoConfig.Do]. The zero value of a field is the default that its comment
// names; a value out of range is an error and never adjusted.
type DoConfig struct {
	// OnConflict handles a message whose key was claimed for another payload, for example by
	// writing it to a table for an operator. Its writes commit by themselves; Do then returns
	// Conflict and nil. If the answer to its COMMIT is lost, it runs again, because its run is not
	// recorded. So write with "on conflict do nothing" or the like. Calls that it enqueues need an
	// ID and a Scope of their own. Defaults to returning [ErrConflict].
	OnConflict func(ctx context.Context, tx GuardedTx) error

	// Isolation is the transaction's level. Defaults to the database's default.
	Isolation pgx.TxIsoLevel

	// Timeouts bound the transaction of each attempt.
	Timeouts Timeouts

	// MaxAttempts is the most runs of the transaction, the first included, from 1 to 100. Defaults
	// to 5.
	MaxAttempts int

	// Backoff bounds the wait between two attempts, from 1 ms to 1 hour. Defaults to 20 ms and 2 s.
	Backoff Backoff
}

// isolationSQL sets a level right after BEGIN. No result, no lock.
var isolationSQL = map[pgx.TxIsoLevel]string{
	pgx.Serializable:    "set transaction isolation level serializable",
	pgx.RepeatableRead:  "set transaction isolation level repeatable read",
	pgx.ReadCommitted:   "set transaction isolation level read committed",
	pgx.ReadUncommitted: "set transaction isolation level read uncommitted",
}

// Steps of the transaction that are the engine's.
const (
	stepBounds = "bounds"
	stepClaim  = "claim"
)

const lockNotAvailable = "55P03"

func (c *DoConfig) attempts() guard.Attempts {
	t := &c.Timeouts
	return guard.Attempts{
		Lock:       &t.Lock,
		Statement:  &t.Statement,
		Idle:       &t.Idle,
		Commit:     &t.Commit,
		Max:        &c.MaxAttempts,
		BackoffMin: &c.Backoff.Min,
		BackoffMax: &c.Backoff.Max,
	}
}

func (c DoConfig) withDefaults() (DoConfig, error) {
	l := fields.List{Sentinel: ErrConfig, Struct: "DoConfig"}
	c.attempts().Default(&l)
	if _, known := isolationSQL[c.Isolation]; c.Isolation != "" && !known {
		l.Add("Isolation", "%q is not a level of pgx", c.Isolation)
	}
	return c, l.Err()
}

// Do applies one message once: it claims the key and runs fn in one transaction, and commits it.
//
//	outcome, err := dedupe.Do(ctx, pool, key, func(ctx context.Context, tx dedupe.GuardedTx) error {
//		_, err := tx.Exec(ctx, `insert into orders (id, body) values ($1, $2)`, id, body)
//		return err
//	})
//	if err != nil {
//		return err // nothing is acknowledged; the broker delivers again
//	}
//
// It returns [Fresh] if this call has applied the message, and [Duplicate] if it was applied
// before; fn did not run to a commit then. Acknowledge the message in both cases, but not after an
// error. A key that was claimed for another payload is [ErrConflict]; see DoConfig.OnConflict.
//
// fn may run more than once, in another transaction each time: its effects outside tx are not
// undone. An error of fn rolls back and is returned. Do repeats the transaction, at most
// DoConfig.MaxAttempts times with growing waits, if
//
//   - the database asks for it (SQLSTATE 40001 or 40P01), whatever fn made of that error;
//   - the claim waited for an uncommitted copy for longer than Timeouts.Lock (55P03);
//   - the connection was lost, before or after COMMIT was sent.
//
// A failed statement fails the attempt even if fn swallows its error; see GuardedTx.Savepoint. A
// call that fn enqueues (package outbox) takes its identity from the key, and is the same at each
// run.
//
// # A COMMIT without an answer
//
// The next attempt claims the same key on another connection, and so learns the outcome:
//
//	attempt 1                        server                       attempt 2
//	COMMIT is lost on its way        rolls back                   claim: fresh; fn runs; COMMIT
//	COMMIT arrives, its answer       has committed                claim: duplicate; Do returns Duplicate
//	is lost
//	COMMIT arrives late              claim still uncommitted      claim waits, at most Timeouts.Lock
//	                                 commits                      claim: duplicate
//	                                 or rolls back                claim: fresh; fn runs; COMMIT
//
// In the third case, reading a table without the claim would not show the outcome. If the attempts
// are used up before the outcome is known, Do returns [ErrOutcomeUnknown].
//
// Do is safe for concurrent use. It is for loops of your own; package consumer does all this and
// more for Kafka.
func Do(
	ctx context.Context,
	pool *pgxpool.Pool,
	key Key,
	fn func(ctx context.Context, tx GuardedTx) error,
) (Outcome, error) {
	return DoConfig{}.Do(ctx, pool, key, fn)
}

// Do is [Do] with a configuration. Every fault of it, and of the key, is returned at once.
func (c DoConfig) Do(
	ctx context.Context,
	pool *pgxpool.Pool,
	key Key,
	fn func(ctx context.Context, tx GuardedTx) error,
) (Outcome, error) {
	cfg, err := c.withDefaults()
	err = errors.Join(err, key.Validate(), primary.CheckPool(ErrConfig, pool))
	if fn == nil {
		err = errors.Join(err, fmt.Errorf("%w: fn: must not be nil", ErrConfig))
	}
	if err != nil {
		return 0, err
	}
	r := &messageRun{cfg: cfg, pool: primary.Of(pool, nil), key: key, apply: fn}
	err = cfg.attempts().Run(ctx, func() (bool, error) { return r.attempt(ctx) })
	switch {
	case err == nil:
		return r.outcome, nil
	case r.outcomeUnknown:
		return 0, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return 0, err
}

// messageRun is one call of Do.
type messageRun struct {
	cfg   DoConfig
	pool  *primary.Pool
	key   Key
	apply func(ctx context.Context, tx GuardedTx) error

	outcome        Outcome
	outcomeUnknown bool // a COMMIT was sent whose outcome no claim has found out yet
}

// attempt is one run of the transaction; again says that another run may end better.
func (r *messageRun) attempt(ctx context.Context) (again bool, err error) {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return ctx.Err() == nil, fmt.Errorf("dedupe: connecting: %w", err)
	}
	defer conn.Release()
	tx := guard.Begin(conn.Conn())
	defer tx.Rollback(r.cfg.Timeouts.Commit)
	if r.outcome, err = r.claim(ctx, tx); err != nil {
		state := guard.SQLState(err)
		return ctx.Err() == nil &&
			(guard.RunAgain(state) || state == lockNotAvailable || primary.Refused(err) || tx.Lost()), err
	}
	r.outcomeUnknown = false // the claim has waited for the attempt before it, and shows its outcome
	work := r.apply
	from := &origin.Origin{
		Tenant: r.key.Tenant,
		Scope:  r.key.Scope,
		Topic:  r.key.Topic,
		ID:     r.key.ID,
		Redo:   r.key.Replay != 0,
	}
	switch r.outcome {
	case Duplicate:
		return false, nil
	case Conflict:
		if r.cfg.OnConflict == nil {
			return false, fmt.Errorf("%w: scope %q", ErrConflict, r.key.Scope)
		}
		// with the message's identity, its calls would be taken for those of the first payload
		work = r.cfg.OnConflict
		from = nil
	}
	err = work(ctx, tx.Lend(from))
	tx.TakeBack()
	if failed := tx.Failure(); failed != nil && (err == nil || !errors.Is(err, failed)) {
		err = errors.Join(failed, err)
	}
	if err == nil {
		if err = tx.Commit(r.cfg.Timeouts.Commit); err == nil {
			return false, nil
		}
		r.outcomeUnknown = tx.Lost()
	}
	return ctx.Err() == nil && (guard.RunAgain(guard.SQLState(err)) || tx.Lost()), err
}

// claim begins the transaction with its bounds, and claims the key: one round trip.
func (r *messageRun) claim(ctx context.Context, tx *guard.Tx) (Outcome, error) {
	if level := r.cfg.Isolation; level != "" {
		tx.Engine(stepBounds, isolationSQL[level])
	}
	t := r.cfg.Timeouts
	tx.Bound(stepBounds, t.Lock, t.Statement, t.Idle)
	tx.Engine(stepBounds, guard.AllowCommitSQL)
	outcomes, err := ClaimAll(ctx, guard.Querier{Tx: tx, Step: stepClaim}, []Key{r.key})
	if failed := tx.Failure(); failed != nil {
		return 0, fmt.Errorf("dedupe: claim: %w", failed)
	}
	if err != nil {
		return 0, err
	}
	return outcomes[0], nil
}
