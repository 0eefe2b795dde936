package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

// effects is a database with a table in which repeated effects are possible, and negative ones are
// not.
func effects(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.DB(t)
	if _, err := pool.Exec(t.Context(), `create table effects (v text not null, n int not null default 1 check (n > 0))`); err != nil {
		t.Fatal(err)
	}
	return pool
}

// column is a query's rows, as one text.
func column(t *testing.T, pool *pgxpool.Pool, query string) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func insert(ctx context.Context, tx *sql.Tx, v string) error {
	_, err := tx.ExecContext(ctx, `insert into effects (v) values ($1)`, v)
	return err
}

// T1: what a handler writes through the *sql.Tx commits with its message, once, with its call, and
// beside what it writes through the transaction itself (T6).
func TestT1WithinAppliesOnce(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		tx.Queue(`insert into effects (v) values ($1)`, "queued "+string(m.Value))
		return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
			stmt, err := sqlTx.PrepareContext(ctx, `insert into effects (v) values ($1) returning v`)
			if err != nil {
				return err
			}
			defer func() { _ = stmt.Close() }()
			var v string
			if err := stmt.QueryRowContext(ctx, string(m.Value)).Scan(&v); err != nil || v != string(m.Value) {
				return fmt.Errorf("%q, %w", v, err)
			}
			if _, err := stmt.ExecContext(ctx, "again "+v); err != nil {
				return err
			}
			rows, err := sqlTx.QueryContext(ctx, `select v from effects where v like '%' || $1 order by v`, v)
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			var all []string
			for rows.Next() {
				if err := rows.Scan(&v); err != nil {
					return err
				}
				all = append(all, v)
			}
			if len(all) != 3 || rows.Err() != nil {
				t.Errorf("%q, %v", all, rows.Err())
			}
			// Both with the message's identity, and with one of its own.
			return errors.Join(
				outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/charges"}),
				sqltx.Enqueue(ctx, sqlTx, outbox.Call{Sink: "payments", Name: "own", Scope: "own", ID: string(m.Value)}),
			)
		})
	}
	for range 2 {
		if parked, errs := sqlsuite.Consume(t, pool, handle, "a", "b", "a"); len(parked) > 0 {
			t.Error(errs)
		}
	}
	if got := column(t, pool, `select replace(v, ' ', '-') from effects order by v`); got != "a again-a again-b b queued-a queued-b" {
		t.Error(got)
	}
	if got := column(t, pool, `select name from onlyonce.outbox_log order by name`); got != "charge charge own own" {
		t.Error(got)
	}
}

// A batch handler enqueues for each of its messages.
func TestT1WithinABatch(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	handle := func(ctx context.Context, tx consumer.Tx, msgs []*consumer.Message) error {
		for _, m := range msgs {
			one := consumer.TxFor(tx, m)
			if err := sqltx.Within(ctx, one, func(ctx context.Context, sqlTx *sql.Tx) error {
				return errors.Join(
					insert(ctx, sqlTx, string(m.Value)),
					outbox.Enqueue(ctx, one, outbox.Call{Sink: "payments", Name: "charge"}),
				)
			}); err != nil {
				return err
			}
		}
		return nil
	}
	if parked, errs := sqlsuite.ConsumeBatch(t, pool, handle, "a", "b", "a"); len(parked) > 0 {
		t.Error(errs)
	}
	if got := column(
		t,
		pool,
		`select v from effects union all select name from onlyonce.outbox_log order by 1`,
	); got != "a b charge charge" {
		t.Error(got)
	}
}

// within is a handler that works in a *sql.Tx and overlooks its error.
func within(fn func(ctx context.Context, tx *sql.Tx) error) consumer.HandlerFunc {
	return func(ctx context.Context, tx consumer.Tx, _ *consumer.Message) error {
		_ = sqltx.Within(ctx, tx, fn)
		return nil
	}
}

// elsewhere calls fn in another goroutine and waits for it.
func elsewhere(fn func()) {
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	<-done
}

// T6: what a handler must not do fails its message, even if every error is swallowed; its
// neighbours apply.
func TestT6WithinIsGuarded(t *testing.T) {
	statement := func(text string) consumer.HandlerFunc {
		return within(func(ctx context.Context, tx *sql.Tx) error {
			_ = insert(ctx, tx, "half")
			_, _ = tx.ExecContext(ctx, text)
			_ = insert(ctx, tx, "half")
			return nil
		})
	}
	for name, c := range map[string]struct {
		reason, text string
		handle       consumer.HandlerFunc
	}{
		"commit": {"permanent", "Commit of the *sql.Tx", within(func(ctx context.Context, tx *sql.Tx) error {
			_ = insert(ctx, tx, "half")
			if err := tx.Commit(); err == nil {
				t.Error("Commit returned nil")
			}
			if err := insert(ctx, tx, "half"); !errors.Is(err, sql.ErrTxDone) {
				t.Error(err)
			}
			return nil
		})},
		"rollback": {"permanent", "Rollback of the *sql.Tx", within(func(ctx context.Context, tx *sql.Tx) error {
			_ = insert(ctx, tx, "half")
			return tx.Rollback()
		})},
		"rollback in a savepoint": {
			"permanent",
			"Rollback of the *sql.Tx",
			func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				_ = tx.Savepoint(ctx, func() error {
					return within(func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() })(ctx, tx, m)
				})
				return nil
			},
		},
		"COMMIT":                 {"permanent", "transaction control", statement(`commit`)},
		"BEGIN":                  {"permanent", "transaction control", statement(`begin`)},
		"ROLLBACK":               {"permanent", "transaction control", statement(`rollback`)},
		"SAVEPOINT and COMMIT":   {"permanent", "transaction control", statement(`savepoint a; commit`)},
		"ROLLBACK TO a stranger": {"exhausted", `savepoint "a" does not exist`, statement(`rollback to a`)},
		"failed statement":       {"exhausted", "check constraint", statement(`insert into effects values ('negative', -1)`)},
		"rows are open": {"permanent", "rows of an earlier query", within(func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, `select generate_series(1, 3)`)
			if err == nil {
				defer func() { _ = rows.Close() }()
				rows.Next()
				_ = insert(ctx, tx, "half")
			}
			return errors.Join(err, rows.Err())
		})},
		"another goroutine": {"exhausted", "for the goroutine", within(func(ctx context.Context, tx *sql.Tx) error {
			elsewhere(func() { _ = insert(ctx, tx, "half") }) // in turn
			return nil
		})},
		"another goroutine reads": {"exhausted", "for the goroutine", within(func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, `select generate_series(1, 3)`)
			if err != nil {
				return err
			}
			elsewhere(func() { rows.Next() })
			return errors.Join(rows.Close(), rows.Err())
		})},
		"another goroutine queries": {"exhausted", "for the goroutine", within(func(ctx context.Context, tx *sql.Tx) error {
			var n int
			elsewhere(func() { _ = tx.QueryRowContext(ctx, `select 1`).Scan(&n) })
			return nil
		})},
		"its context has ended": {
			"exhausted",
			"may not have been sent",
			func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				ended, end := context.WithCancel(ctx)
				return within(func(ctx context.Context, tx *sql.Tx) error {
					end()
					_ = insert(ctx, tx, "half") // database/sql does not call the driver
					return nil
				})(ended, tx, m)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := effects(t)
			handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
				if string(m.Value) == "b" {
					return c.handle(ctx, tx, m)
				}
				return sqltx.Within(ctx, tx, func(ctx context.Context, tx *sql.Tx) error { return insert(ctx, tx, string(m.Value)) })
			}
			reasons, errs := sqlsuite.Consume(t, pool, handle, "a", "b", "c")
			if !maps.Equal(reasons, map[string]string{"b": c.reason}) || !strings.Contains(errs["b"], c.text) {
				t.Errorf("parked: %v, %v", reasons, errs)
			}
			if got := column(t, pool, `select v from effects order by v`); got != "a c" {
				t.Errorf("effects: %s", got)
			}
		})
	}
}

// T6: the *sql.Tx is over when its function returns, in whatever way; the transaction goes on.
func TestT6WithinIsOver(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	var kept *sql.Tx
	over := func(ctx context.Context) {
		t.Helper()
		if err := insert(ctx, kept, "late"); !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
		if err := kept.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
	}
	boom := errors.New("boom")
	_, err := dedupe.Do(t.Context(), pool, sqlsuite.Key("a", "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
		if err := sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error {
			kept = sqlTx
			// These rows are left open.
			rows, err := sqlTx.QueryContext(ctx, `insert into effects (v) select 'a' from generate_series(1, 3) returning v`)
			if err == nil {
				rows.Next()
			}
			return errors.Join(err, rows.Err()) //nolint:sqlclosecheck // on purpose
		}); err != nil {
			return err
		}
		over(ctx)
		func() {
			defer func() {
				if p := recover(); p != any(boom) { //nolint:errorlint // the very value
					t.Error(p)
				}
			}()
			_ = sqltx.Within(ctx, tx, func(_ context.Context, sqlTx *sql.Tx) error { kept = sqlTx; panic(boom) })
		}()
		over(ctx)
		if err := sqltx.Within(ctx, tx, func(context.Context, *sql.Tx) error { return boom }); !errors.Is(err, boom) {
			t.Error(err)
		}
		return sqltx.Within(ctx, tx, func(ctx context.Context, sqlTx *sql.Tx) error { return insert(ctx, sqlTx, "b") })
	})
	if got := column(t, pool, `select v from effects order by v`); err != nil || got != "a a a b" {
		t.Error(got, err)
	}
	over(t.Context())
	// It is for transactions of a handler only.
	for _, none := range []dedupe.GuardedTx{nil, struct{ dedupe.GuardedTx }{}} {
		if err := sqltx.Within(t.Context(), none, nil); !errors.Is(err, dedupe.ErrNoTransaction) {
			t.Errorf("%T: %v", none, err)
		}
	}
}

// T7: libraries nest transactions by savepoints. What is rolled back to one is undone, failed
// statements included, and nothing else (T6).
func TestT7WithinSavepoints(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	do := func(id string, texts ...string) error {
		_, err := dedupe.Do(t.Context(), pool, sqlsuite.Key(id, "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
			return tx.Savepoint(ctx, func() error { // its end is not confused by those that stay open
				return sqltx.Within(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
					for _, text := range texts {
						if v, ok := strings.CutPrefix(text, "+"); ok {
							text = `insert into effects (v) values ('` + v + `')`
						}
						_, _ = tx.ExecContext(ctx, text) // what has failed for good, fails the attempt
					}
					return nil
				})
			})
		})
		return err
	}
	for i, c := range []struct {
		texts []string
		want  string // "": the attempt fails
	}{
		{[]string{"+a", "SAVEPOINT s", "+b", "+", "ROLLBACK TO SAVEPOINT s", "+c"}, "a c"},
		{[]string{"+a", "savepoint s;", "+b", "release savepoint s", "+c"}, "a b c"},
		{[]string{"+a", "SAVEPOINT s", "+b"}, "a b"}, // as GORM does
		{[]string{"savepoint s", "+a", "savepoint t", "+b", "select 1/0", "rollback to t", "+c", "release s"}, "a c"},
		{[]string{"savepoint s", "+a", "savepoint t", "+b", "rollback transaction to savepoint s", "+c"}, "c"},
		{[]string{"savepoint s", "+a", "savepoint s", "+b", "rollback work to s", "+c"}, "a c"}, // the inner one
		{[]string{"+a", "savepoint s", "+b", "rollback to s", "+c", "rollback to s", "release s"}, "a"},
		// a retry helper within another
		{[]string{"+a", "savepoint s", "+b", "SAVEPOINT s", "+c", "rollback to s", "+d", "rollback to s"}, "a b"},
		{[]string{"+a", "rollback to s"}, ""},
		{[]string{"savepoint s", "+a", "release t", "rollback to s", "+b"}, "b"},
		{[]string{"+a", "savepoint s", "select 1/0"}, ""},
		{[]string{"+a", "savepoint s", "do $$ begin raise exception using errcode = '40P01'; end $$", "rollback to s"}, ""},
	} {
		id := fmt.Sprint(i)
		err := do(id, c.texts...)
		got := column(t, pool, `delete from effects returning v`)
		all := strings.Fields(got)
		slices.Sort(all)
		if got := strings.Join(all, " "); (err == nil) != (c.want != "") || got != c.want {
			t.Errorf("%q: %q, %v", c.texts, got, err)
		}
	}
}

// Contexts: the end of a query's context ends the query and not the transaction. If the connection
// is lost by it, the message is tried again, and applied once.
func TestT6WithinContexts(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	var runs atomic.Int32
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		return sqltx.Within(ctx, tx, func(ctx context.Context, tx *sql.Tx) error {
			first := runs.Add(1) == 1
			query, end := context.WithCancel(ctx)
			defer end()
			rows, err := tx.QueryContext(query, `select repeat('x', 1000) from generate_series(1, 100000)`)
			if err != nil {
				return err
			}
			rows.Next()
			if first {
				end() // a goroutine of database/sql closes the rows
			}
			_ = rows.Close()
			_ = rows.Err()
			_ = insert(ctx, tx, string(m.Value))
			return nil
		})
	}
	if parked, errs := sqlsuite.Consume(t, pool, handle, "a", "b"); len(parked) > 0 {
		t.Error(errs)
	}
	if got := column(t, pool, `select v from effects order by v`); got != "a b" {
		t.Error(got)
	}

	// A context that ends and is not the query's changes nothing: statements with another one run.
	_, err := dedupe.Do(t.Context(), pool, sqlsuite.Key("c", "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
		within, end := context.WithCancel(ctx)
		err := sqltx.Within(within, tx, func(_ context.Context, tx *sql.Tx) error {
			end()
			for range 100 {
				if err := insert(ctx, tx, "c"); err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "may not have been sent") {
			t.Error(err)
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || column(t, pool, `select v from effects where v = 'c'`) != "" {
		t.Error(err)
	}
}

// Values and types are those of pgx's own driver.
func TestWithinValuesAreThoseOfPgx(t *testing.T) {
	t.Parallel()
	pool := effects(t)
	const query = `select true, null::text, 1::int2, 2::int4, 3::int8, 1.5::float4, 2.5::float8, 1.25::numeric, 'x'::text, 'y'::varchar(3),
		'c'::char(2), '\x00ff'::bytea,
		'{"a": 1}'::json, '{"a": 1}'::jsonb, '<a/>'::xml, '2026-11-22'::date, '2026-11-22 01:02:03.456'::timestamp,
		'2026-11-22 01:02:03.456Z'::timestamptz,
		'01:02:03'::time, '1 day'::interval, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, array[1, 2], array['a', null], 7::oid, '8'::xid,
		'9'::cid,
		'10.0.0.1'::inet, int4range(1, 5), $1::text, $2::int4, $3::bytea, $4::timestamptz, $5::text[], $6::jsonb`
	args := []any{"text", 5, []byte{0, 1}, time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), []string{"a", "b"}, map[string]any{"k": 1}}
	read := func(tx *sql.Tx) (lines []string) {
		rows, err := tx.QueryContext(t.Context(), query, args...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		types, err := rows.ColumnTypes()
		if err != nil || !rows.Next() {
			t.Fatal(err, rows.Err())
		}
		values := make([]any, len(types))
		into := make([]any, len(types))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for i, c := range types {
			lines = append(lines, fmt.Sprintf("%d %s %s %v %T %v", i, c.Name(), c.DatabaseTypeName(), c.ScanType(), values[i], values[i]))
		}
		return lines
	}
	var want, got []string
	db := sqlsuite.Open(t, sqlsuite.Driver{Driver: "pgx"}, pool)
	if err := sqlsuite.InTx(t, db, func(tx *sql.Tx) error { want = read(tx); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := dedupe.Do(t.Context(), pool, sqlsuite.Key("a", "1"), func(ctx context.Context, tx dedupe.GuardedTx) error {
		return sqltx.Within(ctx, tx, func(_ context.Context, tx *sql.Tx) error { got = read(tx); return nil })
	}); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s, and pgx says %s", got[i], want[i])
		}
	}
}
