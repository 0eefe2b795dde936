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

// patience is how long a chunk waits for its last calls after the last one began or returned. Calls
// that are still under way then are written to the parked table and settled there, so that the lane
// goes on.
const patience = 250 * time.Millisecond

// flight is one attempt at one call.
type flight struct {
	Delivery
	key      uuid.UUID
	order    *uuid.UUID // nil: it waits for no other
	sealed   bool
	sealedAs uuid.UUID // the key that the body was sealed under

	asked    time.Time     // before the database measured age and wait
	age      time.Duration // since the first call under the key can have been made
	wait     time.Duration // until it may be made; not positive: now
	suspect  bool          // a call may have been made before
	blocked  bool          // another call of its ordering key is parked
	notAfter time.Time     // when the call may no longer start; zero: no bound

	t        *tenure // the tenure that makes the call, once it is made
	chunk    *chunk
	state    flightState
	parked   int64 // id of the row that it was picked from; 0: it comes from the log
	made     bool  // the call may have left
	unopened bool  // its body could not be opened: no call was made
	first    bool  // its key's window has begun with this attempt
	asking   bool  // asks whether the call was applied; no call is made
	work     func(context.Context, *flight)
	result   Result
	decision Reconciliation
	answer   *Response // the remote has accepted the call; only its completion is left
	verdict  verdict
	judged   bool // verdict holds
}

// completing reports whether the remote has accepted the call, so that no further call is made.
func (f *flight) completing() bool { return f.answer != nil }

// flightState is how far a row of a chunk has come.
type flightState int

const (
	flightWaiting   flightState = iota // for its turn
	flightBehind                       // an earlier call of its key is parked: no call is made
	flightScheduled                    // its time has not come
	flightFlying
	flightDone // the call has returned
)

// chunk is the part of a pass that is read at once. Calls are begun in the order of the log, and
// those of one ordering key one after another.
type chunk struct {
	rows   []*flight // by id
	next   int       // first row that is not looked at yet
	flying int
	last   time.Time // when a call last began or returned
	// ending means that the chunk's end may be committed, and whether it is, is unknown. Rows that
	// it has not begun would then be read and called again, beside its own calls.
	ending bool

	queues map[uuid.UUID][]*flight // keys with a call under way, with the calls that wait for it
	shut   map[uuid.UUID]bool      // keys with a call that was parked
}

// begin starts a chunk.
func (t *tenure) begin(rows []*flight, asked time.Time) {
	c := &chunk{rows: rows, last: time.Now(), queues: map[uuid.UUID][]*flight{}, shut: map[uuid.UUID]bool{}}
	window := t.s.limits.startWindow()
	under := t.under()
	for i, f := range rows {
		f.blocked = f.blocked || f.order != nil && slices.Contains(under, *f.order)
		f.Sink, f.Attempt, f.chunk, f.asked = t.s.name, 1, c, asked
		f.suspect = f.suspect || i < t.cursor.suspect
		f.first = !f.suspect
		if window != Forever {
			f.notAfter = asked.Add(window - f.age)
		}
	}
	t.chunk = c
	c.skim()
}

// under returns the ordering keys of parked calls that are under way. If an operator discards such
// a call meanwhile, it blocks nothing any more in the database, but the remote may still accept it.
func (t *tenure) under() []uuid.UUID {
	keys := []uuid.UUID{}
	for _, m := range []map[int64]*flight{t.retries, t.late} {
		for _, f := range m {
			if f.order != nil {
				keys = append(keys, *f.order)
			}
		}
	}
	return keys
}

// skim skips rows that cannot be called now.
func (c *chunk) skim() {
	for ; c.next < len(c.rows); c.next++ {
		f := c.rows[c.next]
		switch {
		case f.blocked || f.order != nil && c.shut[*f.order]:
			f.state = flightBehind
		case f.wait > 0:
			f.state = flightScheduled
			if f.order != nil {
				c.shut[*f.order] = true
			}
		case f.order != nil && c.busy(*f.order):
			c.queues[*f.order] = append(c.queues[*f.order], f)
		default:
			return
		}
	}
}

func (c *chunk) busy(key uuid.UUID) bool {
	_, busy := c.queues[key]
	return busy
}

// finished reports whether nothing more happens to the chunk. open is whether calls may be begun.
func (c *chunk) finished(open bool) bool {
	return c.flying == 0 && (c.next == len(c.rows) || !open)
}

// followers returns the call that waited for f, which has returned, if it may be made now.
func (c *chunk) followers(f *flight) *flight {
	if f.order == nil {
		return nil
	}
	queue := c.queues[*f.order]
	if f.result.Outcome == Delivered && !f.Capture {
		if len(queue) > 0 {
			c.queues[*f.order] = queue[1:]
			return queue[0]
		}
		delete(c.queues, *f.order)
		return nil
	}
	c.block(*f.order)
	return nil
}

// block parks the calls that wait for a call of the key that was not delivered.
func (c *chunk) block(key uuid.UUID) {
	c.shut[key] = true
	for _, f := range c.queues[key] {
		f.state = flightBehind
	}
	delete(c.queues, key)
	c.skim()
}

// startNext begins the next calls of the chunk: the first in a slot that was taken for it, and as
// many others as there are slots for.
func (t *tenure) startNext() {
	c := t.chunk
	c.last = time.Now()
	var calls []*flight
	slots := 1
	for c.next < len(c.rows) && slots > 0 {
		for ; c.next < len(c.rows) && slots > 0; slots-- {
			f := c.rows[c.next]
			c.next++
			if f.order != nil {
				c.queues[*f.order] = nil // busy
			}
			calls = append(calls, f)
			c.skim()
		}
		if t.stopAt.IsZero() {
			slots += t.s.take(len(c.rows) - c.next)
		}
	}
	t.s.slots.give(slots)
	t.launch(calls...)
}

// diverted returns the rows that the chunk leaves to the parked table: those that were looked at
// and not delivered.
func (c *chunk) diverted(t *tenure) (all []*flight) {
	for _, f := range c.rows[:c.next] {
		if f.state == flightFlying && f.order != nil {
			c.block(*f.order)
		}
	}
	for _, f := range c.rows[:c.next] {
		// The lane is to be given back before its turn came: it is the first of its key, or follows
		// one.
		if f.state == flightWaiting && f.order != nil {
			if c.shut[*f.order] {
				f.state = flightBehind
			}
			c.shut[*f.order] = true
		}
		if f.state != flightDone || f.result.Outcome != Delivered || f.Capture {
			all = append(all, f)
		}
	}
	return all
}

// queueDiverts queues the statement that parks rows of the log.
func queueDiverts(b *pgx.Batch, t *tenure, diverted []*flight) {
	n := len(diverted)
	if n == 0 {
		return
	}
	var (
		ids, keys, states        = make([]int64, n), make([]pgtype.UUID, n), make([]string, n)
		reasons, errs, attempts  = make([]string, n), make([]string, n), make([]int32, n)
		delays, called, statuses = make([]*int64, n), make([]bool, n), make([]*int32, n)
		headers, bodies          = make([]*string, n), make([][]byte, n)
	)
	for i, f := range diverted {
		s := t.judge(f)
		ids[i], keys[i], states[i], reasons[i], errs[i] = f.ID, pgUUID(f.key), s.state, s.reason, s.text
		if s.due {
			d := s.delay.Microseconds()
			delays[i] = &d
		}
		flying := f.state == flightFlying // it may be made at any moment; f.made is its goroutine's
		called[i] = flying || f.made || f.suspect
		if flying || f.made {
			attempts[i] = 1
		}
		statuses[i], headers[i], bodies[i] = s.response()
	}
	b.Queue(divertSQL, t.s.name, t.lane, ids, keys, states, reasons, errs, attempts, delays, called, statuses, headers, bodies, t.s.cfg.PassOn).Exec(anyRows)
}

// told reports what became of a chunk whose end is committed, and notes what needs attention next.
func (t *tenure) told(diverted []*flight) {
	c := t.chunk
	if c == nil {
		return
	}
	for _, f := range diverted {
		s := t.judge(f)
		if s.due && s.state == parked.Retrying || s.state == parked.Reconcile && t.s.cfg.Reconcile != nil {
			t.dueIn(s.delay)
		}
		if f.state == flightBehind {
			// The one before it may have been settled meanwhile.
			t.promote = append(t.promote, *f.order)
		}
	}
	for _, f := range c.rows[:c.next] {
		if f.state == flightFlying {
			t.late[f.ID] = f
		}
		if f.state == flightDone {
			t.s.tell.settled(t.judge(f).event(f))
		}
	}
}

// dueIn notes that a parked call is due after d.
func (t *tenure) dueIn(d time.Duration) {
	at := time.Now().Add(d)
	if !t.due || at.Before(t.dueAt) {
		t.due, t.dueAt = true, at
	}
}
