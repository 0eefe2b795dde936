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

// Brake halts a partition if nearly all of its messages fail, for example because Config.Key is
// wrong, a table is missing, or a remote refuses every call. Without the brake, all these messages
// would be parked as fast as they fail.
//
// The brake considers the last Window messages that were applied or given up (as no-key, too-old,
// permanent or exhausted). If Percent of them, and at least Least messages, were given up, the
// partition halts with [HaltEverythingFails]. The triggering message is not parked. The consumer
// then tries one message each Every. When one is applied, the partition continues by itself, with
// an empty window. The window is empty, too, after another process has taken the partition over.
//
// Copies do not count. Under [ParkOrderingKey] a message counts when its attempts are used up. The
// brake is off under [BlockPartition].
type Brake struct {
	// Off switches the brake off: each message that fails is parked. Defaults to false.
	Off bool

	// Window is the number of latest messages that the brake considers. Defaults to 50.
	Window int

	// Percent is the share of them that must have been given up, from 1 to 100. Defaults to 90.
	Percent int

	// Least is the least number of messages that the brake needs to decide; it must not be above
	// Window. Defaults to 20, or to Window if that is less.
	Least int

	// Every is how often the consumer tries a message while the partition is halted, at least 1 ms.
	// Defaults to 30 s.
	Every time.Duration
}

func (b Brake) withDefaults() Brake {
	b.Window = cmp.Or(b.Window, 50)
	b.Percent = cmp.Or(b.Percent, 90)
	b.Least = cmp.Or(b.Least, min(20, b.Window))
	b.Every = cmp.Or(b.Every, 30*time.Second)
	return b
}

// brake is the window of one partition. The partition's worker and retrier share it.
type brake struct {
	cfg Brake

	mu      sync.Mutex
	last    []string              // how the last messages ended, oldest first: "" if applied, or the reason
	pending map[*attempt][]string // how transactions under way are about to end messages, as in last
	probing bool                  // it has halted the partition, and nothing was applied since
	judged  []string              // the messages because of which it did, as in last
	halt    *HaltError
}

// countsAsFailed reports whether messages with this reason count against the partition. Conflicts
// are the producers' fault, and crashes have limits of their own.
func countsAsFailed(reason string) bool {
	return reason == parked.NoKey || reason == parked.TooOld || reason == parked.Permanent || reason == parked.Exhausted
}

// stopsAt reports whether the partition has to halt before an attempt (nil: a retry of parked rows)
// writes these dispositions, and at which of them. The reason "" means a message that may be
// applied. What other attempts are about to apply and to set aside counts as if it were committed.
func (b *brake) stopsAt(a *attempt, reasons ...string) (at int, yes bool) {
	if b.cfg.Off {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last := slices.Clone(b.last)
	for other, outcomes := range b.pending {
		for _, reason := range outcomes {
			if other != a {
				last = b.push(last, reason)
			}
		}
	}
	var own []string
	for i, reason := range reasons {
		if reason != "" && !countsAsFailed(reason) && !(b.probing && reason == parked.Behind) {
			continue // while the partition is halted, nothing is set aside
		}
		last = b.push(last, reason)
		if reason != "" && (b.probing || b.trips(last)) {
			if !b.probing {
				b.judged = last
			}
			return i, true
		}
		own = b.push(own, reason)
	}
	if a != nil && len(own) > 0 {
		if b.pending == nil {
			b.pending = map[*attempt][]string{}
		}
		b.pending[a] = own
	}
	return 0, false
}

// ended forgets what an attempt was about to do: it has failed, or is recorded.
func (b *brake) ended(a *attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pending, a)
}

func (b *brake) push(last []string, reason string) []string {
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

// record records how messages ended. It reports whether an applied one releases the brake.
func (b *brake) record(applied int, reasons ...string) (released bool) {
	if b.cfg.Off {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if applied > 0 && b.probing {
		b.probing, b.last, released = false, nil, true
	}
	for range min(applied, b.cfg.Window) {
		b.last = b.push(b.last, "")
	}
	for _, reason := range reasons {
		if countsAsFailed(reason) {
			b.last = b.push(b.last, reason)
		}
	}
	return released
}

// release empties the window, because an operator asks for it.
func (b *brake) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing, b.last = false, nil
}

// stopped reports whether the partition is halted, except for single messages.
func (b *brake) stopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.probing
}

// haltEverythingFails halts the partition because of a message that failed, like nearly all before
// it.
func (e *engine) haltEverythingFails(pos, offset int64, v *disposition) *HaltError {
	b := e.brake
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = true
	counts := map[string]int{}
	for _, reason := range b.judged {
		counts[reason]++
	}
	var reasons, failed []string
	for _, reason := range []string{parked.NoKey, parked.TooOld, parked.Permanent, parked.Exhausted} {
		if counts[reason] > 0 {
			reasons, failed = append(reasons, reason), append(failed, fmt.Sprintf("%d %s", counts[reason], reason))
		}
	}
	h := e.haltErrorAt(pos, HaltEverythingFails, "of the last %d messages nearly all have failed (%s), the last of them at offset %d, which is not parked: %v. One message is tried every %v; the partition goes on by itself when it is applied",
		len(b.judged), strings.Join(failed, ", "), offset, v.err, b.cfg.Every)
	for _, reason := range reasons {
		if reason == parked.TooOld {
			continue // an operator has to find out first which of them were applied
		}
		h.Redrive = append(h.Redrive, h.redrive(e.c.parkedKind(), reason))
	}
	b.halt = h
	return h
}

// waitForProbe waits, while the brake holds the partition, until it is time to try a message or an
// operator has acted. It returns what ended the wait: nil, errMoved, errPaused, or the context's
// error.
func (w *worker) waitForProbe(ctx context.Context) error {
	operators := newRetrier(w)
	defer operators.leavePoller()
	due := time.NewTimer(w.brake.cfg.Every)
	defer due.Stop()
	for {
		select {
		case <-due.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case a := <-operators.polled.answers:
			if err := operators.applyPoll(a); errors.Is(err, errMoved) || errors.Is(err, errPaused) {
				return err
			}
		}
	}
}

// probeOne tries one message while the brake holds the partition. It returns errMoved if that
// releases the brake. If failed messages are retried from the database and one of them is due,
// probe tries that one, and messages in the log wait.
func (w *worker) probeOne(ctx, work context.Context, committer *committer) error {
	if w.c.cfg.OnFailure == ParkOrderingKey {
		if _, err := w.retrier.retryNext(ctx, work); err != nil {
			return err
		}
		if !w.brake.stopped() {
			return errMoved
		}
	}
	bounded, cancel := context.WithTimeout(ctx, w.brake.cfg.Every)
	defer cancel()
	msgs, next, err := w.reader.nextBatch(bounded, w.pos, committer.lost)
	switch {
	case err != nil:
		return w.fetchError(err)
	case len(msgs) > 0:
		err = w.handleAlone(ctx, work, msgs[0], next)
		w.reader.release(msgs)
	case next > w.pos:
		err = w.advancePosition(ctx, work, next)
	case ctx.Err() == nil: // the log has no message
		return w.brake.halt
	}
	if err == nil && !w.brake.stopped() {
		err = errMoved
	}
	return err
}

// brakeError means that a message is not given up, because the partition has to halt first.
type brakeError struct{ *disposition }

func (e *brakeError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *brakeError) Unwrap() error { return e.err }

// recordOutcomes records how the messages of a committed transaction ended.
func (e *engine) recordOutcomes(applied int, reasons ...string) {
	if !e.brake.record(applied, reasons...) {
		return
	}
	if h := e.state.halted.Load(); h != nil && h.Reason == HaltEverythingFails {
		e.state.halted.CompareAndSwap(h, nil)
	}
	e.c.cfg.Logger.Info("onlyonce: a message was applied: the partition goes on", "scope", e.c.cfg.Scope, "topic", e.id.Topic, "partition", e.id.Partition)
}

// recordCommitted records and reports what a transaction of messages that has committed did.
func (e *engine) recordCommitted(a *attempt) {
	reasons := make([]string, len(a.parked))
	for i, p := range a.parked {
		reasons[i] = p.Reason
	}
	e.recordOutcomes(a.done.Handled, reasons...)
	e.c.emitCommitted(a)
}

// firstBraked returns the index of the first message of an attempt at which the partition has to
// halt, before that message is set aside. err is nil if there is none.
func (e *engine) firstBraked(a *attempt, dispositions []*disposition) (at int, err error) {
	if a.alreadyParked || e.c.cfg.OnFailure == BlockPartition {
		return 0, nil
	}
	of := func(i int) *disposition {
		if dispositions[i] == nil {
			return a.disposition
		}
		return dispositions[i]
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
	if at, yes := e.brake.stopsAt(a, reasons...); yes {
		return at, &brakeError{of(at)}
	}
	return 0, nil
}
