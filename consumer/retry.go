package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// retryUntilDone tries parked messages until no more are to be taken (nil), or the partition is
// paused (errPaused) or taken over (errMoved).
func (r *retrier) retryUntilDone(until stop) error {
	defer r.stopHandlers()
	ctx := until.taking
	retry := newBackoff(r.c.cfg)
	var wait time.Duration // after a failure; 0 if there was none
	for {
		answered, err := r.waitForWork(ctx, wait)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = r.promoteBlocked(ctx)
		}
		for more := err == nil && r.isDue(); more && err == nil && ctx.Err() == nil; {
			if r.isDue() {
				// What is due is taken now; a later due time is recorded once it is known.
				r.dueAt = time.Time{}
			}
			if more, err = r.retryNext(until); err == nil {
				_, err = r.checkPoll() // a pause must not wait for all of a thousand rows
			}
		}
		wait = 0
		switch {
		case errors.Is(err, errPaused), endsWork(err):
			return err
		case err != nil && ctx.Err() == nil:
			r.state.setTrouble(&r.state.parkedTrouble, err)
			wait = r.reportRetry(RetryEvent{Offset: -1, Err: err}, retry)
		case answered:
			r.state.clearTrouble(&r.state.parkedTrouble)
			retry.Reset()
		}
	}
}

// awaitFirstPoll waits for the first answer.
func (r *retrier) awaitFirstPoll(ctx context.Context) error {
	select {
	case a := <-r.polled.answers:
		return r.applyPoll(a)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitForWork waits until there is something to do: the poller has answered, a row is due, or
// another goroutine has left work. After a failure it first waits for that long.
func (r *retrier) waitForWork(ctx context.Context, failed time.Duration) (answered bool, err error) {
	if failed > 0 && !pace.Sleep(ctx, failed) {
		return false, nil
	}
	var due <-chan time.Time
	if !r.dueAt.IsZero() {
		t := time.NewTimer(time.Until(r.dueAt))
		defer t.Stop()
		due = t.C
	}
	select {
	case a := <-r.polled.answers:
		return true, r.applyPoll(a)
	case <-due:
	case <-r.wake:
	case <-ctx.Done():
	}
	return r.checkPoll()
}

// checkPoll takes the poller's answer if there is a new one.
func (r *retrier) checkPoll() (answered bool, err error) {
	select {
	case a := <-r.polled.answers:
		return true, r.applyPoll(a)
	default:
		return false, nil
	}
}

// applyPoll records what operators and time have changed (F1, F10).
func (r *retrier) applyPoll(a pollAnswer) error {
	if err := a.decision(); err != nil {
		return err
	}
	r.dueAt = time.Time{}
	if a.due != nil {
		due := time.Duration(*a.due * float64(time.Second))
		if due > r.c.longestWait() {
			due = 0 // T9: it was written while the clock was ahead
		}
		r.setDue(due)
	}
	r.sampleFrontier(a)
	return nil
}

// retryNext takes the row that is due first, and reports whether there was one.
func (r *retrier) retryNext(until stop) (bool, error) {
	ctx := until.taking
	release, err := r.acquireLock(ctx, r.retryAlone)
	if err != nil {
		return false, err
	}
	// After all that is written about the attempt: it counts from when the row is taken.
	defer release()
	row, err := r.takeRow(ctx)
	if row == nil && err == nil && time.Since(r.ownedSince) > r.c.cfg.Backoff.Max+time.Second {
		// takeParkedSQL makes a row due after Backoff.Max: all that were under way have been tried.
		r.retryAlone = false
	}
	if err != nil || row == nil {
		return false, err
	}
	if crashed := judgeUnanswered(r.rowPolicy(), row.count()); crashed != nil {
		return true, r.recordFailure(row, crashed, 1)
	}
	if err := r.verifyIdentity(row); err != nil {
		// Another try would find the same.
		return true, r.giveUp(row, &disposition{reason: parked.Permanent, err: err})
	}
	r.state.inRetry.Store(1)
	defer r.state.inRetry.Store(0)
	o := r.run(until.working, r.planOf(row))
	if o.err != nil {
		return r.settleFailure(row, o.err)
	}
	if row.m.orderKey.Valid && !o.answerLost {
		err = r.promoteBlocked(ctx)
	}
	return true, err
}

// settleFailure writes what follows from an attempt at a row that failed. It reports whether the
// next row can be tried.
func (r *retrier) settleFailure(row *parkedRow, failed error) (bool, error) {
	switch v, why := judge(r.rowPolicy(), row.count(), failed); v {
	case noAnswer:
		later := &disposition{reason: parked.Failed, err: failed, wait: backoffFor(r.c.cfg, row.attempt)}
		return false, errors.Join(failed, r.recordFailure(row, later, 1))
	case giveUp, tripped:
		return true, r.giveUp(row, why)
	default: // park: no row halts its partition, and none is tried again where it is
		if why.reason == parked.Failed {
			r.reportRetry(
				RetryEvent{Offset: row.m.Offset, Messages: 1, Attempt: row.attempt, Err: why.err, Parked: true},
				backoff.NewConstantBackOff(why.wait),
			)
		}
		return true, r.recordFailure(row, why, 0)
	}
}

// giveUp leaves a row to an operator, unless the partition has to halt first (D7).
func (r *retrier) giveUp(row *parkedRow, v *disposition) error {
	if r.countsForBrake() {
		if _, yes := r.brake.StopsAt(nil, v.reason); yes {
			later := &disposition{reason: parked.Failed, err: v.err, wait: backoffFor(r.c.cfg, row.attempt)}
			if err := r.recordFailure(row, later, 1); err != nil {
				return err
			}
			return r.haltEverythingFails(r.state.position.Load(), row.m.Offset, v)
		}
		defer r.recordOutcomes(v.reason)
	}
	return r.recordFailure(row, v, 0)
}

// sampleFrontier takes the next step of a sample, if one is possible, with the answer of a poll. No
// step waits (K6).
func (r *retrier) sampleFrontier(a pollAnswer) {
	s := &r.sample
	switch {
	case r.c.events: // keys of events are claimed when they are appended
	case a.frontierRecorded:
		s.asked = time.Time{}
		s.last = time.Now()
		r.polled.setFrontier(nil)
	case s.asked.IsZero():
		if s.last.IsZero() || time.Since(s.last) >= sampleEvery {
			s.at = a.clock
			s.asked = a.arrived
			s.end = -1
		}
	// The clock went back: the database refuses that time until the clock has reached it.
	case s.at.After(a.clock):
		s.asked = time.Time{}
		r.polled.setFrontier(nil)
	case s.end < 0:
		if latest := r.state.lastLogEnd.Load(); latest != nil && latest.began.After(s.asked) {
			s.end = latest.end
		}
	}
	if !s.asked.IsZero() && s.end >= 0 && r.state.position.Load() >= s.end {
		at := s.at
		r.polled.setFrontier(&at)
	}
}
