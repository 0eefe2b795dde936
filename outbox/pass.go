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

// cursorMove is where a lane's cursor goes, and what is read there in the same round trip.
type cursorMove struct {
	last    int64 // all rows of the pass up to this one are done; 0 with newPass
	newPass bool  // the pass is done, and the next one begins
	read    readKind
}

// readPass continues the pass that is there, or begins the next one.
func (o *laneOwner) readPass() error {
	if o.reader.cursor.unread {
		return o.advance(nil, cursorMove{last: o.reader.cursor.last, read: o.reader.firstRead()})
	}
	return o.advance(nil, cursorMove{newPass: true, read: o.reader.firstRead()})
}

// finishChunk writes what became of the chunk and reads the next one. The chunk may end in the
// middle of a batch: the next one begins with the rest of it.
func (o *laneOwner) finishChunk() error {
	c, r := o.chunk, o.reader
	c.committing = true
	toPark := c.rowsToPark()
	last := r.cursor.last
	if c.next > 0 {
		last = c.rows[c.next-1].ID
	}
	whole, open := !c.hasNext(), o.mayStartCalls()
	switch {
	case whole && r.passExhausted() && open:
		return o.advance(toPark, cursorMove{newPass: true, read: r.firstRead()})
	case whole && r.passExhausted():
		err := o.advance(toPark, cursorMove{last: last})
		r.cursor.unread, r.newRows = r.cursor.unread && err != nil, true
		return err
	case !whole || !open:
		err := o.advance(toPark, cursorMove{last: last})
		if err == nil { // or else the chunk's end is written again, and what follows it is still to be known
			r.interrupt()
		}
		return err
	}
	return o.advance(toPark, cursorMove{last: last, read: r.nextRead()})
}

// advance moves the cursor in a transaction of its own, which parks rows that the chunk leaves, and
// in the same round trip reads what comes next (O2, O3). No call that it reads is made before its
// COMMIT is known.
func (o *laneOwner) advance(toPark []*callAttempt, move cursorMove) error {
	r := o.reader
	read := r.newRead(move.read)
	mayBeCalled := 0
	if !move.newPass {
		mayBeCalled = r.cursor.mayBeCalled
		if o.chunk != nil {
			mayBeCalled = max(mayBeCalled-o.chunk.next, 0)
		}
	}
	err := o.lane.fenced(func(b *pgx.Batch) {
		queueParking(b, o.lane, toPark)
		b.Queue(advanceSQL, o.lane.lease.ID, r.cursor.version, move.last, move.newPass, mayBeCalled > 0, move.read == readNothing).Exec(ignoreTag)
	}, func(b *pgx.Batch) { r.queueRead(b, read) })
	switch {
	case guard.SQLState(err) == codeMoved:
		r.cursorKnown = false // an earlier attempt, whose answer was lost, has done it
	case err != nil:
		return err
	default:
		r.moved(move.last, mayBeCalled)
	}
	o.chunkCommitted(toPark)
	if !r.cursorKnown {
		return nil
	}
	rows, err := r.received(read, move.newPass)
	if err != nil || len(rows) == 0 {
		return err
	}
	if !o.lane.awaitStandbys(read.walPosition) {
		r.cursor.unread = true
		return nil
	}
	o.chunk = newChunk(o.lane, rows, read.startedAt, r.cursor.mayBeCalled, o.parked.keysUnderWay())
	return nil
}

// chunkCommitted emits what became of a chunk whose end is committed, and notes what needs
// attention next.
func (o *laneOwner) chunkCommitted(toPark []*callAttempt) {
	c := o.chunk
	if c == nil {
		return
	}
	o.chunk = nil
	for _, a := range toPark {
		d := o.sink.dispositionOf(a)
		if d.due && d.state == parked.Retrying || d.state == parked.Reconcile && o.sink.cfg.Reconcile != nil {
			o.parked.dueIn(d.delay)
		}
		if a.state == attemptRated {
			o.parked.noteWaiting(a.rated)
		}
		if a.state == attemptBlocked {
			// The one before it may have been settled meanwhile.
			o.promotions.add(*a.order)
		}
	}
	for _, a := range c.rows[:c.next] {
		switch a.state {
		case attemptUnderWay:
			o.parked.late[a.ID] = a
		case attemptReturned:
			o.sink.emit.settled(o.sink.dispositionOf(a).event(a))
		}
	}
}

// startRows begins the next calls of the chunk: the first in a slot that was taken for it, and as
// many others as there are slots for.
func (o *laneOwner) startRows() {
	c := o.chunk
	c.lastActivity = time.Now()
	var calls []*callAttempt
	slots := 1
	for c.hasNext() && slots > 0 {
		for c.hasNext() && slots > 0 {
			if o.permitted() {
				calls = append(calls, c.nextRow())
				slots--
			}
		}
		if o.drainUntil.IsZero() {
			slots += o.sink.slots.acquire(len(c.rows) - c.next)
		}
	}
	o.sink.slots.unused(slots)
	o.calls.start(calls...)
}
