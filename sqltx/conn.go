package sqltx

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/guard"
)

var (
	_ driver.Connector         = (*conn)(nil)
	_ driver.ConnBeginTx       = (*conn)(nil)
	_ driver.ExecerContext     = (*conn)(nil)
	_ driver.QueryerContext    = (*conn)(nil)
	_ driver.NamedValueChecker = (*conn)(nil)
)

// Connect is called once, by the BeginTx of Within.
func (c *conn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver is for sql.DB.Driver, which only Within could call.
func (c *conn) Driver() driver.Driver { return noDriver{} }

type noDriver struct{}

func (noDriver) Open(string) (driver.Conn, error) {
	return nil, guard.Misuse("sqltx: a handler's transaction cannot be opened by name")
}

// Close does nothing: the connection is the handler's.
func (c *conn) Close() error { return nil }

// Begin and BeginTx begin nothing: the transaction is the handler's.
func (c *conn) Begin() (driver.Tx, error) { return c, nil }

// BeginTx is Begin with options that Within does not set.
func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

// Commit refuses the handler's call of sql.Tx.Commit.
func (c *conn) Commit() error { return c.refuse("Commit") }

// Rollback refuses the handler's call of sql.Tx.Rollback. It does nothing if Within calls it.
func (c *conn) Rollback() error {
	if c.over.Load() {
		return nil
	}
	return c.refuse("Rollback")
}

func (c *conn) refuse(method string) error {
	return c.handle.Refuse(fmt.Errorf("%w (%s of the *sql.Tx)", guard.ErrControl, method))
}

// CheckNamedValue lets every argument through: pgx encodes it, as it does with its own driver.
func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

// Prepare and PrepareContext keep the text only: pgx prepares statements by itself.
func (c *conn) Prepare(query string) (driver.Stmt, error) { return &prepared{c, query}, nil }

// PrepareContext is Prepare.
func (c *conn) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return c.Prepare(query)
}

// ExecContext sends a statement.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	if s, is := guard.ReadSavepoint(query); is && len(args) == 0 {
		return driver.RowsAffected(0), c.save(ctx, query, s)
	}
	tag, err := c.handle.Exec(ctx, query, values(nil, args)...)
	return driver.RowsAffected(tag.RowsAffected()), bare(err)
}

// QueryContext sends a query and reads its first row, because database/sql asks for the columns
// before it asks for rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	found, err := c.handle.Query(ctx, query, values([]any{formats}, args)...)
	if err != nil {
		return nil, bare(err)
	}
	r := &driverRows{conn: c, found: found, read: true}
	r.more = found.Next()
	if err := found.Err(); err != nil {
		found.Close()
		return nil, bare(err)
	}
	return r, nil
}

// values appends the arguments as pgx takes them.
func values(to []any, args []driver.NamedValue) []any {
	for _, a := range args {
		to = append(to, a.Value)
	}
	return to
}

// formats are the types that are read in binary; all others come as text.
var formats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID:        1,
	pgtype.ByteaOID:       1,
	pgtype.CIDOID:         1,
	pgtype.DateOID:        1,
	pgtype.Float4OID:      1,
	pgtype.Float8OID:      1,
	pgtype.Int2OID:        1,
	pgtype.Int4OID:        1,
	pgtype.Int8OID:        1,
	pgtype.OIDOID:         1,
	pgtype.TimestampOID:   1,
	pgtype.TimestamptzOID: 1,
	pgtype.XIDOID:         1,
}

// prepared is a statement of sql.Tx.Prepare.
type prepared struct {
	conn  *conn
	query string
}

func (p *prepared) Close() error  { return nil }
func (p *prepared) NumInput() int { return -1 }

// Exec and Query are not called, because there are ExecContext and QueryContext.
func (p *prepared) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }
func (p *prepared) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip }

func (p *prepared) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return p.conn.ExecContext(ctx, p.query, args)
}

func (p *prepared) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return p.conn.QueryContext(ctx, p.query, args)
}

// save sets a savepoint, ends one, or goes back to one, by its user's name for it. The server does
// not get that name: it could be that of a savepoint around Within.
func (c *conn) save(ctx context.Context, query string, s guard.SavepointStatement) error {
	if s.Verb == guard.SetSavepoint {
		point, err := c.handle.Save(ctx)
		if err == nil {
			c.saved = append(c.saved, saved{s.Name, point})
		}
		return bare(err)
	}
	at := len(c.saved) - 1
	for at >= 0 && c.saved[at].name != s.Name {
		at--
	}
	if at < 0 {
		return bare(c.handle.FailNoSavepoint(query, s.Name))
	}
	if s.Verb == guard.ReleaseSavepoint {
		err := c.handle.Release(ctx, c.saved[at].point)
		if err == nil {
			c.saved = c.saved[:at]
		}
		return bare(err)
	}
	err := c.handle.Undo(ctx, c.saved[at].point)
	if err == nil {
		c.saved = c.saved[:at+1] // and those of the same name that are further out
	}
	return bare(err)
}
