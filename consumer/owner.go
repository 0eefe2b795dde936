package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// haltRecheck is how often a halted partition checks whether an operator has resolved the halt.
const haltRecheck = 3 * time.Second

// ownPartition works on a partition, from the time the source hands it over until it is given up.
func (c *Consumer) ownPartition(ctx context.Context, p partition) (err error) {
	own := ownership{
		c:        c,
		state:    c.partitions.add(),
		brake:    newBrake(c.cfg.Brake),
		progress: pace.NewPortion(pruneRows),
		done:     pace.NewPortion(pruneRows),
		indexed:  pace.NewPortion(indexedAtOnce),
	}
	w := &worker{p: p, applier: applier{engine: engine{ownership: own}}}
	w.fenceOf = w.positionFence
	defer func() {
		w.stopHandlers()
		w.releaseCursor()
		c.partitions.remove(w.state)
		if c.cfg.Hooks.Released != nil && w.cur != nil {
			c.cfg.Hooks.Released(ReleasedEvent{TopicPartition: w.id.TopicPartition, Position: w.pos, Err: err})
		}
	}()
	retry := newBackoff(c.cfg)
	for {
		from := w.pos
		err := fault.Point(fault.Joined)
		if err == nil {
			err = w.acquire(ctx)
		}
		if err == nil {
			w.state.clearPassedHalt()
			err = w.workOnLog(ctx)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the partition is given up, whatever the work ended with
		}
		if w.pos != from {
			retry.Reset()
		}
		var halt *HaltError
		wait := haltRecheck
		switch {
		case err == nil || errors.Is(err, errMoved):
			continue
		case errors.Is(err, errPaused):
			if !w.waitForResume(ctx) {
				return nil
			}
			w.brake.Release()
			continue
		case errors.Is(err, source.ErrOwnershipLost):
			return err
		case errors.As(err, &halt):
			w.reportHalt(ctx, halt)
			if halt.Reason == HaltEverythingFails {
				if err := w.waitForProbe(ctx); errors.Is(err, errMoved) {
					w.brake.Release() // an operator has set the position
				}
				wait = 0 // the next run finds a pause
			}
		default:
			w.state.setTrouble(&w.state.reachTrouble, err)
			wait = w.reportRetry(RetryEvent{Offset: w.pos, Err: err}, retry)
		}
		if !pace.Sleep(ctx, wait) {
			return nil
		}
	}
}

// waitForProbe waits, while the brake holds the partition, until it is time to try a message or an
// operator has acted. It returns what ended the wait: nil, errMoved, errPaused, or the context's
// error.
func (w *worker) waitForProbe(ctx context.Context) error {
	polled := w.c.poller.join(w.id, w.cur, w.state)
	defer w.c.poller.leave(polled)
	due := time.NewTimer(w.brake.every)
	defer due.Stop()
	for {
		select {
		case <-due.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case a := <-polled.answers:
			if err := a.decision(); errors.Is(err, errMoved) || errors.Is(err, errPaused) {
				return err
			}
		}
	}
}

// waitForResume waits until the pause ends. It returns false if ctx ends first. If the database
// does not answer, the partition counts as still paused.
func (w *worker) waitForResume(ctx context.Context) bool {
	w.state.paused.Store(true)
	defer w.state.paused.Store(false)
	w.c.cfg.Logger.Info("onlyonce: partition paused",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "position", w.pos)
	emit(w.c.cfg.Hooks.Paused, PausedEvent{TopicPartition: w.id.TopicPartition, Position: w.pos})
	asks := w.c.poller.join(w.id, w.cur, w.state)
	defer w.c.poller.leave(asks)
	for {
		select {
		case a := <-asks.answers:
			if a.err == nil && !a.paused {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}
