package httpsink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/onlyonce/onlyonce/outbox"
)

// Breaker stops calls to a host that is down. After Failures failed attempts in a row, of whichever
// calls, it opens. For OpenFor the sink makes no call and the relay picks no rows (outbox.Readier),
// so that no attempts are counted and no windows begin. Then one call is let through. If it fails,
// the breaker stays open for another OpenFor; otherwise calls go out as before.
//
// Failures are answers of 5xx that are to be retried, and missing answers: refused connections,
// names that do not resolve, addresses that are not allowed, handshakes that fail, timeouts, and
// answers that break off. A host that answers anything else, for example 429, is up. Attempts that
// the relay cancelled or that were not made count as neither.
type Breaker struct {
	// Failures is how many failures in a row open the breaker: 1 to 10,000. A low number opens it
	// for calls that the remote cannot answer although it is up; a high number sends more calls to
	// a remote that is down. Defaults to 10.
	Failures int
	// OpenFor is how long the breaker stays open: 1 ms to 1 hour. Calls go out at most this much
	// later than possible once the host is back. Defaults to 10 s.
	OpenFor time.Duration
	// Changed receives the new state: "open", "half-open" (one call is let through) or "closed". It
	// must return soon and must not call the sink. Defaults to no notification.
	Changed func(state string)
	// Off switches the breaker off. Defaults to false.
	Off bool
}

// ErrOpen is the error of an attempt that an open breaker refused.
var ErrOpen = errors.New("httpsink: the breaker is open after failures in a row: no call was made")

// What an attempt reports about its host. Nil means that the host answered.
var (
	errHostDown    = errors.New("the host did not answer, or with 5xx")
	errHostUnknown = errors.New("nothing was learned about the host")
)

type breaker struct {
	*gobreaker.TwoStepCircuitBreaker[struct{}] // nil: off
}

// withDefaults fills in the defaults and returns every fault.
func (b Breaker) withDefaults() (Breaker, []error) {
	var faults []error
	if b.Failures == 0 {
		b.Failures = 10
	}
	if b.Failures < 1 || b.Failures > 10_000 {
		faults = append(faults, fmt.Errorf("Failures: %d is not from 1 to 10000", b.Failures))
	}
	if b.OpenFor == 0 {
		b.OpenFor = 10 * time.Second
	}
	if b.OpenFor < time.Millisecond || b.OpenFor > time.Hour {
		faults = append(faults, fmt.Errorf("OpenFor: %v is not from 1ms to 1h", b.OpenFor))
	}
	return b, faults
}

func newBreaker(cfg Breaker) breaker {
	if cfg.Off {
		return breaker{}
	}
	return breaker{gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     cfg.OpenFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int64(c.ConsecutiveFailures) >= int64(cfg.Failures) },
		IsExcluded:  func(err error) bool { return errors.Is(err, errHostUnknown) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if cfg.Changed != nil {
				cfg.Changed(to.String())
			}
		},
	})}
}

// allow permits one attempt, or returns an error if the attempt must not be made. The caller calls
// the returned function when the attempt has ended, with nil, errHostDown or errHostUnknown.
func (b breaker) allow() (func(error), error) {
	if b.TwoStepCircuitBreaker == nil {
		return func(error) {}, nil
	}
	done, err := b.Allow()
	if err != nil { // open, or half-open with a call in flight
		return nil, ErrOpen
	}
	return done, nil
}

// ready returns how many calls may be in flight at once.
func (b breaker) ready() int {
	if b.TwoStepCircuitBreaker == nil {
		return math.MaxInt
	}
	switch b.State() {
	case gobreaker.StateOpen:
		return 0
	case gobreaker.StateHalfOpen:
		return 1
	}
	return math.MaxInt
}

// healthWithoutAnswer classifies an attempt without a whole answer, for the breaker.
func healthWithoutAnswer(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, outbox.ErrLease) || errors.Is(err, outbox.ErrWindow) {
		return errHostUnknown
	}
	return errHostDown
}

// healthFromAnswer classifies an answer, for the breaker.
func healthFromAnswer(resp *http.Response, r outbox.Result) error {
	if resp.StatusCode >= 500 && r.Outcome == outbox.Retry {
		return errHostDown
	}
	return nil
}
