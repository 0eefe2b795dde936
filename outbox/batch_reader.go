package outbox

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/frozen"
)

// batch is a row of onlyonce.batches.
type batch struct {
	batchPlace
	calls []*callAttempt
}

// repeatedText is a text that most batches have in common. It is allocated anew only if it differs
// from the batch before. NULL becomes the empty text.
type repeatedText string

// ScanBytes implements pgtype.BytesScanner.
func (r *repeatedText) ScanBytes(src []byte) error {
	if string(*r) != string(src) {
		*r = repeatedText(src)
	}
	return nil
}

// textColumn is a text of each call: `one` for all of them, unless there are many.
type textColumn struct {
	one  repeatedText
	many []byte
}

// batchReader reads rows of batchColumns. It scans each row into the same variables.
type batchReader struct {
	id, n, now, age, waited                              int64
	xid                                                  string
	keys, orderKeys, bodies                              []byte
	order                                                pgtype.UUID
	orderPrefix                                          pgtype.Int8
	orderPrefixes                                        []byte
	tenant, scope, name, method, target, headers, traces textColumn
	body                                                 []byte
	notBefore, capture, sealed, lostAges, blocked        []byte

	dst []any
}

// newBatchReader returns a reader of batchColumns, and of the number of batches that were found
// unless found is nil.
func newBatchReader(found *int) *batchReader {
	r := &batchReader{}
	r.dst = []any{
		&r.id, &r.n, &r.xid, &r.now, &r.age, &r.waited, &r.keys, &r.order, &r.orderKeys,
		&r.orderPrefix, &r.orderPrefixes,
	}
	for _, c := range []*textColumn{&r.tenant, &r.scope, &r.name, &r.method, &r.target, &r.headers, &r.traces} {
		r.dst = append(r.dst, &c.one, &c.many)
	}
	r.dst = append(r.dst, &r.body, &r.bodies, &r.notBefore, &r.capture, &r.sealed, &r.lostAges, &r.blocked)
	if found != nil {
		r.dst = append(r.dst, found)
	}
	return r
}

// readRow makes a batch of a row. The bodies of its calls are slices of one array, which lives as
// long as one of them does.
func (r *batchReader) readRow(row pgx.CollectableRow) (*batch, error) {
	if err := row.Scan(r.dst...); err != nil {
		return nil, err
	}
	attempts := make([]callAttempt, r.n)
	b := &batch{batchPlace: batchPlace{r.id, r.xid}, calls: make([]*callAttempt, r.n)}
	// The database's clock may have been set back.
	age := max(fromMicros(r.age), 0)
	waited := max(fromMicros(r.waited), 0)
	for i := range attempts {
		a := &attempts[i]
		b.calls[i] = a
		a.batch = b.batchPlace
		a.ID = r.id + int64(i)
		a.pick = 1
		a.age = age
		a.waited = waited
	}
	var err error
	each := func(column string, array []byte, set func(a *callAttempt, element []byte)) {
		if err == nil && array != nil {
			err = forElements(array, int(r.n), func(i int, element []byte) { set(b.calls[i], element) })
			if err != nil {
				err = fmt.Errorf("outbox: batch %d: %s: %w", r.id, column, err)
			}
		}
	}
	each("keys", r.keys, func(a *callAttempt, element []byte) {
		a.key = uuid.UUID(element)
		a.Key = a.key.String()
		a.firstKey = a.key
	})
	r.readOrder(b, each)
	for _, a := range b.calls {
		a.orderPrefix = r.orderPrefix.Int64 // 0: null
	}
	each("order_prefixes", r.orderPrefixes, func(a *callAttempt, element []byte) {
		if element != nil {
			a.orderPrefix = int64(binary.BigEndian.Uint64(element))
		}
	})
	r.readTexts(b, each)
	if r.headers.many == nil {
		header := frozen.Parse(string(r.headers.one)) // sinks must not change it
		for _, a := range b.calls {
			a.Header = header
		}
	}
	each("headers", r.headers.many, func(a *callAttempt, element []byte) { a.Header = frozen.Parse(string(element)) })
	if r.bodies == nil {
		for _, a := range b.calls {
			a.Body = r.body
		}
	}
	// An append to a body must not reach the one after it.
	each("bodies", r.bodies, func(a *callAttempt, element []byte) { a.Body = element[:len(element):len(element)] })
	each("not_before", r.notBefore, func(a *callAttempt, element []byte) {
		if element != nil {
			a.notBeforeIn = untilMicros(int64(binary.BigEndian.Uint64(element)), r.now)
		}
	})
	each("capture", r.capture, func(a *callAttempt, element []byte) { a.Capture = isTrue(element) })
	each("sealed", r.sealed, func(a *callAttempt, element []byte) { a.sealed = isTrue(element) })
	each("lost history", r.lostAges, func(a *callAttempt, element []byte) {
		if element != nil {
			a.maybeCalledBefore = true
			a.age = max(fromMicros(int64(binary.BigEndian.Uint64(element))), 0)
		}
	})
	return b, err
}

// forEach calls a function for each element of a column.
type forEach func(column string, array []byte, set func(a *callAttempt, element []byte))

// readTexts reads the texts of a batch's calls.
func (r *batchReader) readTexts(b *batch, each forEach) {
	text := func(column string, c *textColumn, field func(a *callAttempt) *string) {
		if c.many == nil {
			one := string(c.one)
			for _, a := range b.calls {
				*field(a) = one
			}
		}
		each(column, c.many, func(a *callAttempt, element []byte) { *field(a) = string(element) })
	}
	text("tenants", &r.tenant, func(a *callAttempt) *string { return &a.Tenant })
	text("scopes", &r.scope, func(a *callAttempt) *string { return &a.Scope })
	text("names", &r.name, func(a *callAttempt) *string { return &a.Name })
	text("methods", &r.method, func(a *callAttempt) *string { return &a.Method })
	text("targets", &r.target, func(a *callAttempt) *string { return &a.Target })
	text("traces", &r.traces, func(a *callAttempt) *string { return &a.Trace })
}

// readOrder reads the ordering keys of a batch's calls, and which of them a parked call blocks.
func (r *batchReader) readOrder(b *batch, each forEach) {
	if !r.order.Valid && r.orderKeys == nil {
		return
	}
	blocked := map[uuid.UUID]bool{}
	if n := elementCount(r.blocked); n > 0 {
		_ = forElements(r.blocked, n, func(_ int, element []byte) { blocked[uuid.UUID(element)] = true })
	}
	set := func(a *callAttempt, key uuid.UUID) {
		a.order = &key
		a.Order = key.String()
		a.keyParked = blocked[key]
	}
	if r.order.Valid {
		for _, a := range b.calls {
			set(a, r.order.Bytes)
		}
	}
	each("order_keys", r.orderKeys, func(a *callAttempt, element []byte) {
		if element != nil {
			set(a, uuid.UUID(element))
		}
	})
}

// elementCount is how many elements an array has, as array_send writes it: the number of
// dimensions, whether there are nulls, the type, and for each dimension its length and first index.
func elementCount(array []byte) int {
	if len(array) < 12 {
		return 0
	}
	n := 1
	dimensions := int(binary.BigEndian.Uint32(array))
	for i := range dimensions {
		n *= int(binary.BigEndian.Uint32(array[12+8*i:]))
	}
	if dimensions == 0 {
		return 0
	}
	return n
}

// forElements calls f with each element of an array of n, nil for a null. Elements are slices of
// the array.
func forElements(array []byte, n int, f func(i int, element []byte)) error {
	if got := elementCount(array); got != n {
		return fmt.Errorf("%d elements in a batch of %d calls", got, n)
	}
	rest := array[12+8*int(binary.BigEndian.Uint32(array)):]
	for i := range n {
		size := int32(binary.BigEndian.Uint32(rest))
		rest = rest[4:]
		if size < 0 {
			f(i, nil)
			continue
		}
		f(i, rest[:size])
		rest = rest[size:]
	}
	return nil
}

func isTrue(element []byte) bool { return len(element) == 1 && element[0] == 1 }

// untilMicros is how long it is from now to a time, both in microseconds since 2000. The largest
// and the smallest time are Postgres' infinities.
func untilMicros(at, now int64) time.Duration {
	switch {
	case at == math.MaxInt64, at > 0 && now < 0:
		return fromMicros(math.MaxInt64)
	case at == math.MinInt64:
		return fromMicros(math.MinInt64 + 1)
	}
	return fromMicros(at - now)
}
