// Package brake decides when a partition halts because nearly all of its messages fail, and when
// calls wait because nearly all of them are refused.
package brake

import (
	"slices"
	"sync"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// Window is the brake of one partition, or of one sink's calls. Several goroutines may use it at
// once.
type Window struct {
	Off                  bool                     // it never trips
	Size, Percent, Least int                      // see consumer.Brake
	Counts               func(reason string) bool // whether what ended so counts as failed
	Alike                bool                     // only failures of one reason count together

	mu      sync.Mutex
	last    []string  // how the last messages ended, oldest first: "" if applied, or the reason
	applied int       // how many were applied since the last that was not, or since last was emptied
	pending []pending // attempts under way, in the order in which they began
	probing bool      // it has halted the partition, and nothing was applied since
	judged  []string  // the messages because of which it did, as in last
}

// pending is how an attempt under way is about to end messages.
type pending struct {
	attempt  any
	outcomes []string // as in Window.last
}

// StopsAt reports whether the partition has to halt before an attempt (nil: a retry of parked rows)
// writes these dispositions, and at which of them. The reason "" means a message that may be
// applied. What other attempts are about to apply and to set aside counts as if it were committed.
func (w *Window) StopsAt(attempt any, reasons ...string) (at int, yes bool) {
	if w.Off {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := slices.Clone(w.last)
	w.forget(attempt)
	for _, other := range w.pending {
		for _, reason := range other.outcomes {
			last = w.push(last, reason)
		}
	}
	var own []string
	for i, reason := range reasons {
		behindProbe := w.probing && reason == parked.Behind
		if reason != "" && !w.Counts(reason) && !behindProbe {
			continue // while the partition is halted, nothing is set aside
		}
		last = w.push(last, reason)
		if reason != "" && (w.probing || w.trips(last)) {
			if !w.probing {
				w.judged = last
			}
			return i, true
		}
		own = w.push(own, reason)
	}
	if attempt != nil && len(own) > 0 {
		w.pending = append(w.pending, pending{attempt, own})
	}
	return 0, false
}

// Ended forgets what an attempt was about to do: it has failed, or is recorded.
func (w *Window) Ended(attempt any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(attempt)
}

// forget is Ended for a caller that has the lock.
func (w *Window) forget(attempt any) {
	w.pending = slices.DeleteFunc(w.pending, func(p pending) bool { return p.attempt == attempt })
}

func (w *Window) push(last []string, reason string) []string {
	last = append(last, reason)
	return last[max(len(last)-w.Size, 0):]
}

func (w *Window) trips(last []string) bool {
	failed := 0
	of := map[string]int{} // how many ended so
	for _, reason := range last {
		switch {
		case reason == "":
		case w.Alike:
			of[reason]++
			failed = max(failed, of[reason])
		default:
			failed++
		}
	}
	return len(last) >= w.Least && failed*100 >= w.Percent*len(last)
}

// Record records how messages ended, in the order of the log: "" for one that was applied, or the
// reason. It reports whether an applied one releases the brake (D7).
func (w *Window) Record(outcomes ...string) (released bool) {
	if w.Off {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, outcome := range outcomes {
		if outcome != "" && !w.Counts(outcome) {
			continue
		}
		if outcome == "" && w.probing {
			w.release()
			released = true
		}
		w.record(outcome)
	}
	return released
}

// record adds to the window how a message ended. The caller has the lock.
func (w *Window) record(outcome string) {
	switch {
	case outcome != "":
		w.applied = 0
	case w.applied < w.Size:
		w.applied++
	default:
		return // all of the window were applied, and stay so
	}
	w.last = w.push(w.last, outcome)
}

// Release empties the window, because an operator asks for it.
func (w *Window) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.release()
}

// release is Release for a caller that has the lock.
func (w *Window) release() {
	w.probing = false
	w.last = nil
	w.applied = 0
}

// Stopped reports whether the partition is halted, except for single messages.
func (w *Window) Stopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.probing
}

// Trip halts the partition. It returns how each of the messages that caused it ended, oldest first.
func (w *Window) Trip() (judged []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probing = true
	return w.judged
}
