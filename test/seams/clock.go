package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/rig/workerdb"
)

// clockSQL makes the clock of a database one that a history can move: what the server calls
// clock_timestamp, in defaults and functions too, is ahead of the machine's clock by the session's
// setting seams.ahead. The rows' times stay as they were written, as in real time.
const clockSQL = `
create or replace function pg_catalog.seams_clock() returns timestamptz
  language internal volatile strict parallel safe as 'clock_timestamp';
create or replace function pg_catalog.clock_timestamp() returns timestamptz language sql volatile parallel safe as $$
  select pg_catalog.seams_clock() + coalesce(nullif(pg_catalog.current_setting('seams.ahead', true), ''), '0')::interval
$$`

// setAheadSQL sets a session's clock. In: interval.
const setAheadSQL = `select set_config('seams.ahead', $1, false)`

// clock is a database's clock, and the pool whose sessions have it.
type clock struct {
	ahead atomic.Int64
	of    *pgxpool.Pool // the worker's own, from which pool was made
	pool  *pgxpool.Pool
}

// adapt makes the pool for a database, unless it is the one of before.
func (c *clock) adapt(ctx context.Context, db *workerdb.DB) error {
	c.ahead.Store(0)
	if c.of == db.Pool {
		return nil
	}
	c.close()
	cfg := db.Pool.Config()
	cfg.MaxConns = 24
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	cfg.PrepareConn = c.set
	var err error
	c.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	c.of = db.Pool
	return err
}

func (c *clock) close() {
	if c.pool != nil {
		c.pool.Close()
	}
}

// now is the time that has passed in the history.
func (c *clock) now() time.Duration { return time.Duration(c.ahead.Load()) }

// move moves the clock, of sessions that are taken from the pool from now on.
func (c *clock) move(by time.Duration) { c.ahead.Add(int64(by)) }

func interval(d time.Duration) string { return fmt.Sprintf("%d microseconds", d.Microseconds()) }

// ahead is the key of a session's custom data that has its clock.
const ahead = "seams.ahead"

// set gives a session the clock of now. It is called before each use of the session.
func (c *clock) set(ctx context.Context, conn *pgx.Conn) (bool, error) {
	of := conn.PgConn().CustomData()
	now := c.now()
	if had, set := of[ahead].(time.Duration); set && had == now {
		return true, nil
	}
	if _, err := conn.Exec(ctx, setAheadSQL, interval(now)); err != nil {
		return false, err
	}
	of[ahead] = now
	return true, nil
}
