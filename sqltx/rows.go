package sqltx

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rowsAdapter adapts the rows of database/sql to pgx.Rows.
type rowsAdapter struct {
	sqlRows  *sql.Rows
	types    *pgtype.Map
	rowsRead int64
	scanErr  error // of a Scan
}

var _ pgx.Rows = (*rowsAdapter)(nil)

// Close ends the reading.
func (r *rowsAdapter) Close() {
	if err := r.sqlRows.Close(); err != nil && r.scanErr == nil {
		r.scanErr = withSQLState(err)
	}
}

// Err returns the error that ended the reading, or nil at the end of the rows.
func (r *rowsAdapter) Err() error {
	if r.scanErr != nil {
		return r.scanErr
	}
	return withSQLState(r.sqlRows.Err())
}

// CommandTag returns a tag with the number of rows that were read.
func (r *rowsAdapter) CommandTag() pgconn.CommandTag { return rowCountTag(r.rowsRead) }

// FieldDescriptions returns the columns' names only: drivers of database/sql agree on no more.
func (r *rowsAdapter) FieldDescriptions() []pgconn.FieldDescription {
	names, err := r.sqlRows.Columns()
	if err != nil {
		return nil
	}
	fields := make([]pgconn.FieldDescription, len(names))
	for i, n := range names {
		fields[i] = pgconn.FieldDescription{Name: n, Format: pgtype.TextFormatCode}
	}
	return fields
}

// Next goes to the next row.
func (r *rowsAdapter) Next() bool {
	if r.scanErr != nil || !r.sqlRows.Next() {
		r.Close()
		return false
	}
	r.rowsRead++
	return true
}

// Scan reads the row. A destination that database/sql supports is filled by it. For any other, for
// example an array or a type of pgtype, the server's text is decoded.
func (r *rowsAdapter) Scan(dest ...any) error {
	if len(dest) == 1 {
		if whole, ok := dest[0].(pgx.RowScanner); ok {
			return whole.ScanRow(r)
		}
	}
	all := make([]any, len(dest))
	for i, d := range dest {
		switch {
		case d == nil:
			all[i] = new(any)
		case scannable(d):
			all[i] = d
		default:
			all[i] = &textDestination{r.types, d}
		}
	}
	if err := r.sqlRows.Scan(all...); err != nil {
		r.scanErr = err
		r.Close()
		return err
	}
	return nil
}

// scannable reports whether database/sql can write into a destination itself.
func scannable(dest any) bool {
	switch dest.(type) {
	case sql.Scanner, *any, *[]byte, *time.Time:
		return true
	}
	t := reflect.TypeOf(dest)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Float64 || t.Kind() == reflect.String
}

// textDestination is a destination that is filled from the server's text.
type textDestination struct {
	types *pgtype.Map
	dest  any
}

// Scan is called by database/sql.
func (d *textDestination) Scan(src any) error {
	var text []byte
	switch v := src.(type) {
	case nil:
	case string:
		text = []byte(v)
	case []byte:
		text = v
	default:
		return fmt.Errorf("sqltx: the driver passed a %T for a %T, in place of text", src, d.dest)
	}
	typ, ok := d.types.TypeForValue(d.dest)
	if !ok {
		return fmt.Errorf("sqltx: %T has no known PostgreSQL text format", d.dest)
	}
	return d.types.Scan(typ.OID, pgtype.TextFormatCode, text, d.dest)
}

// Values returns the row's values in the driver's types.
func (r *rowsAdapter) Values() ([]any, error) {
	names, err := r.sqlRows.Columns()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	return values, r.Scan(into...)
}

// RawValues returns the row's values as database/sql writes them, with nil for null. It returns nil
// if they are not available.
func (r *rowsAdapter) RawValues() [][]byte {
	names, err := r.sqlRows.Columns()
	if err != nil {
		return nil
	}
	raw := make([][]byte, len(names))
	into := make([]any, len(names))
	for i := range raw {
		into[i] = &raw[i]
	}
	if r.Scan(into...) != nil {
		return nil
	}
	return raw
}

// Conn returns nil: the connection belongs to database/sql.
func (r *rowsAdapter) Conn() *pgx.Conn { return nil }

// TypeMap returns the types with which texts are decoded.
func (r *rowsAdapter) TypeMap() *pgtype.Map { return r.types }

// firstRow is the answer of QueryRow.
type firstRow struct {
	rows pgx.Rows
	err  error
}

// Scan reads the first row, or returns [pgx.ErrNoRows].
func (f *firstRow) Scan(dest ...any) error {
	if f.err != nil {
		return f.err
	}
	defer f.rows.Close()
	if !f.rows.Next() {
		if err := f.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	err := f.rows.Scan(dest...)
	f.rows.Close()
	return errors.Join(err, f.rows.Err())
}
