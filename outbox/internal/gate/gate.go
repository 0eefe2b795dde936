package gate

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// Gate decides when a relay may start calls of a sink, in all of its lanes. It bounds how many are
// under way at once: all by the number of slots, and a tenant's by a part of that. None start while
// an operator has paused the sink. Its permits are of the buckets in the database, which all relays
// share (O14). It is safe for concurrent use.
type Gate struct {
	slots    int           // RelayConfig.Concurrency
	shortFor time.Duration // for how long more is wanted than there is, once it was

	mu     sync.Mutex
	paused bool // by an operator
	// underWay counts the calls of tenants and limited prefixes that have a permit and have not
	// returned, and of All the slots that are taken.
	underWay  map[Key]int
	regained  bool  // more calls may be started, and lanes that wait are to be woken
	questions int64 // that were asked
	limits    map[Key]*limit
	each      limit           // whether calls of each tenant need permits, and which
	prefixes  map[int64]Key   // those of limits whose calls need permits, by their stored form
	waiting   map[Key]bool    // whose calls wait, in any lane of the sink
	holds     map[Key]heldFor // that are not written yet
	loads     loads

	open      int // tickets that have had no end, but those of calls that were abandoned
	abandoned int
	misused   int // how often a ticket was used after its end, or ended twice

	// needed holds a token when there is something to ask or to write.
	needed chan struct{}
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While a slot is free, there is a token, or a goroutine that
	// has received it is about to take. If the sink has no permit for the slot, the token comes
	// with the answer that brings one (Regained).
	freed chan struct{}
}

// New returns a gate with a number of slots. poll is how often the relay looks for work.
func New(slots int, poll time.Duration) *Gate {
	g := &Gate{
		slots:    slots,
		shortFor: 3 * max(time.Second, poll),
		underWay: map[Key]int{},
		limits:   map[Key]*limit{},
		waiting:  map[Key]bool{},
		holds:    map[Key]heldFor{},
		loads:    loads{of: map[string]*load{}},
		needed:   make(chan struct{}, 1),
		freed:    make(chan struct{}, 1),
	}
	pace.Signal(g.freed)
	return g
}

// Freed has a token while a slot may be free. Who receives it calls [Gate.Take].
func (g *Gate) Freed() <-chan struct{} { return g.freed }

// Needed has a token when there is something to ask or to write.
func (g *Gate) Needed() <-chan struct{} { return g.needed }

// SetPaused notes whether an operator has paused the sink, and reports whether that is new.
func (g *Gate) SetPaused(paused bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.paused
	g.paused = paused
	if was && !paused {
		g.regain()
	}
	return was != paused
}

// Open reports whether calls may be started now: neither an operator nor the remote holds them, and
// none is under way that tries whether the remote is back. It does not say whether there is a free
// slot (O6).
func (g *Gate) Open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.openAt(time.Now())
}

func (g *Gate) openAt(now time.Time) bool {
	return !g.paused && !g.held(All, now) && g.loads.open(now)
}

// TakesCalls reports whether calls may be started now, in a free slot: the gate is open, and the
// sink has a permit, or needs none. If it has none, it asks for some.
func (g *Gate) TakesCalls() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.openAt(now) {
		return false
	}
	if l := g.limits[All]; l == nil || l.available(now, 0) > 0 {
		return true
	}
	g.want(All, now)
	return false
}

// Free is how many slots are free, whether or not calls may be started.
func (g *Gate) Free() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.slots - g.underWay[All]
}

// Regained reports whether more calls may be started since it was asked last. The caller wakes the
// lanes then.
func (g *Gate) Regained() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.regained {
		return false
	}
	g.regained = false
	pace.Signal(g.freed)
	return true
}

// Close is for a sink whose lanes have ended. It reports tickets that have had no end, or were used
// after it. Calls that were abandoned and have not returned are no fault.
func (g *Gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == 0 && g.misused == 0 {
		return nil
	}
	return fmt.Errorf("a fault of the relay: %d slots were not given back, and %d were used after that, or "+
		"given back twice",
		g.open, g.misused)
}

// Abandoned is how many calls were abandoned and have not returned.
func (g *Gate) Abandoned() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.abandoned
}

// regain notes that more calls may be started. The caller has the lock, as in all methods below.
func (g *Gate) regain() {
	g.regained = true
	pace.Signal(g.needed)
}

// limit returns what is known of a rate, or nil if there is none. A tenant without a rate of its
// own falls back to that of each tenant.
func (g *Gate) limit(k Key) *limit {
	l := g.limits[k]
	if l == nil && k.Tenant != "" && g.each.needed() {
		l = limitOf(g.limits, k)
		l.limited = g.each.limited
		l.bounded = g.each.bounded
	}
	return l
}

// held reports whether the remote wants no calls of a tenant or a prefix, or of the sink.
func (g *Gate) held(k Key, now time.Time) bool {
	l := g.limits[k]
	return l != nil && now.Before(l.heldUntil)
}

// keyOf returns the rate that a call counts for, besides its sink's: the prefix's if that has one,
// or else the tenant's; the tenant's in any case while the remote wants no calls of it. It is All
// if the call counts for no other (O14).
func (g *Gate) keyOf(e Entrant, now time.Time) Key {
	tenant := Key{Tenant: e.Tenant}
	if e.Prefix == 0 {
		return tenant
	}
	k, is := g.prefixes[e.Prefix]
	if !is || tenant != All && g.held(tenant, now) {
		return tenant
	}
	return k
}

// available is how many calls may be started (O16).
func (g *Gate) available(k Key, now time.Time) int {
	n := math.MaxInt
	if l := g.limit(k); l != nil {
		n = l.available(now, g.underWay[k])
	}
	if k.Tenant != "" {
		n = min(n, g.room(k.Tenant, now))
	}
	return n
}

// take takes up to n permits and places of calls under way, whatever the tenant has under way, and
// returns how many: n if there is no rate.
func (g *Gate) take(k Key, n int, now time.Time) (int, permit) {
	var p permit
	n = max(n, 0)
	if l := g.limit(k); l != nil {
		n = min(n, l.available(now, g.underWay[k]))
		p = l.take(n)
	}
	g.count(k, n, now)
	return n, p
}

// refund gives a permit back that was not used.
func (g *Gate) refund(k Key, p permit) {
	if l := g.limits[k]; l != nil {
		l.refund(p)
	}
}

// count changes how many calls are under way (O15).
func (g *Gate) count(k Key, n int, now time.Time) {
	if n == 0 {
		return
	}
	underWay := g.underWay[k] + n
	g.underWay[k] = underWay
	if underWay == 0 {
		delete(g.underWay, k)
	}
	if k.Tenant != "" {
		g.loads.add(k.Tenant, n, now)
	}
	if n < 0 {
		g.noteRoom(k)
	}
	if n < 0 && k == All {
		pace.Signal(g.freed)
	}
	l := g.limit(k)
	if l == nil || !l.bounded {
		return
	}
	l.peak = max(l.peak, underWay)
	if n > 0 {
		return
	}
	if l.owes(underWay) {
		pace.Signal(g.needed) // others wait for what is given up
	}
	if g.waiting[k] && l.may(now) > underWay {
		g.regain()
	}
}

// noteRoom wakes the lanes if calls wait of a tenant that has fewer under way now.
func (g *Gate) noteRoom(k Key) {
	if k.Tenant != "" && g.waiting[k] {
		g.regain()
	}
}

// room is how many more calls of a tenant may start, whatever its rate says.
func (g *Gate) room(tenant string, now time.Time) int {
	l := g.limit(Key{Tenant: tenant})
	return g.loads.room(tenant, g.mayHaveUnderWay(now), tenant != "" && l != nil && l.bounded, now)
}

// mayHaveUnderWay is how many calls may be under way in this relay.
func (g *Gate) mayHaveUnderWay(now time.Time) int {
	if l := g.limits[All]; l != nil && l.may(now) > 0 { // else there is no slot, whatever the tenant
		return min(g.slots, l.may(now))
	}
	return g.slots
}

// slow reports whether a tenant's calls beyond its part are set aside.
func (g *Gate) slow(tenant string, now time.Time) bool {
	return tenant != "" && g.loads.slow(tenant, g.mayHaveUnderWay(now), now)
}

// Limit is a rate as the database has it.
type Limit struct {
	Key    Key
	Prefix int64         // stored form of Key.Prefix; 0: it has none
	Rated  bool          // calls need permits
	Shared bool          // it is set how many calls may be under way
	Held   time.Duration // for how long the remote wants no calls; 0: it takes them
}

// SetLimits takes in the rates that the database has. asked is when it was asked.
func (g *Gate) SetLimits(all []Limit, asked time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	limits := map[Key]*limit{}
	prefixes := map[int64]Key{}
	g.each = limit{}
	for _, s := range all {
		if s.Key.Each {
			g.each.limited = s.Rated
			g.each.bounded = s.Shared
		}
	}
	for _, s := range all {
		if s.Key.Each {
			continue
		}
		if s.Key.Tenant != "" && !s.Rated && !s.Shared {
			s.Rated = g.each.limited
			s.Shared = g.each.bounded
		}
		l := limitOf(g.limits, s.Key)
		l.set(s.Rated, s.Shared)
		l.heldUntil = time.Time{}
		if s.Held > 0 {
			l.heldUntil = asked.Add(s.Held)
		}
		limits[s.Key] = l
		l.prefix = s.Prefix
		if s.Prefix != 0 && l.needed() {
			prefixes[s.Prefix] = s.Key
		}
	}
	for k, l := range g.limits { // by the rate of each tenant
		fallsBack := limits[k] == nil && k.Tenant != "" && g.each.needed()
		if fallsBack && g.inUse(k, l, asked) {
			l.set(g.each.limited, g.each.bounded)
			l.heldUntil = time.Time{}
			limits[k] = l
		}
	}
	g.limits = limits
	g.prefixes = prefixes
	for k, held := range g.holds { // not written yet: what the database has may be longer
		l := g.heldLimit(k)
		if held.until.After(l.heldUntil) {
			l.heldUntil = held.until
		}
	}
	pace.Signal(g.freed) // a rate may be gone
}

// inUse reports whether the limit of a tenant that has no rate of its own is kept.
func (g *Gate) inUse(k Key, l *limit, now time.Time) bool {
	return g.waiting[k] || g.underWay[k] > 0 || l.used(now)
}

// Answered notes that the remote has answered a call of a tenant for good.
func (g *Gate) Answered(tenant string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.loads.answered(tenant) {
		g.regain()
	}
}
