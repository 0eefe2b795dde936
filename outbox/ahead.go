package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// readAheadSQL reads batches that no pass of the lane holds yet and that may be called at once. In:
// lane id, version; epoch and nonce of its lease. Out: batchColumns; and 0 if the batch was written
// after the window has ended, 1 if it may be called, else the position in the WAL that has to be
// flushed before. READ COMMITTED. No row if one of these does not hold:
//
//   - The lane and its lease are this owner's, and the lease has not ended.
//   - The clock is in the window that is stored in the lane (O6).
//   - The cursor was last moved on this server, since it was started: advance compares histories
//     only then (O3).
//   - The server has no synchronous standbys. What is visible need not be on those.
//   - Few transactions were open when the pass was stored: each is looked for by its id.
//   - There are at most 16 batches, with bodies of at most 1 MiB together. More wait for the pass:
//     it would have to be found out first which of them come first.
//
// What is visible need not be flushed either: a producer with synchronous_commit = off commits
// before that, and a crash would lose its batch, although its calls went out. A pass flushes it
// with its own COMMIT. The position is read after the snapshot, so the WAL has the batch's commit
// before it.
//
// It reads the lane as if a pass began now, with nothing called before, so that batchColumns mean
// what they mean for a pass. By the index batches_new.
const readAheadSQL = `
select` + batchColumns + `,
       case when b.created_at > a.ahead_until then 0 when pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() then 1
            else (pg_current_wal_insert_lsn() - '0/0')::bigint end
  from (select l.id, l.sink, l.lane, coalesce(l.target, l.prev) as prev, clock_timestamp() as started_at,
               l.history_at, null::timestamptz as pass_ahead_from, null::timestamptz as pass_ahead_until, l.ahead_until
          from onlyonce.lanes l join onlyonce.leases e on e.id = l.id
         where l.id = $1 and l.version = $2 and e.epoch = $3 and e.nonce = $4::uuid and e.until > clock_timestamp()
           and clock_timestamp() between l.ahead_from and l.ahead_until and l.server = pg_postmaster_start_time()
           and current_setting('synchronous_standby_names') = ''
           and (select count(*) from pg_snapshot_xip(coalesce(l.target, l.prev))) <= 64 offset 0) a
 cross join lateral (
   select n.*, sum(n.bytes) over () as total, count(*) over () as batches from (
     select * from onlyonce.batches b where b.sink = a.sink and b.lane = a.lane and b.xid >= pg_snapshot_xmax(a.prev)
     union all
     select r.* from pg_snapshot_xip(a.prev) x cross join lateral (
       select * from onlyonce.batches b where b.sink = a.sink and b.lane = a.lane and b.xid = x offset 0) r
     limit 17) n) b
 where b.batches <= 16 and b.total <= 1048576`

// flushedSQL reads whether the WAL is flushed up to a position, and the log still has batches. In:
// the position, as readAheadSQL returns it; sink, lane; transactions and ids of the batches. A
// server that has crashed meanwhile and was started again has flushed more, and lost them. By the
// index batches_new.
const flushedSQL = `
select (pg_current_wal_flush_lsn() - '0/0')::bigint >= $1
   and (select count(*) from unnest($4::text[]::xid8[], $5::bigint[]) m(xid, id) cross join lateral (
          select from onlyonce.batches b where b.sink = $2 and b.lane = $3 and b.xid = m.xid and b.id = m.id offset 0) b) = cardinality($5)`

// flushPolls is how often that is asked. Another session flushes the WAL within the time that a few
// take, if any does; then the pass, whose COMMIT flushes too, is the shorter way.
const flushPolls = 10

// moveAheadSQL moves the windows of idle lanes, in which nothing was called since they were opened.
// In: arrays of one length: lanes, their versions, epochs and nonces of their leases; for how long.
// Out: the lanes whose windows were moved; the others have moved themselves, are another relay's,
// or are locked. READ COMMITTED. Locks the leases, in the order of their ids, and then the lanes,
// as a relay's transactions do. It waits for no lock: the sender does nothing else meanwhile.
const moveAheadSQL = `
with mine as materialized (
  select l.id, m.version from onlyonce.leases l
    join unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[]) m(id, version, epoch, nonce) on m.id = l.id
   where l.epoch = m.epoch and l.nonce = m.nonce and l.until > clock_timestamp()
   order by l.id for share of l skip locked),
free as materialized (
  select a.id from onlyonce.lanes a join mine m on m.id = a.id
   where a.version = m.version and a.ahead_until is not null
   order by a.id for no key update of a skip locked)
update onlyonce.lanes a set ahead_from = clock_timestamp(), ahead_until = clock_timestamp() + $5::interval
  from free f where a.id = f.id returning a.id`

// closeAheadSQL closes the window of a lane that is given back, in which every call that was made
// is settled; and that of its pass, if its owner knows the same of it. Otherwise what is written
// until the window ends would count as called. In: lane id, version; whether the owner knows.
const closeAheadSQL = `
update onlyonce.lanes set ahead_from = null, ahead_until = null,
       pass_ahead_from = case when $3 then null else pass_ahead_from end, pass_ahead_until = case when $3 then null else pass_ahead_until end
 where id = $1 and version = $2`

// minAheadWindow is the shortest key window of a sink whose calls are made ahead: a relay that
// finds calls of another one counts their age from when that one might have made the first.
const minAheadWindow = 10 * time.Minute

// aheadFor is for how long calls may be made ahead of their pass after the last move of the cursor,
// or of the window; nil: not at all.
func aheadFor(cfg RelayConfig, limits Limits) *time.Duration {
	window := limits.startWindow()
	if len(cfg.WaitFor) > 0 || window < minAheadWindow {
		return nil
	}
	d := min(cfg.LeaseTTL, window/20)
	return &d
}

// aheadWindow is what a lane's owner knows of the lane's window. The sender moves it while the lane
// is idle.
type aheadWindow struct {
	mu       sync.Mutex
	mine     bool  // this owner has opened it
	version  int64 // of the lane when it was opened
	called   bool  // calls were made in it, or are being read for that
	moving   bool  // a statement that moves it is under way, or its answer was lost
	openedAt time.Time
}

// opened notes that a pass was stored, and with it a window for the calls after it, at a version of
// the lane. It returns whether the window before was this owner's: then it knows which calls of the
// pass it made ahead.
func (w *aheadWindow) opened(version int64, mine bool) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = w.mine
	w.mine, w.version, w.called, w.moving, w.openedAt = mine, version, false, false, time.Now()
	return known
}

// unknown notes that it is unknown what the lane's row has.
func (w *aheadWindow) unknown() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mine = false
}

// begin reports whether calls may be made ahead, as far as is known here. The window is not moved
// from then on, until a pass is stored.
func (w *aheadWindow) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.mine || w.moving {
		return false
	}
	w.called = true
	return true
}

// move reports whether the window is to be moved, at which version of the lane. Then begin refuses
// until it is known to be. If the lane has moved since, its window cannot be: it was opened at
// another version.
func (w *aheadWindow) move(before time.Time) (version int64, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.mine || w.called || w.moving || w.openedAt.After(before) {
		return 0, false
	}
	w.moving = true
	return w.version, true
}

// moved notes that the window was moved.
func (w *aheadWindow) moved(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moving {
		w.moving, w.openedAt = false, at
	}
}

// moveAhead moves the windows of the lanes that are idle, with one statement (O6). It makes no
// difference whether that succeeds, except for how soon the next call of a lane is made.
func (s *sender) moveAhead(ctx context.Context) error {
	if s.aheadFor == nil || !s.slots.open() {
		return nil
	}
	var ids, versions, epochs []int64
	var nonces []string
	windows := map[int64]*aheadWindow{}
	before := time.Now().Add(-*s.aheadFor / 6)
	for _, o := range s.held {
		if o.lane.ctx.Err() != nil || o.lane.releasing.Load() {
			continue
		}
		if version, is := o.ahead.window.move(before); is {
			l := o.lane.lease
			ids, versions, epochs, nonces = append(ids, l.ID), append(versions, version), append(epochs, l.Epoch), append(nonces, l.Nonce)
			windows[l.ID] = &o.ahead.window
		}
	}
	if len(ids) == 0 {
		return nil
	}
	if err := fault.Point(fault.RelayMovingAhead); err != nil {
		return err
	}
	bounded, cancel := s.detached(ctx)
	defer cancel()
	at := time.Now()
	var moved []int64
	b := &pgx.Batch{}
	b.Queue(`begin isolation level read committed read write`)
	b.Queue(moveAheadSQL, ids, versions, epochs, nonces, *s.aheadFor).Query(collect(&moved, pgx.RowTo[int64]))
	b.Queue(`commit`)
	if err := s.pool.SendBatch(bounded, b).Close(); err != nil {
		return fmt.Errorf("moving the windows of idle lanes of sink %s: %w", s.name, err)
	}
	for _, id := range moved {
		windows[id].moved(at)
	}
	return nil
}

// aheadCalls are calls of a lane that were made before the pass that holds them was stored. Each
// pass that is read afterwards takes them in, until one of its chunks is committed with them.
type aheadCalls struct {
	window aheadWindow
	// known: of the pass that is stored, the owner knows which calls were made ahead: those in
	// calls.
	known bool
	calls map[int64]*callAttempt // by their ids in the log
}

// of returns the attempt at a call that was made ahead, or nil. After a failover the id may be
// another call's, or the same one's in another transaction, by which the pass would not find it
// (O3).
func (c *aheadCalls) of(a *callAttempt) *callAttempt {
	if made := c.calls[a.ID]; made != nil && made.key == a.key && made.batch == a.batch {
		return made
	}
	return nil
}

// unknown notes that the lane's row was read anew: it is unknown what it had before.
func (c *aheadCalls) unknown() {
	c.known = false
	c.window.unknown()
}

// callAhead makes calls that no pass holds yet, if the lane is idle and slots are free. So the
// first call after a pause waits for one read, and not for a COMMIT. It is followed by the pass
// that holds the calls, which parks those that fail.
func (o *laneOwner) callAhead() error {
	if o.reader.cursor.unread || len(o.ahead.calls) > 0 || o.sink.aheadFor == nil {
		return nil
	}
	slots := o.sink.slots.acquire(1)
	defer func() { o.sink.slots.unused(slots) }()
	if slots == 0 || !o.ahead.window.begin() {
		return nil
	}
	if err := fault.Point(fault.RelayReadingAhead); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(o.lane.ctx, max(o.sink.dbTimeout/10, time.Second/4))
	defer cancel()
	startedAt := time.Now()
	batches, err := o.readAhead(ctx)
	if err != nil {
		// The pass is stored all the same: otherwise the lane would try this until its window ends.
		o.sink.emit.failed(fmt.Errorf("reading calls of lane %d of sink %s ahead of their pass: %w", o.lane.number, o.sink.name, err), 0)
		o.ahead.unknown()
	}
	if len(batches) == 0 {
		return nil
	}
	var rows []*callAttempt
	for _, b := range batches {
		rows = append(rows, b.calls...)
	}
	// A chunk only in that it says which calls may be begun: the pass decides about the others.
	c := newChunk(o.lane, rows, startedAt, 0, o.parked.keysUnderWay(), &aheadCalls{known: true})
	slots += o.sink.slots.acquire(len(rows) - 1)
	var calls []*callAttempt
	for c.hasNext() && slots > 0 {
		a := c.rows[c.next]
		if a.mayBeCalled || !a.takePermit(o.sink.rates) {
			break
		}
		calls = append(calls, c.nextRow())
		slots--
	}
	for _, a := range calls {
		a.chunk, a.state, a.suspect = nil, attemptUnderWay, true
		o.ahead.calls[a.ID] = a
	}
	if o.calls.start(calls...); len(calls) == 0 {
		return nil
	}
	return fault.Point(fault.RelayCalledAhead)
}

// readAhead reads the batches that may be called now, by id.
func (o *laneOwner) readAhead(ctx context.Context) (batches []*batch, err error) {
	l := o.lane.lease
	if err := readCommitted(ctx, o.sink.pool, func(b *pgx.Batch) {
		b.Queue(readAheadSQL, l.ID, o.reader.cursor.version, l.Epoch, l.Nonce).Query(collect(&batches, newBatchReader(true).readRow))
	}); err != nil {
		return nil, err
	}
	slices.SortFunc(batches, func(a, b *batch) int { return cmp.Compare(a.id, b.id) })
	if i := slices.IndexFunc(batches, func(b *batch) bool { return b.found == 0 }); i >= 0 {
		batches = batches[:i] // that one was written by a clock that was ahead
	}
	position := 1
	var ids []int64
	var xids []string
	for _, b := range batches {
		position, ids, xids = max(position, b.found), append(ids, b.id), append(xids, b.xid)
	}
	flushed := position == 1
	for n := 0; n < flushPolls && !flushed; n++ {
		if err := readCommitted(ctx, o.sink.pool, func(b *pgx.Batch) {
			b.Queue(flushedSQL, position, o.sink.name, o.lane.number, xids, ids).QueryRow(func(row pgx.Row) error { return row.Scan(&flushed) })
		}); err != nil {
			return nil, err
		}
	}
	if !flushed {
		return nil, nil
	}
	return batches, nil
}

// dropAhead forgets the calls that were made ahead and that the pass does not hold: a failover has
// lost them. Their ordering keys are busy until they return.
func (o *laneOwner) dropAhead() {
	for _, a := range o.ahead.calls {
		if a.state == attemptUnderWay {
			o.parked.late[a.ID] = a
		}
	}
	clear(o.ahead.calls)
}

// closeAhead closes the lane's window before the lane is given back. If that fails, calls that are
// written until the window ends count as called.
func (o *laneOwner) closeAhead() {
	if len(o.ahead.calls) > 0 || !o.reader.cursorKnown || o.sink.aheadFor == nil {
		return
	}
	if err := o.lane.fenced(func(b *pgx.Batch) {
		b.Queue(closeAheadSQL, o.lane.lease.ID, o.reader.cursor.version, o.ahead.known).Exec(ignoreTag)
	}, func(*pgx.Batch) {}); err != nil {
		o.sink.emit.failed(fmt.Errorf("closing the window of lane %d of sink %s: %w", o.lane.number, o.sink.name, err), 0)
	}
}

// restKnown reports whether, of the calls of the pass that a chunk leaves, none was made ahead.
func (c *aheadCalls) restKnown(chunk *chunk) bool {
	if !c.known || chunk == nil {
		return false
	}
	done := chunk.rows[:chunk.next]
	for _, made := range c.calls {
		if !slices.Contains(done, made) {
			return false
		}
	}
	return true
}
