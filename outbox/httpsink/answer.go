package httpsink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/onlyonce/onlyonce/internal/retryafter"
	"github.com/onlyonce/onlyonce/outbox"
)

// judge says what an answer means. Its body is not looked at, and neither kept nor logged.
func (s *Sink) judge(resp *http.Response) outbox.Result {
	status := resp.StatusCode
	r := outbox.Result{Outcome: outcome(status), Reason: fmt.Sprintf("status %d", status)}
	if status >= 300 && status <= 399 {
		// Where it leads to is not told: an address may hold secrets.
		r.Reason += ": a redirect, which is not followed; if the remote has moved, change BaseURL"
	}
	if o, overruled := s.cfg.Outcomes[status]; overruled {
		r.Outcome = o
	}
	if r.Outcome == outbox.Retry {
		r.RetryAfter, _ = retryafter.Read(resp.Header, time.Now()) // 0 where there is none; the relay bounds it
	}
	return r
}

// outcome is what a status means by default. Those that are retried say "not now" or "I do not know":
// 408 Request Timeout, 409 Conflict (the answer to a key whose first request is still running), 425 Too Early, 429 Too Many
// Requests, and 5xx. Redirects are not followed: the remote has not applied the call, and a base URL that has moved is for
// an operator to change.
func outcome(status int) outbox.Outcome {
	switch {
	case status >= 200 && status <= 299:
		return outbox.Delivered
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTooEarly,
		status == http.StatusTooManyRequests, status >= 500:
		return outbox.Retry
	}
	return outbox.Rejected
}

// describe says in a few words why there is no whole answer.
func (s *Sink) describe(ctx context.Context, err error) string {
	var refused *addressError
	switch {
	case errors.As(err, &refused):
		// A name's next answer may be another, so the call is put off and not given up.
		return "no call was made: " + refused.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %v", s.cfg.Timeout)
	case ctx.Err() != nil:
		return "cut off: the relay stopped or lost its lease"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection broke off before the answer was whole"
	}
	return clean(err)
}

// quoted finds what Go's errors quote.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// clean takes quoted parts out of an error: the transport quotes what the remote sent ("malformed HTTP response ..."), which
// may be a payload.
func clean(err error) string { return quoted.ReplaceAllString(err.Error(), `"..."`) }
