package httpsink

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/outcome"
	"github.com/onlyonce/onlyonce/outbox"
)

// Breaker holds back the calls to a host that is down. After Failures failed attempts in a row, of
// any calls, the last failure and each further one asks the relay to hold calls for OpenFor, as the
// host itself could with Retry-After. If there was no connection, it holds all calls of the sink
// (outbox.RetrySink). Otherwise the call may be the cause: it holds those of its tenant, and those
// of the sink once calls of three tenants have failed (outbox.RetryAuto). The relay starts no such
// calls meanwhile, so that no attempts are counted and no windows begin. Then it makes one call at
// a time until one is delivered or rejected.
//
// Failures are the answers 502, 503 and 504 if they are to be retried, and missing answers: refused
// connections, unresolved names, addresses that are not allowed, failed handshakes, timeouts, and
// broken-off answers. An error of Config.Authorize, for example of a store of secrets that is away,
// is one too. A host that gives any other answer, for example 500 or 429, is up, and ends the
// series. Cancelled attempts, and those for which it was too late, do not count.
type Breaker struct {
	// Failures is the number of failures in a row that opens the breaker: 1 to 10,000. A low number
	// holds calls back for a host that has dropped a few connections; a high number sends more
	// calls to a host that is down. Defaults to 10.
	Failures int
	// OpenFor is how long calls are held: 1 ms to 1 hour. Calls go out at most this much later than
	// possible once the host is back. Defaults to 10 s.
	OpenFor time.Duration
	// Off switches the breaker off. Defaults to false.
	Off bool
}

// What an attempt reports about its host. Nil means that the host answered.
var (
	errHostDown    = errors.New("the host did not answer, or with 502, 503 or 504, or it could not be asked")
	errNoHost      = errors.New("there was no connection to the host, whichever the call")
	errHostUnknown = errors.New("no evidence about the host's health")
)

// withDefaults fills in the defaults, and notes every fault.
func (b *Breaker) withDefaults(l *fields.List) {
	l.Number("Breaker.Failures", &b.Failures, 10, 1, 10_000)
	l.Span("Breaker.OpenFor", &b.OpenFor, 10*time.Second, time.Millisecond, time.Hour)
}

// noteHealth counts an attempt for the breaker, and lets its result hold calls if the host is down
// (O6).
func (s *Sink) noteHealth(health error, r outbox.Result) outbox.Result {
	switch b := s.cfg.Breaker; {
	case health == nil:
		s.failures.Store(0)
	case errors.Is(health, errHostUnknown):
	default:
		n := s.failures.Add(1)
		if b.Off || n < int64(b.Failures) {
			break
		}
		if r.RetryAfter <= b.OpenFor { // else the remote has asked for longer
			r.RetryAfter = b.OpenFor
			r.HoldReason = fmt.Sprintf("%d attempts in a row failed, the last: %s (breaker)", n, r.Reason)
		}
		r.RetryScope = outbox.RetryAuto
		if errors.Is(health, errNoHost) {
			r.RetryScope = outbox.RetrySink
		}
	}
	return r
}

// healthWithoutAnswer classifies an attempt without a whole answer, for the breaker. sent is
// whether the request may have left.
func healthWithoutAnswer(ctx context.Context, err error, sent bool) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled), errors.Is(err, outbox.ErrNotStarted):
		return errHostUnknown
	case sent || ctx.Err() != nil: // other calls may have taken the time that it had to connect
		return errHostDown
	}
	return errNoHost
}

// healthFromAnswer classifies an answer, for the breaker. A host that answers 500 is up: one call
// can bring that answer about, and must not hold back those of others.
func healthFromAnswer(resp *http.Response, r outbox.Result) error {
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again := r.Outcome == outbox.Retry || r.Outcome == outbox.Postponed
		if again && outcome.Mark(resp.Header) != outcome.InProgress {
			return errHostDown
		}
	}
	return nil
}
