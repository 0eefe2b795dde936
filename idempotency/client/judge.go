package client

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/onlyonce/onlyonce/internal/retryafter"
)

// judge says whether the operation is asked for again, and after which wait. Where it is, the answer has been disposed of.
// A wait that would not be over in time is not begun: the answer there is says more than a deadline.
func (o *operation) judge(ctx context.Context, n int, a *attempt) (wait time.Duration, again bool) {
	now := time.Now()
	var after time.Duration
	asked := false
	if a.err != nil {
		again = ctx.Err() == nil && worthwhile(a.err)
	} else {
		after, asked = retryafter.Read(a.resp.Header, now)
		again = open(a.resp.StatusCode, asked) && (a.resp.StatusCode < 500 || !bypassed(a.resp.Header))
	}
	if !again || n >= o.cfg.Attempts || after > o.cfg.RetryAfterMax {
		return 0, false
	}
	wait = o.backoff.NextBackOff()
	if asked { // and a little more: others were told the same time
		wait = max(wait, after+rand.N(o.cfg.RetryMin))
	}
	if deadline, has := ctx.Deadline(); has && !now.Add(wait).Before(deadline) || !now.Add(wait).Before(o.ends) {
		return 0, false
	}
	if a.err == nil && !a.drain() {
		return 0, false
	}
	return wait, true
}

// open says whether a status leaves it open what becomes of the operation, so that asking again under the same key is safe
// and may get another answer:
//
//   - 409 with a Retry-After that can be read: the first request under this key is still running. Without one it is the
//     application's word, and for the caller to act on.
//   - 425 and 429: it has not begun.
//   - 5xx, and 500 among them: a server that keeps our rules has rolled back and stored nothing; a proxy's 502 or 504 says
//     nothing about the server behind it; and a server that does store a 500 (Stripe) answers with it again. Asking costs a
//     request and can double nothing. Not 501, 505 and 511, which will be the same next time.
//
// Never 422: the key stands for another request, and asking again means being told so again. Nor any other 4xx: they are
// final, or it takes somebody else to change them.
func open(status int, retryAfter bool) bool {
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

// bypassed says that our server's side has run the request without keeping its key (H9, H22). A failure of that is not known to
// have left nothing behind, and would be tried a second time by asking again.
func bypassed(h http.Header) bool {
	return strings.EqualFold(strings.TrimSpace(h.Get("Idempotency-Status")), "bypassed")
}

// worthwhile says whether an attempt without an answer may have one next time. Nearly all errors of a network may, and
// which request they hit, the one on its way or the answer to it, does not matter: the key makes that safe.
func worthwhile(err error) bool {
	var certificate *tls.CertificateVerificationError
	return !errors.Is(err, ErrBody) && !errors.As(err, &certificate)
}
