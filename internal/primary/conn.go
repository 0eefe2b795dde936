package primary

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Conn is a connection of a [Pool]. Release returns it, unless its server takes no writes.
type Conn struct {
	conn *pgxpool.Conn
	pool *Pool
}

// Acquire takes a connection.
func (p *Pool) Acquire(ctx context.Context) (*Conn, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, p.watchAcquire(err)
	}
	return &Conn{conn, p}, nil
}

// noted is the key of a connection's custom data under which [Note] keeps the refusal.
const noted = "onlyonce.primary"

// Note takes note of a refusal on a connection, for its Release. The caller has the connection to
// itself.
func Note(conn *pgx.Conn, err error) {
	if Refused(err) {
		conn.PgConn().CustomData()[noted] = err
	}
}

// Conn returns the connection. What fails on it is watched only if it is passed to [Note].
func (c *Conn) Conn() *pgx.Conn { return c.conn.Conn() }

// Exec is pgx's.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := c.conn.Exec(ctx, sql, args...)
	return tag, c.mark(err)
}

// mark is Note and [Mark]. The configuration is a copy, so it is made for an error only.
func (c *Conn) mark(err error) error {
	if err == nil {
		return nil
	}
	Note(c.Conn(), err)
	return Mark(c.Conn().Config(), err)
}

// SendBatch is pgx's. The caller reads the error of Close.
func (c *Conn) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return results{c.conn.SendBatch(ctx, b), c.mark}
}

// Hijack takes the connection out of the pool.
func (c *Conn) Hijack() *pgx.Conn { return c.conn.Hijack() }

// Release returns the connection to the pool. One whose server takes no writes is closed, and the
// pool is reset (T12).
func (c *Conn) Release() {
	refused, _ := c.Conn().PgConn().CustomData()[noted].(error)
	if refused != nil {
		c.pool.reset(refused) // first, so that the pool closes this connection too
	}
	c.conn.Release()
}
