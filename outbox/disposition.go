package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// dispositionOf decides what becomes of a call's row. It returns the same each time, except while
// the call is still under way.
func (s *relaySink) dispositionOf(a *callAttempt) disposition {
	if a.decided {
		return a.disposition
	}
	d := s.decide(a)
	a.disposition = d
	a.decided = a.state != attemptUnderWay
	return d
}

func (s *relaySink) decide(a *callAttempt) disposition {
	switch a.state {
	case attemptBlocked:
		return disposition{state: parked.Blocked, reason: parked.Behind, open: !a.noneOpen}
	case attemptScheduled:
		return disposition{
			state:  parked.Retrying,
			reason: parked.Scheduled,
			open:   !a.noneOpen,
			due:    true,
			delay:  a.notBeforeIn - time.Since(a.readAt),
		}
	case attemptRated: // not by its due time, but when the rate has a permit for it
		return disposition{state: parked.Retrying, reason: parked.Rate, open: !a.noneOpen, uncounted: true}
	case attemptWaiting:
		d := disposition{state: parked.Retrying, reason: parked.Cut, open: !a.noneOpen, due: true, uncounted: true}
		if a.parked != 0 { // it was picked, and the sink took no more calls then: its reason stays
			d.reason = ""
			d.delay = s.cfg.PollInterval
		}
		return d
	case attemptUnderWay:
		// settled when it returns; if this relay dies, due after its lease has ended, and the call
		// with it
		return disposition{
			state:  parked.Retrying,
			reason: parked.UnderWay,
			open:   true,
			due:    true,
			delay:  s.cfg.LeaseTTL,
		}
	}
	switch {
	case a.completing():
		return s.decideCompletion(a)
	case a.reconciling:
		return s.decideReconciled(a)
	}
	return s.decideAnswered(a)
}

// decideAnswered decides after an attempt that has called the remote, or was to.
func (s *relaySink) decideAnswered(a *callAttempt) disposition {
	r := a.result
	next := a.known().After(a.answered(), errors.Is(r.Err, errWindow))
	d := disposition{state: next.State, reason: next.Reason, open: next.Open, lastError: storedText(r.Reason)}
	if _, is := answers[r.Outcome]; !is { // never taken for success
		d.lastError = fmt.Sprintf("the sink returned no outcome (%d)", int(r.Outcome))
	}
	switch next.State {
	case parked.Resolved:
		if !a.Capture {
			return disposition{settlement: CallDelivered, state: parked.Resolved}
		}
		answer := r.Response
		if answer == nil {
			answer = &Response{}
		}
		return disposition{
			settlement: CallAccepted,
			state:      parked.Retrying,
			reason:     parked.Completion,
			due:        true,
			answer:     answer,
		}
	case parked.Waiting:
		d.settlement = CallRejected
		if a.unopened {
			d.settlement = CallUnopened
			d.reason = parked.Unopened
		}
	case parked.Reconcile:
		d.settlement = CallReconcile
		d.due = true
	default:
		d.settlement = CallRetry
		d.due = true
		d.delay = s.retryWait(a)
		d.uncounted = r.RetryScope != RetryCall && r.RetryAfter > 0 || r.notStarted()
	}
	return d
}

// decideCompletion decides after RelayConfig.Complete. The remote has accepted the call.
func (s *relaySink) decideCompletion(a *callAttempt) disposition {
	r := a.result
	d := disposition{reason: parked.Completion, lastError: storedText(r.Reason)}
	switch r.Outcome {
	case Delivered:
		return disposition{settlement: CallDelivered, state: parked.Resolved}
	case Rejected:
		d.settlement = CallRejected
		d.state = parked.Waiting
	default:
		d.settlement = CallRetry
		d.state = parked.Retrying
		d.due = true
		d.delay = s.retryWait(a)
	}
	return d
}

// decideReconciled decides after RelayConfig.Reconcile, whose word counts as a person's.
func (s *relaySink) decideReconciled(a *callAttempt) disposition {
	by := map[decision]parked.Decision{wasApplied: parked.VerifiedApplied, wasNotApplied: parked.VerifiedNotApplied}
	decided, known := by[a.decision]
	if !known {
		due := a.result.Outcome != Rejected
		return disposition{
			settlement: CallReconcile,
			state:      parked.Reconcile,
			open:       true,
			lastError:  storedText(a.result.Reason),
			due:        due,
			delay:      s.retryWait(a),
		}
	}
	next, _ := a.known().Decide(decided) // of a call in state reconcile neither is refused
	if next.State == parked.Resolved {
		return disposition{settlement: CallDelivered, state: next.State}
	}
	return disposition{settlement: CallRetry, state: next.State, reason: next.Reason, due: true}
}

// answerColumns returns the answer as the row keeps it.
func (d *disposition) answerColumns() (status *int32, headers *string, body []byte) {
	if d.answer == nil {
		return nil, nil, nil
	}
	s := int32(d.answer.Status)
	h := d.answer.headerLines()
	return &s, &h, d.answer.Body
}

// event returns what hooks receive about an attempt.
func (d disposition) event(a *callAttempt) SettledEvent {
	e := SettledEvent{
		AttemptEvent: a.describe(),
		State:        d.settlement,
		Open:         d.open,
		Reason:       d.lastError,
		Err:          a.result.Err,
	}
	e.Final = e.State != CallRetry && e.State != CallAccepted
	e.Age = a.waited + time.Since(a.readAt)
	if d.settlement == CallRetry {
		e.Wait = d.delay
	}
	return e
}

// openEvery is how often a relay tries to open a body for which it lacks the key, within
// RelayConfig.Backoff. It does not grow, because such a try is not counted as an attempt.
const openEvery = 10 * time.Second

// retryWait is how long a call waits before it is tried again.
func (s *relaySink) retryWait(a *callAttempt) time.Duration {
	if a.unopened {
		return max(s.cfg.Backoff.Min, min(openEvery, s.cfg.Backoff.Max))
	}
	return s.retryDelay(a.Number, a.result.RetryAfter)
}

// retryDelay is how long a call waits after its attempt number n: about RelayConfig.Backoff.Min,
// doubled each time up to Max, or what the remote asks for if that is more.
func (s *relaySink) retryDelay(attempt int, after time.Duration) time.Duration {
	d := s.cfg.Backoff.Min
	for range min(attempt, 64) - 1 { // 64 doublings pass any maximum
		d = min(2*d, s.cfg.Backoff.Max)
	}
	return max(d/2+rand.N(d), min(after, maxRetryAfter))
}

// maxReason is the length in bytes of an error that a row keeps.
const maxReason = 300

// storedText makes a text fit for a column of text: valid UTF-8 without NUL, on one line, and
// short. Postgres refuses other text, and a row that cannot be settled would hold up every row that
// is settled with it. It differs from codec.TextUpTo: tools print a remote's reason in tables with
// one line a row, so it removes every control character and marks what was cut.
func storedText(s string) string {
	if s == "" {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxReason {
		return s
	}
	s = s[:maxReason]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}

// reportSettled reports what became of a call whose settlement is committed.
func (s *relaySink) reportSettled(a *callAttempt) {
	d := s.dispositionOf(a)
	s.captures.settled(a, d.settlement)
	s.emit.settled(d.event(a))
}

// captures notices that RelayConfig.Complete is set although no call asks for its answer: it would
// never be called, and nothing would report that. It is one for all sinks of a relay, because
// Complete is.
type captures struct {
	log *slog.Logger

	mu   sync.Mutex
	done bool // a call has asked for its answer, or the warning is logged
}

// newCaptures returns nil if there is nothing to notice.
func newCaptures(cfg *RelayConfig) *captures {
	if cfg.Complete == nil {
		return nil
	}
	return &captures{log: cfg.Logger}
}

// settled notes a call that has ended, and warns at the first one that was delivered if none before
// it has asked for its answer.
func (c *captures) settled(a *callAttempt, settlement CallState) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.done:
	case a.Capture:
		c.done = true
	case settlement == CallDelivered:
		c.done = true
		c.log.Warn("onlyonce: RelayConfig.Complete is set, and the first call that was delivered does not "+
			"ask for its answer: Complete gets the answers of calls with Call.Capture, and no others",
			"sink", a.Sink, "name", a.Name)
	}
}
