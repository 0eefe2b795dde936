package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	brakes "github.com/onlyonce/onlyonce/consumer/internal/brake"
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

// brake is the brake of one partition. The partition's worker and retrier share it.
type brake struct {
	brakes.Window
	every time.Duration
	halt  atomic.Pointer[HaltError]
}

func newBrake(cfg Brake) *brake {
	return &brake{Window: brakes.Window{Off: cfg.Off, Size: cfg.Window, Percent: cfg.Percent, Least: cfg.Least}, every: cfg.Every}
}

// haltEverythingFails halts the partition because of a message that failed, like nearly all before
// it.
func (e *engine) haltEverythingFails(pos, offset int64, v *disposition) *HaltError {
	b, counts := e.brake, map[string]int{}
	judged := b.Trip()
	for _, reason := range judged {
		counts[reason]++
	}
	var reasons, failed []string
	for _, reason := range []string{parked.NoKey, parked.TooOld, parked.Permanent, parked.Exhausted} {
		if counts[reason] > 0 {
			reasons, failed = append(reasons, reason), append(failed, fmt.Sprintf("%d %s", counts[reason], reason))
		}
	}
	h := e.haltErrorAt(pos, HaltEverythingFails, "of the last %d messages nearly all have failed (%s), the last of them at offset %d, which is not parked: %v. One message is tried every %v; the partition goes on by itself when it is applied",
		len(judged), strings.Join(failed, ", "), offset, v.err, b.every)
	for _, reason := range reasons {
		if reason == parked.TooOld {
			continue // an operator has to find out first which of them were applied
		}
		h.Redrive = append(h.Redrive, h.redrive(e.c.parkedKind(), reason))
	}
	b.halt.Store(h)
	return h
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

// probeOne tries one message while the brake holds the partition. It returns errMoved if that
// releases the brake. If failed messages are retried from the database and one of them is due,
// probe tries that one, and messages in the log wait.
func (w *worker) probeOne(until stop, committer *committer) error {
	if w.c.cfg.OnFailure == ParkOrderingKey {
		if _, err := w.retrier.retryNext(until); err != nil {
			return err
		}
		if !w.brake.Stopped() {
			return errMoved
		}
	}
	bounded, cancel := context.WithTimeout(until.taking, w.brake.every)
	defer cancel()
	msgs, next, err := w.reader.nextBatch(bounded, w.pos, committer.lost)
	switch {
	case err != nil:
		return w.fetchError(err)
	case len(msgs) > 0:
		err = w.handleAlone(until, msgs[0], next)
		w.reader.release(msgs)
	case next > w.pos:
		err = w.advancePosition(until, next)
	case until.taking.Err() == nil: // the log has no message
		return w.brake.halt.Load()
	}
	if err == nil && !w.brake.Stopped() {
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
	if !e.brake.Record(applied, reasons...) {
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
	if at, yes := e.brake.StopsAt(a, reasons...); yes {
		return at, &brakeError{of(at)}
	}
	return 0, nil
}
