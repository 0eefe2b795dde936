// Package primary keeps the engines on the primary of their database.
//
// A switchover may make a server a standby behind the address that led to the primary (Patroni, a
// managed service, a proxy). Sessions that began meanwhile stay open when the address leads to the
// new primary, and each write on them fails with SQLSTATE 25006. A pool would lend them again and
// again until MaxConnLifetime, an hour (T12).
//
// So engines take connections by a [Pool] of this package. If one of their own statements fails
// with 25006, the connection is closed and the pool is reset, which closes all of its connections:
// idle ones now, the others when they come back. A statement of a user's handler resets nothing: a
// handler may have made its own transaction read-only, and on a standby the engine's statement
// before it fails.
package primary

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// readOnly is read_only_sql_transaction: the server is a standby, or set to read-only.
const readOnly = "25006"

// A standby refuses SERIALIZABLE before anything else, with feature_not_supported. These functions
// of the server do so.
const notSupported = "0A000"

var serializable = []string{"GetSerializableTransactionSnapshot", "call_enum_check_hook"}

// ErrStandby is the error of [Check].
var ErrStandby = errors.New("the server is a standby")

// Check returns ErrStandby if a session has said that its server is a standby. PostgreSQL 14 and
// later say so by themselves (in_hot_standby), so Check sends nothing. PgBouncer does not pass it
// on.
func Check(conn *pgx.Conn) error {
	if conn.PgConn().ParameterStatus("in_hot_standby") == "on" {
		return ErrStandby
	}
	return nil
}

// Refused reports whether a server has refused a statement because it takes no writes, or was not
// asked because it is a standby.
func Refused(err error) bool {
	if pg, is := errors.AsType[*pgconn.PgError](err); is {
		return pg.Code == readOnly || pg.Code == notSupported && slices.Contains(serializable, pg.Routine)
	}
	return errors.Is(err, ErrStandby)
}

// longestWait bounds the wait for the next try after such a refusal, so that the first write
// follows soon when the new primary is in reach. Each try costs a new connection.
const longestWait = time.Second

// Backoff returns the waits of an owner whose leases last ttl, between tries at a database that
// fails: they grow up to a second, whatever the error. While a switchover goes on, a pooler or the
// driver may say by any error that there is no primary (T12).
func Backoff(ttl time.Duration) backoff.BackOff {
	most := min(ttl/10, longestWait*2/3) // a wait is random, up to half as long again
	return pace.Backoff(min(ttl/100, most), most)
}

// Wait returns the wait before the next try, given the one that an engine's back-off asks for.
func Wait(err error, d time.Duration) time.Duration {
	if Refused(err) {
		return min(d, longestWait)
	}
	return d
}

// logged keeps the log to one line a minute for each database, whatever uses it.
var logged pace.Seldom

// refusals are the refusals of this process, by database.
var refusals struct {
	sync.Mutex
	of map[string]int64
}

// Name is the name of a database in metrics: without one in the address it is the user's, as for
// the server.
func Name(c *pgx.ConnConfig) string { return cmp.Or(c.Database, c.User) }

func count(database string, n int64) {
	refusals.Lock()
	defer refusals.Unlock()
	if refusals.of == nil {
		refusals.of = map[string]int64{}
	}
	refusals.of[database] += n
}

// Refusals returns how often each database has refused a statement of this process's engines. A
// database is there, with 0, as soon as a [Pool] with a logger leads to it.
func Refusals() map[string]int64 {
	refusals.Lock()
	defer refusals.Unlock()
	return maps.Clone(refusals.of)
}

// Pool is a pool whose connections are closed if they lead to a server that takes no writes. It has
// the methods of pgxpool.Pool that engines use.
type Pool struct {
	pool   *pgxpool.Pool
	log    *slog.Logger
	outage *outage // nil without a logger
	pinned bool
}

// Of returns a Pool of pool. Several can be of the same one. log may be nil.
func Of(pool *pgxpool.Pool, log *slog.Logger) *Pool {
	p := &Pool{pool: pool, log: log}
	if log != nil { // not for each message of dedupe.Do: Config copies
		c := pool.Config().ConnConfig
		count(Name(c), 0)
		p.outage = outageOf(c)
	}
	return p
}

// Raw returns the pool itself. What runs on it is not watched.
func (p *Pool) Raw() *pgxpool.Pool { return p.pool }

// MaxConns returns how many connections the pool has at most.
func (p *Pool) MaxConns() int { return int(p.pool.Config().MaxConns) }

// Watch resets the pool if err is such a refusal. It returns err, as [Mark] does. Call it with the
// error of an engine's transaction that does not run by the methods of Pool and [Conn].
func (p *Pool) Watch(err error) error {
	if err == nil {
		p.answered()
		return nil
	}
	if Refused(err) {
		p.reset(err)
	}
	marked := Mark(p.pool.Config().ConnConfig, err)
	if _, away := errors.AsType[*Away](marked); !away && !errors.Is(err, context.Canceled) {
		p.answered() // by an error, or without a row
	}
	return marked
}

func (p *Pool) reset(err error) {
	p.pool.Reset()
	c := p.pool.Config().ConnConfig
	count(Name(c), 1)
	if p.log == nil {
		return
	}
	address := addressOf(c)
	if held, yes := logged.Let(address+"/"+c.Database, time.Now(), pace.Refusals); yes {
		p.log.Error("onlyonce: the database takes no writes: the server is a standby, or set to read-only; "+
			"the pool's connections are closed, and new ones are tried",
			"address", address, "database", c.Database, "error", err, "held_back", held)
	}
}

// Exec is pgxpool's.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if p.pinned {
		tag, err := p.execPinned(ctx, sql, args)
		return tag, p.Watch(err)
	}
	tag, err := p.pool.Exec(ctx, sql, args...)
	return tag, p.Watch(err)
}

// Query is pgxpool's. The caller reads the rows' error, as it must.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if p.pinned {
		r, err := p.queryPinned(ctx, sql, args)
		if err != nil {
			return nil, p.Watch(err)
		}
		return &rows{Rows: r, watch: p.Watch}, nil
	}
	r, err := p.pool.Query(ctx, sql, args...)
	return &rows{Rows: r, watch: p.Watch}, p.Watch(err)
}

// QueryRow is pgxpool's.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if p.pinned {
		return pinnedRow{p, ctx, sql, args}
	}
	return row{p.pool.QueryRow(ctx, sql, args...), p}
}

// SendBatch is pgxpool's. The caller reads the error of Close.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return results{p.pool.SendBatch(ctx, b), p.Watch}
}

// InTx is pgx.BeginTxFunc.
func (p *Pool) InTx(ctx context.Context, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	return p.Watch(pgx.BeginTxFunc(ctx, p.pool, options, func(tx pgx.Tx) error {
		if p.pinned {
			if _, err := tx.Exec(ctx, PinSQL); err != nil {
				return err
			}
		}
		return fn(tx)
	}))
}

// rows watches the error of rows, once.
type rows struct {
	pgx.Rows
	watch func(error) error
}

func (r *rows) Err() error {
	err := r.Rows.Err()
	if r.watch != nil && err != nil {
		_ = r.watch(err)
		r.watch = nil
	}
	return err
}

type row struct {
	pgx.Row
	pool *Pool
}

func (r row) Scan(dest ...any) error { return r.pool.Watch(r.Row.Scan(dest...)) }

type results struct {
	pgx.BatchResults
	watch func(error) error
}

func (r results) Close() error { return r.watch(r.BatchResults.Close()) }
