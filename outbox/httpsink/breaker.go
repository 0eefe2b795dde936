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

// Breaker stops calls to a host that is down. After Failures failed attempts in a row, whichever calls they belong to, it
// opens: for OpenFor no call is made, and a relay picks no rows (outbox.Readier), so that their attempts are not
// counted and their windows do not begin. Then one call is let through: if it fails, the breaker stays open for as long
// again, and if it does not, calls go out as before.
//
// Failures are answers of 5xx that are to be tried again, and answers that did not come: refused connections, names
// that do not resolve, addresses that are not allowed, handshakes that fail, timeouts, answers that break off. A host that answers anything
// else, 429 and the other 4xx among it, is up. Attempts that were cut off by the relay, or not made, count as neither.
type Breaker struct {
	// Failures is how many failures in a row open the breaker. Default 10, from 1 to 10,000. Few make it open for calls that
	// the remote cannot answer although it is up; many send more calls to a remote that is down.
	Failures int
	// OpenFor is for how long it stays open. Default 10 s, from 1 ms to 1 hour. It is how much later than necessary calls may
	// go out once the host is back.
	OpenFor time.Duration
	// Changed is told the new state: "open", "half-open" (one call is let through) or "closed". It must return soon, and must
	// not call the sink. Nil: nobody is told.
	Changed func(state string)
	// Off switches the breaker off.
	Off bool
}

// ErrOpen is the error of an attempt that an open breaker did not let out.
var ErrOpen = errors.New("httpsink: the breaker is open after failures in a row: no call was made")

// What an attempt says about its host, besides nil: that it answered.
var (
	errFailed  = errors.New("the host did not answer, or with 5xx")
	errNothing = errors.New("nothing was learned about the host")
)

type breaker struct {
	*gobreaker.TwoStepCircuitBreaker[struct{}] // nil: off
}

// withDefaults fills in the defaults and returns what is wrong.
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
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if cfg.Changed != nil {
				cfg.Changed(to.String())
			}
		},
	})}
}

// allow returns what to call with nil, errFailed or errNothing once the attempt has ended, or an error if it must not be made.
func (b breaker) allow() (func(error), error) {
	if b.TwoStepCircuitBreaker == nil {
		return func(error) {}, nil
	}
	done, err := b.Allow()
	if err != nil { // open, or half-open with a call under way
		return nil, ErrOpen
	}
	return done, nil
}

// ready is how many calls may be under way at once.
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

// unanswered is what an attempt without a whole answer says about its host.
func unanswered(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, outbox.ErrLease) || errors.Is(err, outbox.ErrWindow) {
		return errNothing
	}
	return errFailed
}

// answered is what an answer says about its host.
func answered(resp *http.Response, r outbox.Result) error {
	if resp.StatusCode >= 500 && r.Outcome == outbox.Retry {
		return errFailed
	}
	return nil
}
