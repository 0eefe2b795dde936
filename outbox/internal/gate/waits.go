package gate

import (
	"slices"
	"time"
)

// Waits reports whether a new call is set aside at once, and whose rate it waits for then: if
// others that count for that wait already, if the remote wants none, or if its tenant has slow
// calls under way and no room for more. Otherwise k is the rate that it counts for.
func (g *Gate) Waits(e Entrant) (k Key, waits bool) {
	if e.Tenant == "" && e.Prefix == 0 { // it waits for the sink alone, where it is
		return All, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	k = g.keyOf(e, now)
	l := g.limit(k)
	limited := l != nil && (g.held(k, now) || l.needed() && g.waiting[k])
	if k != All && limited {
		return k, true
	}
	if g.room(e.Tenant, now) == 0 && g.slow(e.Tenant, now) {
		k = Key{Tenant: e.Tenant}
		g.waiting[k] = true
		return k, true
	}
	return k, false
}

// NoteWaiting notes that calls wait, and that new ones wait behind them.
func (g *Gate) NoteWaiting(k Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[k] = true
}

// SetWaiting notes whose calls wait, and that no others do. The map is the gate's from then on.
func (g *Gate) SetWaiting(all map[Key]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = all
}

// LacksPermit reports whether calls need permits of a rate, and there are none.
func (g *Gate) LacksPermit(k Key) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.limit(k)
	return l != nil && l.needed() && l.available(time.Now(), g.underWay[k]) == 0
}

// Available is how many calls may be started that count for a rate.
func (g *Gate) Available(k Key) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.available(k, time.Now())
}

// WaitsForRoom reports whether a call of a tenant waits where it is, until others of the tenant
// have returned, although a slot is free.
func (g *Gate) WaitsForRoom(tenant string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	return g.loads.total < g.mayHaveUnderWay(now) && g.room(tenant, now) == 0 && !g.slow(tenant, now)
}

// Limited are the calls that need more than a slot and the sink's permit.
type Limited struct {
	Each     bool     // those of all tenants
	Tenants  []string // unless Each
	Prefixes []LimitedPrefix
}

// LimitedPrefix is a prefix of ordering keys that has a rate.
type LimitedPrefix struct {
	Key    Key
	Stored int64
}

// None reports whether no calls do.
func (l *Limited) None() bool { return !l.Each && len(l.Tenants)+len(l.Prefixes) == 0 }

// Limited returns whose calls need permits, whose calls the remote does not want, and those of
// tenants that have no room for more.
func (g *Gate) Limited() (all Limited) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	all.Each = g.each.needed()
	for k, l := range g.limits {
		free := k == All || !l.needed() && !now.Before(l.heldUntil)
		switch {
		case free:
		case all.Each && k.Tenant != "":
		case k.Prefix == "":
			all.Tenants = append(all.Tenants, k.Tenant)
		case l.needed():
			all.Prefixes = append(all.Prefixes, LimitedPrefix{k, l.prefix})
		}
	}
	for tenant, load := range g.loads.of {
		idle := load.underWay == 0 && !g.loads.probing
		if idle || tenant == "" || all.Each {
			continue
		}
		if g.room(tenant, now) == 0 && !slices.Contains(all.Tenants, tenant) {
			all.Tenants = append(all.Tenants, tenant)
		}
	}
	return all
}
