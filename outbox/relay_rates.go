package outbox

import (
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
)

// rateLimit is what a relay knows of the rate of a sink, of a tenant of it, or of a prefix.
type rateLimit struct {
	limited   bool  // a rate is set
	prefix    int64 // of a prefix: its stored form
	heldUntil time.Time
	permits   int
	lapse     time.Time // when the permits do
	wanted    int       // permits that are wanted and not there
	takeAt    time.Time // when to ask the database for them

	share // of the calls that may be under way
}

// needed reports whether calls need permits.
func (l *rateLimit) needed() bool { return l.limited || l.bounded }

// permitted is how many calls there are permits for.
func (l *rateLimit) permitted(now time.Time) int {
	switch {
	case now.Before(l.heldUntil):
		return 0
	case !l.limited:
		return math.MaxInt
	case !now.Before(l.lapse):
		return 0
	}
	return l.permits
}

// available is how many calls may be started beside those that are under way.
func (l *rateLimit) available(now time.Time, underWay int) int {
	n := l.permitted(now)
	if l.bounded {
		n = min(n, max(l.may(now)-underWay, 0))
	}
	return n
}

// relayRates is what a relay knows of the rates of a sink. Its permits are of the buckets in the
// database, which all relays share (O14). It is safe for concurrent use.
type relayRates struct {
	capacity int           // RelayConfig.Concurrency
	shortFor time.Duration // for how long more is wanted than there is, once it was
	relay    uuid.UUID     // names this relay among those that share what may be under way
	mu       sync.Mutex
	// underWay counts the calls of tenants and limited prefixes that were permitted and have not
	// returned, and of allCalls the slots that are taken.
	underWay  map[callsOf]int
	regained  bool  // more calls may be started, and lanes that wait are to be woken
	questions int64 // that were asked
	limits    map[callsOf]*rateLimit
	prefixes  map[int64]callsOf     // those of limits whose calls need permits, by their stored form
	waiting   map[callsOf]bool      // whose calls wait, in any lane of the sink
	holds     map[callsOf]time.Time // that are not written yet
	firstHold tenantHold            // the longest by HoldsSink since it answered for good; a second tenant's holds the sink
	probes    bool                  // see probing
	needed    chan struct{}         // holds a token when the sender has something to do
}

func newRelayRates(capacity int, poll time.Duration) *relayRates {
	return &relayRates{
		capacity: capacity, shortFor: 3 * max(time.Second, poll), relay: uuid.New(),
		underWay: map[callsOf]int{}, limits: map[callsOf]*rateLimit{}, waiting: map[callsOf]bool{}, holds: map[callsOf]time.Time{},
		needed: make(chan struct{}, 1),
	}
}

func (r *relayRates) signal() {
	select {
	case r.needed <- struct{}{}:
	default:
	}
}

// regain notes that more calls may be started. The caller has the lock.
func (r *relayRates) regain() {
	r.regained = true
	r.signal()
}

// takeRegained reports whether more calls may be started since it was asked last.
func (r *relayRates) takeRegained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	regained := r.regained
	r.regained = false
	return regained
}

// of returns whose rate a call counts for, besides its sink's: its ordering key's prefix if that
// has a rate, or else its tenant; its tenant in any case while the remote wants no calls of it. It
// is allCalls if the call counts for no other.
func (r *relayRates) of(a *callAttempt) callsOf {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedOf(a)
}

// lockedOf is of under the lock.
func (r *relayRates) lockedOf(a *callAttempt) callsOf {
	tenant := callsOf{tenant: a.Tenant}
	if a.orderPrefix == 0 {
		return tenant
	}
	of, is := r.prefixes[a.orderPrefix]
	if l := r.limits[tenant]; !is || tenant != allCalls && l != nil && time.Now().Before(l.heldUntil) {
		return tenant
	}
	return of
}

// available is how many calls may be started.
func (r *relayRates) available(of callsOf) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[of]; l != nil {
		return l.available(time.Now(), r.underWay[of])
	}
	return math.MaxInt
}

// mayStart reports whether the sink may start calls once one of those that are under way returns.
func (r *relayRates) mayStart() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[allCalls]
	return l == nil || l.available(time.Now(), 0) > 0
}

// take takes up to n permits, and returns how many calls may be started: n if there is no rate.
// They count as under way until giveBack or returned.
func (r *relayRates) take(of callsOf, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedTake(of, n)
}

// lockedTake is take under the lock.
func (r *relayRates) lockedTake(of callsOf, n int) int {
	n = max(n, 0)
	if l := r.limits[of]; l != nil {
		n = min(n, l.available(time.Now(), r.underWay[of]))
		if l.limited {
			l.permits -= n
		}
	}
	r.count(of, n)
	return n
}

// takeFor takes a permit for a call, if it needs one, and reports whether it may be started. The
// call notes whose rate it counts for.
func (r *relayRates) takeFor(a *callAttempt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.rated = r.lockedOf(a); a.rated == allCalls {
		return true
	}
	a.permitted = r.lockedTake(a.rated, 1) == 1
	return a.permitted
}

// follow takes a permit of the sink for a call that takes the place of one that has returned, while
// free other places are about to be given up.
func (r *relayRates) follow(free int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[allCalls]
	if l == nil {
		return true
	}
	if l.available(time.Now(), r.underWay[allCalls]-free-1) == 0 {
		return false
	}
	if l.limited {
		l.permits--
	}
	return true
}

// refund returns the permit of a call of the sink whose place stays taken.
func (r *relayRates) refund() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[allCalls]; l != nil && l.limited {
		l.permits++
	}
}

// giveBack returns permits that were not used.
func (r *relayRates) giveBack(of callsOf, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[of]; l != nil && l.limited {
		l.permits += n
	}
	r.count(of, -n)
}

// started notes that a call is under way that needed no permit.
func (r *relayRates) started(of callsOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(of, 1)
}

// returned notes that calls that were permitted are under way no more.
func (r *relayRates) returned(of callsOf, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(of, -n)
}

// count changes how many calls are under way. The caller has the lock.
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
	l := r.limits[of]
	if l == nil || !l.bounded {
		return
	}
	if l.peak = max(l.peak, now); n > 0 {
		return
	}
	if l.owes(now) {
		r.signal() // others wait for what is given up
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
	l, now := r.limits[of], time.Now()
	if l == nil || now.Before(l.heldUntil) {
		return
	}
	if l.limited && l.permitted(now) == 0 && r.hasPlace(of, l, now) {
		l.wanted = 4 * r.capacity
		r.signal()
	}
	if l.bounded && l.may(now) <= r.underWay[of] && l.wantMore(now, r.shortFor) {
		r.signal()
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

// held reports whether the remote wants no calls of a tenant or a prefix, or of the sink.
func (r *relayRates) held(of callsOf) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[of]
	return l != nil && time.Now().Before(l.heldUntil)
}

// mustWait reports whether a new call is set aside at once, and whose rate it waits for then: if
// others that count for that wait already, or if the remote wants none.
func (r *relayRates) mustWait(a *callAttempt) (of callsOf, must bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of = r.lockedOf(a)
	l := r.limits[of]
	return of, of != allCalls && l != nil && (time.Now().Before(l.heldUntil) || l.needed() && r.waiting[of])
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

// limited returns whose calls need permits, or whose calls the remote does not want.
func (r *relayRates) limited() limitedCalls {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := limitedCalls{[]string{}, []int64{}, []string{}}
	for of, l := range r.limits {
		switch {
		case of == allCalls || !l.needed() && !time.Now().Before(l.heldUntil):
		case of.prefix == "":
			all.tenants = append(all.tenants, of.tenant)
		case l.needed():
			all.prefixes, all.ofPrefixes = append(all.prefixes, l.prefix), append(all.ofPrefixes, of.stored())
		}
	}
	return all
}

// hold notes that a remote wants no calls of a tenant for a while, or of the sink: see HoldsSink.
func (r *relayRates) hold(of callsOf, d time.Duration, holds Holds) {
	now := time.Now()
	until := now.Add(min(d, maxRetryAfter))
	r.mu.Lock()
	defer r.mu.Unlock()
	if holds == HoldsAll {
		of = allCalls
	}
	r.lockedHold(of, until)
	if holds == HoldsTenant {
		return
	}
	first := r.firstHold
	if first.of != of && now.Before(first.until) { // of another tenant
		r.lockedHold(allCalls, now.Add(min(until.Sub(now), first.until.Sub(now))))
	}
	if r.probes = true; until.After(first.until) {
		r.firstHold = tenantHold{of, until}
	}
}

// lockedHold is hold of one kind of calls, under the lock.
func (r *relayRates) lockedHold(of callsOf, until time.Time) {
	l := r.limits[of]
	if l == nil {
		l = &rateLimit{}
		r.limits[of] = l
	}
	if until.After(l.heldUntil) {
		l.heldUntil, r.holds[of] = until, until
		r.signal()
	}
}

// noteAnswered notes that the remote has answered a call for good.
func (r *relayRates) noteAnswered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.probes {
		r.firstHold, r.probes = tenantHold{}, false
		r.regain()
	}
}

// probing reports whether one call at a time finds out whether the remote takes calls: since it
// wanted none, and until it has answered one for good.
func (r *relayRates) probing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.probes
}

// tenantHold is for how long HoldsSink holds a tenant.
type tenantHold struct {
	of    callsOf
	until time.Time
}

// storedRate is a row of ratesSQL.
type storedRate struct {
	CallsOf string
	Prefix  *int64
	Limited bool
	Bounded bool
	Held    *int64
}

// prefixesOf returns the prefixes whose calls need permits.
func prefixesOf(stored []storedRate) map[int64]callsOf {
	prefixes := map[int64]callsOf{}
	for _, s := range stored {
		if s.Prefix != nil && (s.Limited || s.Bounded) {
			prefixes[*s.Prefix] = parseCallsOf(s.CallsOf)
		}
	}
	return prefixes
}

// read takes in the rates that the database has. asked is when it was asked.
func (r *relayRates) read(stored []storedRate, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := map[callsOf]*rateLimit{}
	for _, s := range stored {
		of := parseCallsOf(s.CallsOf)
		l := r.limits[of]
		if l == nil {
			l = &rateLimit{}
		}
		if !s.Bounded {
			l.share = share{}
		}
		l.limited, l.bounded, l.heldUntil = s.Limited, s.Bounded, time.Time{}
		if s.Held != nil {
			l.heldUntil = asked.Add(fromMicros(*s.Held))
		}
		limits[of] = l
		if s.Prefix != nil {
			l.prefix = *s.Prefix
		}
	}
	for of, until := range r.holds { // not written yet
		l := limits[of]
		if l == nil {
			l = &rateLimit{}
			limits[of] = l
		}
		l.heldUntil = until
	}
	r.limits, r.prefixes = limits, prefixesOf(stored)
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
