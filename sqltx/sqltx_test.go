package sqltx_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/sqlsuite"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// T1, K1, K2, O1 through database/sql; test/compat has the same for lib/pq (T12).
func TestSQL(t *testing.T) {
	t.Parallel()
	sqlsuite.Run(t,
		sqlsuite.Driver{Name: "pgx", Driver: "pgx"},
		sqlsuite.Driver{Name: "pgx exec", Driver: "pgx", Options: "default_query_exec_mode=exec"},
		sqlsuite.Driver{Name: "pgx simple", Driver: "pgx", Options: "default_query_exec_mode=simple_protocol"})
}

// T12: the same on a pgxpool.Pool, which keeps the connections.
func TestT12DoOnAStalePool(t *testing.T) {
	t.Parallel()
	base := effects(t)
	stale := pgtest.Stale(t, base)
	db := stdlib.OpenDBFromPool(stale)
	defer func() { _ = db.Close() }()
	got, err := sqltx.Do(t.Context(), db, sqlsuite.Key("a", "1"), func(ctx context.Context, tx *sql.Tx) error {
		return insert(ctx, tx, "a")
	})
	if err != nil || got != dedupe.Fresh || column(t, base, `select v from effects`) != "a" {
		t.Errorf("%v, %v", got, err)
	}
}

// T12: a standby refuses SERIALIZABLE with an error of its own.
func TestT12SerializableOnAStandby(t *testing.T) {
	t.Parallel()
	s := pgtest.NewSwitchover(t)
	pool := s.Pool()
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	defer func() { _ = db.Close() }()
	s.Begin()
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.End(pool)
	for name, do := range map[string]func() (dedupe.Outcome, error){
		"pgx": func() (dedupe.Outcome, error) {
			return (dedupe.DoConfig{Isolation: pgx.Serializable, MaxAttempts: 2}).Do(t.Context(), pool, sqlsuite.Key("a", "1"),
				func(context.Context, dedupe.GuardedTx) error { return nil })
		},
		"database/sql": func() (dedupe.Outcome, error) {
			return (sqltx.DoConfig{Isolation: sql.LevelSerializable, MaxAttempts: 2}).Do(t.Context(), db, sqlsuite.Key("b", "1"),
				func(context.Context, *sql.Tx) error { return nil })
		},
	} {
		if got, err := do(); err != nil || got != dedupe.Fresh {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
