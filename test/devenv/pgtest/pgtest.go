// Package pgtest gives every test a Postgres database of its own.
//
// The databases are clones of a template with our migrations applied (package workerdb), made once
// for each state of the migrations, so a test pays for a copy of some files and not for the
// migrations. A test that passes drops its database; one that fails keeps it and prints its
// address.
//
// The server is the one at ONLYONCE_POSTGRES_URL, or one that package devenv
// finds or starts for this test process, and which ends with it. To look into
// the database of a failed test run the tests below a server that outlives them:
//
//	go run ./test/devenv/run -postgres -- bash
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// startTimeout bounds the start of a server, the first fetch of one included.
const startTimeout = 3 * time.Minute

// maxConns is how many connections a pool has unless its address says pool_max_conns. pgxpool takes
// the number of cores: a test whose transaction blocks an engine would run on some machines only.
const maxConns = 6

// closeTimeout bounds how long the end of a test waits for the connections of its pool. A test that
// fails in the middle of a transaction of its own does not end it.
const closeTimeout = time.Minute

// DB returns a pool on a new database with our schema. It is closed when the
// test ends. Its address is pool.Config().ConnString().
func DB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pool(t, URL(t))
}

// URL returns the address of a new database with our schema.
func URL(t testing.TB) string {
	t.Helper()
	return database(t, true)
}

// Empty returns a pool on a new database without our schema.
func Empty(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pool(t, EmptyURL(t))
}

// EmptyURL returns the address of a new database without our schema.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return database(t, false)
}

// ServerURL returns the address of the server's own database, for a test that
// needs the server and not a database: do not write to it.
func ServerURL(t testing.TB) string {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return s.Address()
}

// Server returns the address of a server of this test's own, with our schema in its
// database, for a test that changes settings of the whole server. It is stopped when
// the test ends.
func Server(t testing.TB, settings map[string]string) string {
	t.Helper()
	return ownServer(t, settings).URL
}

func ownServer(t testing.TB, settings map[string]string) *devenv.Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := devenv.StartPostgres(ctx, devenv.Options{Own: true, PostgresSettings: settings})
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	_, err = migrations.Apply(ctx, conn)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return p
}

// PgBouncer returns a PgBouncer of this test's own in front of a database's server, in transaction
// mode and with at most poolSize server connections. If the program is not on the machine, the test
// is skipped with the reason, or fails if CI=true.
func PgBouncer(t testing.TB, database string, poolSize int) *devenv.PgBouncer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	b, err := devenv.StartPgBouncer(ctx, database, poolSize, devenv.Options{})
	switch {
	case err == nil:
	case errors.Is(err, devenv.ErrNoPgBouncer) && os.Getenv("CI") != "true":
		t.Skipf("pgtest: %v", err)
	default:
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return b
}

// Pool returns a pool on an address, closed when the test ends.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return pool(t, url)
}

func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = maxConns
	}
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { defer close(closed); p.Close() }()
		select {
		case <-closed:
		case <-time.After(closeTimeout):
			complain := t.Errorf
			if t.Failed() {
				complain = t.Logf
			}
			complain("pgtest: a connection of the pool is in use %v after the end of the test, for example "+
				"by a transaction that it has not ended", closeTimeout)
		}
	})
	return p
}

// database makes a database, with our schema or empty.
func database(t testing.TB, schema bool) string {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	made, err := s.Make(context.Background(), schema)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		switch {
		case !t.Failed():
			if err := s.Remove(context.Background(), made); err != nil {
				t.Errorf("pgtest: %v", err)
			}
		case os.Getenv(devenv.EnvPostgresURL) == "":
			t.Logf("pgtest: the server of this test ends with it; to keep its database use: go run ./test/devenv/run -postgres -- bash")
		default:
			t.Logf("pgtest: the database is kept: %s", made)
		}
	})
	return made
}

// server finds or starts the server, once for the process. No test stops it: its supervisor does
// when the process ends.
var server = sync.OnceValues(func() (*workerdb.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := devenv.StartPostgres(ctx, devenv.Options{PostgresSettings: devenv.ThrowawaySettings()})
	if err != nil {
		return nil, err
	}
	return workerdb.NewServer(ctx, p.URL, "onlyonce_test")
})

// Exec runs a statement.
func Exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Bound has each statement that deletes more than most rows of a table fail, as one does that has
// not ended in time.
func Bound(t testing.TB, pool *pgxpool.Pool, table string, most int) {
	t.Helper()
	Exec(t, pool, fmt.Sprintf(`create function bounded() returns trigger language plpgsql as $$
		begin
		  if (select count(*) from gone) > %d then
		    raise exception using errcode = '57014', message = 'it took too long';
		  end if;
		  return null;
		end $$`, most))
	Exec(t, pool, `create trigger bounded after delete on `+table+` referencing old table as gone
		for each statement execute function bounded()`)
}

// One returns the only column of a query's first row.
func One[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}
