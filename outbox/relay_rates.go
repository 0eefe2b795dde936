package outbox

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// relayRates decides when a relay may start calls of a sink, in all of its lanes. It bounds how
// many are under way at once: to RelayConfig.Concurrency, of a tenant to a part of that, and to no
// new ones while an operator has paused the sink. Its permits are of the buckets in the database,
// which all relays share (O14). It is safe for concurrent use.
type relayRates struct {
	capacity int           // RelayConfig.Concurrency: how many slots there are
	shortFor time.Duration // for how long more is wanted than there is, once it was
	relay    uuid.UUID     // names this relay among those that share what may be under way
	mu       sync.Mutex
	paused   bool // by an operator
	// underWay counts the calls of tenants and limited prefixes that were permitted and have not
	// returned, and of allCalls the slots that are taken.
	underWay  map[callsOf]int
	regained  bool  // more calls may be started, and lanes that wait are to be woken
	questions int64 // that were asked
	limits    map[callsOf]*rateLimit
	each      rateLimit           // whether calls of each tenant need permits, and which
	prefixes  map[int64]callsOf   // those of limits whose calls need permits, by their stored form
	waiting   map[callsOf]bool    // whose calls wait, in any lane of the sink
	holds     map[callsOf]heldFor // that are not written yet
	loads     tenantLoads
	needed    chan struct{} // holds a token when the sender has something to do
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While fewer than capacity are taken, there is a token, or a
	// goroutine that has received it is about to take.
	freed chan struct{}
}

func newRelayRates(capacity int, poll time.Duration) *relayRates {
	r := &relayRates{
		capacity: capacity, shortFor: 3 * max(time.Second, poll), relay: uuid.New(),
		underWay: map[callsOf]int{}, limits: map[callsOf]*rateLimit{}, waiting: map[callsOf]bool{}, holds: map[callsOf]heldFor{},
		loads:  tenantLoads{of: map[string]*tenantLoad{}},
		needed: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	}
	signal(r.freed)
	return r
}

// signal puts a token into a channel that holds one.
func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// setPaused notes whether an operator has paused the sink, and reports whether that is new.
func (r *relayRates) setPaused(paused bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.paused
	r.paused = paused
	return was != paused
}

// acquire takes up to n slots for calls that are about to begin, with their permits, and returns
// how many it has got. Those that begin no call go to giveBack, the others to returned (O6).
func (r *relayRates) acquire(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused || !r.loads.open(time.Now()) {
		return 0
	}
	if r.loads.probing {
		n = min(n, 1)
	}
	wanted := max(min(n, r.capacity-r.underWay[allCalls]), 0)
	n = r.lockedTake(allCalls, wanted)
	if n < wanted {
		r.lockedWant(allCalls)
	}
	if r.capacity > r.underWay[allCalls] && r.lockedAvailable(allCalls) > 0 {
		signal(r.freed)
	}
	return n
}

// keep reports whether a call may follow another one in its slot, while free other slots are about
// to be released, and takes its permit.
func (r *relayRates) keep(free int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.underWay[allCalls] - free
	l := r.limits[allCalls]
	switch {
	case r.paused || r.loads.probing:
		return false
	case l == nil:
		return true
	case l.available(time.Now(), taken-1) == 0:
		return false
	case l.limited:
		l.permits--
	}
	return true
}

// regain notes that more calls may be started. The caller has the lock.
func (r *relayRates) regain() {
	r.regained = true
	signal(r.needed)
}

// takeRegained reports whether more calls may be started since it was asked last.
func (r *relayRates) takeRegained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	regained := r.regained
	r.regained = false
	return regained
}

// of returns whose rate a call of a tenant and an ordering key's prefix (0: none) counts for,
// besides its sink's: the prefix's if that has a rate, or else the tenant's; the tenant's in any
// case while the remote wants no calls of it. It is allCalls if the call counts for no other (O14).
func (r *relayRates) of(tenant string, prefix int64) callsOf {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedOf(tenant, prefix)
}

// limit returns what is known of a rate, or nil if there is none. A tenant without a rate of its
// own may have that of each. The caller has the lock.
func (r *relayRates) limit(of callsOf) *rateLimit {
	l := r.limits[of]
	if l == nil && of.tenant != "" && r.each.needed() {
		l = limitOf(r.limits, of)
		l.limited, l.bounded = r.each.limited, r.each.bounded
	}
	return l
}

// lockedOf is of under the lock.
func (r *relayRates) lockedOf(name string, prefix int64) callsOf {
	tenant := callsOf{tenant: name}
	if prefix == 0 {
		return tenant
	}
	of, is := r.prefixes[prefix]
	if !is || tenant != allCalls && r.lockedHeld(tenant) {
		return tenant
	}
	return of
}

// available is how many calls may be started.
func (r *relayRates) available(of callsOf) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedAvailable(of)
}

// lockedAvailable is available under the lock (O16).
func (r *relayRates) lockedAvailable(of callsOf) int {
	now := time.Now()
	n := math.MaxInt
	if l := r.limit(of); l != nil {
		n = l.available(now, r.underWay[of])
	}
	if of.tenant != "" {
		n = min(n, r.lockedRoom(of.tenant, now))
	}
	return n
}

// take takes up to n permits, and returns how many calls may be started: n if there is no rate.
// They count as under way until giveBack or returned (O14).
func (r *relayRates) take(of callsOf, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedTake(of, min(n, r.lockedAvailable(of)))
}

// lockedTake is take under the lock, whatever is under way of the tenant.
func (r *relayRates) lockedTake(of callsOf, n int) int {
	n = max(n, 0)
	if l := r.limit(of); l != nil {
		n = min(n, l.available(time.Now(), r.underWay[of]))
		if l.limited {
			l.permits -= n
		}
	}
	r.count(of, n)
	return n
}

// refund returns permits of calls whose place stays taken.
func (r *relayRates) refund(of callsOf, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lockedRefund(of, n)
}

// lockedRefund is refund under the lock.
func (r *relayRates) lockedRefund(of callsOf, n int) {
	if l := r.limits[of]; l != nil && l.limited {
		l.permits += n
	}
}

// giveBack returns permits that were not used.
func (r *relayRates) giveBack(of callsOf, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lockedGiveBack(of, n)
}

// lockedGiveBack is giveBack under the lock.
func (r *relayRates) lockedGiveBack(of callsOf, n int) {
	r.lockedRefund(of, n)
	r.count(of, -n)
}

// returned notes that calls that were permitted are under way no more.
func (r *relayRates) returned(of callsOf, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(of, -n)
}

// count changes how many calls are under way. The caller has the lock (O15).
func (r *relayRates) count(of callsOf, n int) {
	if n == 0 {
		return
	}
	now := r.underWay[of] + n
	if now == 0 {
		delete(r.underWay, of)
	} else {
		r.underWay[of] = now
	}
	if of.tenant != "" {
		r.loads.add(of.tenant, n, time.Now())
	}
	if of == allCalls && n < 0 {
		signal(r.freed)
	}
	if n < 0 {
		r.lockedNoteRoom(of)
	}
	l := r.limit(of)
	if l == nil || !l.bounded {
		return
	}
	if l.peak = max(l.peak, now); n > 0 {
		return
	}
	if l.owes(now) {
		signal(r.needed) // others wait for what is given up
	}
	if r.waiting[of] && l.may(time.Now()) > now {
		r.regain()
	}
}

// want asks for permits of a rate that has none: for several calls in each slot, because some are
// quick.
func (r *relayRates) want(of callsOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lockedWant(of)
}

// lockedWant is want under the lock.
func (r *relayRates) lockedWant(of callsOf) {
	l, now := r.limit(of), time.Now()
	if l == nil || now.Before(l.heldUntil) {
		return
	}
	if l.limited && l.permitted(now) == 0 && r.hasPlace(of, l, now) {
		l.wanted = 4 * r.capacity
		signal(r.needed)
	}
	if l.bounded && l.may(now) <= r.underWay[of] && l.wantMore(now, r.shortFor) {
		signal(r.needed)
	}
}

// hasPlace reports whether permits are of use: without a place among the calls that may be under
// way, they would lapse, and the others have fewer. In the sink a call can follow another one in
// its place. The caller has the lock.
func (r *relayRates) hasPlace(of callsOf, l *rateLimit, now time.Time) bool {
	used := r.underWay[of]
	if of == allCalls {
		used = 0
	}
	return !l.bounded || l.may(now) > used
}

// storedRate is a row of ratesSQL.
type storedRate struct {
	CallsOf string
	Prefix  *int64
	Limited bool
	Bounded bool
	Held    *int64
}

// read takes in the rates that the database has. asked is when it was asked.
func (r *relayRates) read(stored []storedRate, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limits, prefixes := map[callsOf]*rateLimit{}, map[int64]callsOf{}
	r.each = rateLimit{}
	if i := slices.IndexFunc(stored, func(s storedRate) bool { return parseCallsOf(s.CallsOf).each }); i >= 0 {
		r.each.limited, r.each.bounded = stored[i].Limited, stored[i].Bounded
	}
	for _, s := range stored {
		of := parseCallsOf(s.CallsOf)
		if of.each {
			continue
		}
		if of.tenant != "" && !s.Limited && !s.Bounded {
			s.Limited, s.Bounded = r.each.limited, r.each.bounded
		}
		l := limitOf(r.limits, of)
		l.set(s.Limited, s.Bounded)
		l.heldUntil = time.Time{}
		if s.Held != nil {
			l.heldUntil = asked.Add(fromMicros(*s.Held))
		}
		limits[of] = l
		if s.Prefix != nil {
			l.prefix = *s.Prefix
			if l.needed() {
				prefixes[l.prefix] = of
			}
		}
	}
	for of, l := range r.limits { // by the rate of each tenant
		if limits[of] == nil && of.tenant != "" && r.each.needed() && (r.waiting[of] || r.underWay[of] > 0 || l.used(asked)) {
			l.set(r.each.limited, r.each.bounded)
			l.heldUntil = time.Time{}
			limits[of] = l
		}
	}
	r.limits, r.prefixes = limits, prefixes
	for of, held := range r.holds { // not written yet
		r.heldLimit(of).heldUntil = held.until
	}
	signal(r.freed) // a rate may be gone
}

// shares reports whether the relay has asked for shares, and returns whose calls are under way, as
// onlyonce.shares has it.
func (r *relayRates) shares() (has bool, busy []string) {
	busy = []string{} // nil would become NULL
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.limits {
		has = has || !l.asked.IsZero()
	}
	for of := range r.underWay {
		busy = append(busy, of.stored())
	}
	return has, busy
}
