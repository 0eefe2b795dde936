package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/fault"
)

const (
	// maxChunk is how many rows of a pass may be called before the cursor is written again. From
	// onlyonce.lanes.started_at on, that many rows above last_id may have been called. It is part
	// of the stored format.
	maxChunk = 1024
	// firstRows is how many rows are read whole together with the pass that begins. If the pass
	// before had more than that, the ids of the next one are read first.
	firstRows = 64
	// maxRefs bounds the ids that are held in memory, maxChunkBytes the bodies.
	maxRefs       = 100_000
	maxChunkBytes = 4 << 20
)

// loadCursorSQL reads a lane's cursor. In: lane id. One row: version, last id, whether there is a
// pass, whether rows above may have been called, whether the cursor is of another database cluster.
// onlyonce.advance checks the last for each pass that begins; it is read here because a pass that
// was begun in another cluster must not go on either.
const loadCursorSQL = `
select a.version, a.last_id, a.target is not null, isfinite(a.started_at),
       coalesce(a.system_id <> (select c.system_identifier from pg_control_system() c), false)
       or pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(coalesce(a.target, a.prev))
       or exists (select 1 from onlyonce.outbox_log r where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot()))
  from onlyonce.lanes a where a.id = $1`

// passRowRefs reads the places (slot, ctid) of the rows of a lane's pass above last_id: those that
// became visible between prev and target (O2). At prev their transactions were in progress or had
// not begun. By the index outbox_log_new. "offset 0" keeps the planner from making the second half
// a join, for which it would read all of a lane.
const passRowRefs = `(
  select r.id, r.slot, r.ctid, octet_length(r.body) as size from onlyonce.outbox_log r
   where r.sink = a.sink and r.lane = a.lane and r.id > a.last_id
     and r.xid >= pg_snapshot_xmax(a.prev) and r.xid < pg_snapshot_xmax(a.target) and pg_visible_in_snapshot(r.xid, a.target)
  union all
  select r.* from pg_snapshot_xip(a.prev) x cross join lateral (
    select r.id, r.slot, r.ctid, octet_length(r.body) from onlyonce.outbox_log r
     where r.sink = a.sink and r.lane = a.lane and r.xid = x and r.id > a.last_id offset 0) r
   where pg_visible_in_snapshot(x, a.target))`

// firstCallTime is when a call under a row's key can first have been made: at the pass's start. The
// database may have lost a history since, in which the message may have been handled or the row
// read. Then it is the time of the message or of the row (O6). Of r in the log and its lane a.
const (
	historyLost   = `(r.redo or coalesce(r.origin_time < a.history_at, false) or coalesce(r.created_at < a.history_at, false))`
	firstCallTime = `case when ` + historyLost + ` then least(r.origin_time, greatest(r.created_at, r.not_before), a.started_at) else a.started_at end`
)

// callColumns lists the columns that a callAttempt is made of. The clock is read at least once
// after the row was. It uses date_part because the numeric of extract costs several times as much
// for each row.
const callColumns = `
       r.id, r.key, r.order_key, r.tenant, r.scope, r.name, r.method, r.target, r.headers, coalesce(r.trace, ''), r.body, r.capture, r.sealed,
       (date_part('epoch', clock_timestamp() - ` + firstCallTime + `) * 1000000)::bigint,
       ` + historyLost + `,
       coalesce((date_part('epoch', r.not_before - clock_timestamp()) * 1000000)::bigint, 0),
       (date_part('epoch', clock_timestamp() - r.created_at) * 1000000)::bigint,
       r.order_key is not null and exists (select 1 from onlyonce.parked p where p.order_key = r.order_key and p.settled_at is null)`

// firstRowsSQL reads the first rows of a pass. In: lane id, version, how many. READ COMMITTED; no
// row if the lane has moved. It sorts the rows' places, and not the rows.
const firstRowsSQL = `
select` + callColumns + `
  from onlyonce.lanes a
 cross join lateral (
   select p.id, p.slot, p.ctid, sum(p.size) over (order by p.id) - p.size as before from (
     select * from ` + passRowRefs + ` p order by p.id limit $3) p) p
 cross join lateral (select * from onlyonce.outbox_log r where r.slot = p.slot and r.ctid = p.ctid offset 0) r
 where a.id = $1 and a.version = $2 and p.before < 4194304 -- maxChunkBytes
 order by r.id`

// collectRefsSQL reads the places of the rows of a pass. In: lane id, version, how many. Out: id,
// slot, ctid, bytes of the body.
const collectRefsSQL = `
select p.id, p.slot, p.ctid, p.size
  from onlyonce.lanes a cross join lateral ` + passRowRefs + ` p
 where a.id = $1 and a.version = $2
 order by p.id limit $3`

// fetchRowsSQL reads rows by their places. In: lane id, slot, ctids. By a TID scan: any further
// condition would let the planner read by an index instead. A segment that was emptied and filled
// again has other rows at the same place, so the reader compares the ids.
const fetchRowsSQL = `
select` + callColumns + `
  from onlyonce.lanes a, onlyonce.outbox_log r
 where a.id = $1 and r.slot = $2 and r.ctid = any ($3::tid[])`

// cursor is what a lane's owner knows of its row in onlyonce.lanes.
type cursor struct {
	version, last int64
	unread        bool // the pass may hold rows above last
	// How many rows above last a previous owner may have called: their age counts from its journal.
	mayBeCalled int
}

// passReader reads a lane's passes: its cursor, the places of a pass's rows, and the rows of the
// next chunk.
type passReader struct {
	lane        *heldLane
	cursor      cursor
	cursorKnown bool         // cursor is what the database has
	versionSeen atomic.Int64 // cursor.version, for the sender
	refs        []rowRef     // rows of the pass that are not fetched yet
	moreRefs    bool         // the pass may hold rows after refs
	expectMany  bool         // the next pass may hold many rows
	newRows     bool         // there are rows after the pass, or may be
}

// readKind says what is read in one round trip with a move of the cursor.
type readKind int

const (
	readNothing   readKind = iota
	readFirstRows          // the first rows of a pass that begins
	readRefList            // the places of a pass's rows, and then the first chunk
	readRows               // the next chunk
)

// passRead is one such read, and what came of it.
type passRead struct {
	kind        readKind
	startedAt   time.Time // the database measures ages after this moment
	refs        []rowRef  // with readRefList
	fetching    []rowRef  // of the pass's places, those whose rows are fetched
	rows        []*callAttempt
	walPosition string // empty if the relay waits for no standby
}

// loadCursor reads the cursor, after a take-over or if it is unknown what has committed.
func (r *passReader) loadCursor() error {
	if err := fault.Point(fault.RelayLoading); err != nil {
		return err
	}
	c := cursor{mayBeCalled: maxChunk}
	var called, foreign bool
	if err := r.lane.read(func(b *pgx.Batch) {
		b.Queue(loadCursorSQL, r.lane.lease.ID).QueryRow(func(row pgx.Row) error {
			return row.Scan(&c.version, &c.last, &c.unread, &called, &foreign)
		})
	}); err != nil {
		return fmt.Errorf("reading the cursor of lane %d of sink %s: %w", r.lane.number, r.lane.sink.name, err)
	}
	if foreign {
		return fmt.Errorf("%w: lane %d of sink %s", ErrRebase, r.lane.number, r.lane.sink.name)
	}
	if !c.unread || !called {
		c.mayBeCalled = 0
	}
	r.cursor, r.cursorKnown = c, true
	r.versionSeen.Store(c.version)
	r.refs, r.moreRefs, r.newRows = nil, false, true
	return nil
}

// moved notes that the cursor has moved.
func (r *passReader) moved(last int64, mayBeCalled int) {
	r.cursor.version++
	r.versionSeen.Store(r.cursor.version)
	r.cursor.last, r.cursor.mayBeCalled = last, mayBeCalled
}

// interrupt notes that the pass is left before its end, and has to be read anew from the cursor on.
func (r *passReader) interrupt() {
	r.cursor.unread, r.newRows, r.refs, r.moreRefs = true, true, nil, false
}

// passExhausted reports whether no rows follow those that were fetched.
func (r *passReader) passExhausted() bool { return len(r.refs) == 0 && !r.moreRefs }

// firstRead says how to begin reading the next pass: whole rows, unless there may be many.
func (r *passReader) firstRead() readKind {
	if r.expectMany {
		return readRefList
	}
	return readFirstRows
}

// nextRead says how to read the next chunk of a pass that is not exhausted.
func (r *passReader) nextRead() readKind {
	if len(r.refs) == 0 {
		return readRefList
	}
	return readRows
}

func (r *passReader) newRead(kind readKind) *passRead {
	read := &passRead{kind: kind}
	if kind == readRows {
		read.fetching = r.nextRefs()
	}
	read.startedAt = time.Now()
	return read
}

// queueRead queues a read's statements, which follow a move of the cursor.
func (r *passReader) queueRead(b *pgx.Batch, read *passRead) {
	switch read.kind {
	case readFirstRows:
		b.Queue(firstRowsSQL, r.lane.lease.ID, r.cursor.version+1, firstRows).Query(collect(&read.rows, newRowReader().readRow))
	case readRefList:
		b.Queue(collectRefsSQL, r.lane.lease.ID, r.cursor.version+1, maxRefs).Query(collect(&read.refs, newRefReader()))
	case readRows:
		r.queueFetch(b, read)
	}
	r.lane.sink.queueWALPosition(b, &read.walPosition)
}

// received takes in what was read after the cursor has moved, and returns the rows of the next
// chunk, by id. newPass is whether the move began a pass.
func (r *passReader) received(read *passRead, newPass bool) ([]*callAttempt, error) {
	switch read.kind {
	case readNothing:
		return nil, nil
	case readFirstRows:
		r.receivedFirst(read.rows)
		return read.rows, nil
	case readRefList:
		r.refs, r.moreRefs = read.refs, len(read.refs) == maxRefs
		r.expectMany = len(read.refs) > firstRows
		r.cursor.unread, r.newRows = len(read.refs) > 0, len(read.refs) > 0 || !newPass
		if len(read.refs) == 0 {
			return nil, nil
		}
		read.fetching = r.nextRefs()
		if err := r.lane.read(func(b *pgx.Batch) { r.queueFetch(b, read) }); err != nil {
			r.cursor.unread = true
			r.refs, r.moreRefs = nil, false
			return nil, err
		}
	}
	rows := read.rows
	slices.SortFunc(rows, func(a, b *callAttempt) int { return cmp.Compare(a.ID, b.ID) })
	if !slices.EqualFunc(rows, read.fetching, func(a *callAttempt, ref rowRef) bool { return a.ID == ref.id }) {
		return nil, fmt.Errorf("%w: lane %d of sink %s, from call %d on", errRowsGone, r.lane.number, r.lane.sink.name, read.fetching[0].id)
	}
	r.refs = r.refs[len(read.fetching):]
	return rows, nil
}

// receivedFirst notes what the first rows of a pass say about the rest of it.
func (r *passReader) receivedFirst(rows []*callAttempt) {
	size := 0
	for _, a := range rows {
		size += len(a.Body)
	}
	r.moreRefs = len(rows) == firstRows || size >= maxChunkBytes
	r.expectMany = r.moreRefs
	r.cursor.unread, r.newRows = len(rows) > 0, len(rows) > 0
}

// errRowsGone means that the log has lost a row that was not sent. Only an operator can repair
// that.
var errRowsGone = errors.New("outbox: rows of the log that were not sent are gone: was a segment emptied by hand?")

// nextRefs returns the places of the rows of the next chunk.
func (r *passReader) nextRefs() []rowRef {
	size := int64(0)
	for i, ref := range r.refs {
		if size += ref.size; i > 0 && (i == maxChunk || size > maxChunkBytes) {
			return r.refs[:i]
		}
	}
	return r.refs
}

// queueFetch reads rows by their places, with one statement for each segment.
func (r *passReader) queueFetch(b *pgx.Batch, read *passRead) {
	bySlot := map[int16][]pgtype.TID{}
	for _, ref := range read.fetching {
		bySlot[ref.slot] = append(bySlot[ref.slot], ref.tid)
	}
	for slot, tids := range bySlot {
		b.Queue(fetchRowsSQL, r.lane.lease.ID, slot, tids).Query(collect(&read.rows, newRowReader().readRow))
	}
}
