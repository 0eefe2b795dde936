package outbox

import "time"

// admission is whether a call may start in a slot that is free.
type admission int

const (
	admitted admission = iota
	setAside           // it waits in onlyonce.parked, and holds up no others of its lane
	notYet             // it waits where it is, for a moment
)

// admit takes what a call needs besides its slot: a place among the calls of its tenant, and a
// permit of the rate that it counts for. What it has taken, release gives back. If the call may not
// start, it notes whose rate it waits for (O14, O16).
func (r *relayRates) admit(a *callAttempt) admission {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedAdmit(a, time.Now())
}

func (r *relayRates) lockedAdmit(a *callAttempt, now time.Time) admission {
	if a.completing() {
		r.loads.add("", 1, now)
		a.startedAt = now
		return admitted
	}
	if r.lockedRoom(a.Tenant, now) == 0 {
		return r.lockedWaitForRoom(a, now)
	}
	if a.reconciling { // counts for no rate
		r.loads.add(a.Tenant, 1, now)
		a.startedAt = now
		return admitted
	}
	if !r.loads.load(a.Tenant).suspect && !r.loads.open(now) {
		return notYet
	}
	return r.lockedStart(a, now)
}

// lockedStart is admit for a call for which there is room.
func (r *relayRates) lockedStart(a *callAttempt, now time.Time) admission {
	a.rated = r.lockedOf(a.Tenant, a.orderPrefix)
	if a.rated != allCalls {
		a.permitted = r.lockedTake(a.rated, 1) == 1
		if !a.permitted {
			return setAside
		}
	}
	r.lockedEnter(a, now)
	return admitted
}

// admitPermitted is admit for a call that has waited for a rate, for which a permit was taken
// already. The permit is given back if the call may not start, or if it counts for another rate by
// now, which has to have one (O14).
func (r *relayRates) admitPermitted(a *callAttempt) admission {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	suspect := r.loads.load(a.Tenant).suspect
	switch {
	case r.lockedOf(a.Tenant, a.orderPrefix) != a.rated:
		r.lockedGiveBack(a.rated, 1)
		return r.lockedAdmit(a, now)
	case !suspect && !r.loads.open(now):
		r.lockedGiveBack(a.rated, 1)
		return notYet
	case a.rated.prefix != "" && r.lockedRoom(a.Tenant, now) == 0:
		r.lockedGiveBack(a.rated, 1)
		return r.lockedWaitForRoom(a, now)
	}
	a.permitted = true
	r.lockedEnter(a, now)
	return admitted
}

// lockedEnter notes that a call begins, which has its permit.
func (r *relayRates) lockedEnter(a *callAttempt, now time.Time) {
	if a.rated.tenant == "" { // else the permit counts for the tenant
		r.loads.add(a.Tenant, 1, now)
	}
	a.probe = r.loads.started(a.Tenant, now)
	a.startedAt = now
}

// lockedRoom is how many more calls of a tenant may start, whatever its rate says.
func (r *relayRates) lockedRoom(tenant string, now time.Time) int {
	l := r.limit(callsOf{tenant: tenant})
	return r.loads.room(tenant, r.lockedSlots(now), tenant != "" && l != nil && l.bounded, now)
}

// lockedSlots is how many calls may be under way in this relay.
func (r *relayRates) lockedSlots(now time.Time) int {
	if l := r.limits[allCalls]; l != nil && l.may(now) > 0 { // else there is no slot, whatever the tenant
		return min(r.capacity, l.may(now))
	}
	return r.capacity
}

// lockedSlow reports whether a tenant's calls beyond its part are set aside.
func (r *relayRates) lockedSlow(tenant string, now time.Time) bool {
	return tenant != "" && r.loads.slow(tenant, r.lockedSlots(now), now)
}

// lockedWaitForRoom has a call wait until its tenant has fewer calls under way.
func (r *relayRates) lockedWaitForRoom(a *callAttempt, now time.Time) admission {
	if !r.lockedSlow(a.Tenant, now) {
		return notYet
	}
	a.rated = callsOf{tenant: a.Tenant}
	return setAside
}

// ended notes that a call has ended, before its lane takes it in.
func (r *relayRates) ended(a *callAttempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.loads.took(a.loadOf(), now.Sub(a.startedAt), now)
}

// follow gives back what a call had that has returned, and admits the next one of its ordering key
// in its slot. It does both at once: another lane could take the place of a quick tenant in
// between, and all that waits behind the next one would be parked.
func (r *relayRates) follow(a, next *callAttempt) admission {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.lockedRelease(a, now)
	if a.Tenant != next.Tenant || r.lockedSlow(a.Tenant, now) {
		return r.lockedAdmit(next, now)
	}
	return r.lockedStart(next, now) // the tenant gets no more than it had
}

// release gives back what admit has taken for a call, once.
func (r *relayRates) release(a *callAttempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lockedRelease(a, time.Now())
}

func (r *relayRates) lockedRelease(a *callAttempt, now time.Time) {
	if a.startedAt.IsZero() {
		return
	}
	r.loads.returned(a.probe)
	a.probe, a.startedAt = 0, time.Time{}
	if a.permitted {
		a.permitted = false
		r.count(a.rated, -1)
		if a.rated.tenant != "" {
			return
		}
	}
	r.loads.add(a.loadOf(), -1, now)
	r.lockedNoteRoom(callsOf{tenant: a.loadOf()})
}

// abandon gives back the slot of a call that has not returned, which goes on counting for its
// tenant and its rate: so calls of a tenant that do not return take up no more than as many slots
// as there are (O18).
func (r *relayRates) abandon(a *callAttempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads.returned(a.probe)
	a.probe = 0
	r.loads.total--
	r.count(allCalls, -1)
}

// leaveSlot releases a call that has returned, and gives its slot back unless that was done when it
// was given up.
func (r *relayRates) leaveSlot(a *callAttempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.gaveUp.Load() {
		r.loads.total++ // which release takes back
	} else {
		r.count(allCalls, -1)
	}
	r.lockedRelease(a, time.Now())
}

// lockedNoteRoom wakes the lanes if calls of a tenant wait, of which fewer are under way now.
func (r *relayRates) lockedNoteRoom(of callsOf) {
	if of.tenant != "" && r.waiting[of] {
		r.regain()
	}
}

// waitsForRoom reports whether a call waits where it is, until others of its tenant have returned,
// although a slot is free.
func (r *relayRates) waitsForRoom(a *callAttempt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	return r.loads.total < r.lockedSlots(now) && r.lockedRoom(a.Tenant, now) == 0 && !r.lockedSlow(a.Tenant, now)
}
