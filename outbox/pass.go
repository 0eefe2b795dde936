package outbox

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// advanceSQL moves the cursor; see the function's comment in the migration. In: lane id, version,
// last id, freeze, keep started_at, quiet.
const advanceSQL = `select onlyonce.advance($1, $2, $3, $4, $5, $6)`

// lanePass is the clock of a lane's passes: it moves the cursor, and begins the calls of the chunk
// that was read.
type lanePass struct {
	lane   *heldLane
	reader *passReader
	parked *parkedCalls
	calls  *laneCalls
	chunk  *chunk // of the pass, whose calls are being made; nil: none
}

// due is when the chunk's end is to be written, or at once if there is no chunk and the log may
// hold calls to read.
func (p *lanePass) due(now time.Time) time.Time {
	switch {
	case p.chunk != nil:
		return p.chunkDue()
	case p.reader.state == passUnknown || p.reader.state == passIdle || p.lane.releasing.Load():
		return never
	}
	return p.lane.sink.whenOpen(now, time.Time{})
}

// chunkLife is how long a chunk may wait for the sink's rate before it is read anew, and at most a
// quarter of the window of its keys.
const chunkLife = 10 * time.Second

// chunkDue is when the chunk's end is to be written: if nothing more happens to it; if its last
// calls take longer than chunkPatience; or if its whole rest waits for the sink's rate for too
// long. Then it is read anew: the windows of its keys count from when it was read, and none of the
// calls that wait was made (O14).
func (p *lanePass) chunkDue() time.Time {
	c := p.chunk
	switch {
	case c.committing || c.finished(p.lane.mayStartCalls()):
		return time.Time{}
	case c.underWay > 0:
		return c.lastActivity.Add(chunkPatience)
	case p.lane.sink.rates.available(allCalls) == 0:
		return c.readAt.Add(min(chunkLife, p.lane.sink.limits.startWindow()/4))
	}
	return never
}

// run ends the chunk, or reads the next one if there is none.
func (p *lanePass) run() error {
	if p.chunk != nil {
		return p.finishChunk()
	}
	return p.readPass()
}

// needsSlot reports whether the next call of the chunk waits for a slot.
func (p *lanePass) needsSlot() bool {
	return p.chunk != nil && !p.chunk.committing && p.chunk.hasNext()
}

// cursorMove is where a lane's cursor goes, and what is read there in the same round trip.
type cursorMove struct {
	last    int64 // all rows of the pass up to this one are done; 0 with newPass
	newPass bool  // the pass is done, and the next one begins
	read    readKind
}

// readPass continues the pass that is there, or begins the next one.
func (p *lanePass) readPass() error {
	r := p.reader
	if r.state == passOver {
		return p.advance(nil, cursorMove{newPass: true, read: r.firstRead})
	}
	return p.advance(nil, cursorMove{last: r.cursor.last, read: readRefList})
}

// finishChunk writes what became of the chunk and reads the next one. The chunk may end in the
// middle of a batch: the next one begins with the rest of it (O2).
func (p *lanePass) finishChunk() error {
	c, r := p.chunk, p.reader
	c.committing = true
	toPark := c.rowsToPark()
	last := r.cursor.last
	if c.next > 0 {
		last = c.rows[c.next-1].ID
	}
	left := passOver
	switch open := p.lane.mayStartCalls(); {
	case c.hasNext() || !open && !r.exhausted():
		left = passUnread
	case open && r.exhausted():
		return p.advance(toPark, cursorMove{newPass: true, read: r.firstRead})
	case open:
		return p.advance(toPark, cursorMove{last: last, read: r.nextRead()})
	}
	if err := p.advance(toPark, cursorMove{last: last}); err != nil {
		return err // the chunk's end is written again, and the rest of the pass is still to be known then
	}
	r.leave(left)
	return nil
}

// advance moves the cursor in a transaction of its own, which parks rows that the chunk leaves, and
// in the same round trip reads what comes next (O2, O3). No call that it reads is made before its
// COMMIT is known (T10).
func (p *lanePass) advance(toPark []*callAttempt, move cursorMove) error {
	r := p.reader
	read := r.newRead(move.read)
	mayBeCalled := 0
	if !move.newPass {
		mayBeCalled = r.cursor.mayBeCalled
		if p.chunk != nil {
			mayBeCalled = max(mayBeCalled-p.chunk.next, 0)
		}
	}
	err := p.lane.fenced(func(b *pgx.Batch) {
		queueParking(b, p.lane, toPark)
		b.Queue(advanceSQL, p.lane.lease.ID, r.cursor.version, move.last, move.newPass, mayBeCalled > 0, move.read == readNothing).Exec(ignoreTag)
		queueParkedCheck(b, toPark)
	}, func(b *pgx.Batch) { r.queueRead(b, read) })
	switch {
	case guard.SQLState(err) == codeMoved:
		r.state = passUnknown // an earlier attempt, whose answer was lost, has done it
	case guard.SQLState(err) == codeNotParked:
		return r.rowsGone() // and cannot be parked
	case err != nil:
		return err
	default:
		r.moved(move.last, mayBeCalled)
	}
	p.chunkCommitted(toPark)
	if r.state == passUnknown {
		return nil
	}
	rows, err := r.received(read, move.newPass)
	if err != nil || len(rows) == 0 {
		return err
	}
	if !p.lane.awaitStandbys(read.walPosition) {
		r.leave(passUnread)
		return nil
	}
	p.chunk = newChunk(p.lane, rows, read.startedAt, r.cursor.mayBeCalled, p.parked.keysUnderWay())
	return nil
}

// chunkCommitted emits what became of a chunk whose end is committed, and notes what needs
// attention next.
func (p *lanePass) chunkCommitted(toPark []*callAttempt) {
	c, sink := p.chunk, p.lane.sink
	if c == nil {
		return
	}
	p.chunk = nil
	for _, a := range toPark {
		d := sink.dispositionOf(a)
		if d.due && d.state == parked.Retrying || d.state == parked.Reconcile && sink.cfg.Reconcile != nil {
			p.parked.dueIn(d.delay)
		}
		if a.state == attemptRated {
			p.parked.noteWaiting(a.rated)
		}
		if a.state == attemptBlocked {
			// The one before it may have been settled meanwhile.
			p.parked.promotions.add(*a.order)
		}
	}
	for _, a := range c.rows[:c.next] {
		switch a.state {
		case attemptUnderWay:
			p.parked.late[a.ID] = a
		case attemptReturned:
			sink.reportSettled(a)
		}
	}
}

// startRows begins the next calls of the chunk: the first in a slot that was taken for it, and as
// many others as there are slots for.
func (p *lanePass) startRows() {
	c, rates := p.chunk, p.lane.sink.rates
	c.lastActivity = time.Now()
	var calls []*callAttempt
	slots := 1
	got := admitted
	for c.hasNext() && slots > 0 && got != notYet {
		for c.hasNext() && slots > 0 && got != notYet {
			if got = p.admit(); got == admitted {
				calls = append(calls, c.nextRow())
				slots--
			}
		}
		if !p.lane.releasing.Load() && got != notYet {
			slots += rates.acquire(len(c.rows) - c.next)
		}
	}
	rates.giveBack(allCalls, slots)
	p.calls.start(calls...)
}

// lookForRoom is how often a lane looks whether its next call may start that waits where it is.
const lookForRoom = 10 * time.Millisecond

// waitsForRoom reports whether the next call of the chunk waits where it is, until others of its
// tenant have returned.
func (p *lanePass) waitsForRoom() bool {
	return p.lane.sink.rates.waitsForRoom(p.chunk.rows[p.chunk.next])
}

// admit decides whether the next row of the chunk may be called, and takes what it needs. If the
// row is to wait elsewhere, it sets it aside, and those after it that wait for the same (O14, O16).
func (p *lanePass) admit() admission {
	c, rates := p.chunk, p.lane.sink.rates
	a := c.rows[c.next]
	got := rates.admit(a)
	if got == setAside && rates.lacksPermit(a.rated) {
		p.takePermits()
		got = rates.admit(a)
	}
	if got == setAside {
		rates.noteWaiting(a.rated)
		c.setAside(a)
		c.next++
		c.skipRows()
	}
	return got
}

// takePermits asks the database for permits of the rates that have none, for the next rows.
func (p *lanePass) takePermits() {
	c, sink := p.chunk, p.lane.sink
	wanted := map[callsOf]int{}
	for _, next := range c.rows[c.next:min(c.next+max(2*sink.cfg.Concurrency, 64), len(c.rows))] {
		if of, waits := sink.rates.mustWait(next.Tenant, next.orderPrefix); of != allCalls && !waits && sink.rates.lacksPermit(of) {
			wanted[of]++
		}
	}
	if len(wanted) == 0 {
		return
	}
	q := sink.rates.request(wanted)
	if err := sink.takePermits(p.lane.ctx, &q); err != nil {
		sink.emit.failed(err, 0) // they wait, as if there were none
	}
	for of := range wanted { // the rows after this one wait too, and none of them asks again
		if sink.rates.lacksPermit(of) {
			sink.rates.noteWaiting(of)
		}
	}
}

// callReturned takes in a call that has returned, after free others gave up their slots. It returns
// the call that may be made in its place, or nil if there is none.
func (p *lanePass) callReturned(a *callAttempt, free int) *callAttempt {
	if a.parked == 0 {
		a.state = attemptReturned
	}
	if a.parked != 0 || p.parked.late[a.ID] != nil {
		// It was picked, or the chunk did not wait for it. Then it is in the parked table by now,
		// and its settlement finds it there by its row.
		p.parked.returned = append(p.parked.returned, a)
		return nil
	}
	c, rates := p.chunk, p.lane.sink.rates
	c.underWay--
	c.lastActivity = time.Now()
	next := c.nextOfKey(a)
	if next == nil || p.lane.releasing.Load() || a.gaveUp.Load() || !rates.keep(free) {
		return nil
	}
	switch rates.follow(a, next) {
	case admitted:
		c.begin(next)
		return next
	case setAside:
		next.state = attemptRated
		c.blockKey(*next.order)
	}
	rates.refund(allCalls, 1)
	return nil // if it was not set aside, it is cut when the chunk ends
}
