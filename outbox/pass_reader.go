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
)

const (
	// maxChunk is how many calls of a pass may be made before the cursor is written again. From
	// onlyonce.lane_cursors.started_at on, that many calls above last_id may have been made. It is
	// part of the stored format, and as many as a batch has at most, so that a chunk ends with a
	// batch.
	maxChunk = 1024
	// firstBatches is how many batches are read whole together with the pass that begins. If the
	// pass before had more than that, the places of the next one are read first.
	firstBatches = 64
	// maxChunkBytes bounds the bodies that are held in memory.
	maxChunkBytes = 4 << 20
)

// loadCursorSQL reads a lane's cursor. In: lane id. One row: version, last id, whether there is a
// pass, whether calls above may have been made, whether its ids mean nothing on this server.
// onlyonce.advance checks the last for each pass that begins; it is read here because a pass that
// was begun in another cluster must not go on either.
const loadCursorSQL = `
select a.version,
       a.last_id,
       a.target is not null,
       isfinite(a.started_at),
       coalesce(a.system_id <> (select c.system_identifier from pg_control_system() c), false)
       and a.copied
         or pg_snapshot_xmax(pg_current_snapshot()) < greatest(a.written, pg_snapshot_xmax(coalesce(a.target, a.prev)))
         or exists (select 1
                      from onlyonce.batches r
                     where r.sink = a.sink and r.lane = a.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot()))
  from onlyonce.lanes a where a.id = $1`

// passRefs reads places (slot, ctid) of the batches of a lane's pass, in the order of (xid, id) and
// after one, $3 and $4: at most $5 of those whose transactions had not begun at prev, and as many
// of each that was in progress then. The pass's batches are those that became visible between prev
// and target (O2). By the index batches_new, so that the work is bounded by $5, however many
// batches the pass has. "offset 0" keeps the planner from making the second half a join, for which
// it would read all of a lane.
const passRefs = `(
  (select r.xid,
          r.id,
          r.n,
          r.slot,
          r.ctid,
          r.bytes
     from onlyonce.batches r
    where r.sink = a.sink
      and r.lane = a.lane
      and (r.xid, r.id) > ($3::bigint::text::xid8, $4::bigint)
      and r.xid >= pg_snapshot_xmax(a.prev)
      and r.xid < pg_snapshot_xmax(a.target)
      and pg_visible_in_snapshot(r.xid, a.target)
    order by r.xid, r.id limit $5)
  union all
  select r.*
    from pg_snapshot_xip(a.prev) x
   cross join lateral (
     select r.xid,
            r.id,
            r.n,
            r.slot,
            r.ctid,
            r.bytes
       from onlyonce.batches r
      where r.sink = a.sink
        and r.lane = a.lane
        and r.xid = x
        and (r.xid, r.id) > ($3::bigint::text::xid8, $4::bigint)
      order by r.id limit $5 offset 0) r
   where pg_visible_in_snapshot(x, a.target))`

// firstCallTime is when a call under a call's key can first have been made: at the pass's start.
// The database may have lost a history since, in which the message may have been handled or the
// call read. Then it is the time of the message or of the batch. If the message is handled again
// and its time is not known, neither is the age: it counts from the year 2000, before every window
// (O6). r is the call in the log, and a its lane.
const (
	historyLost = `(r.redo
        or coalesce(r.origin_time < a.history_at, false)
        or coalesce(r.created_at < a.history_at, false))`
	firstCallTime = `case when ` + historyLost + ` then
                       least(case when r.redo then coalesce(r.origin_time, '2000-01-01 00:00:00+00')
                                  else r.origin_time end,
                             greatest(r.created_at, r.not_before), a.started_at)
                     else a.started_at end`
)

// keyNow is the time by which the age of a key is counted: the clock, but never before watched
// time. So a key does not look young if the clock is back. (It is onlyonce.steady_clock(), read
// once a statement.)
//
// A time that is ahead of it was written while the clock was ahead. The age is not known then, and
// is ageUnknown: after every window, in microseconds.
const (
	keyNow     = `(select greatest(clock_timestamp(), nullif(w.at, 'infinity')) from onlyonce.watched w where w.id = 1)`
	ageUnknown = `then 3000000000000000`
)

// batchColumns lists the columns that a batch is made of. Arrays are sent in one form, whatever the
// session's protocol (array_send), so that they are taken apart without a copy of each element. The
// clock is read at least once after the row was. It uses date_part because the numeric of extract
// costs several times as much.
//
// The last two are null for most batches. The ages of calls whose history may be lost: in
// microseconds, null for the others. Ordering keys of the batch that a parked call blocks: one
// parked row of each key is read, however many wait; "offset 0" keeps the planner from making it a
// join (T13).
const batchColumns = `
       b.id,
       b.n,
       b.xid::text as xid,
       (date_part('epoch', clock_timestamp() - timestamptz '2000-01-01 00:00:00+00') * 1000000)::bigint as now,
       case
         when a.started_at > ` + keyNow + ` + interval '1 minute' ` + ageUnknown + `
         else (date_part('epoch', ` + keyNow + ` - a.started_at) * 1000000)::bigint
       end as age,
       (date_part('epoch', clock_timestamp() - b.created_at) * 1000000)::bigint as waited,
       array_send(b.keys) as keys,
       b.order_key,
       array_send(b.order_keys) as order_keys,
       b.order_prefix,
       array_send(b.order_prefixes) as order_prefixes,
       b.tenant,
       array_send(b.tenants) as tenants,
       b.scope,
       array_send(b.scopes) as scopes,
       b.name,
       array_send(b.names) as names,
       b.method,
       array_send(b.methods) as methods,
       b.target,
       array_send(b.targets) as targets,
       b.header,
       array_send(b.headers) as headers,
       b.trace,
       array_send(b.traces) as traces,
       b.body,
       array_send(b.bodies) as bodies,
       array_send(b.not_before) as not_before,
       array_send(b.capture) as capture,
       array_send(b.sealed) as sealed,
       case when b.redo is not null or a.history_at is not null then
         (select array_send(array_agg(
                   case
                     when not ` + historyLost + ` then null
                     when ` + firstCallTime + ` > ` + keyNow + ` + interval '1 minute' ` + ageUnknown + `
                     else (date_part('epoch', ` + keyNow + ` - ` + firstCallTime + `) * 1000000)::bigint
                   end order by r.i))
            from (select coalesce(u.redo, false) as redo,
                         coalesce(u.origin_time, b.origin_time) as origin_time,
                         b.created_at,
                         u.not_before,
                         u.i
                    from unnest(
                      b.keys,
                      b.redo,
                      b.origin_times,
                      b.not_before
                    ) with ordinality as u(key, redo, origin_time, not_before, i)) r)
       end as lost_ages,
       case when b.order_key is not null or b.order_keys is not null then
         array_send(array(
           select distinct k
             from unnest(coalesce(b.order_keys, array[b.order_key])) k
            where exists (select 1 from onlyonce.parked p where p.order_key = k and p.settled_at is null offset 0)))
       end as blocked`

// firstBatchesSQL reads the first batches of a pass that begins: with at most maxChunk calls, and
// until their bodies have maxChunkBytes. In: lane id, version, 0, 0, refsAtOnce, how many. Out:
// batchColumns, and how many batches the pass has: up to refsAtOnce, and then those that were read
// need not be its first. READ COMMITTED; no row if the lane has moved. It sorts the batches'
// places, and not the batches (O3).
const firstBatchesSQL = `
select` + batchColumns + `, p.found
  from onlyonce.lanes a
 cross join lateral (
   select p.id,
          p.slot,
          p.ctid,
          p.found,
          sum(p.bytes) over (order by p.id) - p.bytes as before,
          sum(p.n) over (order by p.id) as calls
     from (
     select p.*, count(*) over () as found from ` + passRefs + ` p order by p.id limit $6) p) p
 cross join lateral (select * from onlyonce.batches b where b.slot = p.slot and b.ctid = p.ctid offset 0) b
 where a.id = $1 and a.version = $2 and p.before < 4194304 and p.calls <= 1024 -- maxChunkBytes, maxChunk
 order by b.id`

// collectRefsSQL reads a portion of the places of a pass's batches. In: lane id, version, xid and
// id of the last one before (0 and 0 at first), how many. Out: xid, id, number of calls, slot,
// ctid, bytes of the bodies.
const collectRefsSQL = `
select p.xid::text::bigint,
       p.id,
       p.n,
       p.slot,
       p.ctid,
       p.bytes
  from onlyonce.lanes a cross join lateral ` + passRefs + ` p
 where a.id = $1 and a.version = $2
 order by p.xid, p.id limit $5`

// fetchBatchesSQL reads batches by their places. In: lane id, slot, ctids. By a TID scan: any
// further condition would let the planner read by an index instead. A segment that was emptied and
// filled again has other batches at the same place, so the reader compares the ids.
const fetchBatchesSQL = `
select` + batchColumns + `
  from onlyonce.lanes a, onlyonce.batches b
 where a.id = $1 and b.slot = $2 and b.ctid = any ($3::tid[])`

// cursor is what a lane's owner knows of its row in onlyonce.lane_cursors.
type cursor struct {
	version, last int64
	// maybeCalledRows is how many rows above last a previous owner may have called: their age
	// counts from its journal.
	maybeCalledRows int
}

// passState is how much of the lane's pass has been read.
type passState int

const (
	passUnknown passState = iota // the cursor is read first: what the database has is not known
	passIdle                     // all of it, and the log has no calls after it
	passOver                     // all of it, and the log may have calls after it: the next pass begins
	passUnread                   // it may hold calls above the cursor, and none of their places is known
	passPartly                   // up to refs, and it may hold more after them
	passListed                   // up to refs, and it holds none after them
)

// passReader reads a lane's passes: its cursor, the places of a pass's batches, and the calls of
// the next chunk. Its clock is the cursor's.
type passReader struct {
	lane        *heldLane
	state       passState
	cursor      cursor
	versionSeen atomic.Int64 // cursor.version, for the sender
	refs        []batchRef   // batches of the pass that are not fetched yet, in the last two states
	firstRead   readKind     // how the next pass begins: with whole batches, unless the last one had many
}

// readKind says what is read in one round trip with a move of the cursor.
type readKind int

const (
	readNothing      readKind = iota
	readFirstBatches          // the first batches of a pass that begins
	readRefList               // the places of a pass's batches, and then the first chunk
	readBatches               // the next chunk
)

// passRead is one such read, and what came of it.
type passRead struct {
	kind        readKind
	startedAt   time.Time  // the database measures ages after this moment
	list        refList    // with readRefList
	fetching    []batchRef // of the pass's places, those whose batches are fetched
	batches     []*batch
	found       int    // with readFirstBatches: how many the pass has, up to refsAtOnce
	walPosition string // empty if the relay waits for no standby
}

// due is at once if it is not known what has committed.
func (r *passReader) due(time.Time) time.Time {
	if r.state == passUnknown {
		return time.Time{}
	}
	return never
}

// loadCursor reads the cursor, after a take-over or if it is unknown what has committed.
func (r *passReader) loadCursor() error {
	c := cursor{maybeCalledRows: maxChunk}
	var unread, called, foreign bool
	if err := r.lane.read(func(b *pgx.Batch) {
		b.Queue(loadCursorSQL, r.lane.lease.ID).QueryRow(func(row pgx.Row) error {
			return row.Scan(&c.version, &c.last, &unread, &called, &foreign)
		})
	}); err != nil {
		return fmt.Errorf("reading the cursor of lane %d of sink %s: %w", r.lane.number, r.lane.sink.name, err)
	}
	if foreign {
		return ErrRebase
	}
	r.state = passOver
	if unread {
		r.state = passUnread
	}
	if !unread || !called {
		c.maybeCalledRows = 0
	}
	r.cursor = c
	r.refs = nil
	r.versionSeen.Store(c.version)
	return nil
}

// moved notes that the cursor has moved.
func (r *passReader) moved(last int64, maybeCalledRows int) {
	r.cursor.version++
	r.versionSeen.Store(r.cursor.version)
	r.cursor.last = last
	r.cursor.maybeCalledRows = maybeCalledRows
}

// leave notes that the pass is left for now: at its end, or to be read anew from the cursor on.
func (r *passReader) leave(s passState) {
	if r.state != passUnknown {
		r.state = s
		r.refs = nil
	}
}

// noteNewRows notes that the log has calls after the pass.
func (r *passReader) noteNewRows() {
	if r.state == passIdle {
		r.state = passOver
	}
}

// exhausted reports whether no batches follow those that were fetched.
func (r *passReader) exhausted() bool { return r.state == passListed && len(r.refs) == 0 }

// nextRead says how to read the next chunk of a pass that is not exhausted.
func (r *passReader) nextRead() readKind {
	if len(r.refs) == 0 {
		return readRefList
	}
	return readBatches
}

func (r *passReader) newRead(kind readKind) *passRead {
	read := &passRead{kind: kind}
	if kind == readBatches {
		read.fetching = r.nextRefs()
	}
	read.startedAt = time.Now()
	return read
}

// queueRead queues a read's statements, which follow a move of the cursor.
func (r *passReader) queueRead(b *pgx.Batch, read *passRead) {
	switch read.kind {
	case readFirstBatches:
		b.Queue(firstBatchesSQL, r.lane.lease.ID, r.cursor.version+1, 0, 0, refsAtOnce, firstBatches).Query(
			collect(&read.batches, newBatchReader(&read.found).readRow),
		)
	case readRefList:
		read.list.queue(b, r.lane.lease.ID, r.cursor.version+1)
	case readBatches:
		r.queueFetch(b, read)
	}
	r.lane.sink.queueWALPosition(b, &read.walPosition)
}

// received takes in what was read after the cursor has moved, and returns the calls of the next
// chunk, by id. newPass is whether the move began a pass.
func (r *passReader) received(read *passRead, newPass bool) ([]*callAttempt, error) {
	switch read.kind {
	case readNothing:
		return nil, nil
	case readFirstBatches:
		if read.found < refsAtOnce {
			r.listed(nil, len(read.batches) == 0, len(read.batches) < read.found, newPass)
			return r.callsAboveLast(read.batches), nil
		}
		fallthrough // they need not be the first ones
	case readRefList:
		if err := r.collectRefs(read); err != nil {
			return nil, err
		}
		r.listedRefs(&read.list, newPass)
		if len(r.refs) == 0 {
			return nil, nil
		}
		if err := r.fetchNext(read); err != nil {
			return nil, err
		}
	}
	if !read.isComplete() {
		if err := r.fetchMoved(read); err != nil {
			return nil, err
		}
	}
	r.refs = r.refs[len(read.fetching):]
	return r.callsAboveLast(read.batches), nil
}

// listed notes the places of batches that are to be fetched, whether the pass has none at all above
// the cursor, and whether it may hold more after them. newPass is whether it has just begun.
func (r *passReader) listed(refs []batchRef, none, more, newPass bool) {
	r.refs = refs
	r.firstRead = readFirstBatches
	if more || len(refs) > firstBatches {
		r.firstRead = readRefList
	}
	switch {
	case none && newPass:
		r.state = passIdle
	case none:
		r.state = passOver
	case more:
		r.state = passPartly
	default:
		r.state = passListed
	}
}

// listedRefs is listed, after a list of places is whole.
func (r *passReader) listedRefs(l *refList, newPass bool) {
	r.listed(l.refs, len(l.refs) == 0, l.cut, newPass)
}

// collectRefs reads the portions of the pass's places that follow the one that was read, each in a
// transaction of its own.
func (r *passReader) collectRefs(read *passRead) error {
	for !read.list.add(r.cursor.last) {
		if err := r.lane.read(func(b *pgx.Batch) {
			read.list.queue(b, r.lane.lease.ID, r.cursor.version)
		}); err != nil {
			return r.failed(err)
		}
	}
	return nil
}

// fetchMoved reads the places of the pass's batches once more, and then those of the next chunk.
// The erasure of a call that is settled moves its batch within the segment. If the batches are not
// the same ones at their new places, the log has lost some (O2).
func (r *passReader) fetchMoved(read *passRead) error {
	known := r.refs
	read.list = refList{}
	if err := r.collectRefs(read); err != nil {
		return err
	}
	refs := read.list.refs
	if len(refs) >= len(known) &&
		slices.EqualFunc(refs[:len(known)], known, func(a, b batchRef) bool {
			return a.id == b.id && a.calls == b.calls
		}) {
		r.listedRefs(&read.list, false)
		if err := r.fetchNext(read); err != nil {
			return err
		}
		if read.isComplete() {
			return nil
		}
	}
	return r.rowsGone()
}

// rowsGone returns the error of a lane whose rows are gone from the log.
func (r *passReader) rowsGone() error {
	return fmt.Errorf("%w: lane %d of sink %s, after call %d",
		errRowsGone, r.lane.number, r.lane.sink.name, r.cursor.last)
}

// fetchNext reads the batches of the next chunk, in a transaction of its own.
func (r *passReader) fetchNext(read *passRead) error {
	read.fetching = r.nextRefs()
	read.batches = nil
	return r.failed(r.lane.read(func(b *pgx.Batch) { r.queueFetch(b, read) }))
}

// failed notes that the pass has to be read anew if a read has failed.
func (r *passReader) failed(err error) error {
	if err != nil {
		r.leave(passUnread)
	}
	return err
}

// isComplete sorts the batches that were fetched by id, and reports whether they are those whose
// places were read.
func (read *passRead) isComplete() bool {
	slices.SortFunc(read.batches, func(a, b *batch) int { return cmp.Compare(a.id, b.id) })
	return slices.EqualFunc(read.batches, read.fetching, func(b *batch, ref batchRef) bool {
		return b.id == ref.id && len(b.calls) == int(ref.calls)
	})
}

// callsAboveLast returns the calls of batches that the cursor has not passed. It may be in the
// middle of the first one (O2).
func (r *passReader) callsAboveLast(batches []*batch) (calls []*callAttempt) {
	for _, b := range batches {
		done := min(max(r.cursor.last-b.id+1, 0), int64(len(b.calls)))
		calls = append(calls, b.calls[done:]...)
	}
	return calls
}

// errRowsGone means that the log has lost a row that was not sent. Only an operator can repair
// that.
var errRowsGone = errors.New("outbox: rows of the log that were not sent are gone: was a segment emptied by hand?")

// nextRefs returns the places of the batches of the next chunk.
func (r *passReader) nextRefs() []batchRef {
	calls := 0
	size := int64(0)
	for i, ref := range r.refs {
		calls = calls + int(ref.calls)
		size = size + ref.bytes
		if i > 0 && (calls > maxChunk || size > maxChunkBytes) {
			return r.refs[:i]
		}
	}
	return r.refs
}

// queueFetch reads batches by their places, with one statement for each segment.
func (r *passReader) queueFetch(b *pgx.Batch, read *passRead) {
	bySlot := map[int16][]pgtype.TID{}
	for _, ref := range read.fetching {
		bySlot[ref.slot] = append(bySlot[ref.slot], ref.tid)
	}
	for slot, tids := range bySlot {
		b.Queue(fetchBatchesSQL, r.lane.lease.ID, slot, tids).Query(collect(&read.batches, newBatchReader(nil).readRow))
	}
}
