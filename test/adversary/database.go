package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/callcheck"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// renewEvery is the number of histories after which a worker's database is made anew: emptying
// leaves dead rows.
const renewEvery = 200

// server is the Postgres of one worker. A rotator waits for all transactions of its server, and
// what the histories of other workers leave open must not be among them.
type server struct {
	url      string
	admin    *pgxpool.Pool
	template string // the database that the worker's is copied from
	stop     func() error
}

// startServer starts the server of a worker, or uses the one that is given.
func startServer(ctx context.Context, given string, worker int) (*server, error) {
	s := &server{url: given, template: fmt.Sprintf("adversary_template_%d", worker), stop: func() error { return nil }}
	if given == "" {
		pg, err := devenv.StartPostgres(ctx, devenv.Options{Own: true, PostgresSettings: map[string]string{
			// The histories test interleavings, and no server dies.
			"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "100", "shared_buffers": "64MB",
			// Statements are planned once a session, and what runs beside the histories does not.
			"plan_cache_mode": "force_generic_plan", "jit": "off", "autovacuum": "off", "max_parallel_workers_per_gather": "0"}})
		if err != nil {
			return nil, err
		}
		s.url, s.stop = pg.URL, pg.Stop
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *server) prepare(ctx context.Context) (err error) {
	if s.admin, err = pgxpool.New(ctx, s.url); err != nil {
		return err
	}
	if err := s.recreate(ctx, s.template, ""); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.address(s.template))
	if err != nil {
		return err
	}
	_, err = migrations.Apply(ctx, conn)
	if err == nil {
		_, err = conn.Exec(ctx, scenario.EffectsSQL+"; "+callcheck.TablesSQL)
	}
	return errors.Join(err, conn.Close(ctx))
}

func (s *server) recreate(ctx context.Context, name, from string) error {
	if _, err := s.admin.Exec(ctx, `drop database if exists `+name+` with (force)`); err != nil {
		return err
	}
	sql := `create database ` + name
	if from != "" {
		sql += ` template ` + from
	}
	_, err := s.admin.Exec(ctx, sql)
	return err
}

func (s *server) address(database string) string {
	u, err := url.Parse(s.url)
	if err != nil {
		panic(err) // pgxpool has read it
	}
	u.Path = "/" + database
	return u.String()
}

func (s *server) drop(ctx context.Context, name string) {
	_, _ = s.admin.Exec(ctx, `drop database if exists `+name+` with (force)`)
}

// close drops what was made, and ends the server if it was started.
func (s *server) close(ctx context.Context) error {
	if s.admin != nil {
		s.drop(ctx, s.template)
		s.admin.Close()
	}
	return s.stop()
}

// database is one worker's. Its pool is not used by the code under test.
type database struct {
	worker int
	given  string  // the address of a server that is there; empty: the worker has its own
	server *server // nil until the worker has played something
	name   string
	pool   *pgxpool.Pool
	used   int
	// next is the pool of successors. It is kept from one history to the next, because most of what
	// a history costs the server is new sessions. Nil: the next history opens it.
	next *pgxpool.Pool
}

func newDatabase(given string, worker int) *database {
	return &database{worker: worker, given: given, name: fmt.Sprintf("adversary_%d", worker)}
}

// close drops the database.
func (d *database) close(ctx context.Context) error {
	if d.server == nil {
		return nil
	}
	d.forsake()
	if d.pool != nil {
		d.pool.Close()
	}
	d.server.drop(ctx, d.name)
	return d.server.close(ctx)
}

func (d *database) renew(ctx context.Context) error {
	d.forsake()
	if d.pool != nil {
		d.pool.Close()
	}
	if err := d.server.recreate(ctx, d.name, d.server.template); err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(d.server.address(d.name))
	if err != nil {
		return err
	}
	cfg.MaxConns = 4
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	d.used = 0
	_, err = d.pool.Exec(ctx, seedsSQL)
	return err
}

const (
	// seedsSQL lists the tables that have rows from the start, which are left alone. It keeps
	// copies of those that a rotator changes.
	seedsSQL = `
create table first_rings as table onlyonce.rings;
create table first_segments as table onlyonce.segments;
create table seeds (name text primary key);
do $$ declare t text; n bigint; begin
  for t in select c.oid::regclass::text from pg_class c where c.relkind = 'r' and c.relnamespace in ('onlyonce'::regnamespace, 'storm'::regnamespace, 'public'::regnamespace)
  loop
    execute 'select count(*) from ' || t into n;
    if n > 0 or t = 'seeds' then insert into seeds values (t); end if;
  end loop;
end $$`
	// emptySQL deletes all rows of all other tables, without triggers, and puts the rings back.
	emptySQL = `
do $$ declare t text; begin
  set local session_replication_role = replica;
  for t in select c.oid::regclass::text from pg_class c where c.relkind = 'r' and c.relnamespace in ('onlyonce'::regnamespace, 'storm'::regnamespace, 'public'::regnamespace)
            and c.oid::regclass::text not in (select name from seeds)
  loop
    execute 'delete from ' || t;
  end loop;
  if exists (select from onlyonce.rings r join first_rings f on f.name = r.name where r.version <> f.version) then
    delete from onlyonce.segments;
    delete from onlyonce.rings;
    insert into onlyonce.rings select * from first_rings;
    insert into onlyonce.segments select * from first_segments;
    perform setval(('onlyonce.' || f.name || '_version')::regclass, f.version) from first_rings f;
  end if;
end $$`
	// othersSQL and endSQL leave out the worker's own sessions. In: the name of other sessions that
	// may stay.
	othersSQL = `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and application_name not in ('', $1)`
	endSQL    = `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and application_name not in ('', $1)`
)

// The names of sessions: of the process under test, and of its successors. The worker's own have
// none, and neither name is part of what a process does.
const (
	applicationName = "adversary"
	successorName   = "adversary successor"
)

// successors returns the pool of successors.
func (d *database) successors(ctx context.Context, open func(name string) (*pgxpool.Pool, error)) (*pgxpool.Pool, error) {
	if d.next != nil && d.next.Stat().AcquiredConns() > 0 {
		d.forsake() // a successor has not come to its end
	}
	var err error
	if d.next == nil {
		d.next, err = open(successorName)
	}
	return d.next, err
}

// forsake gives up the pool of successors. It does not wait for those that have not come to their
// end: empty ends their sessions.
func (d *database) forsake() {
	if d.next != nil {
		go d.next.Close()
		d.next = nil
	}
}

// emptyLimit bounds what lies between two histories: sessions end and, at times, a database is
// copied.
const emptyLimit = 5 * time.Minute

// empty ends what is left of the history before, and restores the database. The first time, it
// makes the database.
func (d *database) empty(ctx context.Context) (err error) {
	if d.server == nil {
		if d.server, err = startServer(ctx, d.given, d.worker); err != nil {
			return err
		}
		return d.renew(ctx)
	}
	stay := ""
	if d.next != nil {
		stay = successorName
	}
	ctx, cancel := context.WithTimeout(ctx, emptyLimit)
	defer cancel()
	for {
		var left int
		if err := d.pool.QueryRow(ctx, othersSQL, stay).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			break
		}
		if _, err := d.pool.Exec(ctx, endSQL, stay); err != nil {
			return err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if d.used++; d.used > renewEvery {
		return d.renew(ctx)
	}
	_, err = d.pool.Exec(ctx, emptySQL)
	return err
}
