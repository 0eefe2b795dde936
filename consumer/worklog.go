package consumer

import (
	"context"
	"errors"
	"sync"

	"github.com/onlyonce/onlyonce/internal/fault"
)

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
