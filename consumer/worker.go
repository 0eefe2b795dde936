package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// flushAfter is how long a position that moved without work (past control, aborted and removed
// records) may stay unwritten.
const flushAfter = 5 * time.Second

// worker handles the log of one owned partition: one goroutine, one transaction at a time.
type worker struct {
	engine
	p Partition

	pos    int64   // position in the database
	anchor *anchor // last record seen below it
	// leaderEpoch is one that no batch below pos exceeded when it was read; -1: not known.
	leaderEpoch int32
	logHeldPos  bool // the log was seen to hold pos
	// Below aloneUntil every message is handled alone, because the previous owner died at work.
	aloneUntil int64
	unclean    bool // the previous owner died at work
	pruning    pruning

	buf     []*Message // fetched, not yet handled
	bufNext int64      // position after buf
	bufErr  error      // error of the fetch after buf
	moved   time.Time  // when bufNext first moved ahead of pos with nothing to handle

	bufEpoch int32 // no batch below bufNext exceeded this leader epoch; -1: not known

	lastHalt   loggedHalt // the last halt that was logged
	lastHaltAt time.Time
	replay     int32 // the last replay whose begin was logged

	retrier *retrier
}

// workOnLog works until ctx is done (nil), or until an error ends it: ErrOwnershipLost, *HaltError,
// errMoved, errPaused, or a fault of a server.
func (w *worker) workOnLog(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The current batch outlives ctx by at most DrainTimeout.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	drain := w.c.cfg.DrainTimeout
	defer context.AfterFunc(ctx, func() {
		t := time.AfterFunc(drain, cancel)
		context.AfterFunc(work, func() { t.Stop() })
	})()

	w.announceReplay()
	w.state.clearTrouble(&w.state.logTrouble) // its message may not be the next one any more
	w.retrier = newRetrier(w)
	defer w.retrier.leavePoller()
	// Before anything is fetched: the partition may be paused.
	if err := w.retrier.awaitFirstPoll(ctx); err != nil {
		return err
	}
	var retries sync.WaitGroup
	if !w.brake.stopped() {
		retries.Go(func() {
			if err := w.retrier.retryUntilDone(ctx, work); err != nil {
				stop(err)
			}
		})
	}
	committer := startCommitter(w)
	fetching := startPrefetcher(ctx, w)
	w.buf, w.bufNext, w.bufEpoch, w.bufErr = nil, w.pos, w.leaderEpoch, nil
	w.pruning = startPruning()
	err := w.handleBatches(ctx, work, fetching, committer)
	committer.offer(w.pos) // it may have ended in the middle of a batch
	fetching.stop()
	w.buf = nil
	if lost := committer.stop(); lost != nil && err == nil {
		err = lost
	}
	stop(nil)
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

func (w *worker) handleBatches(ctx, work context.Context, fetching *prefetcher, committer *committer) error {
	for ctx.Err() == nil {
		if w.cur.pastReplay(w.pos) {
			return w.endReplay(work)
		}
		if w.brake.stopped() {
			if err := w.probeOne(ctx, work, fetching, committer); err != nil {
				return err
			}
			committer.offer(w.pos)
			continue
		}
		msgs, next, err := w.nextBatch(ctx, fetching, committer)
		if err != nil {
			return w.fetchError(err)
		}
		switch {
		case len(msgs) > 0:
			w.state.inFlight.Store(int64(len(msgs)))
			err = w.handleBatch(ctx, work, msgs, next)
			w.state.inFlight.Store(0)
			fetching.release(msgs)
		case next > w.pos:
			err = w.advancePosition(ctx, work, next)
		}
		if err != nil {
			return err
		}
		if err := fault.Point(fault.Noted); err != nil {
			return err
		}
		committer.offer(w.pos)
		w.pruneStep(work)
	}
	if len(w.buf) == 0 && w.bufNext > w.pos {
		return w.advancePosition(ctx, work, w.cur.capAtReplayEnd(w.bufNext))
	}
	return nil
}

// nextBatch returns the next batch and the position after it. The batch is full, or as full as it
// got within Linger. No messages and a position ahead of w.pos mean that there was nothing to
// handle in between. It returns early when ctx is done.
func (w *worker) nextBatch(ctx context.Context, f *prefetcher, committer *committer) ([]*Message, int64, error) {
	var linger <-chan time.Time
	for {
		n, full := w.batchLength()
		switch {
		// What was fetched is handled before the error is: it may be gone afterwards.
		case full, n > 0 && w.bufErr != nil:
			return w.takeBatch(n)
		case n == 0 && len(w.buf) > 0:
			return nil, w.cur.capAtReplayEnd(w.bufNext), nil // the replay ends before the next message
		case w.bufErr != nil:
			return nil, 0, w.bufErr
		}
		if n > 0 && linger == nil {
			t := time.NewTimer(w.c.cfg.Linger)
			defer t.Stop()
			linger = t.C
		}
		var flush <-chan time.Time
		if n == 0 && w.bufNext > w.pos {
			t := time.NewTimer(time.Until(w.moved.Add(flushAfter)))
			defer t.Stop()
			flush = t.C
		}
		select {
		case got := <-f.results:
			if got.err != nil {
				w.bufErr = got.err
				continue
			}
			if len(w.buf) == 0 && w.bufNext == w.pos {
				w.moved = time.Now()
			}
			w.stampMessages(got.Messages)
			w.buf = append(w.buf, got.Messages...)
			w.bufNext, w.bufEpoch = got.Next, got.LeaderEpoch
		case <-linger:
			return w.takeBatch(n)
		case <-flush:
			return nil, w.cur.capAtReplayEnd(w.bufNext), nil
		case err := <-committer.lost:
			return nil, 0, err
		case <-ctx.Done():
			return nil, w.pos, nil
		}
	}
}

// stampMessages marks fetched messages with the cluster of their log, and with the replay that they
// are part of.
func (w *worker) stampMessages(msgs []*Message) {
	for _, m := range msgs {
		m.clusterID, m.topicID = w.id.ClusterID, w.id.TopicID
		if w.cur.replayUntil != nil {
			m.replay, m.resend = w.cur.replayNo, w.cur.replayResend
		}
	}
}

// batchLength returns how many buffered messages make the next batch, and whether it is full. No
// batch goes past the end of a replay.
func (w *worker) batchLength() (n int, full bool) {
	size, most := 0, w.c.cfg.BatchSize
	if w.brake.stopped() {
		most = 1
	}
	for n < len(w.buf) && n < most {
		if w.cur.pastReplay(w.buf[n].Offset) {
			return n, n > 0
		}
		size += len(w.buf[n].Value)
		if n > 0 && size > w.c.cfg.BatchBytes {
			return n, true
		}
		n++
	}
	return n, n == most || size >= w.c.cfg.BatchBytes
}

func (w *worker) takeBatch(n int) ([]*Message, int64, error) {
	msgs := w.buf[:n:n]
	w.buf = w.buf[n:]
	if len(w.buf) == 0 {
		w.buf = nil
		return msgs, w.cur.capAtReplayEnd(w.bufNext), nil
	}
	return msgs, w.cur.capAtReplayEnd(w.buf[0].Offset), nil
}

// fetchError turns a fetch's error about the log into what it means for the cursor.
func (w *worker) fetchError(err error) error {
	var out *OutOfRangeError
	switch {
	case errors.As(err, &out) && out.Offset < out.Start:
		// Offsets that hold nothing to handle are no gap, even if retention deletes them: the
		// position that is read from is after them, and is flushed.
		return w.haltGap(out.Start)
	case errors.As(err, &out):
		return w.haltError(HaltTruncated, "the log ends at offset %d", out.End)
	case errors.Is(err, ErrIncarnation):
		return w.haltError(HaltNewTopic, "%v", err)
	case errors.Is(err, ErrOwnershipLost):
		return err
	}
	return fmt.Errorf("fetching from %s/%d: %w", w.id.Topic, w.id.Partition, err)
}

// haltGap halts because the log begins above the position. Only if the log once held the position,
// it is certain that retention has passed it, or that an operator has deleted records. Any other
// position may have been set to an offset that the log did not reach, for example by the group's
// committed offset, a replay or cursor adopt.
func (w *worker) haltGap(start int64) *HaltError {
	if w.logHeldPos {
		return w.haltError(HaltGap, "the log begins at offset %d: %d offsets were deleted before they were handled (retention)", start, start-w.pos)
	}
	return w.haltError(HaltGap, "the log begins at offset %d, %d offsets above the position, which was set to where the log did not hold it when it was first looked for", start, start-w.pos)
}

// releaseCursor marks the cursor as cleanly released, if it is still this process's. A failure errs
// on the side of caution: the next owner then begins with one message at a time.
func (w *worker) releaseCursor() {
	if w.cur == nil {
		return
	}
	ctx, cancel := w.c.detached()
	defer cancel()
	if fault.Point(fault.Releasing) != nil {
		return
	}
	if _, err := w.c.pool.Exec(ctx, releaseCursorSQL, w.cur.id, w.cur.epoch, w.cur.nonce); err != nil {
		w.c.cfg.Logger.Warn("onlyonce: cursor not released", "scope", w.c.cfg.Scope, "error", err)
	}
	_ = fault.Point(fault.Released)
}
