package outbox

import (
	"cmp"
	"time"
)

// maxRetryAfter bounds how long a remote may make a call wait. Without it a wrong unit in a header,
// for example milliseconds, could put a call off for days.
const maxRetryAfter = time.Hour

// open reports whether calls may be started now: neither an operator nor the remote holds them, and
// none is under way that finds out whether the remote is back. It does not say whether there is a
// free slot (O6).
func (r *relayRates) open() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.paused && !r.lockedHeld(allCalls) && r.loads.open(time.Now())
}

// lockedHeld reports whether the remote wants no calls of a tenant or a prefix, or of the sink. The
// caller has the lock.
func (r *relayRates) lockedHeld(of callsOf) bool {
	l := r.limits[of]
	return l != nil && time.Now().Before(l.heldUntil)
}

// heldFor is until when calls wait, and why.
type heldFor struct {
	until time.Time
	why   string // empty: the remote has asked for it
}

// holdCalls holds the calls that a result selects, and logs the first time that it is so.
func (s *relaySink) holdCalls(tenant string, r Result) {
	d := cmp.Or(r.RetryAfter, r.HoldFor)
	why := storedText(r.HoldReason)
	if !s.rates.hold(callsOf{tenant: tenant}, d, r.RetryScope, why) {
		return
	}
	s.cfg.Logger.Warn("onlyonce: calls of a sink are held; one is tried then", "sink", s.name, "tenant", tenant, "for", min(d, maxRetryAfter),
		"why", cmp.Or(why, "the remote asks for it (Retry-After)"))
}

// hold notes that calls of a tenant wait for a while, or of the sink: see RetryAuto. What calls of
// tenants say holds the sink for sinkHold at most, because the cause may be in them (O14). It
// reports whether they were not held until now, nor a moment ago.
func (r *relayRates) hold(of callsOf, d time.Duration, holds RetryScope, why string) (first bool) {
	now := time.Now()
	held := heldFor{until: now.Add(min(d, maxRetryAfter)), why: why}
	r.mu.Lock()
	defer r.mu.Unlock()
	if holds == RetrySink {
		of = allCalls
	}
	was := r.heldLimit(of).heldUntil
	first = now.Sub(was) > holdsGoOn
	r.lockedHold(of, held)
	switch {
	case holds == RetryTenant:
	case of == allCalls:
		r.loads.probe()
	default:
		soon := now.Add(min(d, sinkHold))
		if r.loads.failed(of.tenant, soon) {
			r.lockedHold(allCalls, heldFor{until: soon, why: why})
		}
	}
	return first
}

// holdsGoOn is for how long after a hold another one counts as the same: a probe failed meanwhile.
const holdsGoOn = time.Minute

// lockedHold is hold of one kind of calls, under the lock.
func (r *relayRates) lockedHold(of callsOf, held heldFor) {
	l := r.heldLimit(of)
	if held.until.After(l.heldUntil) {
		l.heldUntil = held.until
		r.holds[of] = held
		signal(r.needed)
	}
}

// heldLimit is limit, and makes one if there is none.
func (r *relayRates) heldLimit(of callsOf) *rateLimit {
	if l := r.limit(of); l != nil {
		return l
	}
	return limitOf(r.limits, of)
}

// noteAnswered notes that the remote has answered a call of a tenant for good.
func (r *relayRates) noteAnswered(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loads.answered(tenant) {
		r.regain()
	}
}
