package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/rfc"
)

// planRetry returns whether the operation needs another attempt, and after which wait. If it does,
// planRetry has closed the answer. If the wait would end after the deadline, planRetry returns
// false: the answer at hand says more to the caller than a timeout would.
func (o *operation) planRetry(ctx context.Context, n int, a *sentAttempt) (wait time.Duration, again bool) {
	now := time.Now()
	var retryAfter time.Duration
	hasRetryAfter := false
	if a.err != nil {
		again = ctx.Err() == nil && isRetryable(a.err)
	} else {
		retryAfter, hasRetryAfter = rfc.RetryAfter(a.resp.Header, now)
		again = outcomeOpen(a.resp.StatusCode, hasRetryAfter, a.resp.Header.Get("Idempotency-Status")) && (a.resp.StatusCode < 500 || !ranUnprotected(a.resp.Header))
	}
	if !again || n >= o.cfg.MaxAttempts {
		return 0, false
	}
	wait = o.backoff.NextBackOff()
	if hasRetryAfter { // plus a random time, because other clients got the same Retry-After
		wait = max(wait, retryAfter+rand.N(o.cfg.firstWait()))
	}
	if deadline, has := ctx.Deadline(); has && !now.Add(wait).Before(deadline) || !now.Add(wait).Before(o.deadline) {
		return 0, false
	}
	if a.err == nil && !a.drain() {
		return 0, false
	}
	return wait, true
}

// outcomeOpen reports whether a status leaves the outcome of the operation open, so that another
// attempt under the same key is safe and may get another answer:
//
//   - 409 with a valid Retry-After: the first request under this key is still running. A 409
//     without one is from the application, and the caller must act on it.
//   - 425 and 429: the operation has not begun.
//   - 5xx, including 500. A server that follows our rules has rolled back and stored no answer. A
//     proxy's 502 or 504 does not show what the server did. And a server that does store a 500, for
//     example Stripe's, repeats it. Another attempt costs a request and cannot repeat an effect.
//     The exceptions are 501, 505 and 511, which will be the same next time.
//
// 422 is never open: the key belongs to another request, and another attempt gets 422 again. All
// other 4xx are final, or change only after another person has acted.
//
// Our server says more in Idempotency-Status (H27), here the mark. A 5xx that is "created" or
// "replayed" is stored, and will be the same next time. A 4xx that is "released" is not; if it has
// a Retry-After, its handler asks for another attempt.
func outcomeOpen(status int, retryAfter bool, mark string) bool {
	switch mark = strings.ToLower(strings.TrimSpace(mark)); {
	case status >= 500 && (mark == "created" || mark == "replayed"):
		return false
	case status >= 400 && status < 500 && mark == "released" && retryAfter:
		return true
	}
	switch status {
	case http.StatusConflict:
		return retryAfter
	case http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusNetworkAuthenticationRequired:
		return false
	}
	return status >= 500
}

// ranUnprotected reports whether our server has run the request without keeping its key (H9, H22).
// If that failed, it may have left effects behind, and another attempt could repeat them.
func ranUnprotected(h http.Header) bool {
	return strings.EqualFold(strings.TrimSpace(h.Get("Idempotency-Status")), "bypassed")
}

// isRetryable reports whether another attempt may succeed after an attempt without an answer. After
// nearly all network errors it may. Whether the request or the answer was lost does not matter,
// because the key makes a repetition safe.
func isRetryable(err error) bool {
	var certificate *tls.CertificateVerificationError
	return !errors.Is(err, ErrBody) && !errors.As(err, &certificate)
}
