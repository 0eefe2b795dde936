package outbox

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// advanceSQL moves the cursor; see the function's comment in the migration. In: lane id, version,
// last id, freeze, keep started_at, quiet.
const advanceSQL = `
select onlyonce.advance(
  lane_id => $1,
  seen => $2,
  last_id => $3,
  freeze => $4,
  keep_started => $5,
  quiet => $6
)`

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
// long. Then it is read anew: key windows start at the read, and none of the waiting calls has been
// sent (O14).
func (p *lanePass) chunkDue() time.Time {
	c := p.chunk
	switch {
	case c.committing:
		return time.Time{}
	case c.underWay > 0:
		return c.lastActivity.Add(chunkPatience)
	case c.finished(p.lane.mayStartCalls()):
		return time.Time{}
	case p.lane.sink.gate.Available(gate.All) == 0:
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
	c := p.chunk
	r := p.reader
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
	maybeCalledRows := 0
	if !move.newPass {
		maybeCalledRows = r.cursor.maybeCalledRows
		if p.chunk != nil {
			maybeCalledRows = max(maybeCalledRows-p.chunk.next, 0)
		}
	}
	err := p.lane.fenced(func(b *pgx.Batch) {
		queueParking(b, p.lane, toPark)
		b.Queue(
			advanceSQL,
			p.lane.lease.ID,
			r.cursor.version,
			move.last,
			move.newPass,
			maybeCalledRows > 0,
			move.read == readNothing,
		).Exec(ignoreTag)
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
		r.moved(move.last, maybeCalledRows)
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
	p.chunk = newChunk(p.lane, rows, read.startedAt, r.cursor.maybeCalledRows, p.parked.keysUnderWay())
	return nil
}

// chunkCommitted emits what became of a chunk whose end is committed, and notes what needs
// attention next.
func (p *lanePass) chunkCommitted(toPark []*callAttempt) {
	c := p.chunk
	sink := p.lane.sink
	if c == nil {
		return
	}
	p.chunk = nil
	for _, a := range toPark {
		d := sink.dispositionOf(a)
		tried := d.due && d.state == parked.Retrying
		reconciled := d.state == parked.Reconcile && sink.cfg.Reconcile != nil
		if tried || reconciled {
			p.parked.dueIn(d.delay)
		}
		if a.state == attemptRated {
			p.parked.noteWaiting(a.waitsFor)
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

// wantedSlots is for how many calls of the chunk slots are taken at once: for all that may start
// side by side. If each lane took one first, the lanes would share what is free in many small
// batches. If it took more, it would ask other relays for places that it cannot use (O15).
func (p *lanePass) wantedSlots() int {
	if p.lane.releasing.Load() {
		return 1
	}
	return p.chunk.startable(p.lane.sink.gate.Free())
}

// startRows begins the next calls of the chunk with the tickets that were taken for them, and with
// others as long as there are slots. It ends the tickets with which no call begins.
func (p *lanePass) startRows(tickets []*gate.Ticket) {
	c := p.chunk
	g := p.lane.sink.gate
	c.lastActivity = time.Now()
	var calls []*callAttempt
	got := gate.Admitted
	for c.hasNext() && len(tickets) > 0 && got != gate.NotYet {
		for c.hasNext() && len(tickets) > 0 && got != gate.NotYet {
			if got = p.admit(tickets[0]); got == gate.Admitted {
				a := c.nextRow()
				a.ticket = tickets[0]
				tickets = tickets[1:]
				calls = append(calls, a)
			}
		}
		if !p.lane.releasing.Load() && c.hasNext() && got != gate.NotYet {
			tickets = append(tickets, g.Take(p.wantedSlots())...)
		}
	}
	g.Unused(tickets...)
	p.calls.start(calls...)
}

// lookForRoom is how often a lane checks whether its waiting next call may start.
const lookForRoom = 10 * time.Millisecond

// waitsForRoom reports whether the next call of the chunk waits where it is, until others of its
// tenant have returned.
func (p *lanePass) waitsForRoom() bool {
	return p.lane.sink.gate.WaitsForRoom(p.chunk.rows[p.chunk.next].Tenant)
}

// admit decides whether the next row of the chunk may be called with a ticket. If the row is to
// wait elsewhere, it sets it aside, and those after it that wait for the same (O14, O16). The
// tickets are kept while the database is asked: another lane cannot take the slots for calls that
// need no permit.
func (p *lanePass) admit(t *gate.Ticket) gate.Verdict {
	c := p.chunk
	g := p.lane.sink.gate
	a := c.rows[c.next]
	got, waitsFor := t.Admit(a.entrant())
	if got == gate.SetAside && g.LacksPermit(waitsFor) {
		p.askForPermits()
		got, waitsFor = t.Admit(a.entrant())
	}
	if got == gate.SetAside {
		g.NoteWaiting(waitsFor)
		c.setAside(a, waitsFor)
		c.next++
		c.skipRows()
	}
	return got
}

// askForPermits asks the database for permits of the rates that have none, for the next rows.
func (p *lanePass) askForPermits() {
	c := p.chunk
	sink := p.lane.sink
	wanted := map[gate.Key]int{}
	for _, next := range c.rows[c.next:min(c.next+max(2*sink.cfg.Concurrency, 64), len(c.rows))] {
		if k, waits := sink.gate.Waits(next.entrant()); k != gate.All && !waits && sink.gate.LacksPermit(k) {
			wanted[k]++
		}
	}
	if len(wanted) == 0 {
		return
	}
	if err := sink.ask(p.lane.ctx, sink.gate.AskFor(wanted)); err != nil {
		sink.emit.failed(err, 0) // they wait, as if there were none
	}
	for k := range wanted { // the rows after this one wait too, and none of them asks again
		if sink.gate.LacksPermit(k) {
			sink.gate.NoteWaiting(k)
		}
	}
}

// callReturned takes in a call that has returned. It returns the call of its ordering key that may
// follow it in its slot, or nil if there is none. The caller ends the ticket of the call, or has
// the other one follow.
func (p *lanePass) callReturned(a *callAttempt, now time.Time) (next *callAttempt) {
	if a.parked == 0 {
		a.state = attemptReturned
	}
	if a.parked != 0 || p.parked.late[a.ID] != nil {
		// It was picked, or the chunk did not wait for it. Then it is in the parked table by now,
		// and its settlement finds it there by its row.
		p.parked.returned = append(p.parked.returned, a)
		return nil
	}
	p.chunk.underWay--
	p.chunk.lastActivity = now
	next = p.chunk.nextOfKey(a)
	if p.lane.releasing.Load() || a.gaveUp.Load() {
		return nil // it is cut when the chunk ends
	}
	return next
}

// follow begins the next call of an ordering key with the ticket of the one that has returned,
// which it ends if the call may not start now. It reports whether it starts. If it does not, and is
// not set aside, it is cut when the chunk ends.
func (p *lanePass) follow(a, next *callAttempt) bool {
	t := a.ticket
	a.ticket = nil
	got, waitsFor := t.Follow(next.entrant())
	switch got {
	case gate.Admitted:
		next.ticket = t
		p.chunk.begin(next)
	case gate.SetAside:
		next.state = attemptRated
		next.waitsFor = waitsFor
		p.chunk.blockKey(*next.order)
	}
	return got == gate.Admitted
}
