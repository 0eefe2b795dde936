package outbox

import (
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// collect appends rows to what dst points to.
func collect[T any](dst *[]T, scan pgx.RowToFunc[T]) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		all, err := pgx.AppendRows(*dst, rows, scan)
		*dst = all
		return err
	}
}

// repeated is a text that most rows have in common. It is allocated anew only if it differs from
// the row before.
type repeated string

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(src []byte) error {
	if string(*r) != string(src) {
		*r = repeated(src)
	}
	return nil
}

// flightReader reads rows of wholeRow. It scans each row into the same variables.
type flightReader struct {
	id                                         int64
	key, order                                 pgtype.UUID
	tenant, scope, name, method, target, trace repeated
	headers                                    string
	body                                       []byte
	capture, sealed, suspect, blocked          bool
	age, wait                                  int64

	dst   []any
	space []flight // for the next rows
}

func newFlightReader() *flightReader {
	r := &flightReader{}
	r.dst = []any{&r.id, &r.key, &r.order, &r.tenant, &r.scope, &r.name, &r.method, &r.target, &r.headers, &r.trace, &r.body, &r.capture, &r.sealed,
		&r.age, &r.suspect, &r.wait, &r.blocked}
	return r
}

// read makes a flight of a row.
func (r *flightReader) read(row pgx.CollectableRow) (*flight, error) {
	if err := row.Scan(r.dst...); err != nil {
		return nil, err
	}
	if len(r.space) == 0 {
		r.space = make([]flight, bite)
	}
	f := &r.space[0]
	r.space = r.space[1:]
	f.key = r.key.Bytes
	f.Delivery = Delivery{
		Key: f.key.String(), ID: r.id, Tenant: string(r.tenant), Scope: string(r.scope), Name: string(r.name), Method: string(r.method), Target: string(r.target),
		Header: frozen.Parse(r.headers), Body: r.body, Trace: string(r.trace), Capture: r.capture,
	}
	if r.order.Valid {
		order := uuid.UUID(r.order.Bytes)
		f.order, f.Order = &order, order.String()
	}
	f.sealed, f.sealedAs, f.suspect, f.blocked = r.sealed, f.key, r.suspect, r.blocked
	// The database's clock may have been set back.
	f.age, f.wait = max(micros(r.age), 0), micros(r.wait)
	return f, nil
}

// ref is the place of a row.
type ref struct {
	id   int64
	slot int16
	tid  pgtype.TID
	size int64
}

// refReader reads rows of collectSQL.
func refReader() pgx.RowToFunc[ref] {
	var r ref
	dst := []any{&r.id, &r.slot, &r.tid, &r.size}
	return func(row pgx.CollectableRow) (ref, error) {
		err := row.Scan(dst...)
		return r, err
	}
}

// micros converts microseconds. It returns at most 292 years, so that a time in the year 9999 does
// not overflow into the past.
func micros(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(n, -most), most)) * time.Microsecond
}
