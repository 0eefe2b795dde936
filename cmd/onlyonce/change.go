package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

const (
	changeLockTimeout = 10 * time.Second // how long a batch or an attempt in a consumer's hands may hold us up
	changeTimeout     = 30 * time.Second // the transaction as a whole
	commitTimeout     = 15 * time.Second // detached from any request to end
)

// boundsSQL bounds the transaction's waits. In: lock_timeout.
const boundsSQL = `select set_config('lock_timeout', $1, true)`

// auditSQL writes down what was done. In: action, reason, detail. One row: its id.
const auditSQL = `
insert into onlyonce.audit (action, reason, detail) values ($1::text, $2::text, $3::jsonb) returning id`

// consent is what every command that changes something takes: why, and whether to ask.
type consent struct {
	reason *string
	yes    bool
}

// flags declares -reason and -yes.
func (c *consent) flags(fs *flag.FlagSet) {
	textVar(fs, &c.reason, "reason", "`WHY`, for the audit row")
	fs.BoolVar(&c.yes, "yes", false, "do not ask")
}

// given is a flag that a command cannot do without.
type given struct {
	name string
	is   bool
}

// missing names the flags that are not there.
func missing(flags ...given) error {
	var names []string
	for _, f := range flags {
		if !f.is {
			names = append(names, f.name)
		}
	}
	if len(names) > 0 {
		return usagef("missing: %s", strings.Join(names, ", "))
	}
	return nil
}

// changer is one command that changes something. What it would do is a P, which is shown and agreed to; then it is worked out
// again under locks, and done if it is still what was agreed to.
type changer[P any] interface {
	// lock takes the locks under which what read finds stays so.
	lock(ctx context.Context, tx pgx.Tx) error
	// read works out what would be done, and refuses what cannot be. It writes nothing, and takes no locks.
	read(ctx context.Context, tx pgx.Tx) (P, error)
	// differs reports whether what was shown would now be something else.
	differs(shown, now P) bool
	// do does it, and returns what came of it: the detail of the audit row.
	do(ctx context.Context, tx pgx.Tx, now P) (P, error)
	// write shows what would be done, or what was.
	write(a *app, p P)
}

// changeKind is what commands of one kind have in common.
type changeKind struct {
	action  string // of the audit row
	subject string // what may change while somebody is asked
	waiting string // what a command that takes long may wait for
	look    string // the command that shows how things stand

	within time.Duration // bounds the reading and the transaction; 0: changeTimeout
}

// bound is how long the command may take, apart from the answer of who is asked.
func (k *changeKind) bound() time.Duration {
	if k.within > 0 {
		return k.within
	}
	return changeTimeout
}

// nothing is the end of a command that found everything as it was to be: status 0, and no audit row.
type nothing struct{ text string }

func (e *nothing) Error() string { return e.text }

// change carries out a command: it asks, changes, audits and commits. after is told what came of it, with the audit row's id,
// once that is committed.
func change[P any](ctx context.Context, a *app, address string, k changeKind, say consent, c changer[P],
	after func(ctx context.Context, db *database, done P, audit int64) error) error {
	if !say.yes && !a.isTerminal(a.stdin) {
		return usagef("-yes: standard input is no terminal, so nobody can be asked: add -yes to go ahead without")
	}
	err := a.withSchema(ctx, address, func(db *database) error {
		var shown *P
		if !say.yes {
			p, err := confirm(ctx, a, db, k, c)
			if err != nil {
				return err
			}
			shown = &p
		}
		var done P
		var audit int64
		err := a.watch(k.waiting, func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, k.bound())
			defer cancel()
			done, audit, err = transact(ctx, db, k, *say.reason, c, shown)
			return err
		})
		if err != nil {
			return err
		}
		if say.yes {
			c.write(a, done)
		}
		return after(ctx, db, done, audit)
	})
	var already *nothing
	if errors.As(err, &already) {
		_, _ = fmt.Fprintln(a.out, oneLine(already.text))
		return nil
	}
	return err
}

// confirm shows what would be done and asks. It returns what was shown.
func confirm[P any](ctx context.Context, a *app, db *database, k changeKind, c changer[P]) (shown P, err error) {
	bounded, cancel := context.WithTimeout(ctx, k.bound())
	defer cancel()
	err = pgx.BeginTxFunc(bounded, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		shown, err = c.read(bounded, tx)
		return err
	})
	if err != nil {
		return shown, err
	}
	c.write(a, shown)
	return shown, a.agree(ctx)
}

// transact does it in one transaction. shown is what somebody agreed to, nil if nobody was asked. READ COMMITTED, whatever the
// database's default is: what a lock waited for shows only to a statement with a snapshot of its own.
func transact[P any](ctx context.Context, db *database, k changeKind, reason string, c changer[P], shown *P) (done P, audit int64, err error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return done, 0, err
	}
	done, audit, err = carryOut(ctx, tx, k, reason, c, shown)
	// The end is not cut off by whoever wants this program to stop: COMMIT would have an unknown outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err != nil {
		_ = tx.Rollback(ctx) // err says more
		return done, 0, err
	}
	err = tx.Commit(ctx)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return done, audit, nil
	case errors.As(err, &pg) || errors.Is(err, pgx.ErrTxCommitRollback):
		return done, 0, err
	}
	return done, 0, fmt.Errorf("nobody knows whether this was committed: look with `%s` before you try again: %w", k.look, err)
}

func carryOut[P any](ctx context.Context, tx pgx.Tx, k changeKind, reason string, c changer[P], shown *P) (done P, audit int64, err error) {
	if _, err := tx.Exec(ctx, boundsSQL, guard.Millis(changeLockTimeout)); err != nil {
		return done, 0, err
	}
	if err := c.lock(ctx, tx); err != nil {
		return done, 0, err
	}
	now, err := c.read(ctx, tx)
	if err != nil {
		return done, 0, err
	}
	if shown != nil && c.differs(*shown, now) {
		return done, 0, &refusal{k.subject + " changed while you were asked, and nothing was done: run the command again to see how it stands"}
	}
	if done, err = c.do(ctx, tx, now); err != nil {
		return done, 0, err
	}
	detail, err := json.Marshal(done)
	if err != nil {
		return done, 0, err
	}
	return done, audit, tx.QueryRow(ctx, auditSQL, k.action, reason, string(detail)).Scan(&audit)
}
