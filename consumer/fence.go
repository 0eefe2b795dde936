package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// fence is the first statement of a transaction, with what belongs to it. It raises unless the
// transaction is the first and only one that does what its plan says. There are three:
//
//	position  The partition has one transaction at a time. onlyonce.fence moves the position from
//	          where this owner knows it to be. The owner proves the lease by epoch and nonce.
//	slot      The owner has several at once. onlyonce.fence_slot records the offsets as done, also
//	          by epoch and nonce; a sweep moves the position over them later.
//	row       The message is parked. onlyonce.settle settles its row.
//
// The first two do not exclude each other, so one follows the other under a new epoch only (C7).
//
// If a fence raises, a statement of its own finds out why:
//
//   - everything that the plan was to do is done: an earlier run has committed, and its answer was
//     lost;
//   - the lease is this owner's, and some of it is done or something else is: an operator has moved
//     the position, an earlier run with another end has committed, or the database has lost
//     commits. It is read anew (errMoved);
//   - otherwise another process has taken over (ErrOwnershipLost).
type fence interface {
	// queue queues the fence, at the beginning of each run.
	queue(tx *guard.Tx)

	// span returns the position before and after the plan, for hooks. A parked row has none.
	span() (from, next int64)

	// explain finds out why a run ended with errFenced or errChanged. It returns nil if everything
	// is done.
	explain(work context.Context, err error) error

	// committed records that everything is done.
	committed(p *plan, o *outcome)
}

// fenceSQL moves the cursor or raises; see the function's comment in the migration.
const fenceSQL = `
select onlyonce.fence(
  cursor_id => $1,
  epoch => $2,
  nonce => $3,
  run => $4,
  expected => $5,
  next => $6,
  anchor_offset => $7,
  anchor_epoch => $8,
  anchor_hash => $9,
  leader_epoch => $10,
  lock_timeout => $11,
  statement_timeout => $12,
  idle_timeout => $13
)`

// positionFence is the fence of a worker without slots: it moves the position.
type positionFence struct {
	w          *worker
	from, next int64
	last       *anchor // below next
	epoch      int32   // that no batch below next exceeded
	endsReplay bool    // next is where the replay interrupted the work
}

// positionFence returns the fence of msgs, with which the position moves to next.
func (w *worker) positionFence(msgs []*Message, next int64) fence {
	f := &positionFence{w: w, from: w.pos, next: next, last: w.anchor, epoch: w.reader.leaderEpochBound()}
	if n := len(msgs); n > 0 {
		f.last = anchorOf(msgs[n-1])
	}
	return f
}

// replayEndFence returns the fence that ends a replay: the position moves to where the replay
// interrupted the work.
func (w *worker) replayEndFence() fence {
	return &positionFence{w: w, from: w.pos, next: w.cur.replayResume, last: w.anchor,
		epoch: w.reader.leaderEpochBound(), endsReplay: true}
}

func (f *positionFence) span() (from, next int64) { return f.from, f.next }

// queue moves the position, and fails if this process has been replaced (T4, T7, T8).
func (f *positionFence) queue(tx *guard.Tx) {
	cur := f.w.cur
	bounds := &f.w.c.cfg.Timeouts
	anchorOffset, anchorEpoch, anchorHash := f.last.columns()
	tx.Engine(stepFence, fenceSQL, cur.id, cur.epoch, cur.nonce, cur.run, f.from, f.next,
		anchorOffset, anchorEpoch, anchorHash, epochOrNull(f.epoch),
		guard.Millis(bounds.Lock), guard.Millis(bounds.Statement), guard.Millis(bounds.Idle))
	if f.endsReplay {
		tx.Engine(stepFence, endReplaySQL, cur.id, cur.replayNo)
		tx.Engine(stepFence, resumeDoneSQL, cur.id, cur.run, cur.replayResume)
	}
}

// explain reads whether the transaction has committed after all (T4).
func (f *positionFence) explain(work context.Context, err error) error {
	if errors.Is(err, errChanged) {
		return readAnew(err)
	}
	cur, err := f.w.readOwnCursor(work)
	if err == nil && cur.position != f.next {
		err = errMoved
	}
	return err
}

func (f *positionFence) committed(p *plan, o *outcome) {
	w := f.w
	w.batchCommitted(f.from)
	w.setPosition(f.next, f.last, f.epoch)
	w.state.batchCommitted()
	w.recordCommitted(p, o, w.retrier)
}

// recordCommitted records and reports what a transaction of messages of the log did: to the brake,
// to hooks and the log, and to the retrier, which has rows to promote or to wait for.
func (e *engine) recordCommitted(p *plan, o *outcome, r *retrier) {
	e.recordOutcomes(o.reasons...)
	e.c.emitCommitted(p, o)
	switch {
	case o.answerLost:
		r.promoteAllSoon()
	case len(o.parked) > 0:
		r.promotions.add(o.blockedKeys...)
		r.wakeUp()
	}
}

// emitCommitted reports a committed transaction of messages from the log.
func (c *Consumer) emitCommitted(p *plan, o *outcome) {
	for _, event := range o.parked {
		c.emitParked(event)
	}
	if c.cfg.Hooks.Batch != nil && len(p.msgs) > 0 {
		c.cfg.Hooks.Batch(o.result)
	}
}

// readAnew has the log read again: what is in memory is not what it holds.
func readAnew(err error) error { return fmt.Errorf("%w: %w", errMoved, err) }

// fenceSlotSQL records offsets as done or raises; see the function's comment in the migration.
const fenceSlotSQL = `
select onlyonce.fence_slot(
  cursor_id => $1,
  epoch => $2,
  nonce => $3,
  run => $4,
  low => $5,
  offsets => $6,
  hashes => $7,
  after => $8,
  lock_timeout => $9,
  statement_timeout => $10,
  idle_timeout => $11
)`

// stillDoneSQL finds out what became of offsets. In: cursor, epoch, nonce, run, offsets. Out: one
// row with whether the cursor is still this owner's, and how many of the offsets are done; no row
// if there is no cursor. One statement, so that an offset that is being swept and pruned counts
// once.
const stillDoneSQL = `
select l.epoch = $2 and l.nonce = $3, p.run = $4 and p.retired_at is null,
       (select count(*) from unnest($5::bigint[]) u (o)
         where u.o < p.next_offset
            or exists (select from onlyonce.done d where d.cursor_id = p.id and d.run = p.run and d."offset" = u.o))
  from onlyonce.positions p join onlyonce.leases l on l.id = p.id where p.id = $1`

// slotFence is the fence of a slot: it records offsets as done. Besides the offsets it checks what
// they depend on: the message before each of them by its ordering key, if that is not among them
// and not below the position.
type slotFence struct {
	slot    *slot
	low     int64   // position when the slot got its task
	offsets []int64 // of the plan
	hashes  []int64 // of their records
	after   []int64 // what they depend on
}

// slotFence returns the fence of msgs, which are of the slot's task. It locks the places of these
// messages only (C1, C2).
func (sl *slot) slotFence(msgs []*Message, _ int64) fence {
	t := sl.current
	f := &slotFence{
		slot:    sl,
		low:     t.Low,
		offsets: make([]int64, 0, len(msgs)),
		hashes:  make([]int64, 0, len(msgs)),
		after:   make([]int64, 0, len(msgs)),
	}
	inside := make(map[int64]bool, len(msgs))
	for _, m := range msgs {
		e := t.Entry(m.Offset)
		f.offsets = append(f.offsets, e.Offset)
		f.hashes = append(f.hashes, storedHash(e.Hash))
		inside[e.Offset] = true
		if e.After >= t.Low && !inside[e.After] {
			f.after = append(f.after, e.After)
		}
	}
	return f
}

func (f *slotFence) span() (from, next int64) {
	return f.offsets[0], f.offsets[len(f.offsets)-1] + 1
}

// queue records the offsets as done, and fails if this process has been replaced (C1, C2).
func (f *slotFence) queue(tx *guard.Tx) {
	cur := f.slot.cur
	bounds := &f.slot.c.cfg.Timeouts
	tx.Engine(stepFence, fenceSlotSQL, cur.id, cur.epoch, cur.nonce, cur.run, f.low,
		codec.Bigints(f.offsets), codec.Bigints(f.hashes), codec.Bigints(f.after),
		guard.Millis(bounds.Lock), guard.Millis(bounds.Statement), guard.Millis(bounds.Idle))
}

// explain reads which of the messages are done (C1).
func (f *slotFence) explain(work context.Context, err error) error {
	if errors.Is(err, errChanged) {
		return readAnew(err)
	}
	var mine, sameRun bool
	var done int
	c := f.slot.c
	cur := f.slot.cur
	err = c.queryRow(work, stillDoneSQL, cur.id, cur.epoch, cur.nonce, cur.run, codec.Bigints(f.offsets)).
		Scan(&mine, &sameRun, &done)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("reading which messages are done: %w", err)
	case err != nil || !mine && sameRun:
		return fmt.Errorf("%w: cursor %d has another owner", source.ErrOwnershipLost, cur.id)
	case !mine || done != len(f.offsets):
		return errMoved
	}
	return nil
}

func (f *slotFence) committed(p *plan, o *outcome) {
	sl := f.slot
	sl.state.slotCommitted(sl.troubled)
	sl.troubled = false
	sl.recordCommitted(p, o, sl.retrier)
	sl.report(slotEvent{slot: sl, offsets: f.offsets})
}
