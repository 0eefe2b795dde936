package sqltx

import (
	"database/sql/driver"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// driverRows are a query's rows for database/sql, with the values that pgx's own driver makes.
type driverRows struct {
	conn    *conn
	found   pgx.Rows
	read    bool // the next row was asked for already: more says whether there is one
	more    bool
	columns []string
	convert []func(src []byte) (driver.Value, error)
}

// Columns are the names of the columns.
func (r *driverRows) Columns() []string {
	if r.columns == nil {
		fields := r.found.FieldDescriptions()
		r.columns = make([]string, len(fields))
		for i, f := range fields {
			r.columns[i] = f.Name
		}
	}
	return r.columns
}

// Close reads what is left. A goroutine of database/sql calls it if a query's context ends.
func (r *driverRows) Close() error {
	r.found.Close()
	return bare(r.found.Err())
}

// Next reads a row.
func (r *driverRows) Next(dest []driver.Value) error {
	if err := r.conn.admit(); err != nil {
		return err
	}
	if !r.read {
		r.more = r.found.Next()
	}
	r.read = false
	if !r.more {
		if err := r.found.Err(); err != nil {
			return bare(err)
		}
		return io.EOF
	}
	if r.convert == nil {
		r.conversions()
	}
	for i, src := range r.found.RawValues() {
		dest[i] = nil
		if src == nil {
			continue
		}
		v, err := r.convert[i](src)
		if err != nil {
			return fmt.Errorf("sqltx: column %d: %w", i+1, err)
		}
		dest[i] = v
	}
	return nil
}

// conversions finds a conversion for each column.
func (r *driverRows) conversions() {
	m := r.found.TypeMap()
	fields := r.found.FieldDescriptions()
	r.convert = make([]func([]byte) (driver.Value, error), len(fields))
	for i, f := range fields {
		oid := f.DataTypeOID
		format := f.Format
		switch oid {
		case pgtype.BoolOID:
			r.convert[i] = scanned(m, oid, format, func(v bool) (driver.Value, error) { return v, nil })
		case pgtype.ByteaOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
			r.convert[i] = scanned(m, oid, format, func(v []byte) (driver.Value, error) { return v, nil })
		case pgtype.CIDOID, pgtype.OIDOID, pgtype.XIDOID:
			r.convert[i] = scanned(m, oid, format, pgtype.Uint32.Value)
		case pgtype.DateOID:
			r.convert[i] = scanned(m, oid, format, pgtype.Date.Value)
		case pgtype.TimestampOID:
			r.convert[i] = scanned(m, oid, format, pgtype.Timestamp.Value)
		case pgtype.TimestamptzOID:
			r.convert[i] = scanned(m, oid, format, pgtype.Timestamptz.Value)
		case pgtype.Float4OID:
			r.convert[i] = scanned(m, oid, format, func(v float32) (driver.Value, error) { return float64(v), nil })
		case pgtype.Float8OID:
			r.convert[i] = scanned(m, oid, format, func(v float64) (driver.Value, error) { return v, nil })
		case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
			r.convert[i] = scanned(m, oid, format, func(v int64) (driver.Value, error) { return v, nil })
		default:
			r.convert[i] = scanned(m, oid, format, func(v string) (driver.Value, error) { return v, nil })
		}
	}
}

// scanned converts the server's bytes to a T and that to a value of database/sql.
func scanned[T any](
	m *pgtype.Map,
	oid uint32,
	format int16,
	value func(T) (driver.Value, error),
) func([]byte) (driver.Value, error) {
	plan := m.PlanScan(oid, format, new(T))
	return func(src []byte) (driver.Value, error) {
		var v T
		if err := plan.Scan(src, &v); err != nil {
			return nil, err
		}
		return value(v)
	}
}

// ColumnTypeDatabaseTypeName is the type's name in upper case, or its OID.
func (r *driverRows) ColumnTypeDatabaseTypeName(i int) string {
	oid := r.found.FieldDescriptions()[i].DataTypeOID
	if t, ok := r.found.TypeMap().TypeForOID(oid); ok {
		return strings.ToUpper(t.Name)
	}
	return strconv.FormatUint(uint64(oid), 10)
}

// ColumnTypeScanType is the Go type that fits a column's values.
func (r *driverRows) ColumnTypeScanType(i int) reflect.Type {
	switch r.found.FieldDescriptions()[i].DataTypeOID {
	case pgtype.Float8OID, pgtype.NumericOID:
		return reflect.TypeFor[float64]()
	case pgtype.Float4OID:
		return reflect.TypeFor[float32]()
	case pgtype.Int8OID:
		return reflect.TypeFor[int64]()
	case pgtype.Int4OID:
		return reflect.TypeFor[int32]()
	case pgtype.Int2OID:
		return reflect.TypeFor[int16]()
	case pgtype.BoolOID:
		return reflect.TypeFor[bool]()
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		return reflect.TypeFor[time.Time]()
	case pgtype.ByteaOID:
		return reflect.TypeFor[[]byte]()
	}
	return reflect.TypeFor[string]()
}
