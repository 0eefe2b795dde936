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
	"github.com/onlyonce/onlyonce/internal/rfc"
	"github.com/onlyonce/onlyonce/outbox"
)

// classify classifies an answer by its status. It neither reads, keeps nor logs the body.
func (s *Sink) classify(resp *http.Response) outbox.Result {
	status := resp.StatusCode
	r := outbox.Result{Outcome: defaultOutcome(status), Reason: fmt.Sprintf("status %d", status)}
	if status >= 300 && status <= 399 {
		// The reason does not quote the address of the redirect, because it may hold secrets.
		r.Reason += ": a redirect, which is not followed; if the remote has moved, change BaseURL"
	}
	if o, overruled := s.cfg.Outcomes[status]; overruled {
		r.Outcome = o
	}
	if r.Outcome == outbox.Retry {
		// 0 without the header; the relay bounds it.
		r.RetryAfter, _ = rfc.RetryAfter(resp.Header, time.Now())
		switch status {
		case http.StatusServiceUnavailable:
			r.Holds = outbox.HoldsSink
		case http.StatusTooManyRequests:
			r.Holds = outbox.HoldsTenant
		}
	}
	return r
}

// defaultOutcome is the default meaning of a status. It retries statuses that mean "not now" or
// "unknown": 408 Request Timeout, 409 Conflict (the first request with this key is still running),
// 425 Too Early, 429 Too Many Requests, and 5xx. Redirects are not followed: the remote has not
// applied the call, and an operator has to correct a base URL that has moved.
func defaultOutcome(status int) outbox.Outcome {
	switch {
	case status >= 200 && status <= 299:
		return outbox.Delivered
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly,
		status == http.StatusTooManyRequests, status >= 500:
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
