package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
)

// DoConfig configures [DoConfig.Do]. The zero value of a field is the default that its comment
// names; a value out of range is an error and never adjusted.
type DoConfig struct {
	// OnConflict handles a message whose key was claimed for another payload, for example by
	// writing it to a table for an operator. Its writes commit by themselves; Do then returns
	// Conflict and nil. Do keeps no record of its run: if the answer to its COMMIT is lost, it runs
	// again, so write with "on conflict do nothing" or the like. Defaults to returning
	// [dedupe.ErrConflict].
	OnConflict func(ctx context.Context, tx *sql.Tx) error

	// Isolation is the transaction's level: one of PostgreSQL's, from sql.LevelReadUncommitted to
	// sql.LevelSerializable. Defaults to the database's default.
	Isolation sql.IsolationLevel

	// Timeouts bound the transaction of each attempt.
	Timeouts dedupe.Timeouts

	// MaxAttempts is the most runs of the transaction, the first included, from 1 to 100. Defaults
	// to 5.
	MaxAttempts int

	// Backoff bounds the wait between two attempts, from 1 ms to 1 hour. Defaults to 20 ms and 2 s.
	Backoff dedupe.Backoff
}

var levels = []sql.IsolationLevel{
	sql.LevelDefault,
	sql.LevelReadUncommitted,
	sql.LevelReadCommitted,
	sql.LevelRepeatableRead,
	sql.LevelSerializable,
}

var errConfig = fields.Named("sqltx: invalid configuration", dedupe.ErrConfig)

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
	l := fields.List{Sentinel: errConfig, Struct: "DoConfig"}
	c.attempts().Default(&l)
	if !slices.Contains(levels, c.Isolation) {
		l.Add("Isolation", "%v is not a level of PostgreSQL", c.Isolation)
	}
	return c, l.Err()
}

// openSQL sets the bounds of the transaction, and lets onlyonce.seal() succeed in this very one.
// In: nothing; the three bounds in milliseconds are part of its text, so that it needs one round
// trip with every driver. Out: one row of text. No index, no lock.
const openSQL = `select set_config('lock_timeout', '%s', true),
                        set_config('statement_timeout', '%s', true),
                        set_config('jit', 'off', true),
                        set_config('idle_in_transaction_session_timeout', '%s', true),
                        set_config('onlyonce.fenced', pg_current_xact_id()::text, true)`

// sealSQL checks deferred constraints, and that this is the transaction that openSQL has seen. One
// row of void.
const sealSQL = `select onlyonce.seal()`

// SQLSTATEs besides 40001 and 40P01.
const (
	codeLockNotAvailable = "55P03"
	codeFailed           = "25P02" // in_failed_sql_transaction
	codeNotSealed        = "OO002"
	codeNotSupported     = "0A000" // SERIALIZABLE on a standby
)

// errEnded is permanent: another attempt would do the same.
const errEnded = guard.Misuse("sqltx: the function ended the transaction: Do commits it, or rolls it back " +
	"if the function returns an error")

// Do applies one message once through database/sql, as [dedupe.Do] does with pgx: it claims the key
// and runs fn in one transaction of db, and commits it.
//
//	outcome, err := sqltx.Do(ctx, db, key, func(ctx context.Context, tx *sql.Tx) error {
//		return queries.WithTx(tx).InsertOrder(ctx, id, body)
//	})
//	if err != nil {
//		return err // nothing is acknowledged; the broker delivers again
//	}
//
// It returns [dedupe.Fresh] if this call has applied the message, and [dedupe.Duplicate] if an
// earlier one has; acknowledge the message in both cases. After an error do not acknowledge it. A
// key that was claimed for another payload is [dedupe.ErrConflict]; see DoConfig.OnConflict.
//
// fn may run more than once, in another transaction each time: effects outside of tx are not
// undone. If fn returns an error, Do rolls back and returns it. Do repeats the transaction, at most
// DoConfig.MaxAttempts times with growing waits, if
//
//   - the database asks for it (SQLSTATE 40001 or 40P01);
//   - the claim waited for an uncommitted copy for longer than Timeouts.Lock (55P03);
//   - the connection was lost, before or after COMMIT was sent;
//   - the claim was refused because the server takes no writes (25006). Do closes the connection
//     and the idle ones of db, because after a switchover all may lead to the standby (T12);
//   - fn returned nil although a statement had failed: the code of that error, which may be one of
//     the above, is not known here.
//
// If an error of COMMIT gives the server's decision, Do returns it, or repeats the transaction if
// it is one of the above. After any other error of COMMIT the outcome is unknown: the next attempt
// claims the same key on another connection and so finds out. See the table at [dedupe.Do]. If that
// was the last attempt, Do returns [dedupe.ErrOutcomeUnknown].
//
// The end of ctx ends the statements that use it, and the claim. It does not cut COMMIT or ROLLBACK
// short; Timeouts.Commit bounds them. If the server does not answer within that bound, and the
// driver cannot cancel (lib/pq), a goroutine and a connection of db wait until TCP times out.
//
// fn must not end the transaction: see "Limits" above. A call that fn enqueues needs a
// Scope and an ID of its own. Do is safe for concurrent use. With pgx prefer [dedupe.Do] and
// [Within], which do not have these limits.
func Do(
	ctx context.Context,
	db *sql.DB,
	key dedupe.Key,
	fn func(ctx context.Context, tx *sql.Tx) error,
) (dedupe.Outcome, error) {
	return DoConfig{}.Do(ctx, db, key, fn)
}

// Do is [Do] with a configuration. Every fault of it, and of the key, is returned at once.
func (c DoConfig) Do(
	ctx context.Context,
	db *sql.DB,
	key dedupe.Key,
	fn func(ctx context.Context, tx *sql.Tx) error,
) (dedupe.Outcome, error) {
	cfg, err := c.withDefaults()
	err = errors.Join(err, key.Validate())
	if db == nil {
		err = errors.Join(err, fmt.Errorf("%w: db: must not be nil", errConfig))
	}
	if fn == nil {
		err = errors.Join(err, fmt.Errorf("%w: fn: must not be nil", errConfig))
	}
	if err != nil {
		return 0, err
	}
	d := &doer{cfg: cfg, db: db, key: key, fn: fn}
	err = cfg.attempts().Run(ctx, func() (bool, error) { return d.attempt(ctx) })
	switch {
	case err == nil:
		return d.outcome, nil
	case d.unknown:
		return 0, fmt.Errorf("%w: %w", dedupe.ErrOutcomeUnknown, err)
	}
	return 0, err
}

// doer is one call of Do.
type doer struct {
	cfg DoConfig
	db  *sql.DB
	key dedupe.Key
	fn  func(ctx context.Context, tx *sql.Tx) error

	outcome dedupe.Outcome
	unknown bool // a COMMIT was sent whose outcome no claim has found out yet
}

// attempt is one run of the transaction; again says that another run may end better.
func (d *doer) attempt(ctx context.Context) (again bool, err error) {
	t, err := d.begin(ctx)
	if err != nil {
		if state := guard.SQLState(err); primary.Refused(err) || state == codeNotSupported {
			closeIdle(ctx, d.db)
		}
		return ctx.Err() == nil, fmt.Errorf("sqltx: begin: %w", err)
	}
	defer t.cancel()
	defer t.rollback()
	if d.outcome, err = d.claim(ctx, t.tx); err != nil {
		lost := t.rollback()
		state := guard.SQLState(err)
		refused := primary.Refused(err)
		if refused {
			closeIdle(ctx, d.db)
		}
		return ctx.Err() == nil && (guard.RunAgain(state) || state == codeLockNotAvailable || refused || lost), err
	}
	d.unknown = false // the claim has waited for the attempt before it, and shows its outcome
	work := d.fn
	switch d.outcome {
	case dedupe.Duplicate:
		return false, nil
	case dedupe.Conflict:
		if d.cfg.OnConflict == nil {
			return false, fmt.Errorf("%w: scope %q", dedupe.ErrConflict, d.key.Scope)
		}
		work = d.cfg.OnConflict
	}
	if err = withSQLState(work(ctx, t.tx)); err == nil {
		if err, d.unknown = t.commit(); err == nil {
			return false, nil
		}
	}
	if d.unknown {
		return ctx.Err() == nil, err
	}
	lost := t.rollback()
	state := guard.SQLState(err)
	return ctx.Err() == nil && !errors.Is(err, errEnded) && (guard.RunAgain(state) || state == codeFailed || lost), err
}

// claim sets the transaction's bounds and claims the key.
func (d *doer) claim(ctx context.Context, tx *sql.Tx) (dedupe.Outcome, error) {
	b := d.cfg.Timeouts
	if _, err := tx.ExecContext(
		ctx,
		fmt.Sprintf(openSQL, guard.Millis(b.Lock), guard.Millis(b.Statement), guard.Millis(b.Idle)),
	); err != nil {
		return 0, fmt.Errorf("sqltx: begin: %w", withSQLState(err))
	}
	return Claim(ctx, tx, d.key)
}

// own is the transaction of one attempt.
type own struct {
	tx     *sql.Tx
	base   context.Context // of the transaction; it outlives the caller's
	cancel context.CancelFunc
	bound  time.Duration // of COMMIT and of ROLLBACK
	ended  bool
	lost   bool
}

// begin begins a transaction that the end of ctx does not end. With the caller's context,
// database/sql would roll back from a goroutine of its own, and drivers would cut COMMIT short.
func (d *doer) begin(ctx context.Context) (*own, error) {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel) // until it has begun
	tx, err := d.db.BeginTx(base, &sql.TxOptions{Isolation: d.cfg.Isolation})
	if !stop() {
		cancel()
		if err == nil {
			_ = tx.Rollback() // database/sql does the same
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, withSQLState(err)
	}
	return &own{tx: tx, base: base, cancel: cancel, bound: d.cfg.Timeouts.Commit}, nil
}

// closeIdle closes the idle connections of db: first the one that was given back last, whose server
// takes no writes (T12).
func closeIdle(ctx context.Context, db *sql.DB) {
	for range max(db.Stats().Idle, 1) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return
		}
		_ = conn.Raw(func(of any) error {
			// If db is on a pgxpool.Pool, that would lend it again, and has the idle ones.
			if of, is := of.(interface{ Conn() *pgx.Conn }); is {
				_ = of.Conn().Close(ctx)
			}
			return driver.ErrBadConn // database/sql closes it
		})
	}
}

// errSilent is the error of a COMMIT or ROLLBACK that the server has not answered.
var errSilent = errors.New("sqltx: no answer within DoConfig.Timeouts.Commit")

// within waits for the end of the transaction, at most for its bound.
func (t *own) within(end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	timer := time.NewTimer(t.bound)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.cancel() // a driver that heeds the context gives the connection up
		return errSilent
	}
}

// commit seals and commits; unknown says that the server may have committed in spite of the error.
func (t *own) commit() (err error, unknown bool) { //nolint:revive // the error is half of the answer
	const (
		sealing = iota
		committing
		givenUp
	)
	var step atomic.Int32
	err = withSQLState(t.within(func() error {
		if _, err := t.tx.ExecContext(t.base, sealSQL); err != nil {
			return err
		}
		if !step.CompareAndSwap(sealing, committing) {
			return errSilent // and the attempt counts as rolled back
		}
		return t.tx.Commit()
	}))
	sent := !step.CompareAndSwap(sealing, givenUp)
	state := guard.SQLState(err)
	switch {
	case err == nil:
		t.ended = true
		return nil, false
	case sent:
		t.ended = true
		return fmt.Errorf("sqltx: commit: %w", err), !decided(state)
	case errors.Is(err, errSilent):
		// database/sql rolls back, because the context has ended
		t.ended = true
		t.lost = true
	case errors.Is(err, sql.ErrTxDone), state == codeNotSealed:
		return fmt.Errorf("%w: %w", errEnded, err), false
	case state == codeFailed:
		return fmt.Errorf("sqltx: the function returned nil although one of its statements had failed: %w", err), false
	}
	return fmt.Errorf("sqltx: before commit: %w", err), false
}

// decided reports whether an error of COMMIT with this SQLSTATE says that the server has rolled
// back. An error without one comes from the driver or the network. Errors of connections (08), of
// resources (53), of operators (57), of the system (58) and internal ones (XX) may come from a
// proxy that has lost the server, or from a server that stops after the commit.
func decided(state string) bool {
	if len(state) != 5 {
		return false
	}
	return !slices.Contains([]string{"08", "53", "57", "58", "XX"}, state[:2])
}

// rollback rolls back unless the transaction has ended, and reports whether the connection is lost.
func (t *own) rollback() (lost bool) {
	if !t.ended {
		t.ended = true
		err := t.within(t.tx.Rollback)
		t.lost = err != nil && !errors.Is(err, sql.ErrTxDone)
	}
	return t.lost
}
