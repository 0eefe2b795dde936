package outbox

import (
	"cmp"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// refsAtOnce is how many places of batches one statement reads, so that it ends in time,
	// however many batches a pass has.
	refsAtOnce = 8192
	// maxRefs bounds the places that are held in memory.
	maxRefs = 100_000
)

// batchRef is the place of a batch.
type batchRef struct {
	xid   int64
	id    int64
	calls int16
	slot  int16
	tid   pgtype.TID
	bytes int64 // of its bodies
}

// refList is the places of a pass's batches above the lane's cursor: all, or the maxRefs with the
// lowest ids. It is collected in portions of (xid, id), because the index has that order: a
// transaction with a lower id may have written later, so all portions are read before the lowest
// ids are known (O4).
type refList struct {
	portion []batchRef // what the last statement read
	whole   bool       // all portions are read
	refs    []batchRef // by id once it is whole
	cut     bool       // there are more, with higher ids
	after   batchRef   // the last place that was read before
}

// queue queues the statement that reads the next portion.
func (l *refList) queue(b *pgx.Batch, lane, version int64) {
	l.portion = nil
	l.whole = false
	b.Queue(collectRefsSQL, lane, version, l.after.xid, l.after.id, refsAtOnce).Query(func(rows pgx.Rows) (err error) {
		l.portion, err = pgx.CollectRows(rows, newRefReader())
		l.whole = len(l.portion) < refsAtOnce
		return err
	})
}

// add takes in the portion that was read, and reports whether it was the last. It leaves out
// batches all of whose calls the cursor has passed: it may be in the middle of one (O2).
func (l *refList) add(last int64) bool {
	for _, ref := range l.portion {
		if ref.id+int64(ref.calls) > last+1 {
			l.refs = append(l.refs, ref)
		}
	}
	if n := len(l.portion); n > 0 {
		l.after = l.portion[n-1]
	}
	l.portion = nil
	if l.whole || len(l.refs) > 2*maxRefs {
		slices.SortFunc(l.refs, func(a, b batchRef) int { return cmp.Compare(a.id, b.id) })
		if len(l.refs) > maxRefs {
			l.refs = l.refs[:maxRefs]
			l.cut = true
		}
	}
	return l.whole
}

// newRefReader reads rows of collectRefsSQL. They are many, so it scans all into one place.
func newRefReader() pgx.RowToFunc[batchRef] {
	var r batchRef
	dst := []any{&r.xid, &r.id, &r.calls, &r.slot, &r.tid, &r.bytes}
	return func(row pgx.CollectableRow) (batchRef, error) {
		err := row.Scan(dst...)
		return r, err
	}
}
