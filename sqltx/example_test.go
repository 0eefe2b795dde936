package sqltx_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
)

// Plain database/sql: claim, effect and call are in one transaction, and the message is
// acknowledged only after its COMMIT.
func Example() {
	apply := func(ctx context.Context, db *sql.DB, id string, payload []byte) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		outcome, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf(payload)})
		switch {
		case err != nil:
			return err
		case outcome == dedupe.Duplicate:
			return nil
		case outcome == dedupe.Conflict:
			return fmt.Errorf("message %q has come with another payload before: set it aside, and tell somebody", id)
		}
		if _, err := tx.ExecContext(ctx, `update stock set held = held + 1 where sku = $1`, payload); err != nil {
			return err
		}
		call := outbox.Call{Sink: "payments", Name: "charge", Scope: "stock", ID: id, Target: "/charges", Body: payload}
		if err := sqltx.Enqueue(ctx, tx, call); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = apply
}

// DBTX is what sqlc generates for database/sql.
type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// Queries is what sqlc generates from a file of queries.
type Queries struct{ db DBTX }

// New is generated too.
func New(db DBTX) *Queries { return &Queries{db} }

// WithTx is generated too.
func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{tx} }

// HoldStock is one of the queries.
func (q *Queries) HoldStock(ctx context.Context, sku string) error {
	_, err := q.db.ExecContext(ctx, `update stock set held = held + 1 where sku = $1`, sku)
	return err
}

// sqlc: the queries and the claim get the same *sql.Tx.
func ExampleClaim_sqlc() {
	hold := func(ctx context.Context, db *sql.DB, queries *Queries, messageID, sku string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		outcome, err := sqltx.Claim(ctx, tx, dedupe.Key{Scope: "stock", ID: messageID, Fingerprint: dedupe.FingerprintOf([]byte(sku))})
		if err != nil {
			return err
		}
		if outcome == dedupe.Fresh {
			if err := queries.WithTx(tx).HoldStock(ctx, sku); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	_ = hold
}
