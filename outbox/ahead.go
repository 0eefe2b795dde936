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

// aheadBatches is how many batches may be called ahead of their pass. If there are more, they wait
// for the pass.
const aheadBatches = 16

// readAheadSQL reads batches that no pass of the lane holds yet and that may be called at once. In:
// lane id, version; epoch and nonce of its lease; how many. Out: batchColumns; and 0 if the batch was
// written after the window has ended, 1 if it may be called, else the position in the WAL that has
// to be flushed before. READ COMMITTED. No row if one of these does not hold:
//
//   - The lane and its lease are this owner's, and the lease has not ended.
//   - The clock is in the window that is stored in the lane (O6).
//   - The cursor was last moved on this server, since it was started: advance compares histories
//     only then (O3).
//   - The server has no synchronous standbys. What is visible need not be on those.
//   - Few transactions began between the oldest one that was open when the pass was stored and that
//     time. A pass looks for each of them by its id; this reads them all, because it must be quick.
//
// What is visible need not be flushed either: a producer with synchronous_commit = off commits before
// that, and a crash would lose its batch, although its calls went out. A pass flushes it with its own
// COMMIT. The position is read after the snapshot, so the WAL has the batch's commit before it.
//
// It reads the lane as if a pass began now, with nothing called before, so that batchColumns mean
// what they mean for a pass. By the index batches_new, in its order.
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
           and pg_snapshot_xmax(coalesce(l.target, l.prev))::text::bigint - pg_snapshot_xmin(coalesce(l.target, l.prev))::text::bigint < 10000 offset 0) a
 cross join lateral (
   select * from onlyonce.batches b
    where b.sink = a.sink and b.lane = a.lane and b.xid >= pg_snapshot_xmin(a.prev) and not pg_visible_in_snapshot(b.xid, a.prev)
    order by b.sink, b.lane, b.xid, b.id limit $5) b`

// flushedSQL reads whether the WAL is flushed up to a position. In: the position, as readAheadSQL
// returns it.
const flushedSQL = `select (pg_current_wal_flush_lsn() - '0/0')::bigint >= $1`

// flushPolls is how often that is asked. Another session flushes the WAL within the time that a few
// take, if any does; then the pass, whose COMMIT flushes too, is the shorter way.
const flushPolls = 10

// moveAheadSQL moves the windows of idle lanes, in which nothing was called since they were opened.
// In: arrays of one length: lanes, their versions, epochs and nonces of their leases; for how long.
// Out: the lanes whose windows were moved; the others have moved themselves, or are another relay's.
// Locks the leases, in the order of their ids, and then the lanes, as a relay's transactions do.
const moveAheadSQL = `
with mine as materialized (
  select l.id, m.version from onlyonce.leases l
    join unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[]) m(id, version, epoch, nonce) on m.id = l.id
   where l.epoch = m.epoch and l.nonce = m.nonce and l.until > clock_timestamp()
   order by l.id for share of l)
update onlyonce.lanes a set ahead_from = clock_timestamp(), ahead_until = clock_timestamp() + $5::interval
  from mine m where a.id = m.id and a.version = m.version and a.ahead_until is not null returning a.id`

// minAheadWindow is the shortest key window of a sink whose calls are made ahead: a relay that finds
// calls of another one counts their age from when that one might have made the first.
const minAheadWindow = 10 * time.Minute

// aheadFor is for how long calls may be made ahead of their pass after the last move of the cursor,
// or of the window; nil: not at all.
func (s *relaySink) aheadFor() *time.Duration {
	window := s.limits.startWindow()
	if len(s.cfg.WaitFor) > 0 || window < minAheadWindow {
		return nil
	}
	d := min(s.cfg.LeaseTTL, window/20)
	return &d
}

// aheadWindow is what a lane's owner knows of the lane's window. The sender moves it while the lane
// is idle.
type aheadWindow struct {
	mu       sync.Mutex
	mine     bool // this owner has opened it
	called   bool // calls were made in it, or are being read for that
	moving   bool // a statement that moves it is under way, or its answer was lost
	openedAt time.Time
}

// opened notes that a pass was stored, and with it a window for the calls after it. It returns
// whether the window before was this owner's: then it knows which calls of the pass it made ahead.
func (w *aheadWindow) opened(mine bool) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = w.mine
	w.mine, w.called, w.moving, w.openedAt = mine, false, false, time.Now()
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

// move reports whether the window is to be moved, and then begin refuses until it is known to be.
func (w *aheadWindow) move(before time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.mine || w.called || w.moving || w.openedAt.After(before) {
		return false
	}
	w.moving = true
	return true
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
	ahead := s.aheadFor()
	if ahead == nil || !s.slots.open() {
		return nil
	}
	var ids, versions, epochs []int64
	var nonces []string
	windows := map[int64]*aheadWindow{}
	before := time.Now().Add(-*ahead / 6)
	for _, o := range s.held {
		// The version is read before the window is asked: a later one is not moved by this.
		version := o.reader.versionSeen.Load()
		if o.lane.ctx.Err() == nil && !o.lane.releasing.Load() && o.ahead.window.move(before) {
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
	rows, err := s.pool.Query(bounded, moveAheadSQL, ids, versions, epochs, nonces, *ahead)
	if err != nil {
		return fmt.Errorf("moving the windows of idle lanes of sink %s: %w", s.name, err)
	}
	moved, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
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
// another call's (O3).
func (c *aheadCalls) of(a *callAttempt) *callAttempt {
	if made := c.calls[a.ID]; made != nil && made.key == a.key {
		return made
	}
	return nil
}

// stored notes that a pass was stored, and with it a window for the calls after it, unless mine is
// false. What the pass before did not hold is dropped.
func (c *aheadCalls) stored(mine, dropped bool) {
	c.known = c.window.opened(mine)
	if dropped {
		clear(c.calls)
	}
}

// unknown notes that the lane's row was read anew: it is unknown what it had before.
func (c *aheadCalls) unknown() {
	c.known = false
	c.window.unknown()
}

// callAhead makes calls that no pass holds yet, if the lane is idle and slots are free. So the first
// call after a pause waits for one read, and not for a COMMIT. It is followed by the pass that holds
// the calls, which parks those that fail.
func (o *laneOwner) callAhead() error {
	r := o.reader
	if r.cursor.unread || len(o.ahead.calls) > 0 || o.sink.aheadFor() == nil || !o.ahead.window.begin() {
		return nil
	}
	if err := fault.Point(fault.RelayReadingAhead); err != nil {
		return err
	}
	var batches []*batch
	startedAt := time.Now()
	l := o.lane.lease
	if err := o.lane.read(func(b *pgx.Batch) {
		b.Queue(readAheadSQL, l.ID, r.cursor.version, l.Epoch, l.Nonce, aheadBatches+1).Query(collect(&batches, newBatchReader(true).readRow))
	}); err != nil {
		return err
	}
	if len(batches) > aheadBatches {
		return nil // the first of them by id may not be among these
	}
	slices.SortFunc(batches, func(a, b *batch) int { return cmp.Compare(a.id, b.id) })
	var rows []*callAttempt
	flushed := 0
	for _, b := range batches {
		if b.found == 0 {
			break // by a clock that was ahead
		}
		flushed = max(flushed, b.found)
		rows = append(rows, b.calls...)
	}
	if len(rows) == 0 || flushed > 1 && !o.lane.awaitFlush(flushed) {
		return nil
	}
	// A chunk only in that it says which calls may be begun: the pass decides about the others.
	c := newChunk(o.lane, rows, startedAt, 0, o.parked.keysUnderWay(), &aheadCalls{known: true})
	var calls []*callAttempt
	slots := o.sink.slots.acquire(len(rows))
	for c.hasNext() && slots > 0 {
		a := c.rows[c.next]
		if a.mayBeCalled || a.Tenant != "" && o.sink.rates.take(a.Tenant, 1) == 0 {
			break
		}
		calls = append(calls, c.nextRow())
		slots--
	}
	o.sink.slots.unused(slots)
	for _, a := range calls {
		a.chunk = nil
		a.state = attemptUnderWay
		o.ahead.calls[a.ID] = a
	}
	if o.calls.start(calls...); len(calls) == 0 {
		return nil
	}
	return fault.Point(fault.RelayCalledAhead)
}

// awaitFlush reports whether the WAL is flushed up to a position, soon.
func (h *heldLane) awaitFlush(position int) (is bool) {
	ctx, cancel := h.sink.detached(h.ctx)
	defer cancel()
	for range flushPolls {
		if err := h.sink.pool.QueryRow(ctx, flushedSQL, position).Scan(&is); is || err != nil {
			break
		}
	}
	return is
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
