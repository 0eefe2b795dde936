package sqltx

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

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
	if verb, name := savepoint(query); verb != "" && len(args) == 0 {
		return driver.RowsAffected(0), c.save(ctx, verb, name)
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
	pgtype.BoolOID: 1, pgtype.ByteaOID: 1, pgtype.CIDOID: 1, pgtype.DateOID: 1, pgtype.Float4OID: 1, pgtype.Float8OID: 1,
	pgtype.Int2OID: 1, pgtype.Int4OID: 1, pgtype.Int8OID: 1, pgtype.OIDOID: 1, pgtype.TimestampOID: 1, pgtype.TimestamptzOID: 1, pgtype.XIDOID: 1,
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

// Verbs of savepoints.
const (
	verbSave    = "savepoint"
	verbRelease = "release"
	verbUndo    = "rollback to"
)

// savepoint recognizes the statements that set and end savepoints, written as libraries write them:
// "SAVEPOINT a", "RELEASE [SAVEPOINT] a", "ROLLBACK [WORK | TRANSACTION] TO [SAVEPOINT] a".
// Anything else is left to the guarded transaction, which refuses what controls it.
func savepoint(query string) (verb, name string) {
	words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(query), ";"))
	skip := func(optional ...string) {
		for _, o := range optional {
			if len(words) > 0 && strings.EqualFold(words[0], o) {
				words = words[1:]
				return
			}
		}
	}
	if len(words) < 2 {
		return "", ""
	}
	switch first := strings.ToLower(words[0]); first {
	case verbSave:
		words, verb = words[1:], verbSave
	case verbRelease:
		words, verb = words[1:], verbRelease
		skip("savepoint")
	case "rollback":
		words, verb = words[1:], verbUndo
		skip("work", "transaction")
		if len(words) == 0 || !strings.EqualFold(words[0], "to") {
			return "", ""
		}
		words = words[1:]
		skip("savepoint")
	}
	if verb == "" || len(words) != 1 || strings.ContainsAny(words[0], ";-/") {
		return "", ""
	}
	return verb, words[0]
}

// save sets a savepoint, or ends one and those that were set after it.
func (c *conn) save(ctx context.Context, verb, name string) error {
	if verb == verbSave {
		point, err := c.handle.Save(ctx)
		if err == nil {
			c.saved = append(c.saved, saved{name, point})
		}
		return err
	}
	at := len(c.saved) - 1
	for at >= 0 && c.saved[at].name != name {
		at--
	}
	if at < 0 {
		return c.handle.Refuse(fmt.Errorf("%w (savepoint %s is not open)", guard.ErrControl, name))
	}
	for len(c.saved) > at {
		last := c.saved[len(c.saved)-1]
		c.saved = c.saved[:len(c.saved)-1]
		end := c.handle.Release
		if verb == verbUndo {
			end = c.handle.Undo
		}
		if err := end(ctx, last.point); err != nil {
			return err
		}
	}
	return nil
}
