package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// patience is how long a chunk waits for its last calls once none has returned. Those that are still out then are written to the parked table
// and settled there, so that the lane goes on.
const patience = 250 * time.Millisecond

// flight is one attempt at one call.
type flight struct {
	Delivery
	key    uuid.UUID
	order  *uuid.UUID // nil: it waits for no other
	sealed bool

	asked    time.Time     // before the database measured age and wait
	age      time.Duration // since the first call under the key can have been made
	wait     time.Duration // until it may be made; not positive: now
	suspect  bool          // a call may have been made before
	blocked  bool          // another call of its ordering key is parked
	notAfter time.Time     // when the call may no longer start; zero: no bound

	chunk    *chunk
	state    flightState
	parked   int64 // id of the row that it was picked from; 0: it comes from the log
	made     bool  // the call may have left
	asking   bool  // whether the call was applied: none is made
	work     func(context.Context, *flight)
	result   Result
	decision Reconciliation
	answer   *Response // the remote has accepted the call: what is left is to complete it
	verdict  *verdict
}

// completing says whether no call is to be made any more.
func (f *flight) completing() bool { return f.answer != nil }

// flightState is how far a row of a chunk has come.
type flightState int

const (
	flightWaiting   flightState = iota // for its turn
	flightBehind                       // another call of its ordering key is parked: no call is made
	flightScheduled                    // its time has not come
	flightFlying
	flightDone // the call has returned
)

// chunk is what is read of a pass at once. Calls are begun in the order of the log, and those of one ordering key one after another.
type chunk struct {
	rows   []*flight // by id
	next   int       // first row that is not looked at yet
	flying int
	last   time.Time // when a call last began or returned
	// ending: its end may be committed, and nobody knows. What it has not begun would then be read and called again, beside its calls.
	ending bool

	queues map[uuid.UUID][]*flight // keys with a call under way: who waits behind it
	shut   map[uuid.UUID]bool      // keys with a call that was parked
}

// begin starts with a chunk.
func (t *tenure) begin(rows []*flight, asked time.Time) {
	c := &chunk{rows: rows, last: time.Now(), queues: map[uuid.UUID][]*flight{}, shut: map[uuid.UUID]bool{}}
	window := t.s.limits.startWindow()
	under := t.under()
	for i, f := range rows {
		f.blocked = f.blocked || f.order != nil && slices.Contains(under, *f.order)
		f.Sink, f.Attempt, f.chunk, f.asked = t.s.name, 1, c, asked
		f.suspect = f.suspect || i < t.cursor.suspect
		if window != Forever {
			f.notAfter = asked.Add(window - f.age)
		}
	}
	t.chunk = c
	c.skim()
}

// under are the ordering keys of parked calls that are under way. One that an operator discards meanwhile blocks nothing any more in the
// database, and may still be accepted.
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

// skim passes over rows that no call is begun for now.
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

// finished says whether nothing more happens to the chunk. open is whether calls may be begun.
func (c *chunk) finished(open bool) bool {
	return c.flying == 0 && (c.next == len(c.rows) || !open)
}

// followers returns the call that waited behind one that has returned, if it may be made now.
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

// block parks what waits behind a call that was not delivered.
func (c *chunk) block(key uuid.UUID) {
	c.shut[key] = true
	for _, f := range c.queues[key] {
		f.state = flightBehind
	}
	delete(c.queues, key)
	c.skim()
}

// startNext begins the next calls of the chunk, the first in a slot that was taken for it.
func (t *tenure) startNext() {
	c := t.chunk
	c.last = time.Now()
	for {
		f := c.rows[c.next]
		c.next++
		if f.order != nil {
			c.queues[*f.order] = nil // busy
		}
		t.launch(f)
		c.skim()
		if c.next == len(c.rows) || !t.starting() {
			return
		}
		select {
		case t.s.slots <- struct{}{}: // and whatever else there is a slot for
			if !t.s.enter() {
				<-t.s.slots
				return
			}
		default:
			return
		}
	}
}

// launch makes a call in a goroutine of its own. The caller has taken a slot, and entered.
func (t *tenure) launch(f *flight) {
	f.mayStart = func() error {
		now := time.Now()
		if !now.Before(*t.deadline.Load()) || t.ctx.Err() != nil {
			return ErrLease
		}
		if !f.notAfter.IsZero() && !now.Before(f.notAfter) {
			return ErrWindow
		}
		return nil
	}
	if f.chunk != nil {
		f.state = flightFlying
		f.chunk.flying++
	}
	if f.work == nil {
		f.work = t.send
	}
	t.calling++
	go func() {
		defer func() { t.results <- f }() // deferred: a sink may end its goroutine
		f.result = RetryLater("the sink ended its goroutine", nil)
		t.attempt(f)
	}()
}

// attempt does the work of a flight. No transaction is open (T10), but a completion's own.
func (t *tenure) attempt(f *flight) {
	defer func() {
		if v := recover(); v != nil {
			// A call that panics must not take every other call with it; its row keeps the type only, the
			// value may be a payload.
			f.result = RetryLater(fmt.Sprintf("it panicked (%T)", v), fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	ctx, cancel := context.WithTimeout(t.callCtx, t.s.limits.Timeout)
	defer cancel()
	f.work(ctx, f)
}

// send makes one attempt at a call.
func (t *tenure) send(ctx context.Context, f *flight) {
	if err := f.MayStart(); err != nil {
		f.result = RetryLater(err.Error(), err)
		return
	}
	if f.sealed {
		if err := t.open(f); err != nil {
			f.result = RetryLater("the body cannot be opened: "+err.Error(), err)
			return
		}
	}
	f.made = true
	if err := fault.Point(fault.RelayCalling); err != nil {
		f.result = RetryLater(err.Error(), err)
		return
	}
	f.result = t.s.sink.Send(ctx, &f.Delivery)
	if err := fault.Point(fault.RelayCalled); err != nil {
		f.result = RetryLater(err.Error(), err)
	}
}

// open decrypts a body.
func (t *tenure) open(f *flight) error {
	if t.s.cfg.Sealer == nil {
		return errors.New("RelayConfig.Sealer is not set")
	}
	body, err := t.s.cfg.Sealer.Open(f.key, f.Body)
	f.Body, f.sealed = body, err != nil
	return err
}

// diverted are the rows that the chunk leaves to the parked table: what was looked at and not delivered.
func (c *chunk) diverted(t *tenure) (all []*flight) {
	for _, f := range c.rows[:c.next] {
		if f.state == flightFlying && f.order != nil {
			c.block(*f.order)
		}
	}
	for _, f := range c.rows[:c.next] {
		if f.state == flightWaiting && f.order != nil { // the lane is to be given back before its turn came: it is the first, or behind such a one
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

// told tells what became of a chunk whose end is committed, and remembers what to look after.
func (t *tenure) told(diverted []*flight) {
	c := t.chunk
	if c == nil {
		return
	}
	for _, f := range diverted {
		s := t.judge(f)
		if s.due && s.state == stateRetrying || s.state == stateReconcile && t.s.cfg.Reconcile != nil {
			t.dueIn(s.delay)
		}
		if f.state == flightBehind {
			t.promote = append(t.promote, *f.order) // somebody may have settled the one before it meanwhile
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

// dueIn says that a parked call is due after a while.
func (t *tenure) dueIn(d time.Duration) {
	at := time.Now().Add(d)
	if !t.due || at.Before(t.dueAt) {
		t.due, t.dueAt = true, at
	}
}
