package ops_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func one[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// A decision has an audit row with its actor and reason; a dry run writes nothing.
func TestDecisionsAreAudited(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	at := ops.CursorName{Scope: "stock", Topic: "orders", Partition: 3}
	seen, err := ops.PauseCursor(t.Context(), pool, ops.By{DryRun: true}, at)
	if err != nil ||
		seen.AuditID != 0 ||
		one[int](t, pool, `select (select count(*) from onlyonce.pauses) + (select count(*) from onlyonce.audit)`) != 0 {
		t.Fatalf("a dry run: %+v, %v", seen, err)
	}
	done, err := ops.PauseCursor(t.Context(), pool, ops.By{Actor: "ann", Reason: "INC-9"}, at)
	if err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, pool, `
select concat_ws(
  ' ',
  actor,
  reason,
  action,
  detail->>'topic'
) from onlyonce.audit where id = $1`,
		done.AuditID); got != "ann INC-9 cursor pause orders" {
		t.Error(got)
	}
	if got := one[string](t, pool, `select concat_ws(' ', actor, reason) from onlyonce.pauses`); got != "ann INC-9" {
		t.Error(got)
	}
	if _, err = ops.PauseCursor(t.Context(), pool, ops.By{Reason: "again"}, at); !errors.Is(err, ops.ErrNothing) {
		t.Error(err)
	}
	if done, err = ops.ResumeCursor(t.Context(), pool, ops.By{Reason: "repaired"}, at); err != nil ||
		done.Was == nil ||
		done.Was.Actor != "ann" {
		t.Fatalf("%+v, %v", done, err)
	}
	if !one[bool](t, pool, `select actor = current_user from onlyonce.audit where id = $1`, done.AuditID) {
		t.Error("an actor that is not named is not the role")
	}
	if n := one[int](t, pool, `select count(*) from onlyonce.audit`); n != 2 {
		t.Errorf("%d audit rows", n)
	}
}

func TestInvalidDecisions(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	at := ops.CursorName{Scope: "stock"}
	for name, decide := range map[string]func() error{
		"no reason": func() error { _, err := ops.PauseCursor(t.Context(), pool, ops.By{}, at); return err },
		"zero byte": func() error {
			_, err := ops.PauseCursor(t.Context(), pool, ops.By{Reason: "a\x00"}, at)
			return err
		},
		"no scope": func() error {
			_, err := ops.PauseCursor(t.Context(), pool, ops.By{Reason: "why"}, ops.CursorName{})
			return err
		},
		"partition": func() error {
			_, err := ops.PauseCursor(t.Context(), pool, ops.By{Reason: "why"}, ops.CursorName{Scope: "s", Topic: "t", Partition: -2})
			return err
		},
	} {
		if err := decide(); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](t, pool, `select (select count(*) from onlyonce.pauses) + (select count(*) from onlyonce.audit)`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	at := ops.CursorName{Scope: "stock"}
	if _, err := ops.PauseCursor(t.Context(), pool, ops.By{Reason: "why"}, at); !errors.Is(err, migrations.ErrSchema) {
		t.Error(err)
	}
	if _, err := ops.PauseCursor(t.Context(), pool, ops.By{DryRun: true}, at); !errors.Is(err, migrations.ErrSchema) {
		t.Error(err)
	}
	if _, err := cursorsOf(t, pool); !errors.Is(err, migrations.ErrSchema) {
		t.Error(err)
	}
}

func cursorsOf(t *testing.T, pool *pgxpool.Pool) ([]ops.Cursor, error) {
	t.Helper()
	return reports.Look(t.Context(), pool, func(tx pgx.Tx) ([]ops.Cursor, error) {
		return reports.Cursors[ops.Cursor](t.Context(), tx, reports.CursorFilter{})
	})
}
