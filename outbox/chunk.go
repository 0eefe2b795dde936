package outbox

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/outbox/internal/gate"
)

// chunkPatience is how long a chunk waits for its last calls after the last one began or returned.
// Calls that are still under way then are written to the parked table and settled there, so that
// the lane goes on.
const chunkPatience = 250 * time.Millisecond

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

	gate   *gate.Gate
	readAt time.Time

	waiting     map[uuid.UUID][]*callAttempt // keys with a call under way, with the calls that wait for it
	blockedKeys map[uuid.UUID]bool           // keys with a call that was parked
}

// newChunk returns the chunk of rows that were read at a time. A previous owner may have called the
// first maybeCalledRows of them, and keysUnderWay are the ordering keys of parked calls that
// are under way.
func newChunk(
	lane *heldLane,
	rows []*callAttempt,
	readAt time.Time,
	maybeCalledRows int,
	keysUnderWay []uuid.UUID,
) *chunk {
	c := &chunk{
		rows: rows, lastActivity: time.Now(), gate: lane.sink.gate, readAt: readAt,
		waiting: map[uuid.UUID][]*callAttempt{}, blockedKeys: map[uuid.UUID]bool{},
	}
	window := lane.sink.limits.startWindow()
	for i, a := range rows {
		a.keyParked = a.keyParked || a.order != nil && slices.Contains(keysUnderWay, *a.order)
		a.Sink = lane.sink.name
		a.Number = 1
		a.readAt = readAt
		a.maybeCalledBefore = a.maybeCalledBefore || i < maybeCalledRows
		a.noneOpen = !a.maybeCalledBefore
		a.boundBy(window)
	}
	c.skipRows()
	return c
}

// skipRows skips rows that cannot be called now (O4).
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
			k, waits := c.gate.Waits(a.entrant())
			if !waits {
				return
			}
			c.setAside(a, k)
		}
	}
}

// setAside has a call wait for a rate or for room, and the later calls of its ordering key after
// it.
func (c *chunk) setAside(a *callAttempt, waitsFor gate.Key) {
	a.state = attemptRated
	a.waitsFor = waitsFor
	if a.order != nil {
		c.blockedKeys[*a.order] = true
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

// begin notes that a call begins.
func (c *chunk) begin(a *callAttempt) {
	a.state = attemptUnderWay
	c.underWay++
}

// nextOfKey returns the call that waited for a, which has returned, if it may be made now (O4).
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

// nextRow begins the next row that can be called, of which there is one, and skips those after it
// that cannot.
func (c *chunk) nextRow() *callAttempt {
	a := c.rows[c.next]
	c.begin(a)
	c.next++
	if a.order != nil {
		c.waiting[*a.order] = nil // busy
	}
	c.skipRows()
	return a
}

// startable is how many of the rows that were not looked at may begin side by side, at most most:
// of an ordering key one.
func (c *chunk) startable(most int) (n int) {
	var keys map[uuid.UUID]bool
	for _, a := range c.rows[c.next:] {
		if n == most {
			break
		}
		if a.keyParked || a.notBeforeIn > 0 {
			continue
		}
		if a.order != nil {
			if keys[*a.order] || c.keyBusy(*a.order) || c.blockedKeys[*a.order] {
				continue
			}
			if keys == nil {
				keys = map[uuid.UUID]bool{}
			}
			keys[*a.order] = true
		}
		n++
	}
	return n
}

// hasNext reports whether rows are left that were not looked at.
func (c *chunk) hasNext() bool { return c.next < len(c.rows) }

// rowsToPark returns the rows that the chunk leaves to the parked table: those that were looked at
// and not delivered.
func (c *chunk) rowsToPark() (all []*callAttempt) {
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
