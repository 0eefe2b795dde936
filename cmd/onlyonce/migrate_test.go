package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func openFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := session{t: t, url: pgtest.EmptyURL(t)}
	if r := s.run("migrate", "-version").want(t, statusGood); r.out != "0\n" {
		t.Errorf("version of an empty database: %q", r.out)
	}
	s.run("migrate").want(t, statusGood, "applied version 1\n", fmt.Sprintf("the schema is at version %d", migrations.Latest)).lines(t, 0)
	s.run("migrate").want(t, statusGood, fmt.Sprintf("nothing to do: the schema is at version %d", migrations.Latest))
	if r := s.run("migrate", "-version").want(t, statusGood); r.out != fmt.Sprintln(migrations.Latest) {
		t.Errorf("version: %q", r.out)
	}
	s.run("status").want(t, statusGood, fmt.Sprintf("schema version %d", migrations.Latest))
}

func TestMigrateNewerSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into onlyonce.schema_version (version) values ($1)`, migrations.Latest+1)
	f.run("migrate").want(
		t,
		statusGood,
		fmt.Sprintf("nothing to do: the schema is at version %d (this program was written for %d)", migrations.Latest+1, migrations.Latest),
	)
	f.exec(`insert into onlyonce.schema_version (version) values ($1)`, migrations.Latest+2)
	f.run("migrate").want(t, statusEnvironment, fmt.Sprintf("version %d is too new", migrations.Latest+2)).lines(t, 1)
	f.run("migrate", "-version").want(t, statusGood, fmt.Sprintln(migrations.Latest+2))
}

// -print needs no database, and its output does what `migrate` does.
func TestMigratePrint(t *testing.T) {
	t.Parallel()
	r := session{t: t}.run("migrate", "-print").want(t, statusGood, "create schema onlyonce;")
	url := pgtest.EmptyURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.PgConn().Exec(t.Context(), r.out).ReadAll(); err != nil {
		t.Fatal(err)
	}
	session{t: t, url: url}.run("migrate").want(t, statusGood, "nothing to do")
}

func TestMigrateWithoutTheRight(t *testing.T) {
	t.Parallel()
	pool := pgtest.Empty(t)
	cfg := pool.Config().ConnConfig
	role := "cli_" + cfg.Database[max(len(cfg.Database)-20, 0):] // as unique as the database is
	name := pgx.Identifier{role}.Sanitize()
	if _, err := pool.Exec(t.Context(), `create role `+name+` login password 's3cret'`); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("cannot make a role: %v", err)
		}
		t.Skipf("cannot make a role: %v", err)
	}
	t.Cleanup(func() { _, _ = pool.Exec(context.WithoutCancel(t.Context()), `drop role `+name) })
	s := session{t: t, url: fmt.Sprintf("postgres://%s:s3cret@%s:%d/%s", role, cfg.Host, cfg.Port, cfg.Database)}
	s.run("migrate").want(t, statusEnvironment, "permission denied", "connect as a role that may do this").lines(t, 1)
}
