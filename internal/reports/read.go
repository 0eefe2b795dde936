package reports

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/migrations"
)

// DB begins transactions. See ops.DB.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

const (
	lockTimeout = 10 * time.Second // of what only reads, and so waits for no owner; decisions wait longer

	// idleTimeout is how long the server keeps the locks of a caller that it hears nothing from.
	// For example, the network may have cut off an operator's laptop.
	idleTimeout = 10 * time.Second
)

// BoundsSQL bounds the transaction's waits. In: lock_timeout, idle_in_transaction_session_timeout.
// Statements are not compiled: they read few rows, and compiling one of the longer ones takes a
// second, or several if the server is busy. It pins the search_path, see primary.PinSQL (S2).
const BoundsSQL = `
select pg_catalog.set_config('search_path', 'pg_catalog', true),
       set_config('jit', 'off', true),
       set_config('lock_timeout', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true)`

// Bound is the first statement of each transaction of this package (T7).
func Bound(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, BoundsSQL, guard.Millis(lockTimeout), guard.Millis(idleTimeout))
	return err
}

// Refusal is an error that a person can act on. Package operate makes an *ops.Error of it.
type Refusal struct {
	Kind           Kind
	Reason, Remedy string
}

// Error returns the reason and the remedy.
func (r *Refusal) Error() string {
	if r.Remedy == "" {
		return r.Reason
	}
	return r.Reason + ": " + r.Remedy
}

// Kind is the kind of a [Refusal].
type Kind int

// The kinds of a Refusal.
const (
	Invalid Kind = iota
	NotFound
	Refused
)

// CountLimit is how long a question may count rows if its own CountLimit is 0.
const CountLimit = 5 * time.Second

const (
	// DefaultLimit is how many rows a list returns, or a decision picks, if its filter does
	// not say.
	DefaultLimit = 100
	// MostLimit is how many rows a list returns, or a decision picks, at most.
	MostLimit = 10_000
	// ExplainLimit is how many calls of a transaction and how many parked rows an explanation
	// shows at most.
	ExplainLimit = 100
)

// LimitSQL bounds the statements that follow in the (sub)transaction.
const LimitSQL = `select set_config('statement_timeout', $1, true)`

// CollectWithin is Collect for a query that may take long: nil if it took longer than limit. It
// runs in a subtransaction, so that tx goes on either way. That is rolled back, and not released: a
// setting of a released subtransaction would bound the rest of tx too (PostgreSQL, SET).
func CollectWithin[T any](
	ctx context.Context,
	tx pgx.Tx,
	limit time.Duration,
	sql string,
	args ...any,
) (found []T, err error) {
	sub, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err = sub.Exec(ctx, LimitSQL, guard.Millis(cmp.Or(limit, CountLimit))); err == nil {
		found, err = Collect[T](ctx, sub, sql, args...)
	}
	if undone := sub.Rollback(ctx); undone != nil {
		return nil, errors.Join(err, undone)
	}
	if guard.SQLState(err) == "57014" { // query_canceled
		return nil, nil
	}
	return found, err
}

// IntoWithin is CollectWithin into a slice.
func IntoWithin[T any](
	ctx context.Context,
	tx pgx.Tx,
	limit time.Duration,
	to *[]T,
	sql string,
	args ...any,
) (err error) {
	*to, err = CollectWithin[T](ctx, tx, limit, sql, args...)
	return err
}

// Look runs f as Snapshot does, and returns what it has read.
func Look[T any](ctx context.Context, db DB, f func(tx pgx.Tx) (T, error)) (found T, err error) {
	err = Snapshot(ctx, db, func(tx pgx.Tx) (err error) {
		found, err = f(tx)
		return err
	})
	return found, err
}

// Page reads a list by a query whose arguments have LimitOf(limit), and reports whether there are
// more rows.
func Page[T any](ctx context.Context, db DB, limit int, sql string, args ...any) ([]T, bool, error) {
	rows, err := Look(ctx, db, func(tx pgx.Tx) ([]T, error) { return Collect[T](ctx, tx, sql, args...) })
	rows, more := Cut(rows, limit)
	return rows, more, err
}

// LimitOf is how many rows a list reads: one more than it returns, to know whether there are more.
func LimitOf(limit int) int {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return min(limit, MostLimit) + 1
}

// Cut returns the rows that a list returns of those that it has read, and whether there are more.
func Cut[T any](rows []T, limit int) (kept []T, more bool) {
	most := LimitOf(limit) - 1
	return rows[:min(len(rows), most)], len(rows) > most
}

// OrNull makes null of a zero value: any.
func OrNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// Snapshot runs f, which only reads, on one snapshot of the database, so that counts that are shown
// together are consistent. It works on a standby.
func Snapshot(ctx context.Context, db DB, f func(tx pgx.Tx) error) error {
	return Read(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// Read runs f in a transaction whose statements are not prepared.
func Read(ctx context.Context, db DB, options pgx.TxOptions, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, options, func(tx pgx.Tx) error { return ReadIn(ctx, tx, f) })
}

// ReadIn is Read in a transaction that has begun.
func ReadIn(ctx context.Context, tx pgx.Tx, f func(tx pgx.Tx) error) error {
	tx = Unprepared{tx}
	if err := Begin(ctx, tx); err != nil {
		return err
	}
	return f(tx)
}

// Begin is what each transaction of an operator begins with: it asks which server this is, bounds
// itself, and asks for the version of the schema (S1).
func Begin(ctx context.Context, tx pgx.Tx) error {
	if err := migrations.CheckServer(ctx, tx); err != nil {
		return err
	}
	if err := Bound(ctx, tx); err != nil {
		return err
	}
	return migrations.Check(ctx, tx)
}

// Collect reads rows whose columns have the names of T's fields, with times in UTC, as JSON shows
// them. Without an error, the slice is never nil.
func Collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	inUTC(reflect.ValueOf(found))
	return found, err
}

// Texts reads rows of one text each.
func Texts(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]string, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Into is Collect into a slice.
func Into[T any](ctx context.Context, tx pgx.Tx, to *[]T, sql string, args ...any) (err error) {
	*to, err = Collect[T](ctx, tx, sql, args...)
	return err
}

// First is Collect of the first row, nil if there is none.
func First[T any](ctx context.Context, tx pgx.Tx, to **T, sql string, args ...any) error {
	rows, err := Collect[T](ctx, tx, sql, args...)
	*to = nil
	if len(rows) > 0 {
		*to = &rows[0]
	}
	return err
}

// inUTC converts the times in a value.
func inUTC(v reflect.Value) {
	switch {
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(v.Interface().(time.Time).UTC()))
	case v.Kind() == reflect.Pointer && !v.IsNil():
		inUTC(v.Elem())
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			inUTC(v.Index(i))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				inUTC(v.Field(i))
			}
		}
	}
}

// Unprepared sends its statements unprepared, because a pooler between may not support prepared
// ones. It also never puts values into the SQL, whatever the connection's default is.
type Unprepared struct{ pgx.Tx }

// Begin begins a savepoint.
func (u Unprepared) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := u.Tx.Begin(ctx)
	return Unprepared{tx}, err
}

// Exec executes a statement.
func (u Unprepared) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return u.Tx.Exec(ctx, sql, exec(args)...)
}

// Query sends a statement that returns rows.
func (u Unprepared) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return u.Tx.Query(ctx, sql, exec(args)...)
}

// QueryRow sends a statement that returns at most one row.
func (u Unprepared) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return u.Tx.QueryRow(ctx, sql, exec(args)...)
}

func exec(args []any) []any {
	return append([]any{pgx.QueryExecModeExec}, args...)
}

// Within begins its transactions as subtransactions of one that is open, and so sees what that one
// sees.
type Within struct{ Tx pgx.Tx }

// BeginTx begins a subtransaction.
func (w Within) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return w.Tx.Begin(ctx) }
