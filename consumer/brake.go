package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// Brake says when a partition stops because nearly all of its messages fail: a wrong Config.Key, a table that is missing, a remote that refuses everything. Without
// it they would be parked one by one, as fast as they fail.
//
// The partition stops when of the last Window messages that were applied or given up Percent in a hundred, and Least of them at all, were given up: as no-key, permanent or
// exhausted. It halts as [HaltEverythingFails]. The message that makes it stop is not parked. One message is tried each Every, and when one is applied the partition
// goes on by itself, with a window that begins anew. So it does in a process that takes the partition over.
//
// Copies count neither way. Under [ParkOrderingKey] a message counts when its attempts are used up. The brake does nothing under [BlockPartition].
type Brake struct {
	// Off switches the brake off: whatever fails is parked.
	Off bool
	// Window is how many messages are looked at. Default 50.
	Window int
	// Percent of them must have failed. Default 90.
	Percent int
	// Least is how many messages must have been looked at. Default 20, or Window if that is less.
	Least int
	// Every is how often a message is tried while the partition stands still. Default 30 s.
	Every time.Duration
}

// withDefaults fills in what is 0.
func (b Brake) withDefaults() Brake {
	b.Window = cmp.Or(b.Window, 50)
	b.Percent = cmp.Or(b.Percent, 90)
	b.Least = cmp.Or(b.Least, min(20, b.Window))
	b.Every = cmp.Or(b.Every, 30*time.Second)
	return b
}

// brake is the window of one partition. Its worker and its retrier share it.
type brake struct {
	cfg Brake

	mu      sync.Mutex
	last    []string // how the last messages ended, the oldest first: "" for applied, or the reason
	probing bool     // it has stopped the partition, and nothing was applied since
	halt    *HaltError
}

// bad reports whether messages of a reason count against the partition. Conflicts say something of producers, crashes have limits of their own.
func bad(reason string) bool {
	return reason == parked.NoKey || reason == parked.Permanent || reason == parked.Exhausted
}

// stops reports whether the partition has to stop before these verdicts are written, and at which of them. "" stands for a message that may be applied.
func (b *brake) stops(reasons ...string) (at int, yes bool) {
	if b.cfg.Off {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last := slices.Clone(b.last)
	for i, reason := range reasons {
		if reason != "" && !bad(reason) && !(b.probing && reason == parked.Behind) {
			continue // while the partition stands still nothing is set aside
		}
		last = b.with(last, reason)
		if reason != "" && (b.probing || b.trips(last)) {
			return i, true
		}
	}
	return 0, false
}

func (b *brake) with(last []string, reason string) []string {
	last = append(last, reason)
	return last[max(len(last)-b.cfg.Window, 0):]
}

func (b *brake) trips(last []string) bool {
	failed := 0
	for _, reason := range last {
		if reason != "" {
			failed++
		}
	}
	return len(last) >= b.cfg.Least && failed*100 >= b.cfg.Percent*len(last)
}

// ended takes note of how messages ended. It reports whether one that was applied releases the brake.
func (b *brake) ended(applied int, reasons ...string) (released bool) {
	if b.cfg.Off {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if applied > 0 && b.probing {
		b.probing, b.last, released = false, nil, true
	}
	for range min(applied, b.cfg.Window) {
		b.last = b.with(b.last, "")
	}
	for _, reason := range reasons {
		if bad(reason) {
			b.last = b.with(b.last, reason)
		}
	}
	return released
}

// release begins anew: an operator says so.
func (b *brake) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing, b.last = false, nil
}

// stopped reports whether the partition stands still but for single messages.
func (b *brake) stopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.probing
}

// everythingFails stops the partition, because of a message that has failed like nearly all before it.
func (e *engine) everythingFails(pos, offset int64, v *verdict) *HaltError {
	b := e.brake
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = true
	counts := map[string]int{v.reason: 1}
	for _, reason := range b.last {
		if reason != "" {
			counts[reason]++
		}
	}
	var reasons, failed []string
	for _, reason := range []string{parked.NoKey, parked.Permanent, parked.Exhausted} {
		if counts[reason] > 0 {
			reasons, failed = append(reasons, reason), append(failed, fmt.Sprintf("%d %s", counts[reason], reason))
		}
	}
	h := e.haltAt(pos, HaltEverythingFails, "of the last %d messages nearly all have failed (%s), the last of them at offset %d, which is not parked: %v. One message is tried every %v; the partition goes on by itself when it is applied",
		min(len(b.last)+1, b.cfg.Window), strings.Join(failed, ", "), offset, v.err, b.cfg.Every)
	for _, reason := range reasons {
		h.Redrive = append(h.Redrive, h.redrive(e.c.kind(), reason))
	}
	b.halt = h
	return h
}

// untilProbe waits until a message is to be tried while the brake holds the partition, or until an operator has done something. It returns what ended
// the wait: nil, errMoved, errPaused, or the end of ctx.
func (w *worker) untilProbe(ctx context.Context) error {
	operators := newRetrier(w)
	defer operators.leave()
	due := time.NewTimer(w.brake.cfg.Every)
	defer due.Stop()
	for {
		select {
		case <-due.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case a := <-operators.asks.answer:
			if err := operators.answered(a); errors.Is(err, errMoved) || errors.Is(err, errPaused) {
				return err
			}
		}
	}
}

// probe tries one message, while the brake holds the partition. It returns errMoved if that releases the brake. Where failed messages are tried again
// from the database it tries one of those, if there is any that is due, and what is in the log waits.
func (w *worker) probe(ctx, work context.Context, f *fetching, committer *committer) error {
	if w.c.cfg.OnFailure == ParkOrderingKey {
		if _, err := w.retrier.tryNext(ctx, work); err != nil {
			return err
		}
		if !w.brake.stopped() {
			return errMoved
		}
	}
	bounded, cancel := context.WithTimeout(ctx, w.brake.cfg.Every)
	defer cancel()
	msgs, next, err := w.collect(bounded, f, committer)
	switch {
	case err != nil:
		return w.fetchFailed(err)
	case len(msgs) > 0:
		err = w.handleAlone(ctx, work, msgs[0], next)
		f.handled(msgs)
	case next > w.pos:
		err = w.advance(ctx, work, next)
	case ctx.Err() == nil: // there is none in the log
		return w.brake.halt
	}
	if err == nil && !w.brake.stopped() {
		err = errMoved
	}
	return err
}

// brakeError says that a message is not given up, because the partition has to stop first.
type brakeError struct{ *verdict }

func (e *brakeError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *brakeError) Unwrap() error { return e.err }

// endings takes note of how the messages of a transaction ended that has committed.
func (e *engine) endings(applied int, reasons ...string) {
	if !e.brake.ended(applied, reasons...) {
		return
	}
	if h := e.state.halted.Load(); h != nil && h.Reason == HaltEverythingFails {
		e.state.halted.CompareAndSwap(h, nil)
	}
	e.c.cfg.Logger.Info("onlyonce: a message was applied: the partition goes on", "scope", e.c.cfg.Scope, "topic", e.id.Topic, "partition", e.id.Partition)
}

// braked returns the first message of an attempt that the partition has to stop at, before it is set aside; nil if there is none.
func (e *engine) braked(a *attempt, verdicts []*verdict) (at int, err error) {
	if a.inPlace || e.c.cfg.OnFailure == BlockPartition {
		return 0, nil
	}
	of := func(i int) *verdict {
		if verdicts[i] == nil {
			return a.verdict
		}
		return verdicts[i]
	}
	reasons := make([]string, len(a.msgs))
	worst := false
	for i := range a.msgs {
		if v := of(i); v != nil {
			reasons[i], worst = v.reason, true
		}
	}
	if !worst {
		return 0, nil
	}
	if at, yes := e.brake.stops(reasons...); yes {
		return at, &brakeError{of(at)}
	}
	return 0, nil
}
