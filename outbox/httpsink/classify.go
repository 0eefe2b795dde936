package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/onlyonce/onlyonce/internal/dialguard"
	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/internal/rfc"
	"github.com/onlyonce/onlyonce/outbox"
)

// Answer is a remote's answer, for Config.Classify and Profile.Classify.
type Answer struct {
	Status int
	Header http.Header
	// Body is at most the first 64 KiB.
	Body []byte
}

// classify classifies an answer. It neither keeps nor logs the body.
func (s *Sink) classify(a Answer, tenant string) outbox.Result {
	r := outbox.Result{Reason: fmt.Sprintf("status %d", a.Status)}
	if a.Status >= 300 && a.Status <= 399 {
		// The reason does not quote the address of the redirect, because it may hold secrets.
		r.Reason += ": a redirect, which is not followed; if the remote has moved, change BaseURL"
	}
	var byDefault bool
	r.Outcome, byDefault = s.outcomeOf(a)
	// Most likely because of its tenant's credentials: they are the same in each call, and this one
	// is not rejected for its contents.
	refused := byDefault && (a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden)
	if refused && tenant != "" {
		r.Outcome = outbox.Postponed
		r.RetryScope = outbox.RetryTenant
		r.HoldFor = s.cfg.Breaker.OpenFor
		r.HoldReason = "the tenant's credentials are refused: " + r.Reason
		r.Reason += ": the tenant's calls wait; are its credentials valid?"
	}
	if r.Outcome != outbox.Retry && r.Outcome != outbox.Postponed {
		return r
	}
	// 0 without the header; the relay bounds it.
	r.RetryAfter, _ = rfc.RetryAfter(a.Header, time.Now())
	switch {
	case outcome.Mark(a.Header) == outcome.InProgress: // that is about this call alone
	case a.Status == http.StatusServiceUnavailable:
		r.RetryScope = outbox.RetryAuto
	case a.Status == http.StatusTooManyRequests:
		r.RetryScope = outbox.RetryTenant
	}
	return r
}

// outcomeOf returns what an answer says of the attempt, and whether only its status says so. The
// configuration comes first, except for an effect that the project's own HTTP layer reports; then
// the layer's marks (H9, H27), then the provider's own signs.
func (s *Sink) outcomeOf(a Answer) (o outbox.AttemptOutcome, byDefault bool) {
	if s.cfg.Classify != nil {
		if o := s.cfg.Classify(a); o != 0 {
			return o, false
		}
	}
	marked, isMarked := outcome.Marked(a.Status, a.Header, a.Body)
	if isMarked && marked.Applied == outcome.WasApplied && a.Status >= http.StatusBadRequest {
		return outbox.Delivered, false
	}
	if o, overruled := s.cfg.Outcomes[a.Status]; overruled {
		return o, false
	}
	if isMarked {
		return outcomeOfMarked(marked), false
	}
	if s.cfg.Profile.Classify != nil {
		if o := s.cfg.Profile.Classify(a); o != 0 {
			return o, false
		}
	}
	return defaultOutcome(a.Status), true
}

// outcomeOfMarked is the outcome for what the project's own HTTP layer says.
func outcomeOfMarked(a outcome.Answer) outbox.AttemptOutcome {
	switch {
	case a.Applied == outcome.WasApplied:
		return outbox.Delivered
	case a.OfTheKey:
		return outbox.Never
	case a.Applied == outcome.NotApplied && a.Again:
		return outbox.Postponed
	case a.Applied == outcome.NotApplied:
		return outbox.Rejected
	case a.Again:
		return outbox.Retry
	}
	return outbox.Unsafe
}

// defaultOutcome is the default meaning of a status. It retries statuses that mean "not now" or
// "unknown": 408 Request Timeout, 409 Conflict (the first request with this key is still running),
// 425 Too Early, 429 Too Many Requests, 5xx, and answers that are not final, like 101. Redirects
// are not followed: the remote has not applied the attempt, and an operator has to correct a base
// URL that has moved.
func defaultOutcome(status int) outbox.AttemptOutcome {
	switch {
	case status >= 200 && status <= 299:
		return outbox.Delivered
	case status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return outbox.Postponed
	case status < 200, status == http.StatusRequestTimeout, status == http.StatusConflict, status >= 500:
		return outbox.Retry
	}
	return outbox.Rejected
}

// describeFailure says in a few words why there is no whole answer.
func (s *Sink) describeFailure(ctx context.Context, err error) string {
	var refused *dialguard.AddressError
	switch {
	case errors.As(err, &refused):
		// The name may resolve to another address later, so the call is put off and not rejected.
		return "no call was made: " + refused.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %v", s.cfg.Timeout)
	case ctx.Err() != nil:
		return "cut off: the relay stopped or lost its lease"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke off before the answer was whole"
	}
	return redactQuoted(err)
}

// quotedText matches quoted text in Go's errors.
var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// redactQuoted removes quoted parts from an error. The transport quotes what the remote sent, for
// example in "malformed HTTP response ...", and that may be a payload.
func redactQuoted(err error) string { return quotedText.ReplaceAllString(err.Error(), `"..."`) }
