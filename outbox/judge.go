package outbox

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// verdict is what becomes of a call's row after an attempt.
type verdict struct {
	as            Settlement
	state, reason string
	text          string        // error that the row keeps
	due           bool          // it becomes due by itself
	delay         time.Duration // after that long
	fresh         bool          // no call was applied: the key's window counts anew
	answer        *Response     // kept in the row
}

// judge decides what becomes of a flight. It returns the same verdict each time, except while the
// flight is still under way.
func (t *tenure) judge(f *flight) verdict {
	if f.judged {
		return f.verdict
	}
	v := t.decide(f)
	f.verdict, f.judged = v, f.state != flightFlying
	return v
}

func (t *tenure) decide(f *flight) verdict {
	switch f.state {
	case flightBehind:
		return verdict{state: parked.Blocked, reason: parked.Behind}
	case flightScheduled:
		return verdict{state: parked.Retrying, reason: parked.Scheduled, due: true, delay: f.wait - time.Since(f.asked)}
	case flightWaiting:
		return verdict{state: parked.Retrying, reason: parked.Cut, due: true}
	case flightFlying: // settled when it returns; if this relay dies, due after its lease has ended, and the call with it
		return verdict{state: parked.Retrying, reason: parked.Cut, due: true, delay: t.s.cfg.LeaseTTL}
	}
	r := f.result
	v := verdict{text: stored(r.Reason)}
	switch {
	case f.decision == Applied:
		return verdict{as: SettledDelivered, state: parked.Resolved}
	case f.decision == NotApplied:
		return verdict{as: SettledRetry, state: parked.Retrying, reason: parked.Failed, due: true, fresh: true}
	case f.decision == Unknown:
		v.as, v.state, v.reason = SettledReconcile, parked.Reconcile, parked.Window
		v.due, v.delay = r.Outcome != Rejected, t.delay(f)
	case r.Outcome == Delivered && f.completing():
		return verdict{as: SettledDelivered, state: parked.Resolved}
	case r.Outcome == Delivered && f.Capture:
		answer := r.Response
		if answer == nil {
			answer = &Response{}
		}
		return verdict{as: SettledAccepted, state: parked.Retrying, reason: parked.Completion, due: true, answer: answer}
	case r.Outcome == Delivered:
		return verdict{as: SettledDelivered, state: parked.Resolved}
	case r.Outcome == Rejected && f.completing():
		v.as, v.state, v.reason = SettledRejected, parked.Waiting, parked.Completion
	case r.Outcome == Rejected && f.unopened:
		v.as, v.state, v.reason = SettledUnopened, parked.Waiting, parked.Unopened
	case r.Outcome == Rejected:
		v.as, v.state, v.reason = SettledRejected, parked.Waiting, parked.Rejected
	case errors.Is(r.Err, ErrWindow) && !f.completing():
		v.as, v.state, v.reason, v.due = SettledReconcile, parked.Reconcile, parked.Window, true
	default:
		if r.Outcome != Retry { // the sink set no outcome: never taken for success
			v.text = fmt.Sprintf("the sink returned no outcome (%d)", int(r.Outcome))
		}
		v.as, v.state, v.reason, v.due, v.delay = SettledRetry, parked.Retrying, parked.Failed, true, t.delay(f)
		if f.completing() {
			v.reason = parked.Completion
		}
	}
	return v
}

// response returns the answer as the row keeps it.
func (v *verdict) response() (status *int32, headers *string, body []byte) {
	if v.answer == nil {
		return nil, nil, nil
	}
	s, h := int32(v.answer.Status), v.answer.lines()
	return &s, &h, v.answer.Body
}

// event returns what hooks receive about an attempt.
func (v verdict) event(f *flight) Settled {
	e := Settled{Row: f.ID, Key: f.Key, Name: f.Name, Attempt: f.Attempt, As: v.as, Reason: v.text, Err: f.result.Err}
	if v.as == SettledRetry {
		e.Wait = v.delay
	}
	return e
}

// openEvery is how often a relay tries to open a body for which it lacks the key, within RetryMin
// and RetryMax. It does not grow like a backoff, because such a try is not counted as an attempt.
const openEvery = 10 * time.Second

// delay is how long a call waits before it is tried again.
func (t *tenure) delay(f *flight) time.Duration {
	if f.unopened {
		return max(t.s.cfg.RetryMin, min(openEvery, t.s.cfg.RetryMax))
	}
	return t.s.retryDelay(f.Attempt, f.result.RetryAfter)
}

// retryDelay is how long a call waits after its attempt number n.
func (s *sender) retryDelay(attempt int, after time.Duration) time.Duration {
	b := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(s.cfg.RetryMin),
		backoff.WithMaxInterval(s.cfg.RetryMax),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0))
	d := b.NextBackOff()
	for range min(max(attempt, 1), 64) - 1 { // 64 doublings pass any maximum
		d = b.NextBackOff()
	}
	return max(d, min(after, maxRetryAfter))
}

// maxRetryAfter bounds how long a remote may make a call wait. Without it a wrong unit in a header,
// for example milliseconds, could put a call off for days.
const maxRetryAfter = time.Hour

// maxReason is the length in bytes of an error that a row keeps.
const maxReason = 300

// stored makes a text fit for a column of text: valid UTF-8 without NUL, on one line, and short.
// Postgres refuses other text, and a row that cannot be settled would hold up every row that is
// settled with it. It differs from codec.TextUpTo: tools print a remote's reason in tables with one
// line a row, so it removes every control character and marks what was cut.
func stored(s string) string {
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
