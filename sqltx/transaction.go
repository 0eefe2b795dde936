package sqltx

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
)

// txAdapter adapts a Tx for packages dedupe and outbox.
type txAdapter struct {
	tx    StdTx
	types *pgtype.Map // not safe for several goroutines, so each call has its own
}

var _ dedupe.AnyTx = (*txAdapter)(nil)

// Exec runs a statement. Its tag counts rows and has no command name: database/sql does not report
// it.
func (t *txAdapter) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	encoded, err := t.encodeArgs(args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	result, err := t.tx.ExecContext(ctx, query, encoded...)
	if err != nil {
		return pgconn.CommandTag{}, withSQLState(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return pgconn.CommandTag{}, withSQLState(err)
	}
	return rowCountTag(n), nil
}

// Query runs a statement and returns its rows.
func (t *txAdapter) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	encoded, err := t.encodeArgs(args)
	if err != nil {
		return nil, err
	}
	found, err := t.tx.QueryContext(ctx, query, encoded...) //nolint:rowserrcheck // their reader asks
	if err != nil {
		return nil, withSQLState(err)
	}
	return &rowsAdapter{sqlRows: found, types: t.types}, nil
}

// QueryRow runs a statement and returns its first row, whose Scan has the error.
func (t *txAdapter) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	found, err := t.Query(ctx, query, args...)
	return &firstRow{found, err}
}

// encodeArgs converts arguments to ones that every driver accepts: the types of driver.Value, and
// for all others the server's text. The server finds the type from the statement, not from the
// argument.
func (t *txAdapter) encodeArgs(args []any) ([]any, error) {
	all := make([]any, len(args))
	for i, a := range args {
		switch a.(type) {
		case nil, bool, int64, float64, string, []byte, time.Time:
			all[i] = a
			continue
		}
		typ, ok := t.types.TypeForValue(a)
		if !ok {
			return nil, fmt.Errorf("sqltx: argument %d: %T has no known PostgreSQL text format", i+1, a)
		}
		text, err := t.types.Encode(typ.OID, pgtype.TextFormatCode, a, []byte{}) // to which an empty text adds nothing
		if err != nil {
			return nil, fmt.Errorf("sqltx: argument %d: %w", i+1, err)
		}
		if text != nil { // nil is null
			all[i] = string(text)
		}
	}
	return all, nil
}

func rowCountTag(n int64) pgconn.CommandTag {
	return pgconn.NewCommandTag("SELECT " + strconv.FormatInt(n, 10))
}

// withSQLState makes an error with an SQLSTATE a *pgconn.PgError too, because packages dedupe and
// outbox and their callers look for that. lib/pq's error has a method SQLState, like pgx's.
func withSQLState(err error) error {
	var pg *pgconn.PgError
	var coded interface{ SQLState() string }
	if errors.As(err, &pg) || !errors.As(err, &coded) || coded.SQLState() == "" {
		return err
	}
	return &serverError{err, &pgconn.PgError{Severity: "ERROR", Code: coded.SQLState(), Message: err.Error()}}
}

// serverError is an error of the server in the driver's form and in pgx's.
type serverError struct {
	error
	pg *pgconn.PgError
}

func (e *serverError) Unwrap() []error { return []error{e.error, e.pg} }
