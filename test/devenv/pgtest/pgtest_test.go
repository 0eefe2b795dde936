package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	b := pgtest.DB(t)
	exec(t, a, `create table only_here (id int)`)
	if hasTable(t, b, "only_here") {
		t.Error("a table made in one database is seen in another")
	}
	version, err := migrations.Version(t.Context(), a)
	if err != nil || version != migrations.Latest {
		t.Errorf("schema version = %d, %v; want %d", version, err, migrations.Latest)
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	var schemas int
	if err := pool.QueryRow(t.Context(), `select count(*) from pg_namespace where nspname = 'onlyonce'`).Scan(&schemas); err != nil {
		t.Fatal(err)
	}
	if schemas != 0 {
		t.Error("the empty database has our schema")
	}
}

// A database goes when its test has passed, even while the test has left a
// connection open.
func TestDropped(t *testing.T) {
	t.Parallel()
	var url string
	t.Run("leaks a connection", func(t *testing.T) {
		url = pgtest.URL(t)
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Errorf("%s is still there", url)
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func hasTable(t *testing.T, pool *pgxpool.Pool, name string) (has bool) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select to_regclass($1) is not null`, name).Scan(&has); err != nil {
		t.Fatal(err)
	}
	return has
}

func BenchmarkDB(b *testing.B) {
	for b.Loop() {
		pgtest.URL(b)
	}
}
