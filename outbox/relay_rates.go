package outbox

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// rateLimit is what a relay knows of the rate of a sink, or of a tenant of it.
type rateLimit struct {
	limited   bool // a rate is set
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
	// underWay counts the calls of tenants that were permitted and have not returned, and for the
	// empty tenant the slots that are taken.
	underWay  map[string]int
	regained  bool                  // more calls may be started, and lanes that wait are to be woken
	questions int64                 // that were asked
	limits    map[string]*rateLimit // by tenant; the empty one is the sink as a whole
	waiting   map[string]bool       // tenants with calls that wait, in any lane of the sink
	holds     map[string]time.Time  // that are not written yet
	needed    chan struct{}         // holds a token when the sender has something to do
}

func newRelayRates(capacity int, poll time.Duration) *relayRates {
	return &relayRates{
		capacity: capacity, shortFor: 3 * max(time.Second, poll), relay: uuid.New(),
		underWay: map[string]int{}, limits: map[string]*rateLimit{}, waiting: map[string]bool{}, holds: map[string]time.Time{},
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

// available is how many calls may be started.
func (r *relayRates) available(tenant string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[tenant]; l != nil {
		return l.available(time.Now(), r.underWay[tenant])
	}
	return math.MaxInt
}

// mayStart reports whether the sink may start calls once one of those that are under way returns.
func (r *relayRates) mayStart() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[""]
	return l == nil || l.available(time.Now(), 0) > 0
}

// take takes up to n permits, and returns how many calls may be started: n if there is no rate.
// They count as under way until giveBack or returned.
func (r *relayRates) take(tenant string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = max(n, 0)
	if l := r.limits[tenant]; l != nil {
		n = min(n, l.available(time.Now(), r.underWay[tenant]))
		if l.limited {
			l.permits -= n
		}
	}
	r.count(tenant, n)
	return n
}

// follow takes a permit of the sink for a call that takes the place of one that has returned, while
// free other places are about to be given up.
func (r *relayRates) follow(free int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[""]
	if l == nil {
		return true
	}
	if l.available(time.Now(), r.underWay[""]-free-1) == 0 {
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
	if l := r.limits[""]; l != nil && l.limited {
		l.permits++
	}
}

// giveBack returns permits that were not used.
func (r *relayRates) giveBack(tenant string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[tenant]; l != nil && l.limited {
		l.permits += n
	}
	r.count(tenant, -n)
}

// started notes that a call is under way that needed no permit.
func (r *relayRates) started(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(tenant, 1)
}

// returned notes that calls that were permitted are under way no more.
func (r *relayRates) returned(tenant string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(tenant, -n)
}

// count changes how many calls are under way. The caller has the lock.
func (r *relayRates) count(tenant string, n int) {
	if n == 0 {
		return
	}
	now := r.underWay[tenant] + n
	if now == 0 {
		delete(r.underWay, tenant)
	} else {
		r.underWay[tenant] = now
	}
	l := r.limits[tenant]
	if l == nil || !l.bounded {
		return
	}
	if l.peak = max(l.peak, now); n > 0 {
		return
	}
	if l.owes(now) {
		r.signal() // others wait for what is given up
	}
	if r.waiting[tenant] && l.may(time.Now()) > now {
		r.regain()
	}
}

// want asks for permits of a rate that has none: for several calls in each slot, because some are
// quick.
func (r *relayRates) want(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, now := r.limits[tenant], time.Now()
	if l == nil || now.Before(l.heldUntil) {
		return
	}
	if l.limited && l.permitted(now) == 0 && r.hasPlace(tenant, l, now) {
		l.wanted = 4 * r.capacity
		r.signal()
	}
	if l.bounded && l.may(now) <= r.underWay[tenant] && l.wantMore(now, r.shortFor) {
		r.signal()
	}
}

// hasPlace reports whether permits are of use: without a place among the calls that may be under
// way, they would lapse, and the others have fewer. In the sink a call can follow another one in
// its place. The caller has the lock.
func (r *relayRates) hasPlace(tenant string, l *rateLimit, now time.Time) bool {
	used := r.underWay[tenant]
	if tenant == "" {
		used = 0
	}
	return !l.bounded || l.may(now) > used
}

// held reports whether the remote wants no calls of a tenant, or of the sink.
func (r *relayRates) held(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	return l != nil && time.Now().Before(l.heldUntil)
}

// mustWait reports whether a new call of a tenant is set aside at once: if others of the tenant
// wait already, or if the remote wants none.
func (r *relayRates) mustWait(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	return tenant != "" && l != nil && (time.Now().Before(l.heldUntil) || l.needed() && r.waiting[tenant])
}

// noteWaiting notes that new calls of a tenant are to wait.
func (r *relayRates) noteWaiting(tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[tenant] = true
}

// setWaiting notes which tenants have calls that wait.
func (r *relayRates) setWaiting(tenants map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = tenants
}

// limited returns the tenants whose calls need permits, or whom the remote wants no calls of.
func (r *relayRates) limited() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	tenants := []string{} // nil would become NULL
	for t, l := range r.limits {
		if t != "" && (l.needed() || time.Now().Before(l.heldUntil)) {
			tenants = append(tenants, t)
		}
	}
	return tenants
}

// hold notes that a remote wants no calls for a while.
func (r *relayRates) hold(tenant string, d time.Duration) {
	until := time.Now().Add(min(d, maxRetryAfter))
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[tenant]
	if l == nil {
		l = &rateLimit{}
		r.limits[tenant] = l
	}
	if until.After(l.heldUntil) {
		l.heldUntil, r.holds[tenant] = until, until
		r.signal()
	}
}

// storedRate is a row of ratesSQL.
type storedRate struct {
	Tenant  string
	Limited bool
	Bounded bool
	Held    *int64
}

// read takes in the rates that the database has. asked is when it was asked.
func (r *relayRates) read(stored []storedRate, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := map[string]*rateLimit{}
	for _, s := range stored {
		l := r.limits[s.Tenant]
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
		limits[s.Tenant] = l
	}
	for tenant, until := range r.holds { // not written yet
		l := limits[tenant]
		if l == nil {
			l = &rateLimit{}
			limits[tenant] = l
		}
		l.heldUntil = until
	}
	r.limits = limits
}

// shares reports whether the relay has asked for shares, and returns the tenants with calls under
// way.
func (r *relayRates) shares() (has bool, busy []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.limits {
		has = has || !l.asked.IsZero()
	}
	return has, slices.AppendSeq([]string{}, maps.Keys(r.underWay))
}
