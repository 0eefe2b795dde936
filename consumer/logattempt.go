package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// explainFence finds out why the fence raised, with a statement of its own. There are three cases:
//
//   - the lease is mine, and the position is where this attempt was to move it: an earlier attempt
//     has committed, and its answer was lost;
//   - the lease is mine, and the position is elsewhere: an operator has moved it, or an earlier
//     attempt with another end has committed;
//   - the lease is no longer mine.
func (w *worker) explainFence(work context.Context, a *attempt) error {
	at, err := w.readPosition(work)
	switch {
	case err != nil:
		return err
	case at == a.next:
		// What that attempt did cannot be known; it may have parked messages.
		a.parked, a.done.Handled, a.done.Duplicates, a.done.Parked = nil, 0, 0, 0
		w.retrier.promoteAllSoon()
		return nil
	}
	return errMoved
}

// readPosition reads the cursor's position. It returns errMoved if an operator has taken over the
// cursor to set its position, and ErrOwnershipLost if it has another owner.
func (e *engine) readPosition(ctx context.Context) (int64, error) {
	cur, err := e.readOwnCursor(ctx)
	if err != nil {
		return 0, err
	}
	return cur.position, nil
}

// readOwnCursor reads the cursor. Its errors are those of readPosition.
func (e *engine) readOwnCursor(ctx context.Context) (*cursor, error) {
	cur, err := e.c.readCursor(ctx, e.id.Topic, e.id.Partition)
	switch {
	case err != nil:
		return nil, err
	case cur != nil && cur.epoch == e.cur.epoch && cur.nonce == e.cur.nonce:
		return cur, nil
	case cur != nil && (cur.run != e.cur.run || cur.retired):
		return nil, errMoved
	}
	return nil, fmt.Errorf("%w: cursor %d has another owner", source.ErrOwnershipLost, e.cur.id)
}

// runLogAttempt runs one transaction of the log. Its fence moves the position to a.next.
func (w *worker) runLogAttempt(work context.Context, a *attempt) error {
	cfg, last := w.c.cfg, w.anchor
	if n := len(a.msgs); n > 0 {
		last = anchorOf(a.msgs[n-1])
	}
	anchorOffset, anchorEpoch, anchorHash := last.columns()
	epoch := w.reader.leaderEpochBound()
	a.done.From, a.done.Next = w.pos, a.next
	ended := a.fence
	a.fence = func(tx *guard.Tx) {
		tx.Engine(stepFence, fenceSQL, w.cur.id, w.cur.epoch, w.cur.nonce, w.cur.run, w.pos, a.next,
			anchorOffset, anchorEpoch, anchorHash, epochOrNull(epoch), guard.Millis(cfg.Timeouts.Lock), guard.Millis(cfg.Timeouts.Statement), guard.Millis(cfg.Timeouts.Idle))
		if ended != nil {
			ended(tx)
		}
	}
	err := w.engine.runAttempt(work, a)
	defer w.brake.ended(a)
	switch {
	case errors.Is(err, errFenced):
		err = w.explainFence(work, a)
	case errors.Is(err, errChanged):
		err = errMoved // what is in memory is not what the log holds
	}
	if err == nil {
		w.committed(a, last, epoch)
	}
	return err
}

// setPosition records the cursor's position.
func (w *worker) setPosition(pos int64, last *anchor, epoch int32) {
	// If last is set, the position was reached by reading, so the log held it.
	w.logHeldPos = w.logHeldPos && pos == w.pos || last != nil
	w.pos, w.anchor, w.leaderEpoch = pos, last, epoch
	w.state.position.Store(pos)
}

// committed records a transaction that has committed.
func (w *worker) committed(a *attempt, last *anchor, epoch int32) {
	w.pruning.batchCommitted(w.cur.run, w.pos)
	w.setPosition(a.next, last, epoch)
	w.state.batchCommitted()
	w.recordCommitted(a)
	w.retrier.noteParked(a)
}
