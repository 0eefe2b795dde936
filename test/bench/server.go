package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv"
)

// effectsSQL is the table that both sides write to, and with which the bars were measured: the
// plainest table of a service. A more expensive effect would cost both sides the same, and make
// every ratio look better.
const effectsSQL = `
create table effects (
  id bigint generated always as identity primary key,
  account bigint not null,
  payload bytea not null
)`

// effectSQL is the effect of one message. $1 account, $2 payload.
const effectSQL = `insert into effects (account, payload) values ($1, $2)`

// walSQL returns one row: how many bytes of WAL the server has written.
const walSQL = `select (pg_current_wal_insert_lsn() - '0/0')::bigint`

// diskSQL returns one row: the bytes of all tables of both schemas with their indexes.
const diskSQL = `
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname in ('onlyonce', 'onlyonce_segments') and c.relkind = 'r'`

// server is the database server that both sides use.
type server struct {
	url        *url.URL
	conn       *pgx.Conn // for what is between the measurements
	version    string
	postmaster int // process id, 0 if the server's processes cannot be seen
	template   string
	made       int
	log        func(line string)
	broker     *devenv.Kafka // started by the first pair that needs it
	ends       []func()      // what pairs have opened for all their rounds
}

// openServer makes the template that each side's database is a copy of.
func openServer(ctx context.Context, address string, log func(line string)) (_ *server, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the server's address must have the form postgres://user@host:port/database: %w", err)
	}
	s := &server{url: u, log: log, template: fmt.Sprintf("onlyonce_bench_%d", os.Getpid())}
	if s.conn, err = pgx.Connect(ctx, address); err != nil {
		return nil, err
	}
	if err := s.build(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) build(ctx context.Context) error {
	var pid int
	if err := s.conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	s.postmaster = postmasterOf(pid)
	s.version, _, _ = strings.Cut(s.conn.PgConn().ParameterStatus("server_version"), " ")
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var v string
		if err := s.conn.QueryRow(ctx, `select current_setting($1)`, name).Scan(&v); err != nil {
			return err
		}
		if v != "on" {
			return fmt.Errorf("%s is %s: a ratio counts only on a server that keeps what it commits", name, v)
		}
	}
	if err := s.exec(ctx, "create database "+s.template); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.address(s.template))
	if err != nil {
		return err
	}
	if _, err = migrations.Apply(ctx, conn); err == nil {
		_, err = conn.Exec(ctx, effectsSQL)
	}
	return errors.Join(err, conn.Close(ctx))
}

func (s *server) exec(ctx context.Context, sql string) error {
	_, err := s.conn.Exec(ctx, sql)
	return err
}

func (s *server) address(database string) string {
	u := *s.url
	u.Path = "/" + database
	return u.String()
}

// atEnd registers f to be called after all measurements.
func (s *server) atEnd(f func()) { s.ends = append(s.ends, f) }

func (s *server) close() error {
	for _, f := range slices.Backward(s.ends) {
		f()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := s.exec(ctx, "drop database if exists "+s.template)
	if s.broker != nil {
		err = errors.Join(err, s.broker.Stop())
	}
	return errors.Join(err, s.conn.Close(ctx))
}

// brokers starts Kafka, a real one, when it is first asked for.
func (s *server) brokers(ctx context.Context) ([]string, error) {
	if s.broker == nil {
		k, err := devenv.StartKafka(ctx, devenv.Options{Log: s.log})
		if err != nil {
			return nil, err
		}
		s.broker = k
	}
	if !s.broker.Real {
		return nil, errors.New("there is no real Kafka broker here")
	}
	return s.broker.Brokers, nil
}

// database is a copy of the template for one run of one side.
type database struct {
	srv  *server
	name string
	pool *pgxpool.Pool // opened by the side
}

// fresh makes a database. The checkpoint after it gives both sides the same distance to the next
// one.
func (s *server) fresh(ctx context.Context) (*database, error) {
	s.made++
	name := fmt.Sprintf("%s_%d", s.template, s.made)
	if err := s.exec(ctx, "create database "+name+" template "+s.template); err != nil {
		return nil, err
	}
	if err := s.exec(ctx, "checkpoint"); err != nil {
		return nil, err
	}
	return &database{srv: s, name: name}, nil
}

// open connects all connections that the side is going to use.
func (d *database) open(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(d.srv.address(d.name))
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(connections)
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	for range connections {
		c, err := d.pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer c.Release()
	}
	return d.pool, nil
}

// verify compares the effects in the table with those that the side has counted, because a ratio of
// work that was not done means nothing.
func (d *database) verify(ctx context.Context, want int64) error { return d.verifyWithin(ctx, want, 0) }

// verifyWithin accepts as many missing effects as a side cannot know of.
func (d *database) verifyWithin(ctx context.Context, want, unknown int64) error {
	var n int64
	if err := d.pool.QueryRow(ctx, `select count(*) from effects`).Scan(&n); err != nil {
		return err
	}
	if n > want || n < want-unknown {
		return fmt.Errorf("%d effects in the table, %d were counted", n, want)
	}
	return nil
}

// disk returns the bytes of onlyonce's tables.
func (d *database) disk(ctx context.Context) (n int64, err error) {
	err = d.pool.QueryRow(ctx, diskSQL).Scan(&n)
	return n, err
}

func (d *database) drop() error {
	if d.pool != nil {
		d.pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return d.srv.exec(ctx, "drop database if exists "+d.name+" with (force)")
}

// usage is what was used up to some moment, or between two.
type usage struct {
	client, server time.Duration // CPU time
	seen           bool          // whether both CPU times are known
	wal            int64         // bytes
}

func (u usage) minus(v usage) usage {
	return usage{client: u.client - v.client, server: u.server - v.server, seen: u.seen && v.seen, wal: u.wal - v.wal}
}

func (s *server) usage(ctx context.Context) (u usage, err error) {
	if err := s.conn.QueryRow(ctx, walSQL).Scan(&u.wal); err != nil {
		return u, err
	}
	var own, servers bool
	u.client, own = ownCPU()
	u.server, servers = serverCPU(s.postmaster)
	u.seen = own && servers
	return u, nil
}

// headCommit names what was measured, for the record.
func headCommit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
