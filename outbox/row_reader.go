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

// repeatedText is a text that most rows have in common. It is allocated anew only if it differs
// from the row before.
type repeatedText string

// ScanBytes implements pgtype.BytesScanner.
func (r *repeatedText) ScanBytes(src []byte) error {
	if string(*r) != string(src) {
		*r = repeatedText(src)
	}
	return nil
}

// rowReader reads rows of callColumns. It scans each row into the same variables.
type rowReader struct {
	id                                         int64
	key, order                                 pgtype.UUID
	tenant, scope, name, method, target, trace repeatedText
	headers                                    string
	body                                       []byte
	capture, sealed, mayBeCalled, blocked      bool
	age, wait, waited                          int64

	dst   []any
	spare []callAttempt // for the next rows
}

func newRowReader() *rowReader {
	r := &rowReader{}
	r.dst = []any{&r.id, &r.key, &r.order, &r.tenant, &r.scope, &r.name, &r.method, &r.target, &r.headers, &r.trace, &r.body, &r.capture, &r.sealed,
		&r.age, &r.mayBeCalled, &r.wait, &r.waited, &r.blocked}
	return r
}

// readRow makes a callAttempt of a row.
func (r *rowReader) readRow(row pgx.CollectableRow) (*callAttempt, error) {
	if err := row.Scan(r.dst...); err != nil {
		return nil, err
	}
	if len(r.spare) == 0 {
		r.spare = make([]callAttempt, firstRows)
	}
	a := &r.spare[0]
	r.spare = r.spare[1:]
	a.key = r.key.Bytes
	a.Delivery = Delivery{
		Key: a.key.String(), ID: r.id, Tenant: string(r.tenant), Scope: string(r.scope), Name: string(r.name), Method: string(r.method), Target: string(r.target),
		Header: frozen.Parse(r.headers), Body: r.body, Trace: string(r.trace), Capture: r.capture,
	}
	if r.order.Valid {
		order := uuid.UUID(r.order.Bytes)
		a.order, a.Order = &order, order.String()
	}
	a.sealed, a.sealedAs, a.mayBeCalled, a.keyParked = r.sealed, a.key, r.mayBeCalled, r.blocked
	// The database's clock may have been set back.
	a.age, a.notBeforeIn, a.waited = max(fromMicros(r.age), 0), fromMicros(r.wait), max(fromMicros(r.waited), 0)
	return a, nil
}

// rowRef is the place of a row.
type rowRef struct {
	id   int64
	slot int16
	tid  pgtype.TID
	size int64
}

// newRefReader reads rows of collectSQL.
func newRefReader() pgx.RowToFunc[rowRef] {
	var r rowRef
	dst := []any{&r.id, &r.slot, &r.tid, &r.size}
	return func(row pgx.CollectableRow) (rowRef, error) {
		err := row.Scan(dst...)
		return r, err
	}
}

// fromMicros converts microseconds. It returns at most 292 years, so that a time in the year 9999
// does not overflow into the past.
func fromMicros(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(min(max(n, -most), most)) * time.Microsecond
}
