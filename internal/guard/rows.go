package guard

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// guardedRows are rows as a handler gets them: each method is a call of its handle's, and there is
// no connection.
type guardedRows struct {
	rows pgx.Rows
	h    *Handle
}

func (g guardedRows) Next() bool {
	if g.h.beginCall() != nil {
		return false
	}
	defer g.h.endCall(nil)
	return g.rows.Next()
}

func (g guardedRows) Close() {
	if g.h.beginCall() == nil {
		defer g.h.endCall(nil)
		g.rows.Close()
	}
}

func (g guardedRows) Err() (err error) {
	if err := g.h.beginCall(); err != nil {
		return err
	}
	defer g.h.endCall(&err)
	return g.rows.Err()
}

func (g guardedRows) CommandTag() (tag pgconn.CommandTag) {
	if g.h.beginCall() == nil {
		defer g.h.endCall(nil)
		tag = g.rows.CommandTag()
	}
	return tag
}

func (g guardedRows) FieldDescriptions() (fields []pgconn.FieldDescription) {
	if g.h.beginCall() == nil {
		defer g.h.endCall(nil)
		fields = g.rows.FieldDescriptions()
	}
	return fields
}

func (g guardedRows) Scan(dest ...any) (err error) {
	if err := g.h.beginCall(); err != nil {
		return err
	}
	defer g.h.endCall(&err)
	return g.rows.Scan(dest...)
}

func (g guardedRows) Values() (values []any, err error) {
	if err := g.h.beginCall(); err != nil {
		return nil, err
	}
	defer g.h.endCall(&err)
	return g.rows.Values()
}

func (g guardedRows) RawValues() (values [][]byte) {
	if g.h.beginCall() == nil {
		defer g.h.endCall(nil)
		values = g.rows.RawValues()
	}
	return values
}

func (g guardedRows) TypeMap() *pgtype.Map { return g.rows.TypeMap() }

func (guardedRows) Conn() *pgx.Conn { return nil }

// singleRow makes a pgx.Row of rows, as pgx's own QueryRow does.
type singleRow struct{ pgx.Rows }

func (r singleRow) Scan(dest ...any) error {
	defer r.Close()
	if err := r.Err(); err != nil {
		return err
	}
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Rows.Scan(dest...); err != nil {
		return err
	}
	r.Close()
	return r.Err()
}

// guardedBatch is the user's own batch inside the transaction.
type guardedBatch struct {
	r *result
	h *Handle
}

func (b guardedBatch) Exec() (tag pgconn.CommandTag, err error) {
	if err := b.h.beginCall(); err != nil {
		return tag, err
	}
	defer b.h.endCall(&err)
	if tag, err = b.r.batch.Exec(); err == nil {
		b.r.refuseEndTag(tag)
		b.r.next++
	}
	return tag, err
}

func (b guardedBatch) Query() (rows pgx.Rows, err error) {
	if err := b.h.beginCall(); err != nil {
		return failedRows{err}, err
	}
	defer b.h.endCall(&err)
	if rows, err = b.r.batch.Query(); err == nil { //nolint:sqlclosecheck // the caller's to close
		b.r.next++
	}
	return guardedRows{rows, b.h}, err
}

func (b guardedBatch) QueryRow() pgx.Row {
	rows, err := b.Query()
	if err != nil {
		return singleRow{failedRows{err}}
	}
	return singleRow{rows}
}

func (b guardedBatch) Tx() pgx.Tx { return nil }

func (b guardedBatch) Close() (err error) {
	if err := b.h.beginCall(); err != nil {
		return err
	}
	defer b.h.endCall(&err)
	b.r.finish()
	if err := b.r.tx.failureErr(); err != nil {
		return err
	}
	return b.r.err // of the caller's own code: a callback, or a Scan
}

// failedBatch and failedRows answer a statement that was never sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }

func (b failedBatch) Query() (pgx.Rows, error) { return failedRows(b), b.err }

func (b failedBatch) QueryRow() pgx.Row { return singleRow{failedRows(b)} }

func (b failedBatch) Tx() pgx.Tx { return nil }

func (b failedBatch) Close() error { return b.err }

type failedRows struct{ err error }

func (failedRows) Close() {}

func (r failedRows) Err() error { return r.err }

func (failedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

func (failedRows) Next() bool { return false }

func (r failedRows) Scan(...any) error { return r.err }

func (r failedRows) Values() ([]any, error) { return nil, r.err }

func (failedRows) RawValues() [][]byte { return nil }

func (failedRows) Conn() *pgx.Conn { return nil }

func (failedRows) TypeMap() *pgtype.Map { return nil }
