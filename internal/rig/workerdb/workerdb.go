// Package workerdb gives each worker of a test a Postgres database with our schema, which it
// restores between runs. A new database for each run would cost more than the run.
//
// # How a database is restored
//
// [Server.Take] keeps the rows that a new database has, in a schema of its own, and the numbers
// that sequences have reached. [DB.Restore] deletes all rows of all tables, puts those back, and
// resets the sequences, so that each run begins in the same state. It runs without triggers
// (session_replication_role), which needs a superuser. If the role is none, or if a run has changed
// tables (DDL), the database is dropped and made anew, which is slower.
//
// [DB.Keep] and [DB.Promote] do the same in the middle of a run, for a failover that loses commits.
//
// # Several processes on one server
//
// Databases have numbers. A process takes the first number that is free with an advisory lock,
// which ends with the process, and drops what an earlier process has left under that number.
package workerdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
)

// Server is a server on which a process makes its databases. Its methods may be called from several
// goroutines.
type Server struct {
	url    string
	prefix string // of the names of databases

	mu       sync.Mutex // one statement at a time on conn
	conn     *pgx.Conn  // it holds the locks
	strategy string     // how CREATE DATABASE copies a template
	schema   string     // the name of the template, once it was made or found
}

// class is the first key of our advisory locks. The second is a database's number, or -1 for the
// template.
const class = 0x6f6e6c79

// NewServer connects to a server. prefix begins the names of the databases that it makes there.
func NewServer(ctx context.Context, address, prefix string) (*Server, error) {
	if u, err := url.Parse(address); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("the server's address must have the form postgres://user@host:port/database")
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	s := &Server{url: address, prefix: prefix, conn: conn}
	// Copying files takes the least, but writes everything to disk before and after: it is for
	// servers with fsync off. Version 14 has no other way, and no word for it.
	var may bool
	err = conn.QueryRow(ctx, `
select rolcreatedb or rolsuper,
       case when current_setting('fsync') = 'off'
              and current_setting('server_version_num')::integer >= 150000 then ' strategy file_copy' else '' end
  from pg_roles where rolname = current_user`).Scan(&may, &s.strategy)
	if err == nil && !may {
		err = errors.New("the role has no right to create databases: grant it with ALTER ROLE ... CREATEDB, or use another role")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return s, nil
}

// Close ends the connection, and gives up the numbers.
func (s *Server) Close() error { return s.conn.Close(context.Background()) }

// Address is the address that NewServer was given.
func (s *Server) Address() string { return s.url }

// address returns the address of a database.
func (s *Server) address(name string) string {
	u, err := url.Parse(s.url)
	if err != nil {
		panic(err) // NewServer has parsed it
	}
	u.Path = "/" + name
	return u.String()
}

func (s *Server) exec(ctx context.Context, sql string, args ...any) error {
	_, err := s.conn.Exec(ctx, sql, args...)
	return err
}

// Make makes a database of a new name, with our schema or empty, and returns its address. Remove
// drops it.
func (s *Server) Make(ctx context.Context, schema bool) (address string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := "template0"
	if schema {
		if from, err = s.template(ctx); err != nil {
			return "", err
		}
	}
	name := s.prefix + "_" + strings.ToLower(rand.Text())
	return s.address(name), s.create(ctx, name, from)
}

// Remove ends the sessions of a database that Make has made, and drops it.
func (s *Server) Remove(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drop(ctx, strings.TrimPrefix(u.Path, "/"))
}

// template makes a database with the schema, unless there is one for this state of the migrations.
// The caller has mu.
func (s *Server) template(ctx context.Context) (name string, err error) {
	if s.schema != "" {
		return s.schema, nil
	}
	defer func() {
		if err == nil {
			s.schema = name
		}
	}()
	hash, err := SchemaHash()
	if err != nil {
		return "", err
	}
	name = s.prefix + "_template_" + hash[:12]
	if err := s.exec(ctx, `select pg_advisory_lock($1, -1)`, class); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.exec(ctx, `select pg_advisory_unlock($1, -1)`, class)) }()
	var there bool
	if err := s.conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil || there {
		return name, err
	}
	making := s.prefix + "_making"
	if err := s.recreate(ctx, making, "template0"); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, s.address(making))
	if err != nil {
		return "", err
	}
	_, err = migrations.Apply(ctx, conn)
	if err == nil {
		_, err = conn.Exec(ctx, watchedSQL)
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return "", err
	}
	return name, s.exec(ctx, `alter database `+quoted(making)+` rename to `+quoted(name))
}

func (s *Server) recreate(ctx context.Context, name, from string) error {
	if err := s.drop(ctx, name); err != nil {
		return err
	}
	return s.create(ctx, name, from)
}

func (s *Server) create(ctx context.Context, name, from string) error {
	return s.exec(ctx, `create database `+quoted(name)+` template `+quoted(from)+s.strategy)
}

func (s *Server) drop(ctx context.Context, name string) error {
	return s.exec(ctx, `drop database if exists `+quoted(name)+` with (force)`)
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// SchemaHash returns a name for the schema, 32 hexadecimal digits: it covers the names and contents
// of the migrations, so a template that bears it has this schema.
func SchemaHash() (string, error) {
	h := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(migrations.FS, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d %s", path, len(b), b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:32], err
}

// DB is one worker's database, for one run at a time.
type DB struct {
	// Pool is for the worker itself, and for processes whose sessions may stay from one run to the
	// next; what is under test has pools of its own.
	Pool *pgxpool.Pool

	server *Server
	number int
	name   string
	setUp  func(context.Context, *pgxpool.Pool) error
	saved  bool
	used   int
}

// renewEvery is the number of runs after which a database is made anew: deleting leaves dead rows.
const renewEvery = 400

// Take makes a database with our schema and calls setUp on it, which may be nil. A database that is
// made anew later is set up anew.
func (s *Server) Take(ctx context.Context, setUp func(context.Context, *pgxpool.Pool) error) (*DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range 1000 {
		var free bool
		// A session may take its own lock twice: those that it holds are asked for first.
		if err := s.conn.QueryRow(ctx, `
select case when exists (select from pg_locks
                          where locktype = 'advisory'
                            and classid::bigint = $1::int
                            and objid::bigint = $2::int
                            and objsubid = 2)
              then false
       else pg_try_advisory_lock($1::int, $2::int) end`, class, n).Scan(&free); err != nil {
			return nil, err
		}
		if !free {
			continue
		}
		d := &DB{server: s, number: n, name: fmt.Sprintf("%s_%d", s.prefix, n), setUp: setUp}
		return d, d.make(ctx)
	}
	return nil, errors.New("1,000 databases are in use")
}

// Name is the database's name.
func (d *DB) Name() string { return d.name }

// Address is the database's address.
func (d *DB) Address() string { return d.server.address(d.name) }

// make makes the database anew. The caller has the server's mu.
func (d *DB) make(ctx context.Context) error {
	if d.Pool != nil {
		d.Pool.Close()
	}
	from, err := d.server.template(ctx)
	if err != nil {
		return err
	}
	if err := d.server.recreate(ctx, d.name, from); err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(d.Address())
	if err != nil {
		return err
	}
	cfg.MaxConns = 16 // sessions are opened only as they are needed
	cfg.ConnConfig.RuntimeParams["application_name"] = workerName
	if d.Pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return err
	}
	d.used = 0
	d.saved = false
	if d.setUp != nil {
		if err := d.setUp(ctx, d.Pool); err != nil {
			return err
		}
	}
	d.saved, err = d.keep(ctx, saved)
	return err
}

// renew makes the database anew.
func (d *DB) renew(ctx context.Context) error {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	return d.make(ctx)
}

// Drop drops the database and gives up its number.
func (d *DB) Drop(ctx context.Context) error {
	d.server.mu.Lock()
	defer d.server.mu.Unlock()
	d.Pool.Close()
	return errors.Join(
		d.server.drop(ctx, d.name),
		d.server.exec(ctx, `select pg_advisory_unlock($1, $2)`, class, d.number))
}

// Saved reports whether the state was kept that Restore returns to. It was not if the role is no
// superuser: then each Restore makes the database anew, and Keep keeps nothing.
func (d *DB) Saved() bool { return d.saved }

// keep keeps the rows of one moment in a schema. It reports false if the role may not restore them.
func (d *DB) keep(ctx context.Context, schema string) (kept bool, err error) {
	var super bool
	if err := d.Pool.QueryRow(ctx, `select rolsuper from pg_roles where rolname = current_user`).Scan(&super); err != nil || !super {
		return false, err
	}
	err = pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		for _, sql := range []string{`set local lock_timeout = '5s'`, fmt.Sprintf(emptySQL, schema), in(schema, saveSQL)} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("saving the state of database %s: %w", d.name, err)
	}
	return true, nil
}

// Keep keeps what is committed at this moment as the state of a standby, for Promote. Another Keep
// replaces it. It waits up to 5 seconds for statements that lock a whole table, for example DDL. It
// reports false if the role is no superuser.
func (d *DB) Keep(ctx context.Context) (kept bool, err error) { return d.keep(ctx, standby) }

// Promote ends all sessions but those of the worker's own pool, and returns the database to the
// state of Keep, as a failover to a standby does that has not got what was committed since. Like
// there, sequences go back, too. Transaction ids, WAL positions and the server's timeline go on. It
// reports false, and changes nothing, if tables have been changed since by DDL.
func (d *DB) Promote(ctx context.Context) (promoted bool, err error) {
	if err := d.EndSessions(ctx); err != nil {
		return false, err
	}
	err = d.Pool.QueryRow(ctx, in(standby, restoreSQL)).Scan(&promoted)
	return promoted, err
}

// Restore ends the sessions of the run before and returns the database to the state of a new one.
func (d *DB) Restore(ctx context.Context) error {
	if err := d.EndSessions(ctx); err != nil {
		return err
	}
	d.used++
	if d.saved && d.used <= renewEvery {
		var restored bool
		if err := d.Pool.QueryRow(ctx, restoreSQL).Scan(&restored); err == nil && restored {
			return nil
		}
	}
	return d.renew(ctx)
}

// Clear drops what is not ours, and returns our tables to the state of a new database.
func (d *DB) Clear(ctx context.Context) error {
	if err := d.EndSessions(ctx); err != nil {
		return err
	}
	if d.saved {
		if _, err := d.Pool.Exec(ctx, dropSQL); err == nil {
			return d.Restore(ctx)
		}
	}
	return d.renew(ctx)
}

// workerName is the application_name of the sessions of DB.Pool.
const workerName = "onlyonce worker"

// EndSessions ends all sessions but those of the worker's own pool.
func (d *DB) EndSessions(ctx context.Context) error {
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for tick := time.NewTicker(2 * time.Millisecond); ; {
		var left int
		err := conn.QueryRow(ctx, `
select count(pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and application_name <> $1 and backend_type = 'client backend'`, workerName).Scan(&left)
		if err != nil || left == 0 {
			tick.Stop()
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		}
	}
}
