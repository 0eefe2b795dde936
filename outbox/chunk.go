package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// chunkPatience is how long a chunk waits for its last calls after the last one began or returned.
// Calls that are still under way then are written to the parked table and settled there, so that
// the lane goes on.
const chunkPatience = 250 * time.Millisecond

// callAttempt is one attempt at one call.
type callAttempt struct {
	Delivery
	key      uuid.UUID
	order    *uuid.UUID // nil: it waits for no other
	sealed   bool
	sealedAs uuid.UUID // the key that the body was sealed under

	readAt      time.Time     // before the database measured age and wait
	age         time.Duration // since the first call under the key can have been made
	notBeforeIn time.Duration // until it may be made; not positive: now
	mayBeCalled bool          // a call may have been made before
	keyParked   bool          // another call of its ordering key is parked
	notAfter    time.Time     // when the call may no longer start; zero: no bound

	owner       *laneOwner // makes the call; nil before it is started
	chunk       *chunk
	state       attemptState
	parked      int64 // id of the row that it was picked from; 0: it comes from the log
	mayHaveLeft bool  // the call may have left
	unopened    bool  // its body could not be opened: no call was made
	opensWindow bool  // its key's window has begun with this attempt
	reconciling bool  // asks whether the call was applied; no call is made
	task        func(context.Context, *callAttempt)
	result      Result
	decision    Reconciliation
	answer      *Response // the remote has accepted the call; only its completion is left
	disposition disposition
	decided     bool // disposition holds
}

// completing reports whether the remote has accepted the call, so that no further call is made.
func (a *callAttempt) completing() bool { return a.answer != nil }

// attemptState is how far a row of a chunk has come.
type attemptState int

const (
	attemptWaiting   attemptState = iota // for its turn
	attemptBlocked                       // an earlier call of its key is parked: no call is made
	attemptScheduled                     // its time has not come
	attemptUnderWay
	attemptReturned // the call has returned
)

// chunk is the part of a pass that is read at once. Calls are begun in the order of the log, and
// those of one ordering key one after another.
type chunk struct {
	rows         []*callAttempt // by id
	next         int            // first row that is not looked at yet
	underWay     int
	lastActivity time.Time // when a call last began or returned
	// committing means that the chunk's end may be committed, and whether it is, is unknown. Rows
	// that it has not begun would then be read and called again, beside its own calls.
	committing bool

	waiting     map[uuid.UUID][]*callAttempt // keys with a call under way, with the calls that wait for it
	blockedKeys map[uuid.UUID]bool           // keys with a call that was parked
}

// beginChunk starts a chunk.
func (o *laneOwner) beginChunk(rows []*callAttempt, readAt time.Time) {
	c := &chunk{rows: rows, lastActivity: time.Now(), waiting: map[uuid.UUID][]*callAttempt{}, blockedKeys: map[uuid.UUID]bool{}}
	window := o.sender.limits.startWindow()
	under := o.keysUnderWay()
	for i, a := range rows {
		a.keyParked = a.keyParked || a.order != nil && slices.Contains(under, *a.order)
		a.Sink, a.Attempt, a.chunk, a.readAt = o.sender.name, 1, c, readAt
		a.mayBeCalled = a.mayBeCalled || i < o.cursor.mayBeCalled
		a.opensWindow = !a.mayBeCalled
		if window != Forever {
			a.notAfter = readAt.Add(window - a.age)
		}
	}
	o.chunk = c
	c.skipRows()
}

// keysUnderWay returns the ordering keys of parked calls that are under way. If an operator
// discards such a call meanwhile, it blocks nothing any more in the database, but the remote may
// still accept it.
func (o *laneOwner) keysUnderWay() []uuid.UUID {
	keys := []uuid.UUID{}
	for _, m := range []map[int64]*callAttempt{o.pickedCalls, o.lateCalls} {
		for _, a := range m {
			if a.order != nil {
				keys = append(keys, *a.order)
			}
		}
	}
	return keys
}

// skipRows skips rows that cannot be called now.
func (c *chunk) skipRows() {
	for ; c.next < len(c.rows); c.next++ {
		a := c.rows[c.next]
		switch {
		case a.keyParked || a.order != nil && c.blockedKeys[*a.order]:
			a.state = attemptBlocked
		case a.notBeforeIn > 0:
			a.state = attemptScheduled
			if a.order != nil {
				c.blockedKeys[*a.order] = true
			}
		case a.order != nil && c.keyBusy(*a.order):
			c.waiting[*a.order] = append(c.waiting[*a.order], a)
		default:
			return
		}
	}
}

func (c *chunk) keyBusy(key uuid.UUID) bool {
	_, busy := c.waiting[key]
	return busy
}

// finished reports whether nothing more happens to the chunk. open is whether calls may be begun.
func (c *chunk) finished(open bool) bool {
	return c.underWay == 0 && (c.next == len(c.rows) || !open)
}

// nextOfKey returns the call that waited for f, which has returned, if it may be made now.
func (c *chunk) nextOfKey(a *callAttempt) *callAttempt {
	if a.order == nil {
		return nil
	}
	queue := c.waiting[*a.order]
	if a.result.Outcome == Delivered && !a.Capture {
		if len(queue) > 0 {
			c.waiting[*a.order] = queue[1:]
			return queue[0]
		}
		delete(c.waiting, *a.order)
		return nil
	}
	c.blockKey(*a.order)
	return nil
}

// blockKey parks the calls that wait for a call of the key that was not delivered.
func (c *chunk) blockKey(key uuid.UUID) {
	c.blockedKeys[key] = true
	for _, a := range c.waiting[key] {
		a.state = attemptBlocked
	}
	delete(c.waiting, key)
	c.skipRows()
}

// startRows begins the next calls of the chunk: the first in a slot that was taken for it, and as
// many others as there are slots for.
func (o *laneOwner) startRows() {
	c := o.chunk
	c.lastActivity = time.Now()
	var calls []*callAttempt
	slots := 1
	for c.next < len(c.rows) && slots > 0 {
		for ; c.next < len(c.rows) && slots > 0; slots-- {
			a := c.rows[c.next]
			c.next++
			if a.order != nil {
				c.waiting[*a.order] = nil // busy
			}
			calls = append(calls, a)
			c.skipRows()
		}
		if o.drainUntil.IsZero() {
			slots += o.sender.acquireSlots(len(c.rows) - c.next)
		}
	}
	o.sender.slots.release(slots)
	o.startCalls(calls...)
}

// rowsToPark returns the rows that the chunk leaves to the parked table: those that were looked at
// and not delivered.
func (c *chunk) rowsToPark(o *laneOwner) (all []*callAttempt) {
	for _, a := range c.rows[:c.next] {
		if a.state == attemptUnderWay && a.order != nil {
			c.blockKey(*a.order)
		}
	}
	for _, a := range c.rows[:c.next] {
		// The lane is to be given back before its turn came: it is the first of its key, or follows
		// one.
		if a.state == attemptWaiting && a.order != nil {
			if c.blockedKeys[*a.order] {
				a.state = attemptBlocked
			}
			c.blockedKeys[*a.order] = true
		}
		if a.state != attemptReturned || a.result.Outcome != Delivered || a.Capture {
			all = append(all, a)
		}
	}
	return all
}

// queueParking queues the statement that parks rows of the log.
func queueParking(b *pgx.Batch, o *laneOwner, toPark []*callAttempt) {
	n := len(toPark)
	if n == 0 {
		return
	}
	var (
		ids, keys, states        = make([]int64, n), make([]pgtype.UUID, n), make([]string, n)
		reasons, errs, attempts  = make([]string, n), make([]string, n), make([]int32, n)
		delays, called, statuses = make([]*int64, n), make([]bool, n), make([]*int32, n)
		headers, bodies          = make([]*string, n), make([][]byte, n)
	)
	for i, a := range toPark {
		d := o.dispositionOf(a)
		ids[i], keys[i], states[i], reasons[i], errs[i] = a.ID, pgUUID(a.key), d.state, d.reason, d.lastError
		if d.due {
			micros := d.delay.Microseconds()
			delays[i] = &micros
		}
		underWay := a.state == attemptUnderWay // it may be made at any moment; a.mayHaveLeft is its goroutine's
		called[i] = underWay || a.mayHaveLeft || a.mayBeCalled
		if underWay || a.mayHaveLeft {
			attempts[i] = 1
		}
		statuses[i], headers[i], bodies[i] = d.answerColumns()
	}
	b.Queue(parkSQL, o.sender.name, o.lane, ids, keys, states, reasons, errs, attempts, delays, called, statuses, headers, bodies, o.sender.cfg.PassOn).Exec(ignoreTag)
}

// chunkCommitted emits what became of a chunk whose end is committed, and notes what needs
// attention next.
func (o *laneOwner) chunkCommitted(toPark []*callAttempt) {
	c := o.chunk
	if c == nil {
		return
	}
	for _, a := range toPark {
		d := o.dispositionOf(a)
		if d.due && d.state == parked.Retrying || d.state == parked.Reconcile && o.sender.cfg.Reconcile != nil {
			o.parkedDueIn(d.delay)
		}
		if a.state == attemptBlocked {
			// The one before it may have been settled meanwhile.
			o.keysToPromote = append(o.keysToPromote, *a.order)
		}
	}
	for _, a := range c.rows[:c.next] {
		if a.state == attemptUnderWay {
			o.lateCalls[a.ID] = a
		}
		if a.state == attemptReturned {
			o.sender.emit.settled(o.dispositionOf(a).event(a))
		}
	}
}

// parkedDueIn notes that a parked call is due after d.
func (o *laneOwner) parkedDueIn(d time.Duration) {
	at := time.Now().Add(d)
	if !o.parkedDue || at.Before(o.parkedDueAt) {
		o.parkedDue, o.parkedDueAt = true, at
	}
}
