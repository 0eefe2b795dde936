package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// flushAfter is how long a position that moved without work (over control, aborted and removed records) may stay unwritten.
const flushAfter = 5 * time.Second

// worker is one owned partition: one goroutine, one transaction at a time.
type worker struct {
	c   *Consumer
	p   Partition
	id  Identity
	cur *cursor // what this process owns; nil before the first raise

	pos        int64   // position in the database
	anchor     *anchor // last record seen below it
	aloneUntil int64   // below it every message stands alone: the owner before died in mid-work
	cautious   int     // batches for which the claim goes first, because duplicates are about
	batches    int     // since the last pruning

	buf     []*Message // fetched, not yet handled
	bufNext int64      // position behind buf
	bufErr  error      // what the fetch behind buf failed with
	moved   time.Time  // when bufNext first ran ahead of pos with nothing to handle
}

// run works until ctx is done (nil), or until something ends it: ErrOwnershipLost, *HaltError, errMoved, or a fault of a server.
func (w *worker) run(ctx context.Context) error {
	// The batch in hand outlives ctx by at most DrainTimeout.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		t := time.AfterFunc(w.c.cfg.DrainTimeout, cancel)
		context.AfterFunc(work, func() { t.Stop() })
	})()

	committer := startCommitter(w)
	fetching := startFetching(ctx, w.p, w.pos)
	w.buf, w.bufNext, w.bufErr = nil, w.pos, nil
	err := w.loop(ctx, work, fetching, committer)
	fetching.stop()
	if lost := committer.stop(); lost != nil && err == nil {
		err = lost
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

func (w *worker) loop(ctx, work context.Context, fetching *fetching, committer *committer) error {
	for ctx.Err() == nil {
		msgs, next, err := w.collect(ctx, fetching, committer)
		if err != nil {
			return w.fetchFailed(err)
		}
		switch {
		case len(msgs) > 0:
			err = w.handle(ctx, work, msgs, next)
		case next > w.pos:
			err = w.advance(ctx, work, next)
		}
		if err != nil {
			return err
		}
		committer.kick(w.pos, w.metadata())
	}
	if len(w.buf) == 0 && w.bufNext > w.pos {
		return w.advance(ctx, work, w.bufNext)
	}
	return nil
}

// collect returns the next batch and the position behind it: full, or as full as it got in Linger. No messages and a
// position ahead of w.pos mean that there was nothing to handle in between. It returns early when ctx is done.
func (w *worker) collect(ctx context.Context, f *fetching, committer *committer) ([]*Message, int64, error) {
	var linger <-chan time.Time
	for {
		n, full := w.cut()
		switch {
		case full, n > 0 && w.bufErr != nil: // what was fetched is handled before the error is: it may be gone afterwards
			return w.take(n)
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
			w.buf = append(w.buf, got.Messages...)
			w.bufNext = got.Next
		case <-linger:
			return w.take(n)
		case <-flush:
			return nil, w.bufNext, nil
		case err := <-committer.lost:
			return nil, 0, err
		case <-ctx.Done():
			return nil, w.pos, nil
		}
	}
}

// cut returns how many buffered messages make the next batch, and whether it is full.
func (w *worker) cut() (n int, full bool) {
	size := 0
	for n < len(w.buf) && n < w.c.cfg.BatchSize {
		size += len(w.buf[n].Value)
		if n > 0 && size > w.c.cfg.BatchBytes {
			return n, true
		}
		n++
	}
	return n, n == w.c.cfg.BatchSize || size >= w.c.cfg.BatchBytes
}

func (w *worker) take(n int) ([]*Message, int64, error) {
	msgs := w.buf[:n:n]
	w.buf = w.buf[n:]
	if len(w.buf) == 0 {
		w.buf = nil
		return msgs, w.bufNext, nil
	}
	return msgs, w.buf[0].Offset, nil
}

// fetchFailed turns what a fetch says about the log into what it means for the cursor.
func (w *worker) fetchFailed(err error) error {
	var out *OutOfRangeError
	switch {
	case errors.As(err, &out) && out.Offset < out.Start:
		// Offsets that hold nothing to handle are no gap even when retention deletes them: the position that is read from lies
		// behind them, and is flushed.
		return w.halt(HaltGap, "the log begins at offset %d: %d offsets were deleted before they were handled (retention)", out.Start, out.Start-w.pos)
	case errors.As(err, &out):
		return w.halt(HaltTruncated, "the log ends at offset %d", out.End)
	case errors.Is(err, ErrIncarnation):
		return w.halt(HaltNewTopic, "%v", err)
	case errors.Is(err, ErrOwnershipLost):
		return err
	}
	return fmt.Errorf("fetching from %s/%d: %w", w.id.Topic, w.id.Partition, err)
}

// release lets the cursor go in order, if it is still this process's. It fails only towards caution: the next owner then works
// one message at a time first.
func (w *worker) release() {
	if w.cur == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.c.cfg.LockTimeout)
	defer cancel()
	if _, err := w.c.pool.Exec(ctx, releaseCursorSQL, w.cur.id, w.cur.epoch, w.cur.nonce); err != nil {
		w.c.cfg.Logger.Warn("onlyonce: cursor not released", "scope", w.c.cfg.Scope, "error", err)
	}
}

// retrying reports that something is tried again, and returns after which wait.
func (w *worker) retrying(r Retry, b backoff.BackOff) time.Duration {
	r.Topic, r.Partition, r.Wait = w.id.Topic, w.id.Partition, b.NextBackOff()
	w.c.cfg.Logger.Warn("onlyonce: trying again", "scope", w.c.cfg.Scope, "topic", r.Topic, "partition", r.Partition,
		"offset", r.Offset, "messages", r.Messages, "attempt", r.Attempt, "wait", r.Wait, "error", r.Err)
	if w.c.cfg.Hooks.Retry != nil {
		w.c.cfg.Hooks.Retry(r)
	}
	return r.Wait
}

func newBackoff(cfg Config) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(cfg.RetryMin), backoff.WithMaxInterval(cfg.RetryMax),
		backoff.WithMaxElapsedTime(0)) // for ever: giving up is decided elsewhere
}

// sleep waits, and reports false when ctx ended first.
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
