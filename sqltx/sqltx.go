package sqltx

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
)

// StdTx is a transaction of database/sql that its caller has begun and will end: for example
// *sql.Tx, *sqlx.Tx, bun.Tx, and GORM's Statement.ConnPool inside of Transaction. Because of Commit
// and Rollback the compiler refuses a pool or a bare connection; this package never calls them.
type StdTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// Claim is [dedupe.Claim] in a transaction of database/sql.
func Claim(ctx context.Context, tx StdTx, key dedupe.Key) (dedupe.Outcome, error) {
	t, err := adapt(tx)
	if err != nil {
		return 0, err
	}
	return dedupe.Claim(ctx, t, key)
}

// ClaimAll is [dedupe.ClaimAll] in a transaction of database/sql.
func ClaimAll(ctx context.Context, tx StdTx, keys []dedupe.Key) ([]dedupe.Outcome, error) {
	t, err := adapt(tx)
	if err != nil {
		return nil, err
	}
	return dedupe.ClaimAll(ctx, t, keys)
}

// Enqueue is [outbox.Enqueue] in a transaction of database/sql.
func Enqueue(ctx context.Context, tx StdTx, call outbox.Call) error { return EnqueueAll(ctx, tx, call) }

// EnqueueAll is [outbox.EnqueueAll] in a transaction of database/sql.
func EnqueueAll(ctx context.Context, tx StdTx, calls ...outbox.Call) error {
	t, err := adapt(tx)
	if err != nil {
		return err
	}
	return outbox.EnqueueAll(ctx, t, calls...)
}

// adapt refuses a value that is not a transaction.
func adapt(tx StdTx) (*txAdapter, error) {
	if std, ok := tx.(*sql.Tx); tx == nil || ok && std == nil {
		return nil, fmt.Errorf("sqltx: tx: %w: it is nil", dedupe.ErrNoTransaction)
	}
	return &txAdapter{tx, pgtype.NewMap()}, nil
}
