package outbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
)

const (
	// maxBatchCalls and maxBatchBytes bound a batch: its calls, and its bodies if it has more than
	// one. A relay reads batches whole, and a call that takes long keeps the bodies of its batch in
	// memory. The first is part of the stored format.
	maxBatchCalls = 1024
	maxBatchBytes = 256 << 10
	// laneRun is how many calls without an ordering key one transaction writes to a lane before it
	// goes on to the next one. A longer run makes larger batches, and a shorter one lets more lanes
	// send them.
	laneRun = 128
)

// enqueueArgs is how many arguments onlyonce.enqueue_batch has.
const enqueueArgs = 32

// newBatch is a batch that is about to be written.
type newBatch struct {
	sink  string
	lane  int16
	calls []*callRow
	bytes int // of the bodies
}

// enqueueStatement writes calls, which are *callRow, in batches. It is one statement, whose
// functions are called in their order: the first one takes the locks of all ordering keys, before
// any of them draws an id (O4).
func (r *hintedLanes) enqueueStatement(rows []any) (sql string, args []any) {
	batches := makeBatches(rows)
	args = make([]any, 0, enqueueArgs*len(batches))
	for i, b := range batches {
		var locks any
		if i == 0 {
			locks = orderKeys(rows)
		}
		args = b.appendArgs(append(args, locks))
		b.note()
		r.hint(b.sink, b.lane)
	}
	if len(batches) == 1 {
		return enqueueOneSQL, args
	}
	return enqueueSQL(len(batches)), args
}

// enqueueOneSQL writes one batch, as nearly all transactions do.
var enqueueOneSQL = enqueueSQL(1)

// enqueueSQL returns the statement that writes so many batches.
func enqueueSQL(batches int) string {
	var text strings.Builder
	for i := range batches {
		if i == 0 {
			text.WriteString("select ")
		} else {
			text.WriteString(", ")
		}
		text.WriteString("onlyonce.enqueue_batch(")
		for n := range enqueueArgs {
			if n > 0 {
				text.WriteString(", ")
			}
			fmt.Fprintf(&text, "$%d", i*enqueueArgs+n+1)
		}
		text.WriteByte(')')
	}
	return text.String()
}

// makeBatches divides calls into batches, in their order. A call with an ordering key belongs to
// that key's lane. The lane of the others is free: a transaction begins with any, and goes on to
// the next one after a while. A fixed choice, for example by the call's key, would divide them into
// sixteen batches; one lane for all would leave the other lanes idle.
func makeBatches(rows []any) (all []*newBatch) {
	type place struct {
		sink string
		lane int16
	}
	open := map[place]*newBatch{}
	start := rand.IntN(lanes)
	free := 0
	for _, row := range rows {
		call := row.(*callRow)
		lane := int16((start + free/laneRun) % lanes)
		if call.order != nil {
			lane = laneOf(*call.order)
		} else {
			free++
		}
		at := place{call.sink, lane}
		b := open[at]
		if b == nil || len(b.calls) == maxBatchCalls || b.bytes+len(call.body) > maxBatchBytes {
			b = &newBatch{sink: call.sink, lane: lane}
			open[at] = b
			all = append(all, b)
		}
		b.calls = append(b.calls, call)
		b.bytes = b.bytes + len(call.body)
	}
	return all
}

// note notes the calls for the records that must outlive them.
func (b *newBatch) note() {
	for _, c := range b.calls {
		if c.noted != nil {
			c.noted.Note(c.key, b.sink, b.lane)
		}
	}
}

// laneOf returns the lane of an ordering key, as the SQL function onlyonce.lane does.
func laneOf(key uuid.UUID) int16 { return int16(key[15] & (lanes - 1)) }

// orderKeys returns the ordering keys of calls, nil if there are none.
func orderKeys(rows []any) any {
	var keys [][16]byte
	for _, row := range rows {
		if k := row.(*callRow).order; k != nil {
			keys = append(keys, *k)
		}
	}
	if keys == nil {
		return nil
	}
	return codec.UUIDs(keys)
}

// appendArgs appends the arguments of onlyonce.enqueue_batch after the first.
func (b *newBatch) appendArgs(args []any) []any {
	n := len(b.calls)
	args = append(args,
		array(b, func(c *callRow) (v pgtype.Int2, given bool) {
			return pgtype.Int2{Int16: c.duplicateCheck, Valid: true}, c.duplicateCheck != checkNone
		}),
		array(b, func(c *callRow) (v pgtype.Int8, given bool) {
			if c.duplicateCheck == checkByClaim {
				v.Int64 = callFingerprint(c)
				v.Valid = true
			}
			return v, v.Valid
		}),
		b.lane, b.sink,
		codec.Array(n, func(i int) pgtype.UUID { return codec.UUID(b.calls[i].key) }))
	args = appendColumn(args, b, func(c *callRow) (v pgtype.UUID) {
		if c.order != nil {
			v.Bytes = *c.order
			v.Valid = true
		}
		return v
	})
	args = appendColumn(args, b, func(c *callRow) pgtype.Int8 {
		return pgtype.Int8{Int64: c.orderPrefix, Valid: c.orderPrefix != 0}
	})
	for _, field := range []func(*callRow) *string{
		func(c *callRow) *string { return &c.tenant },
		func(c *callRow) *string { return &c.scope },
		func(c *callRow) *string { return &c.name },
		func(c *callRow) *string { return &c.method },
		func(c *callRow) *string { return &c.target },
		func(c *callRow) *string { return &c.headers },
		func(c *callRow) *string { return c.trace },
	} {
		args = appendColumn(args, b, func(c *callRow) (v pgtype.Text) {
			if s := field(c); s != nil {
				v.String = *s
				v.Valid = true
			}
			return v
		})
	}
	if n == 1 {
		args = append(args, b.calls[0].body, nil)
	} else {
		bodies := make([][]byte, n)
		for i, c := range b.calls {
			bodies[i] = c.body
		}
		args = append(args, nil, bodies)
	}
	moment := func(at *time.Time) (v pgtype.Timestamptz) {
		if at != nil {
			// Postgres keeps microseconds. The same instant is the same value, in whatever zone.
			v.Time = at.UTC().Round(0)
			v.Valid = true
		}
		return v
	}
	args = appendColumn(args, b, func(c *callRow) pgtype.Timestamptz { return moment(c.originTime) })
	flag := func(field func(*callRow) bool) any {
		return array(b, func(c *callRow) (v pgtype.Bool, given bool) {
			return pgtype.Bool{Bool: field(c), Valid: true}, field(c)
		})
	}
	return append(
		args,
		array(b, func(c *callRow) (v pgtype.Timestamptz, given bool) {
			return moment(c.notBefore), c.notBefore != nil
		}),
		flag(func(c *callRow) bool { return c.redo }),
		flag(func(c *callRow) bool { return c.capture }),
		flag(func(c *callRow) bool { return c.sealed }),
	)
}

// array returns an array with an element for each call, or nil if none of them is given.
func array[T any](b *newBatch, element func(c *callRow) (v T, given bool)) any {
	some := false
	values := make([]T, len(b.calls))
	for i, c := range b.calls {
		v, given := element(c)
		values[i] = v
		some = some || given
	}
	if !some {
		return nil
	}
	return codec.Array(len(values), func(i int) T { return values[i] })
}

// appendColumn appends a column and its plural: what all calls have in common, and nil, or the
// other way round.
func appendColumn[T comparable](args []any, b *newBatch, element func(c *callRow) T) []any {
	values := make([]T, len(b.calls))
	same := true
	for i, c := range b.calls {
		values[i] = element(c)
		same = same && values[i] == values[0]
	}
	if same {
		return append(args, values[0], nil)
	}
	return append(args, nil, codec.Array(len(values), func(i int) T { return values[i] }))
}

// callFingerprint is what the SQL function onlyonce.call_fingerprint returns: 64 bits of SHA-256
// over the frozen parts of a call. A sealed body is left out, because it is different each time it
// is sealed.
func callFingerprint(c *callRow) int64 {
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %d %d\n%s%s%s%s",
		len(c.sink), len(c.tenant), len(c.scope), len(c.name), c.sink, c.tenant, c.scope, c.name)
	fmt.Fprintf(h, "%s\n%s\n%s\n\n", c.method, c.target, c.headers)
	if !c.sealed {
		h.Write(c.body)
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// laneHints says which lanes of a sink this process has written calls to since the sink's sender
// last looked: one bit for each lane. A relay that is woken begins with those lanes, a round trip
// before it could learn of them from the database. They are only hints: the transaction may not
// have committed yet or may never do so, it may be one of another database, and other processes
// write too. So the relay asks the database as well.
type laneHints struct{ bits atomic.Uint32 }

// hintedLanes are the hints of the senders that run in this process, by the names of their sinks.
// The process shares them, because Enqueue is a function and gets no relay.
type hintedLanes struct {
	mu     sync.RWMutex
	bySink map[string][]*laneHints
}

// add has hints about a sink go to h as well, until remove is called.
func (r *hintedLanes) add(sink string, h *laneHints) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bySink == nil {
		r.bySink = map[string][]*laneHints{}
	}
	r.bySink[sink] = append(r.bySink[sink], h)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		others := slices.DeleteFunc(r.bySink[sink], func(other *laneHints) bool { return other == h })
		r.bySink[sink] = others
		if len(others) == 0 {
			delete(r.bySink, sink)
		}
	}
}

// hint records that calls are being written to a lane of a sink.
func (r *hintedLanes) hint(sink string, lane int16) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, h := range r.bySink[sink] {
		h.bits.Or(1 << lane)
	}
}
