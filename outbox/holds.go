package outbox

import "time"

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

// hold notes that a remote wants no calls of a tenant for a while, or of the sink: see HoldsSink.
// What calls of tenants say holds the sink for sinkHold at most, because the cause may be in them
// (O14).
func (r *relayRates) hold(of callsOf, d time.Duration, holds Holds) {
	now := time.Now()
	until := now.Add(min(d, maxRetryAfter))
	r.mu.Lock()
	defer r.mu.Unlock()
	if holds == HoldsAll {
		of = allCalls
	}
	r.lockedHold(of, until)
	switch {
	case holds == HoldsTenant:
	case of == allCalls:
		r.loads.probe()
	default:
		soon := now.Add(min(d, sinkHold))
		if r.loads.failed(of.tenant, soon) {
			r.lockedHold(allCalls, soon)
		}
	}
}

// lockedHold is hold of one kind of calls, under the lock.
func (r *relayRates) lockedHold(of callsOf, until time.Time) {
	l := r.heldLimit(of)
	if until.After(l.heldUntil) {
		l.heldUntil, r.holds[of] = until, until
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
