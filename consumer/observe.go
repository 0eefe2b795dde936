package consumer

import (
	"context"
	"fmt"
	"math"
	"time"
)

// newObserver returns nil if no share group delivers messages of the partition.
func newObserver(w *worker) *observer {
	if w.c.shares == nil || w.cur.replayUntil != nil {
		return nil // during a replay no delivered message is applied, and the slots have all of them
	}
	return &observer{source: w.c.shares, results: make(chan observation, 1), settled: math.MinInt64, wait: w.c.pace.Sweep}
}

// look asks the broker first, and the database afterwards: what the broker has passed over because
// it was acknowledged is then in the set (G3).
func (o *observer) look(ctx context.Context, w *worker, pos int64) observation {
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	settled, err := o.source.Settled(ctx, w.id.Topic, w.id.Partition)
	if err != nil {
		return observation{err: fmt.Errorf("asking what the share group delivers no more: %w", err)}
	}
	done, err := w.c.doneAbove(ctx, w.cur, pos)
	if err != nil {
		return observation{err: fmt.Errorf("reading what the share group has done: %w", err)}
	}
	return observation{settled: settled, done: done}
}

// observeIfDue begins a look, and returns a channel with the next result, and one that reports when
// the next look is due. Both are nil if no share group delivers, or if no message waits to be done
// by a member or given up: an idle partition costs broker and database nothing.
func (s *slots) observeIfDue(ctx context.Context) (<-chan observation, <-chan time.Time) {
	o := s.observer
	switch {
	case o == nil:
		return nil, nil
	case o.looking:
		return o.results, nil
	case s.window.Waiting() == 0:
		return nil, nil
	case time.Now().Before(o.next):
		return nil, time.After(time.Until(o.next))
	}
	o.looking = true
	pos := s.w.pos
	go func() { o.results <- o.look(ctx, s.w, pos) }()
	return o.results, nil
}

// observed records the result of a look. A message that is done must be the record that the window
// has at its offset (C8, G3, G4).
func (s *slots) observed(got observation) error {
	o, w := s.observer, s.w
	o.looking = false
	if got.err != nil {
		o.next = time.Now().Add(pollEvery)
		w.state.setTrouble(&w.state.reachTrouble, got.err)
		w.c.cfg.Logger.Warn("onlyonce: the keeper could not read the share group's progress; it tries again", "scope", w.c.cfg.Scope,
			"topic", w.id.Topic, "partition", w.id.Partition, "error", got.err)
		return nil //nolint:nilerr // it asks again
	}
	w.state.clearTrouble(&w.state.reachTrouble)
	fresh := got.settled != o.settled
	o.settled = got.settled
	done, other := s.window.DoneElsewhere(got.done, func(e *entry) int64 { return storedHash(e.Hash) })
	w.reader.release(done)
	s.finished += len(done)
	if other != nil {
		return w.haltError(HaltTruncated, "the record at offset %d is not the one that was handled there: the log was truncated and written anew", other.Offset)
	}
	o.goOn(fresh || len(done) > 0, w.c.pace.Sweep)
	return nil
}

// goOn decides when the next look is due. While members have their messages in hand for long, for
// example because a handler fails, looks become as rare as those for operators' acts.
func (o *observer) goOn(fresh bool, sweep time.Duration) {
	if !fresh {
		o.next = time.Now().Add(o.wait)
		o.wait = min(2*o.wait, pollEvery)
		return
	}
	o.wait = sweep
	o.next = time.Now().Add(sweep / 5) // the log goes on
}
