package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
)

// worker handles the log of one owned partition: one transaction at a time, or with
// Config.Concurrency several of them, see slots. It has one goroutine. Between
// two runs of its work, for example after a halt, it keeps what it knows about the position.
type worker struct {
	applier
	logPosition
	p partition

	unclean bool // the previous owner died at work
	// Messages below aloneUntil are handled alone, and so are the next aloneLeft that are read.
	aloneUntil int64
	aloneLeft  int

	// slotted means that transactions of the partition may run side by side in this epoch of the
	// lease. Those transactions and the ones of a positionFence do not see each other, so a
	// change takes another epoch.
	slotted bool
	// marked means that the group's offset in this partition had this scope's name before this
	// process committed one (F15).
	marked bool
	// doneBefore is what was done above the position when the cursor was last read: offsets, and
	// the hashes of their records. An operator has set the position since some of it was done:
	// unproven has the offsets of those, which are done only if the log still has that record (C8).
	doneBefore map[int64]int64
	unproven   map[int64]struct{}
	// acknowledged are the offsets above the position that this process knew to be done when its
	// work last ended. The database may have lost them since.
	acknowledged []int64

	// These begin anew with each run.
	reader   *reader
	retrier  *retrier
	pruning  pruning     // of progress
	newest   progressRow // of the last batch that this owner has committed
	unpruned int         // batches that have committed since the last step of pruning

	halts  haltLog
	probes int   // messages that were tried while the brake held the partition
	replay int32 // the last replay whose begin was logged
}

// logPosition is where the cursor is, as far as this process knows, and what proves that the log
// below it is still the one that was read.
type logPosition struct {
	pos    int64   // position in the database
	anchor *anchor // last record seen below it
	// leaderEpoch is one that no batch below pos exceeded when it was read; -1: not known.
	leaderEpoch int32
	logHeldPos  bool // the log was seen to hold pos
}

// workOnLog works until ctx is done (nil), or until an error ends it: ErrOwnershipLost, *HaltError,
// errMoved, errPaused, or a fault of a server.
func (w *worker) workOnLog(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	work, cancel := drainContext(ctx, w.c.cfg.DrainTimeout)
	defer cancel()
	until := stop{ctx, work}

	w.announceReplay()
	w.state.clearTrouble(&w.state.logTrouble) // its message may not be the next one any more
	w.retrier = newRetrier(w.ownership, w.unclean)
	defer w.c.poller.leave(w.retrier.polled)
	// Before anything is fetched: the partition may be paused.
	if err := w.retrier.awaitFirstPoll(ctx); err != nil {
		return err
	}
	var retries sync.WaitGroup
	if !w.brake.Stopped() {
		retries.Go(func() {
			if err := w.retrier.retryUntilDone(until); err != nil {
				end(err)
			}
		})
	}
	committer := startCommitter(w.p, w.id, &w.c.cfg, w.pos)
	w.reader = &reader{cfg: &w.c.cfg, mark: w.markAlone, id: w.id, cur: w.cur, brake: w.brake,
		fetches: startPrefetcher(ctx, w.c, w.id, w.p, w.state, w.pos), next: w.pos, epoch: w.leaderEpoch}
	// the first step is after the first batch
	w.pruning = w.progressPruning()
	w.unpruned = w.c.pace.Prune - 1
	var err error
	if below := (progressRow{w.cur.run, w.pos}); !w.slotted {
		retries.Go(func() { w.pruneOldDone(ctx, below) })
	}
	if w.slotted {
		err = w.handleInSlots(until, committer)
	} else {
		err = w.handleBatches(until, committer)
	}
	committer.offer(w.pos) // it may have ended in the middle of a batch
	w.reader.stop()
	if lost := committer.stop(); lost != nil && err == nil {
		err = lost
	}
	end(nil)
	retries.Wait()
	w.retrier.stopHandlers()
	w.stopHandlers()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// handleBatches reads and handles one batch after another.
func (w *worker) handleBatches(until stop, committer *committer) error {
	ctx := until.taking
	work := until.working
	for ctx.Err() == nil {
		if w.cur.pastReplay(w.pos) {
			return w.endReplay(work)
		}
		if w.brake.Stopped() {
			oldest := func(bounded context.Context) (bool, error) { return w.tryOldest(bounded, until, committer) }
			if err := w.probe(until, oldest); err != nil {
				return err
			}
			committer.offer(w.pos)
			continue
		}
		msgs, next, err := w.reader.nextBatch(ctx, w.pos, committer.lost)
		if err != nil {
			return w.fetchError(err)
		}
		switch {
		case len(msgs) > 0:
			w.state.inFlight.Store(int64(len(msgs)))
			err = w.handleBatch(until, msgs, next)
			w.state.inFlight.Store(0)
			w.reader.release(msgs)
		case next > w.pos:
			err = w.advancePosition(until, next)
		}
		if err != nil {
			return err
		}
		if err := fault.Point(fault.Noted); err != nil {
			return err
		}
		committer.offer(w.pos)
		w.pruneIfDue(work)
	}
	if len(w.reader.msgs) == 0 && w.reader.next > w.pos {
		return w.advancePosition(until, w.reader.next)
	}
	return nil
}

// setPosition records the cursor's position.
func (w *worker) setPosition(pos int64, last *anchor, epoch int32) {
	// If last is set, the position was reached by reading, so the log held it.
	w.logHeldPos = w.logHeldPos && pos == w.pos || last != nil
	w.pos = pos
	w.anchor = last
	w.leaderEpoch = epoch
	w.state.position.Store(pos)
}

// batchCommitted records a batch from a position that has committed.
func (w *worker) batchCommitted(from int64) {
	w.newest = progressRow{w.cur.run, from}
	w.unpruned++
}

// pruneIfDue takes the next step of pruning, after a number of batches.
func (w *worker) pruneIfDue(ctx context.Context) {
	if w.unpruned >= w.c.pace.Prune {
		w.unpruned = 0
		w.pruning.step(ctx, w.newest)
	}
}

// markAlone marks messages that were read and are to be handled alone (F9): as many as the owner
// that died may have worked on, and those that have a count. They are counted as they are read, and
// not in offsets, because any number of offsets may hold no message.
func (w *worker) markAlone(msgs []*Message) {
	for _, m := range msgs {
		if w.aloneLeft > 0 && m.Offset >= w.aloneUntil {
			w.aloneLeft = w.aloneLeft - 1
			w.aloneUntil = m.Offset + 1
		}
		m.alone = m.Offset < w.aloneUntil || w.cur.suspected(m)
	}
}

func (w *worker) haltError(reason HaltReason, detail string, args ...any) *HaltError {
	return w.haltErrorAt(w.pos, reason, detail, args...)
}

// reportHalt logs that a partition is halted, and for how long it can stay so without loss. Where
// the log begins and ends is what "cursor adopt -at first" and "-at last" go by.
func (w *worker) reportHalt(ctx context.Context, halt *HaltError) {
	if log, err := w.p.Bounds(ctx); err == nil {
		w.state.bounds(log)
	}
	if until, err := w.p.Retained(ctx, halt.Position); err == nil {
		halt.RetainedUntil = until
	}
	w.state.setHalted(halt)
	w.c.poller.pollSoon()
	cfg := &w.c.cfg
	if w.halts.due(halt) {
		cfg.Logger.Error("onlyonce: partition halted", halt.attributes()...)
	}
	if cfg.Hooks.Halted != nil {
		// A copy, because the hook may keep and change it while others read the partition's state.
		own := *halt
		cfg.Hooks.Halted(&own)
	}
}

// haltGap halts because the log begins above the position. Only if the log once held the position
// is it certain that retention has passed it, or that an operator has deleted records. Any other
// position may have been set to an offset that the log did not reach, for example by the group's
// committed offset, a replay or cursor adopt (F6).
func (w *worker) haltGap(start int64) *HaltError {
	if w.logHeldPos {
		return w.haltError(HaltGap, "the log begins at offset %d: %d offsets were deleted before they were "+
			"handled (retention)", start, start-w.pos)
	}
	return w.haltError(HaltGap, "the log begins at offset %d, %d offsets above the position, which was set "+
		"to where the log did not hold it when it was first looked for", start, start-w.pos)
}

// fetchError turns a fetch's error about the log into what it means for the cursor (F6).
func (w *worker) fetchError(err error) error {
	var out *source.OutOfRangeError
	switch {
	case errors.As(err, &out) && out.Offset < out.Start:
		// Offsets that hold nothing to handle are no gap, even if retention deletes them: the
		// position that is read from is after them, and is flushed.
		return w.haltGap(out.Start)
	case errors.As(err, &out):
		return w.haltError(HaltTruncated, "the log ends at offset %d", out.End)
	case errors.Is(err, source.ErrIncarnation):
		return w.haltError(HaltNewTopic, "%v", err)
	case errors.Is(err, source.ErrOwnershipLost):
		return err
	}
	return fmt.Errorf("fetching from %s/%d: %w", w.id.Topic, w.id.Partition, err)
}

// releaseCursorSQL marks the cursor as cleanly released, unless it has another owner by now. It
// locks the lease, as all that an owner writes does: without that, it would wait for a take-over,
// and then mark the cursor of the new owner, by a lease that it has read before (F9).
const releaseCursorSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
update onlyonce.cursors c set released_at = clock_timestamp() from held where c.id = held.id`

// releaseCursor marks the cursor as cleanly released, if it is still this process's. A failure errs
// on the side of caution: the next owner then begins with one message at a time.
func (w *worker) releaseCursor() {
	if w.cur == nil {
		return
	}
	ctx, cancel := w.c.detached()
	defer cancel()
	if _, err := w.c.pool.Exec(ctx, releaseCursorSQL, w.cur.id, w.cur.epoch, w.cur.nonce); err != nil {
		w.c.cfg.Logger.Warn("onlyonce: cursor not released", "scope", w.c.cfg.Scope, "error", err)
	}
}
