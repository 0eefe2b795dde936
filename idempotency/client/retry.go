package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/internal/rfc"
)

// planRetry returns what the attempts so far say of the operation, and whether another one follows,
// after which wait. If one does, planRetry has closed the answer. If the wait would end after the
// deadline, it returns false: the answer at hand says more to the caller than a timeout would.
func (o *operation) planRetry(
	ctx context.Context,
	n int,
	a *sentAttempt,
) (next outcome.Next, wait time.Duration, again bool) {
	now := time.Now()
	var retryAfter time.Duration
	hasRetryAfter := false
	if a.err == nil {
		retryAfter, hasRetryAfter = rfc.RetryAfter(a.resp.Header, now)
	}
	next, o.open = outcome.After(o.open, a.answer(hasRetryAfter))
	if next != outcome.SendAgain || ctx.Err() != nil || n >= o.cfg.MaxAttempts {
		return next, 0, false
	}
	wait = o.backoff.NextBackOff()
	if hasRetryAfter { // plus a random time, because other clients got the same Retry-After
		wait = max(wait, retryAfter+rand.N(o.cfg.firstWait()))
	}
	if deadline, has := ctx.Deadline(); has && !now.Add(wait).Before(deadline) || !now.Add(wait).Before(o.deadline) {
		return next, 0, false
	}
	if a.err == nil && !a.drain() {
		return next, 0, false
	}
	return next, wait, true
}

// answer is what the attempt has shown: by the mark of our own server if there is one, or else by
// the status.
func (a *sentAttempt) answer(retryAfter bool) outcome.Answer {
	if a.err != nil {
		return answerOfError(a.err)
	}
	status := a.resp.StatusCode
	byStatus := answerOfStatus(status, retryAfter)
	mark := outcome.Mark(a.resp.Header)
	var body []byte
	if mark == outcome.InProgress || mark == outcome.Rejected {
		body = a.readProblem() // the layer's own: it is short
	}
	marked, is := outcome.Marked(status, a.resp.Header, body)
	if !is {
		return byStatus
	}
	if mark == outcome.Released {
		// The server's handler may answer otherwise, if it says when, or its status does: the
		// caller waits (H27).
		marked.Again = retryAfter || byStatus.Again
	}
	return marked
}

// answerOfError is what an attempt without an answer has shown. After nearly all network errors
// another attempt may succeed. Whether the request or the answer was lost does not matter, because
// the key makes a repetition safe.
func answerOfError(err error) outcome.Answer {
	var certificate *tls.CertificateVerificationError
	var network *net.OpError
	unsent := errors.Is(err, ErrBody) || errors.As(err, &certificate)
	answer := outcome.Answer{Again: !unsent}
	if unsent || errors.As(err, &network) && network.Op == "dial" {
		answer.Applied = outcome.NotApplied
	}
	return answer
}

// answerOfStatus is what a status has shown:
//
//   - 409 with a valid Retry-After: the first request under this key is still running. A 409
//     without one is from the application, and the caller must act on it.
//   - 425 and 429: the operation has not begun.
//   - 5xx, including 500. A server that follows our rules has rolled back and stored no answer. A
//     proxy's 502 or 504 does not show what the server did. And a server that does store a 500, for
//     example Stripe's, repeats it. Another attempt costs a request and cannot repeat an effect.
//     The exceptions are 501, 505 and 511, which will be the same next time.
//
// 422 never asks for another attempt: the key belongs to another request, and another attempt gets
// 422 again. All other 4xx refuse this attempt, and change only after another person has acted.
func answerOfStatus(status int, retryAfter bool) outcome.Answer {
	switch {
	case status < http.StatusBadRequest:
		return outcome.Answer{Applied: outcome.WasApplied}
	case status == http.StatusConflict && retryAfter:
		return outcome.Answer{Again: true}
	case status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return outcome.Answer{Applied: outcome.NotApplied, Again: true}
	case status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported,
		status == http.StatusNetworkAuthenticationRequired:
		return outcome.Answer{}
	case status >= http.StatusInternalServerError:
		return outcome.Answer{Again: true}
	}
	return outcome.Answer{Applied: outcome.NotApplied}
}
