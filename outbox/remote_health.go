package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	// remoteFailures is how many attempts in a row without a final answer make the remote count as
	// down. One call that fails, among others, is no fault of the remote's.
	remoteFailures = 3
	// remoteFailsFor is how long they have to go on: what is over before that is no outage.
	remoteFailsFor = 5 * time.Second
	// remoteTenants is how many tenants they must belong to: two may be one person's, as for
	// [RetryAuto]. After remoteAlone the calls of fewer count too.
	remoteTenants = 3
	remoteAlone   = time.Minute
	// remoteSilence is how long a call may be under way before that is reported.
	remoteSilence = 10 * time.Second
	// remoteDownFor is how long the remote is down before Healthy says so.
	remoteDownFor = time.Minute
	// remoteLogged is how often calls that were not delivered are logged.
	remoteLogged = 30 * time.Second
)

// remoteHealth knows since when a sink's remote has given no final answer to this relay. It decides
// nothing: it is for the log, for Healthy, and for operators. It is safe for concurrent use.
type remoteHealth struct {
	sink string
	log  *slog.Logger
	// stale is how long without an attempt nothing is known any more: perhaps nothing is left to
	// send.
	stale time.Duration

	mu       sync.Mutex
	underWay map[*callAttempt]time.Time // since when
	failures int                        // attempts in a row without a final answer
	tenants  map[string]struct{}        // whose they were, up to remoteTenants
	since    time.Time                  // of the first of them
	last     string                     // the reason of the last
	lastAt   time.Time
	told     bool // that the remote is down
	logged   pace.Seldom
}

func newRemoteHealth(sink string, log *slog.Logger, backoff time.Duration) *remoteHealth {
	return &remoteHealth{
		sink:     sink,
		log:      log,
		stale:    2*backoff + remoteDownFor,
		underWay: map[*callAttempt]time.Time{},
		tenants:  map[string]struct{}{},
	}
}

// began notes that a call goes to the remote.
func (h *remoteHealth) began(a *callAttempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.underWay[a] = time.Now()
}

// has reports whether a call went to the remote, and has not returned.
func (h *remoteHealth) has(a *callAttempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, has := h.underWay[a]
	return has
}

// returned notes that an attempt has ended, whatever it was.
func (h *remoteHealth) returned(a *callAttempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.underWay, a)
}

// answered notes what the sink says of an attempt.
func (h *remoteHealth) answered(a *callAttempt, r Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !r.Outcome.answer().Again: // also a refusal: the remote is there
		h.back()
		return
	case errors.Is(r.Err, context.Canceled), errors.Is(r.Err, ErrNotStarted):
		return // it says nothing of the remote
	}
	if h.failures == 0 {
		h.since = time.Now()
	}
	h.failures++
	h.last = storedText(r.Reason)
	h.lastAt = time.Now()
	if len(h.tenants) < remoteTenants {
		h.tenants[a.Tenant] = struct{}{}
	}
	if held, yes := h.logged.Let("", time.Now(), remoteLogged); yes {
		h.log.Warn("onlyonce: a call was not delivered; it is tried again under its key",
			"sink", h.sink, "row", a.ID, "key", a.Key, "attempt", a.Number, "reason", h.last,
			"in_a_row", h.failures, "not_logged", held)
	}
}

// back notes that the remote has given a final answer. The caller has the lock.
func (h *remoteHealth) back() {
	h.failures = 0
	clear(h.tenants)
	if h.told {
		h.told = false
		h.log.Info("onlyonce: the remote answers again",
			"sink", h.sink, "after", time.Since(h.since).Round(time.Second))
	}
}

// down returns why no call is delivered, and since when; nil if some are, or too little is known.
// The first time it logs that.
func (h *remoteHealth) down() (since time.Time, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	slow := 0
	var first time.Time
	for _, began := range h.underWay {
		if time.Since(began) < remoteSilence {
			continue
		}
		slow++
		if first.IsZero() || began.Before(first) {
			first = began
		}
	}
	switch {
	case h.counts():
		since = h.since
		why = fmt.Errorf("%d attempts in a row were not delivered; the last: %s", h.failures, h.last)
		if slow > 0 {
			why = fmt.Errorf("%w; %d more are under way for over %v", why, slow, remoteSilence)
		}
	case slow > 0 && len(h.underWay) == slow: // else it answers others
		since = first
		why = fmt.Errorf("no answer yet: %d calls are under way for over %v", slow, remoteSilence)
	default:
		return time.Time{}, nil
	}
	if !h.told {
		h.told = true
		h.log.Warn("onlyonce: calls of a sink are not delivered", "sink", h.sink, "error", why)
	}
	return since, why
}

// counts reports whether the failures are the remote's, and not those of a call or of a tenant. The
// caller has the lock.
func (h *remoteHealth) counts() bool {
	_, anybody := h.tenants[""]
	several := anybody || len(h.tenants) >= remoteTenants || time.Since(h.since) > remoteAlone
	lasting := h.failures >= remoteFailures && time.Since(h.since) >= remoteFailsFor
	return lasting && several && time.Since(h.lastAt) < h.stale
}
