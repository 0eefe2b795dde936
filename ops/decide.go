package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/reports"
)

const (
	decideTimeout = 30 * time.Second // the transaction, without its waits for locks
	commitTimeout = 15 * time.Second // detached from any request to end

	// waitLimit bounds a wait for a lock that no owner has declared how long it may be held.
	waitLimit = 10 * time.Minute
)

// auditSQL records a decision. In: action, reason, detail, actor (null: the role of the
// connection). One row: its id.
const auditSQL = `
insert into onlyonce.audit (action, reason, detail, actor)
  values ($1::text, $2::text, $3::jsonb, coalesce($4::text, current_user)) returning id`

// patienceSQL bounds each wait for a lock: by how long a decision may take, and a transaction of
// any owner by what the owners have declared, together. In: the former, in milliseconds. Out: one
// row with the bound, in milliseconds (T14).
const patienceSQL = `
select b.bound, set_config('lock_timeout', b.bound::text, true)
  from (select $1::bigint + (extract(epoch from coalesce(max(p.longest), '0')) * 1000)::bigint as bound
          from onlyonce.cursors c join onlyonce.leases p on p.id = c.id where c.retired_at is null) b`

// decision is one change, with a result of type *R.
type decision[R any] interface {
	// check refuses inputs that no database could accept.
	check() error
	// lock takes the locks under which what read finds stays so.
	lock(ctx context.Context, tx pgx.Tx) error
	// read works out what would be done, and refuses what is not allowed. It writes nothing, and
	// takes no locks.
	read(ctx context.Context, tx pgx.Tx) (*R, error)
	// differs reports whether the change would now be another one than was shown.
	differs(shown, now *R) bool
	// do makes the change and returns its result: the detail of the audit row.
	do(ctx context.Context, tx pgx.Tx, by By, now *R) (*R, error)
}

// result is what each *R has by embedding Audited.
type result[R any] interface {
	*R
	audited(id int64)
}

// kind is what all decisions of one function have in common.
type kind struct {
	action  string // of the audit row
	subject string // what may have changed since it was shown
	look    string // the command that shows the present state

	within time.Duration // bounds the transaction, without its waits for locks. Defaults to decideTimeout.
}

// decide carries out a decision, or works it out in a dry run. shown is what a person agreed to,
// nil if nothing was shown.
func decide[R any, P result[R]](ctx context.Context, db DB, k kind, by By, d decision[R], shown *R) (*R, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	k.within = cmp.Or(k.within, decideTimeout)
	if by.DryRun {
		ctx, cancel := context.WithTimeout(ctx, k.within)
		defer cancel()
		var found *R
		err := reports.Read(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
			found, err = d.read(ctx, tx)
			return err
		})
		if err != nil {
			return nil, err
		}
		return found, nil
	}
	if err := checkText("the reason", by.Reason); err != nil {
		return nil, err
	}
	if by.Actor != "" {
		if err := checkText("the actor", by.Actor); err != nil {
			return nil, err
		}
	}
	return transact[R, P](ctx, db, k, by, d, shown)
}

// transact decides in one transaction. It uses READ COMMITTED, whatever the database's default is:
// only a statement with a snapshot of its own sees what a lock waited for.
func transact[R any, P result[R]](ctx context.Context, db DB, k kind, by By, d decision[R], shown *R) (*R, error) {
	beginning, cancel := context.WithTimeout(ctx, k.within)
	defer cancel()
	tx, err := db.BeginTx(beginning, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	done, audit, err := carryOut(ctx, reports.Unprepared{Tx: tx}, k, by, d, shown)
	// A caller that gives up does not interrupt COMMIT: its outcome would be unknown.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err != nil {
		_ = tx.Rollback(ctx) // err says more
		if pool, is := db.(interface{ Reset() }); is && primary.Refused(err) {
			pool.Reset() // its connections lead to a standby (T12)
		}
		return nil, err
	}
	err = tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		P(done).audited(audit)
		return done, nil
	case errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback):
		return nil, err
	}
	return nil, &Error{
		Kind:   ErrOutcomeUnknown,
		Reason: "the COMMIT got no answer: the decision may or may not be in force",
		Remedy: "look with `" + k.look + "` before you try again",
		Cause:  err,
	}
}

func carryOut[R any](
	ctx context.Context,
	tx pgx.Tx,
	k kind,
	by By,
	d decision[R],
	shown *R,
) (done *R, audit int64, err error) {
	if err := lockFor(ctx, tx, k, d); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, k.within)
	defer cancel()
	now, err := d.read(ctx, tx)
	if err != nil {
		return nil, 0, err
	}
	if shown != nil && d.differs(shown, now) {
		return nil, 0, failf(ErrChanged, "%s changed while you were asked, and nothing was done",
			k.subject).but("run the command again to see how it stands")
	}
	if done, err = d.do(ctx, tx, by, now); err != nil {
		return nil, 0, err
	}
	if own, is := d.(interface {
		audit(ctx context.Context, tx pgx.Tx, k kind, by By, done *R) (int64, error)
	}); is {
		audit, err = own.audit(ctx, tx, k, by, done)
		return done, audit, err
	}
	detail, err := json.Marshal(done)
	if err != nil {
		return nil, 0, err
	}
	return done, audit, tx.QueryRow(ctx, auditSQL, k.action, by.Reason, string(detail), by.actor()).Scan(&audit)
}

// lockFor begins the transaction, and takes a decision's locks.
func lockFor[R any](ctx context.Context, tx pgx.Tx, k kind, d decision[R]) error {
	beginning, cancel := context.WithTimeout(ctx, k.within)
	defer cancel()
	if err := reports.Begin(beginning, tx); err != nil {
		return err
	}
	var bound int64
	var set string
	if err := tx.QueryRow(beginning, patienceSQL, min(k.within, waitLimit).Milliseconds()).Scan(
		&bound,
		&set,
	); err != nil {
		return err
	}
	// The server ends the wait. This is for one that does not answer any more.
	locking, cancel := context.WithTimeout(ctx, time.Duration(bound)*time.Millisecond+k.within)
	defer cancel()
	return d.lock(locking, tx)
}

// actor is the value for SQL: null for the role of the connection.
func (b *By) actor() *string { return reports.OrNull(b.Actor) }
