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

// fence is the first statement of a transaction of messages from the log. It raises unless the
// transaction is the first and only one that applies them. There are two:
//
//	position  The partition has one transaction at a time. onlyonce.fence moves the position from
//	          where this owner knows it to be. The owner proves the lease by epoch and nonce.
//	slot      The owner has several at once. onlyonce.fence_slot records the offsets as done, also
//	          by epoch and nonce; a sweep moves the position over them later.
//
// The two do not exclude each other, so one follows the other under a new epoch only (C7).
//
// If a fence raises, a statement of its own finds out why:
//
//   - everything that the attempt was to do is done: an earlier attempt has committed, and its
//     answer was lost;
//   - the lease is this owner's, and some of it is done or something else is: an operator has moved
//     the position, an earlier attempt with another end has committed, or the database has lost
//     commits. It is read anew (errMoved);
//   - otherwise another process has taken over (ErrOwnershipLost).
type fence interface {
	// begin sets the attempt's fence, and the range that it is about.
	begin(a *attempt)

	// explain finds out why the fence raised. It returns nil if everything is done.
	explain(work context.Context, a *attempt) error

	// committed records that everything is done.
	committed(a *attempt)
}

// runTransaction runs one transaction of the log.
func (ap *applier) runTransaction(work context.Context, a *attempt) error {
	ap.fence.begin(a)
	err := ap.runAttempt(work, a)
	defer ap.brake.Ended(a)
	switch {
	case errors.Is(err, errFenced):
		if err = ap.fence.explain(work, a); err == nil {
			// What that attempt did cannot be known; it may have parked messages.
			a.parked, a.outcomes = nil, nil
			a.done.Handled, a.done.Duplicates, a.done.Parked, a.done.Skipped = 0, 0, 0, 0
			a.answerLost = true
		}
	case errors.Is(err, errChanged):
		err = fmt.Errorf("%w: %w", errMoved, err) // what is in memory is not what the log holds
	}
	if err == nil {
		ap.fence.committed(a)
	}
	return err
}

// fenceSQL moves the cursor or raises; see the function's comment in the migration.
const fenceSQL = `select onlyonce.fence($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`

// positionFence is the fence of a worker without slots. Its anchor and leader epoch are those of
// the current attempt.
type positionFence struct {
	w     *worker
	last  *anchor
	epoch int32
}

// begin moves the position, and fails if this process has been replaced (T4, T7, T8).
func (f *positionFence) begin(a *attempt) {
	w, bounds := f.w, &f.w.c.cfg.Timeouts
	f.last, f.epoch = w.anchor, w.reader.leaderEpochBound()
	if n := len(a.msgs); n > 0 {
		f.last = anchorOf(a.msgs[n-1])
	}
	anchorOffset, anchorEpoch, anchorHash := f.last.columns()
	a.done.From, a.done.Next = w.pos, a.next
	a.fence = func(tx *guard.Tx) {
		tx.Engine(stepFence, fenceSQL, w.cur.id, w.cur.epoch, w.cur.nonce, w.cur.run, w.pos, a.next, anchorOffset, anchorEpoch, anchorHash,
			epochOrNull(f.epoch), guard.Millis(bounds.Lock), guard.Millis(bounds.Statement), guard.Millis(bounds.Idle))
		if a.endsReplay {
			tx.Engine(stepFence, endReplaySQL, w.cur.id, w.cur.replayNo)
			tx.Engine(stepFence, resumeDoneSQL, w.cur.id, w.cur.run, w.cur.replayResume)
		}
	}
}

// explain reads whether the transaction has committed after all (T4).
func (f *positionFence) explain(work context.Context, a *attempt) error {
	cur, err := f.w.readOwnCursor(work)
	if err == nil && cur.position != a.next {
		err = errMoved
	}
	return err
}

func (f *positionFence) committed(a *attempt) {
	w := f.w
	w.batchCommitted(w.pos)
	w.setPosition(a.next, f.last, f.epoch)
	w.state.batchCommitted()
	w.recordCommitted(a)
	w.retrier.noteParked(a)
}

// fenceSlotSQL records offsets as done or raises; see the function's comment in the migration.
const fenceSlotSQL = `select onlyonce.fence_slot($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

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

// slotFence is the fence of a slot. Besides the offsets it checks what they depend on: the message
// before each of them by its ordering key, if that is not among them and not below the position.
type slotFence struct {
	slot    *slot
	offsets []int64 // of the current attempt
}

// begin locks the places of these messages only (C1, C2).
func (f *slotFence) begin(a *attempt) {
	t := f.slot.work
	offsets, hashes, after := make([]int64, 0, len(a.msgs)), make([]int64, 0, len(a.msgs)), make([]int64, 0, len(a.msgs))
	inside := make(map[int64]bool, len(a.msgs))
	for _, m := range a.msgs {
		e := t.Entry(m.Offset)
		offsets, hashes = append(offsets, e.Offset), append(hashes, storedHash(e.Hash))
		inside[e.Offset] = true
		if e.After >= t.Low && !inside[e.After] {
			after = append(after, e.After)
		}
	}
	f.offsets, a.done.From, a.done.Next = offsets, offsets[0], offsets[len(offsets)-1]+1
	cur, bounds := f.slot.cur, &f.slot.c.cfg.Timeouts
	a.fence = func(tx *guard.Tx) {
		tx.Engine(stepFence, fenceSlotSQL, cur.id, cur.epoch, cur.nonce, cur.run, t.Low, codec.Bigints(offsets), codec.Bigints(hashes),
			codec.Bigints(after), guard.Millis(bounds.Lock), guard.Millis(bounds.Statement), guard.Millis(bounds.Idle))
	}
}

// explain reads which of the messages are done (C1).
func (f *slotFence) explain(work context.Context, _ *attempt) error {
	var mine, sameRun bool
	var done int
	c, cur := f.slot.c, f.slot.cur
	err := c.queryRow(work, stillDoneSQL, cur.id, cur.epoch, cur.nonce, cur.run, codec.Bigints(f.offsets)).Scan(&mine, &sameRun, &done)
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

func (f *slotFence) committed(a *attempt) {
	sl := f.slot
	sl.state.slotCommitted(sl.troubled)
	sl.troubled = false
	sl.recordCommitted(a)
	sl.retrier.noteParked(a)
	sl.events <- slotEvent{slot: sl, offsets: f.offsets}
}
