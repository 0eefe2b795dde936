package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
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

// runLogAttempt runs one transaction of the log. Its fence moves the position to a.next.
func (w *worker) runLogAttempt(work context.Context, a *attempt) error {
	cfg, last := w.c.cfg, w.anchor
	if n := len(a.msgs); n > 0 {
		last = anchorOf(a.msgs[n-1])
	}
	anchorOffset, anchorEpoch, anchorHash := last.columns()
	epoch := w.leaderEpochBound()
	a.done.From, a.done.Next = w.pos, a.next
	ended := a.fence
	a.fence = func(tx *guard.Tx) {
		tx.Engine(stepFence, fenceSQL, w.cur.id, w.cur.epoch, w.cur.nonce, w.cur.run, w.pos, a.next,
			anchorOffset, anchorEpoch, anchorHash, epochOrNull(epoch), guard.Millis(cfg.LockTimeout), guard.Millis(cfg.StatementTimeout), guard.Millis(cfg.IdleTimeout))
		if ended != nil {
			ended(tx)
		}
	}
	err := w.engine.runAttempt(work, a)
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

// leaderEpochBound returns a leader epoch that no batch below the end of the current batch
// exceeded: that of the first message after it, or, if there is none yet, of the last batch that
// was looked at. An upper bound is enough, because records that are written after an unclean
// election have a higher epoch than everything that was ever read (F5).
func (w *worker) leaderEpochBound() int32 {
	if len(w.buf) > 0 {
		return w.buf[0].LeaderEpoch
	}
	return w.bufEpoch
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
	reasons := make([]string, len(a.parked))
	for i, p := range a.parked {
		reasons[i] = p.Reason
	}
	w.recordOutcomes(a.done.Handled, reasons...)
	w.c.emitCommitted(a)
	w.retrier.noteParked(a)
}

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
		w.retrier.sweepSoon()
		return nil
	}
	return errMoved
}

// readPosition reads the cursor's position. It returns errMoved if an operator has taken over the
// cursor to set its position, and ErrOwnershipLost if it has another owner.
func (e *engine) readPosition(ctx context.Context) (int64, error) {
	cur, err := e.c.readCursor(ctx, e.id.Topic, e.id.Partition)
	switch {
	case err != nil:
		return 0, err
	case cur != nil && cur.epoch == e.cur.epoch && cur.nonce == e.cur.nonce:
		return cur.position, nil
	case cur != nil && (cur.run != e.cur.run || cur.retired):
		return 0, errMoved
	}
	return 0, fmt.Errorf("%w: cursor %d has another owner", ErrOwnershipLost, e.cur.id)
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

// reportLogRetry is reportRetry for failures that keep the partition's log from continuing.
func (w *worker) reportLogRetry(r Retry, b backoff.BackOff) time.Duration {
	w.state.setTrouble(&w.state.logTrouble, r.Err)
	return w.reportRetry(r, b)
}

// reportRetry reports that something is tried again, and returns the wait before that.
func (e *engine) reportRetry(r Retry, b backoff.BackOff) time.Duration {
	r.Topic, r.Partition, r.Wait = e.id.Topic, e.id.Partition, waitAtLeast(r.Err, b.NextBackOff())
	e.c.cfg.Logger.Warn("onlyonce: trying again", "scope", e.c.cfg.Scope, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "messages", r.Messages, "attempt", r.Attempt, "wait", r.Wait, "error", r.Err)
	if e.c.cfg.Hooks.Retry != nil {
		e.c.cfg.Hooks.Retry(r)
	}
	return r.Wait
}

func newBackoff(cfg Config) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(cfg.RetryMin), backoff.WithMaxInterval(cfg.RetryMax),
		backoff.WithMaxElapsedTime(0)) // without end: giving up is decided elsewhere
}

// backoffFor returns the wait before the attempt that follows the n-th, if no single process has
// made all of these attempts.
func backoffFor(cfg Config, n int) time.Duration {
	b, d := newBackoff(cfg), time.Duration(0)
	for range min(n, 100) {
		d = b.NextBackOff()
	}
	return d
}

// sleep waits. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
