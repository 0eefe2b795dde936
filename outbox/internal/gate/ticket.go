package gate

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// Ticket is the right to have one call under way. The package's documentation has its states and
// who may change them. The gate's lock guards it.
type Ticket struct {
	gate *Gate
	sink permit // of the sink's rate

	// key is the rate that a call counts for besides its sink's, if the ticket has a place among
	// the calls of that under way (placed).
	key    Key
	placed bool
	rate   permit // of key's rate

	// tenant is whose call it is, if it has been admitted. loaded means that it counts there,
	// beside key: for a prefix, or for no rate.
	tenant string
	loaded bool
	began  time.Time // zero: not admitted
	probe  int       // see loads.started
	noSlot bool      // it was abandoned
	ended  bool
}

// Take returns tickets for up to n calls that are about to begin, which are blank: each has a slot
// and a permit of the sink's rate. The caller owes each of them an end: Done, Follow or Unused
// (O6).
func (g *Gate) Take(n int) []*Ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.paused || !g.loads.open(now) {
		pace.Signal(g.freed) // the caller may have received the token: it is for whoever may take next
		return nil
	}
	if g.loads.probing {
		n = min(n, 1)
	}
	wanted := max(min(n, g.slots-g.underWay[All]), 0)
	got, sink := g.take(All, wanted, now)
	if got < wanted {
		g.want(All, now)
	}
	if g.slots > g.underWay[All] && g.available(All, now) > 0 {
		pace.Signal(g.freed)
	}
	tickets := make([]*Ticket, got)
	together := make([]Ticket, got)
	for i := range tickets {
		together[i] = Ticket{gate: g, sink: sink}
		tickets[i] = &together[i]
	}
	g.open += got
	return tickets
}

// Reserve adds to blank tickets what calls of k need that wait for its rate: a permit and a place,
// as far as there are any. It returns how many it has reserved: the first ones.
func (g *Gate) Reserve(k Key, blank []*Ticket) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range blank {
		if t.placed || !t.mayStart() {
			return 0
		}
	}
	now := time.Now()
	n, rate := g.take(k, min(len(blank), g.available(k, now)), now)
	for _, t := range blank[:n] {
		t.key = k
		t.placed = true
		t.rate = rate
	}
	return n
}

// Reserved is whose calls the ticket is reserved for, or All.
func (t *Ticket) Reserved() Key {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	return t.key
}

// Admit decides whether a call may start with the ticket, and takes what it needs besides: a place
// among the calls of its tenant, and a permit of the rate that it counts for. If the call may not
// start, nothing is taken, what was reserved is given back, and the ticket is blank. If it is set
// aside, waitsFor is whose rate or room it waits for (O14, O16).
func (t *Ticket) Admit(e Entrant) (v Verdict, waitsFor Key) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.mayStart() {
		return NotYet, All
	}
	now := time.Now()
	if t.placed {
		v, waitsFor = g.admitReserved(t, e, now)
	} else {
		v, waitsFor = g.admit(t, e, now)
	}
	if v == Admitted && e.Role != Sending { // it counts for no rate
		g.refund(All, t.sink)
		t.sink = permit{}
	}
	return v, waitsFor
}

// mayStart reports whether a call may start with the ticket: none has, and it has had no end.
// Nobody would give back what a call took with another ticket.
func (t *Ticket) mayStart() bool {
	if t.ended || !t.began.IsZero() {
		t.gate.misused++
		return false
	}
	return true
}

// admit is Admit of a blank ticket.
func (g *Gate) admit(t *Ticket, e Entrant, now time.Time) (Verdict, Key) {
	if e.Role == Completion {
		g.load(t, "", now)
		return Admitted, All
	}
	if g.room(e.Tenant, now) == 0 {
		return g.waitForRoom(e.Tenant, now)
	}
	if e.Role == Inquiry {
		g.load(t, e.Tenant, now)
		return Admitted, All
	}
	if !g.loads.tenant(e.Tenant).suspect && !g.loads.open(now) {
		return NotYet, All
	}
	return g.start(t, e, now)
}

// start is admit for a call for which there is room.
func (g *Gate) start(t *Ticket, e Entrant, now time.Time) (Verdict, Key) {
	k := g.keyOf(e, now)
	if k != All {
		n, rate := g.take(k, 1, now)
		if n == 0 {
			return SetAside, k
		}
		t.key = k
		t.placed = true
		t.rate = rate
	}
	g.enter(t, e, now)
	return Admitted, All
}

// admitReserved is Admit of a ticket that is reserved for calls that have waited for a rate. The
// call may count for another rate by now, which has to have a permit for it (O14).
func (g *Gate) admitReserved(t *Ticket, e Entrant, now time.Time) (Verdict, Key) {
	if e.Role != Sending || g.keyOf(e, now) != t.key {
		g.unreserve(t, now)
		return g.admit(t, e, now)
	}
	if !g.loads.tenant(e.Tenant).suspect && !g.loads.open(now) {
		g.unreserve(t, now)
		return NotYet, All
	}
	if t.key.Prefix != "" && g.room(e.Tenant, now) == 0 {
		g.unreserve(t, now)
		return g.waitForRoom(e.Tenant, now)
	}
	g.enter(t, e, now)
	return Admitted, All
}

// unreserve gives back what was reserved.
func (g *Gate) unreserve(t *Ticket, now time.Time) {
	g.refund(t.key, t.rate)
	g.count(t.key, -1, now)
	t.key = All
	t.placed = false
	t.rate = permit{}
}

// waitForRoom has a call wait until its tenant has fewer calls under way.
func (g *Gate) waitForRoom(tenant string, now time.Time) (Verdict, Key) {
	if !g.slow(tenant, now) {
		return NotYet, All
	}
	return SetAside, Key{Tenant: tenant}
}

// enter notes that a call begins, which has its permit.
func (g *Gate) enter(t *Ticket, e Entrant, now time.Time) {
	if t.key.Tenant != "" { // it counts for its tenant by its place
		t.tenant = e.Tenant
		t.began = now
	} else {
		g.load(t, e.Tenant, now)
	}
	t.probe = g.loads.started(e.Tenant, now)
}

// load notes that a call begins that counts for a tenant without a place of its rate.
func (g *Gate) load(t *Ticket, tenant string, now time.Time) {
	g.loads.add(tenant, 1, now)
	t.loaded = true
	t.tenant = tenant
	t.began = now
}

// Returned notes that calls have returned, before their lane takes them in.
func (g *Gate) Returned(all ...*Ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for _, t := range all {
		g.loads.took(t.tenant, now.Sub(t.began), now)
	}
}

// Follow ends the ticket's call, which has returned, and admits the next one of its ordering key in
// its slot. It does both at once: another lane could take the place of a quick tenant in between,
// and all that waits behind the next one would be parked. An abandoned ticket has no slot to follow
// in. If the next call may not start, the ticket is done.
func (t *Ticket) Follow(e Entrant) (v Verdict, waitsFor Key) {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if t.ended || t.noSlot {
		g.end(now, t)
		return NotYet, All
	}
	sink, may := g.followingPermit(now)
	if !may {
		g.end(now, t)
		return NotYet, All
	}
	before := t.tenant
	g.leave(t, now)
	if before != e.Tenant || g.slow(before, now) {
		v, waitsFor = g.admit(t, e, now)
	} else {
		v, waitsFor = g.start(t, e, now) // the tenant gets no more than it had
	}
	if v != Admitted {
		g.refund(All, sink)
		g.end(now, t)
		return v, waitsFor
	}
	t.sink = sink
	return Admitted, All
}

// followingPermit takes a permit of the sink's rate for a call that follows another one in its
// slot.
func (g *Gate) followingPermit(now time.Time) (p permit, may bool) {
	l := g.limits[All]
	switch {
	case g.paused || g.loads.probing:
		return permit{}, false
	case l == nil:
		return permit{}, true
	case l.available(now, g.underWay[All]-1) == 0:
		return permit{}, false
	}
	return l.take(1), true
}

// Done ends tickets whose calls have returned: their permits are used up.
func (g *Gate) Done(all ...*Ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(time.Now(), all...)
}

// Unused ends tickets with which no call was made: their permits go back, unless they have lapsed.
func (g *Gate) Unused(all ...*Ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range all {
		g.refund(All, t.sink)
		g.refund(t.key, t.rate)
		t.sink = permit{}
		t.rate = permit{}
	}
	g.end(time.Now(), all...)
}

// Abandon gives back the slot of a call that has not returned. The call goes on counting for its
// tenant and its rate: so calls of a tenant that do not return take up no more than as many slots
// as there are (O18). The ticket is still owed its end.
func (t *Ticket) Abandon() {
	g := t.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.ended || t.noSlot || t.began.IsZero() {
		g.misused++
		return
	}
	g.loads.returned(t.probe)
	t.probe = 0
	t.noSlot = true
	g.loads.abandon(t.tenant, 1)
	g.noteRoom(Key{Tenant: t.tenant})
	g.open--
	g.abandoned++
	g.count(All, -1, time.Now())
}

// end gives back all that tickets have, once: slots, places and the turns of probes. The caller has
// given their permits back before, if no calls were made.
func (g *Gate) end(now time.Time, all ...*Ticket) {
	slots := 0
	for _, t := range all {
		switch {
		case t.ended:
			g.misused++
			continue
		case t.noSlot:
			g.loads.abandon(t.tenant, -1) // leave takes it off as any other call
			g.abandoned--
		default:
			slots++
		}
		t.ended = true
		g.leave(t, now)
	}
	g.open -= slots
	g.count(All, -slots, now)
}

// leave gives back what Reserve and Admit have taken.
func (g *Gate) leave(t *Ticket, now time.Time) {
	g.loads.returned(t.probe)
	if t.placed {
		g.count(t.key, -1, now)
	}
	if t.loaded {
		g.loads.add(t.tenant, -1, now)
		g.noteRoom(Key{Tenant: t.tenant})
	}
	*t = Ticket{gate: g, noSlot: t.noSlot, ended: t.ended}
}
