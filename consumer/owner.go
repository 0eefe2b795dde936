package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// haltRecheck is how often a halted partition checks whether an operator has resolved the halt.
const haltRecheck = 3 * time.Second

// ownership is what this process knows of a partition that it owns. The worker and its retrier, two
// goroutines, share it: after the take-over it does not change.
type ownership struct {
	c     *Consumer
	id    source.Identity
	cur   *cursor // what this process owns; nil before the first take-over
	state *partitionState
	brake *brake

	idInTopic bool // ids count within the topic (K8)

	// redoUntil is the offset below which messages may have been handled before: in a history that
	// the database has lost, or before an operator set the position back (O6).
	redoUntil int64
}

// ownPartition works on a partition, from the time the source hands it over until it is given up.
func (c *Consumer) ownPartition(ctx context.Context, p partition) (err error) {
	w := &worker{p: p, applier: applier{engine: engine{ownership: ownership{c: c, state: c.partitions.add(), brake: newBrake(c.cfg.Brake)}}}}
	w.fence = &positionFence{w: w}
	defer func() {
		w.stopHandlers()
		w.releaseCursor()
		c.partitions.remove(w.state)
		if c.cfg.Hooks.Released != nil && w.cur != nil {
			c.cfg.Hooks.Released(PartitionEvent{Topic: w.id.Topic, Partition: w.id.Partition, Position: w.pos, Err: err})
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
			wait = w.reportRetry(MessageEvent{Offset: w.pos, Err: err}, retry)
		}
		if !pace.Sleep(ctx, wait) {
			return nil
		}
	}
}

// logHaltEvery is how often an unchanged halt is logged. Hooks.Halted is called each time.
const logHaltEvery = 5 * time.Minute

// haltLog keeps an unchanged halt from being logged again and again.
type haltLog struct {
	last loggedHalt
	at   time.Time
}

// loggedHalt identifies a halt that was logged.
type loggedHalt struct {
	reason   HaltReason
	detail   string
	position int64
}

// due reports whether a halt is to be logged now, and records that it is.
func (l *haltLog) due(halt *HaltError) bool {
	now := loggedHalt{halt.Reason, halt.Detail, halt.Position}
	if now == l.last && time.Since(l.at) < logHaltEvery {
		return false
	}
	l.last, l.at = now, time.Now()
	return true
}

// reportHalt logs that a partition is halted, and for how long it can stay so without loss.
func (w *worker) reportHalt(ctx context.Context, halt *HaltError) {
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

func (w *worker) haltError(reason HaltReason, detail string, args ...any) *HaltError {
	return w.haltErrorAt(w.pos, reason, detail, args...)
}

func (e *engine) haltErrorAt(pos int64, reason HaltReason, detail string, args ...any) *HaltError {
	if e.cur != nil && e.cur.replayUntil != nil {
		detail += "; a replay is under way up to offset %d, which interrupted the work at offset %d"
		args = append(args, *e.cur.replayUntil, e.cur.replayResume)
	}
	return &HaltError{Scope: e.c.cfg.Scope, Group: e.c.source.Group(), Topic: e.id.Topic, Partition: e.id.Partition, Position: pos,
		Reason: reason, Detail: fmt.Sprintf(detail, args...), Shard: e.c.shard}
}
