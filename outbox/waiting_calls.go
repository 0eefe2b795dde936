package outbox

import (
	"slices"
	"time"
)

// lacksPermit reports whether calls need permits of a rate, and there are none.
func (r *relayRates) lacksPermit(of callsOf) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limit(of)
	return l != nil && l.needed() && l.available(time.Now(), r.underWay[of]) == 0
}

// waitsForRate reports whether the sink may start no call now, however many slots are free, and
// asks for permits then.
func (r *relayRates) waitsForRate() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[allCalls]; l == nil || l.available(time.Now(), 0) > 0 {
		return false
	}
	r.lockedWant(allCalls)
	return true
}

// mustWait reports whether a new call is set aside at once, and whose rate it waits for then: if
// others that count for that wait already, if the remote wants none, or if its tenant has slow
// calls under way and no room for more.
func (r *relayRates) mustWait(tenant string, prefix int64) (of callsOf, must bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of = r.lockedOf(tenant, prefix)
	l := r.limit(of)
	if of != allCalls && l != nil && (r.lockedHeld(of) || l.needed() && r.waiting[of]) {
		return of, true
	}
	if now := time.Now(); r.lockedRoom(tenant, now) == 0 && r.lockedSlow(tenant, now) {
		of = callsOf{tenant: tenant}
		r.waiting[of] = true
		return of, true
	}
	return of, false
}

// noteWaiting notes that new calls are to wait.
func (r *relayRates) noteWaiting(of callsOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[of] = true
}

// setWaiting notes whose calls wait.
func (r *relayRates) setWaiting(all map[callsOf]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = all
}

// limited returns whose calls need permits, whose calls the remote does not want, and those of
// tenants that have no room for more.
func (r *relayRates) limited() limitedCalls {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := limitedCalls{[]string{}, r.each.needed(), []int64{}, []string{}}
	for of, l := range r.limits {
		switch {
		case of == allCalls || !l.needed() && !time.Now().Before(l.heldUntil) || all.each && of.tenant != "":
		case of.prefix == "":
			all.tenants = append(all.tenants, of.tenant)
		case l.needed():
			all.prefixes, all.ofPrefixes = append(all.prefixes, l.prefix), append(all.ofPrefixes, of.stored())
		}
	}
	now := time.Now()
	for tenant, load := range r.loads.of {
		if tenant == "" || all.each || load.underWay == 0 && !r.loads.probing {
			continue
		}
		if r.lockedRoom(tenant, now) == 0 && !slices.Contains(all.tenants, tenant) {
			all.tenants = append(all.tenants, tenant)
		}
	}
	return all
}
