package outbox

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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
	underWay list.List           // of *departure: with calls that have not returned, the oldest first
	failures int                 // attempts in a row without a final answer
	tenants  map[string]struct{} // whose they were, up to remoteTenants
	since    time.Time           // of the first of them
	last     string              // the reason of the last
	lastAt   time.Time
	told     bool // that the remote is down
	logged   pace.Seldom
}

// departure is calls that went to the remote at once.
type departure struct {
	at       time.Time
	underWay int // of them, those that have not returned
	place    *list.Element
}

func newRemoteHealth(sink string, log *slog.Logger, backoff time.Duration) *remoteHealth {
	return &remoteHealth{
		sink:    sink,
		log:     log,
		stale:   2*backoff + remoteDownFor,
		tenants: map[string]struct{}{},
	}
}

// began notes that calls go to the remote.
func (h *remoteHealth) began(calls ...*callAttempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := &departure{at: time.Now(), underWay: len(calls)}
	d.place = h.underWay.PushBack(d)
	for _, a := range calls {
		a.inRemote = d
	}
}

// has reports whether a call went to the remote, and has not returned.
func (h *remoteHealth) has(a *callAttempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return a.inRemote != nil
}

// returned notes that attempts have ended, whatever they were.
func (h *remoteHealth) returned(calls ...*callAttempt) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range calls {
		d := a.inRemote
		if d == nil {
			continue
		}
		a.inRemote = nil
		d.underWay--
		if d.underWay == 0 {
			h.underWay.Remove(d.place)
		}
	}
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
	slow, quick := 0, 0
	for e := h.underWay.Front(); e != nil; e = e.Next() {
		d := e.Value.(*departure)
		if time.Since(d.at) >= remoteSilence {
			slow += d.underWay
		} else {
			quick += d.underWay
		}
	}
	switch {
	case h.counts():
		since = h.since
		why = fmt.Errorf("%d attempts in a row were not delivered; the last: %s", h.failures, h.last)
		if slow > 0 {
			why = fmt.Errorf("%w; %d more are under way for over %v", why, slow, remoteSilence)
		}
	case slow > 0 && quick == 0: // else it answers others
		since = h.underWay.Front().Value.(*departure).at
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

// errGaveUp is the answer to a call that asks whether it may start after the relay has given it up.
var errGaveUp = fmt.Errorf("%w: the relay has given the attempt up", ErrNotStarted)

// stuckCalls are the calls of a sink that the relay has given up: they had not returned long after
// their contexts had ended (O18). It is safe for concurrent use.
type stuckCalls struct {
	mu    sync.Mutex
	calls map[*callAttempt]stuckCall
}

// stuckCall says when a call was given up, and who had it then.
type stuckCall struct {
	since time.Time
	where string
}

// whereIs says who has a call that has not come back. The sink is not blamed for one that it never
// got, for example because RelayConfig.Sealer has it.
func (s *relaySink) whereIs(a *callAttempt) string {
	switch {
	case a.completing():
		return "in its completion"
	case a.reconciling:
		return "in RelayConfig.Reconcile"
	case s.remote.has(a):
		return "in the sink"
	}
	return "the sink has not got it"
}

// giveUp notes a call that has not returned, and where it is. It reports false if it has returned
// after all.
func (s *stuckCalls) giveUp(a *callAttempt, where string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.returned {
		return false
	}
	if s.calls == nil {
		s.calls = map[*callAttempt]stuckCall{}
	}
	s.calls[a] = stuckCall{time.Now(), where}
	a.gaveUp.Store(true)
	return true
}

// noteReturned notes that calls have returned. Their lane may be given back by then.
func (s *stuckCalls) noteReturned(calls ...*callAttempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range calls {
		a.returned = true
		delete(s.calls, a)
	}
}

// namedCalls is how many calls an error names.
const namedCalls = 3

// first returns how many calls have not returned, and since when the first has not.
func (s *stuckCalls) first() (since time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if since.IsZero() || c.since.Before(since) {
			since = c.since
		}
	}
	return since, len(s.calls)
}

// err names the calls that have not returned, or is nil.
func (s *stuckCalls) err(sink string) error {
	since, n := s.first()
	if n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var named []string
	for a, c := range s.calls {
		if len(named) < namedCalls {
			named = append(named, fmt.Sprintf("%s, row %d, %s", a.Key, a.ID, c.where))
		}
	}
	if more := len(s.calls) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("sink %s: calls have not come back although their contexts have ended, since %s: %s",
		sink, since.UTC().Format(time.RFC3339), strings.Join(named, "; "))
}
