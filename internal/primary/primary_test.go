package primary_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const insert = `insert into effects values (1) returning v`

// T12: whatever statement of an engine meets a server that takes no writes, none of the pool's
// connections is used again.
func TestT12ResetsThePool(t *testing.T) {
	t.Parallel()
	base := pgtest.DB(t)
	if _, err := base.Exec(t.Context(), `create table effects (v int)`); err != nil {
		t.Fatal(err)
	}
	log, logged := pgtest.Logged()
	batch := func() *pgx.Batch { b := &pgx.Batch{}; b.Queue(insert); return b }
	acquired := func(do func(c *primary.Conn) error) func(*primary.Pool) error {
		return func(p *primary.Pool) error {
			c, err := p.Acquire(t.Context())
			if err != nil {
				return err
			}
			defer c.Release()
			return do(c)
		}
	}
	for name, do := range map[string]func(p *primary.Pool) error{
		"Exec": func(p *primary.Pool) error { _, err := p.Exec(t.Context(), insert); return err },
		"Query": func(p *primary.Pool) error {
			rows, err := p.Query(t.Context(), insert)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"QueryRow":  func(p *primary.Pool) error { return p.QueryRow(t.Context(), insert).Scan(new(int)) },
		"SendBatch": func(p *primary.Pool) error { return p.SendBatch(t.Context(), batch()).Close() },
		"InTx": func(p *primary.Pool) error {
			return p.InTx(t.Context(), pgx.TxOptions{}, func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), insert); return err })
		},
		"Conn.Exec":      acquired(func(c *primary.Conn) error { _, err := c.Exec(t.Context(), insert); return err }),
		"Conn.SendBatch": acquired(func(c *primary.Conn) error { return c.SendBatch(t.Context(), batch()).Close() }),
		"guard": acquired(func(c *primary.Conn) error {
			tx := guard.Begin(c.Conn())
			defer tx.Rollback(time.Second)
			tx.Engine("fence", insert)
			return tx.Commit(time.Second * 10)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			pool := pgtest.Stale(t, base)
			p := primary.Of(pool, log)
			if err := do(p); !primary.Refused(err) {
				t.Fatalf("a stale session: %v", err)
			}
			if stale(t, pool) {
				t.Error("the pool still has connections to it")
			}
			if err := do(p); err != nil {
				if name == "guard" { // the insert alone is not fenced
					var pg *pgconn.PgError
					if errors.As(err, &pg) && !primary.Refused(err) {
						return
					}
				}
				t.Error(err)
			}
		})
	}
	if n := primary.Refusals()[primary.Name(base.Config().ConnConfig)]; n != 8 {
		t.Errorf("%d refusals are counted, want one each", n)
	}
	if n := strings.Count(logged(), "takes no writes"); n != 1 {
		t.Errorf("%d lines, want one a minute:\n%s", n, logged())
	}
}

// T12: a connection of whose server the pool learns that it is a standby is not the only one that
// leads there.
func TestT12AcquireThatFindsAStandby(t *testing.T) {
	t.Parallel()
	cfg := pgtest.DB(t).Config().Copy()
	standby := false
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if standby {
			return false, primary.ErrStandby
		}
		return true, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := primary.Of(pool, nil)
	var all []*primary.Conn
	for range 3 {
		c, err := p.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	for _, c := range all {
		c.Release()
	}
	standby = true
	if _, err := p.Acquire(t.Context()); !primary.Refused(err) {
		t.Fatalf("acquired from a standby: %v", err)
	}
	pgtest.Until(t, pgtest.Patience(20*time.Second), "all connections to it are closed", func() bool {
		return pool.Stat().TotalConns() == 0
	})
}

// stale reports whether a connection of the pool leads to a session that takes no writes.
func stale(t *testing.T, pool *pgxpool.Pool) (found bool) {
	t.Helper()
	for _, c := range pool.AcquireAllIdle(t.Context()) {
		var off string
		err := c.QueryRow(t.Context(), `show default_transaction_read_only`).Scan(&off)
		found = found || err != nil || off == "on"
		c.Release()
	}
	return found
}

// T12: a handler that makes its own transaction read-only costs no connection.
func TestT12HandlersOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	p := primary.Of(pool, nil)
	c, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx := guard.Begin(c.Conn())
	if _, err := tx.Exec(t.Context(), `set transaction read only`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `create table effects (v int)`); !primary.Refused(err) {
		t.Fatalf("%v", err)
	}
	tx.Rollback(10 * time.Second)
	c.Release()
	if s := pool.Stat(); s.IdleConns() != 1 || s.NewConnsCount() != 1 {
		t.Errorf("%d idle of %d connections", s.IdleConns(), s.NewConnsCount())
	}
}

// The wait after a refusal is short, and another one is not shortened.
func TestWait(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "25006"}
	if d := primary.Wait(refused, time.Minute); d != time.Second {
		t.Error(d)
	}
	if d := primary.Wait(refused, time.Millisecond); d != time.Millisecond {
		t.Error(d)
	}
	if d := primary.Wait(errors.New("another"), time.Minute); d != time.Minute {
		t.Error(d)
	}
}

// An owner that cannot reach the database tries each second, whatever the error, and more often at
// first or if its leases are short.
func TestT12WaitsOfAnOwner(t *testing.T) {
	t.Parallel()
	for ttl, most := range map[time.Duration]time.Duration{
		30 * time.Second: time.Second,
		10 * time.Minute: 10 * time.Second,
		time.Second:      150 * time.Millisecond,
	} {
		b := primary.Backoff(ttl)
		if first := b.NextBackOff(); first > min(ttl*3/200, time.Second) {
			t.Errorf("a lease of %v: the first wait is %v", ttl, first)
		}
		for range 100 {
			if d := b.NextBackOff(); d > min(most, time.Second) {
				t.Errorf("a lease of %v: a wait of %v", ttl, d)
			}
		}
	}
}
