package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// CountLimit is how long a question may count rows if its own CountLimit is 0.
const CountLimit = 5 * time.Second

const (
	// DefaultLimit is how many rows a list returns, or a decision picks, if its filter does
	// not say.
	DefaultLimit = 100
	// MostLimit is how many rows a list returns, or a decision picks, at most.
	MostLimit = 10_000
	// errorShown is how many characters of an error a list returns: it may be a whole stack.
	errorShown = 1000
)

// limitSQL bounds the statements that follow in the (sub)transaction.
const limitSQL = `select set_config('statement_timeout', $1, true)`

// collectWithin is collect for a query that may take long: nil if it took longer than limit. It
// runs in a subtransaction, so that tx goes on either way.
func collectWithin[T any](ctx context.Context, tx pgx.Tx, limit time.Duration, sql string, args ...any) (found []T, err error) {
	if limit == 0 {
		limit = CountLimit
	}
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limitSQL, guard.Millis(limit)); err != nil {
			return err
		}
		found, err = collect[T](ctx, tx, sql, args...)
		return err
	})
	if guard.SQLState(err) == "57014" { // query_canceled
		return nil, nil
	}
	return found, err
}

// look runs f as snapshot does, and returns what it has read.
func look[T any](ctx context.Context, db DB, f func(tx pgx.Tx) (T, error)) (found T, err error) {
	err = snapshot(ctx, db, func(tx pgx.Tx) (err error) {
		found, err = f(tx)
		return err
	})
	return found, err
}

// page reads a list by a query whose arguments have limitOf(limit), and reports whether there are
// more rows.
func page[T any](ctx context.Context, db DB, limit int, sql string, args ...any) ([]T, bool, error) {
	rows, err := look(ctx, db, func(tx pgx.Tx) ([]T, error) { return collect[T](ctx, tx, sql, args...) })
	rows, more := cut(rows, limit)
	return rows, more, err
}

// limitOf is how many rows a list reads: one more than it returns, to know whether there are more.
func limitOf(limit int) int {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return min(limit, MostLimit) + 1
}

// cut returns the rows that a list returns of those that it has read, and whether there are more.
func cut[T any](rows []T, limit int) (kept []T, more bool) {
	most := limitOf(limit) - 1
	return rows[:min(len(rows), most)], len(rows) > most
}

// orNull makes null of a zero value: any.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}
