package workerdb_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func newServer(t *testing.T) *workerdb.Server {
	t.Helper()
	s, err := workerdb.NewServer(t.Context(), pgtest.ServerURL(t), "onlyonce_workerdb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func take(t *testing.T, s *workerdb.Server, setUp func(context.Context, *pgxpool.Pool) error) *workerdb.DB {
	t.Helper()
	d, err := s.Take(t.Context(), setUp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Drop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func text(t *testing.T, d *workerdb.DB, sql string) (s string) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func exec(t *testing.T, d *workerdb.DB, sql string) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

const tables = `
create table stock (id integer generated always as identity primary key, sku text, held integer default 0,
twice integer generated always as (held * 2) stored);
insert into stock (sku, held) values ('a', 1), ('b', 2);
create table lines (stock integer references stock, n integer);
create function refuse() returns trigger language plpgsql as $$ begin raise 'never'; end $$;
create trigger refuse before delete on stock for each row execute function refuse()`

const state = `select (select string_agg(s::text, ' ' order by id) from stock s) || ' ' || (select count(*)
	from lines) || ' ' || (select count(*) from onlyonce.leases)`

// A run's changes are gone after Restore: rows of the user and of the engine, foreign keys or not,
// triggers or not, and the next number of a sequence is the same as before.
func TestRestore(t *testing.T) {
	d := take(t, newServer(t), func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, tables)
		return err
	})
	before := text(t, d, state)
	for range 2 {
		exec(
			t,
			d,
			`update stock set held = held + 1;
				insert into stock (sku) values ('c');
				insert into lines values (3, 1);
				insert into onlyonce.leases (name) values ('x')`,
		)
		if text(t, d, state) == before {
			t.Fatal("nothing was changed")
		}
		if err := d.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := text(t, d, state); got != before {
			t.Errorf("restored %s, want %s", got, before)
		}
		if got := text(t, d, `insert into stock (sku) values ('d') returning id::text`); got != "3" {
			t.Errorf("the next id is %s", got)
		}
	}
}

// A standby takes over with what was committed before Keep and nothing else: sessions of the old
// server are over, and sequences go back. Restore returns to that of a new database afterwards.
func TestPromote(t *testing.T) {
	d := take(t, newServer(t), func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, tables)
		return err
	})
	first := text(t, d, state)
	exec(t, d, `insert into stock (sku) values ('c')`)
	conn, err := pgx.Connect(t.Context(), d.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `begin; insert into stock (sku) values ('open')`); err != nil {
		t.Fatal(err)
	}
	kept := text(t, d, state)
	if ok, err := d.Keep(t.Context()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	exec(t, d, `update stock set held = held + 1; insert into lines values (1, 1)`)
	if ok, err := d.Promote(t.Context()); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if got := text(t, d, state); got != kept {
		t.Errorf("the standby has %s, want %s", got, kept)
	}
	if _, err := conn.Exec(t.Context(), `commit`); err == nil {
		t.Error("a transaction of the old server has committed")
	}
	exec(t, d, `create table made (n integer)`)
	if ok, err := d.Promote(t.Context()); err != nil || ok {
		t.Errorf("after DDL: %v, %v", ok, err)
	}
	if err := d.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := text(t, d, state); got != first {
		t.Errorf("restored %s, want %s", got, first)
	}
}

// After a run that has changed tables, the database is a new one.
func TestRestoreAfterDDL(t *testing.T) {
	d := take(t, newServer(t), func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, tables)
		return err
	})
	before := text(t, d, state)
	for _, ddl := range []string{`create table made (n integer)`, `drop table lines`, `alter table stock add column x text`} {
		exec(t, d, ddl)
		if err := d.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := text(t, d, state); got != before {
			t.Errorf("%s: restored %s, want %s", ddl, got, before)
		}
		if got := text(t, d, `select coalesce(to_regclass('made')::text, '')`); got != "" {
			t.Errorf("%s is there", got)
		}
	}
}

// Clear leaves our tables only, and sessions of the run before are ended.
func TestClear(t *testing.T) {
	d := take(t, newServer(t), nil)
	other, err := pgxpool.New(t.Context(), d.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(
		t.Context(),
		`create schema shop;
			create table shop.orders (n integer);
			create table orders (n integer);
			insert into onlyonce.leases (name) values ('x')`,
	); err != nil {
		t.Fatal(err)
	}
	exec(t, d, `create table stock (n integer); create schema mine; insert into onlyonce.leases (name) values ('y')`)
	if err := d.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a session of the run before has committed")
	}
	if got := text(t, d, `
select (select count(*) from onlyonce.leases where name in ('x', 'y'))::text || ' ' || (select count(*) from pg_class
where relnamespace = 'public'::regnamespace) || ' ' ||
       (select count(*) from pg_namespace where nspname in ('shop', 'mine'))`); got != "0 0 0" {
		t.Errorf("left: %s", got)
	}
}

// Two processes do not get one database.
func TestNumbers(t *testing.T) {
	a := newServer(t)
	b := newServer(t)
	seen := map[string]bool{}
	for _, s := range []*workerdb.Server{a, b, a, b} {
		d := take(t, s, nil)
		if seen[d.Name()] {
			t.Errorf("%s was given out twice", d.Name())
		}
		seen[d.Name()] = true
	}
}

func TestAddressIsAURL(t *testing.T) {
	if _, err := workerdb.NewServer(t.Context(), "host=localhost dbname=x", "x"); err == nil {
		t.Error("no error")
	}
}

// as returns the server's address for a new role, which is dropped in the end.
func as(t *testing.T, role, rights string) string {
	t.Helper()
	admin := pgtest.Pool(t, pgtest.ServerURL(t))
	if _, err := admin.Exec(t.Context(), `drop role if exists `+role+`; create role `+role+` login password 'x' `+rights); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = admin.Exec(context.Background(), `drop role if exists `+role) })
	u, err := url.Parse(pgtest.ServerURL(t))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	return u.String()
}

// A role that may not empty tables without triggers gets a new database for each run.
func TestRestoreWithoutRights(t *testing.T) {
	s, err := workerdb.NewServer(t.Context(), as(t, "workerdb_creator", "createdb"), "onlyonce_workerdb_creator")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d := take(t, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, tables)
		return err
	})
	before := text(t, d, state)
	exec(t, d, `update stock set held = held + 1; insert into lines values (1, 1)`)
	if err := d.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := text(t, d, state); got != before {
		t.Errorf("restored %s, want %s", got, before)
	}
	t.Cleanup(func() {
		admin := pgtest.Pool(t, pgtest.ServerURL(t))
		var name string
		if err := admin.QueryRow(
			context.Background(),
			`select datname from pg_database where datname like 'onlyonce_workerdb_creator_template_%'`,
		).Scan(&name); err == nil {
			_, _ = admin.Exec(context.Background(), `drop database `+name+` with (force)`)
		}
	})
}

// A role that may not create databases is refused with what to do.
func TestRoleWithoutRights(t *testing.T) {
	_, err := workerdb.NewServer(t.Context(), as(t, "workerdb_reader", "nocreatedb"), "onlyonce_workerdb")
	if err == nil || !strings.Contains(err.Error(), "CREATEDB") {
		t.Errorf("%v", err)
	}
}
