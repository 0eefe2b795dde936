package gate

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// MaxHold bounds how long a remote may make its calls wait. Without it a wrong unit in a header,
// for example milliseconds, could put them off for days.
const MaxHold = time.Hour

// heldFor is until when calls wait, and why.
type heldFor struct {
	until time.Time
	why   string // empty: the remote has asked for it
}

// Hold is a hold that is to be written, so that all relays keep it.
type Hold struct {
	Key   Key
	Until time.Time
	Why   string
}

// Hold notes that calls of a tenant wait for a while, or of the sink, for MaxHold at most. With
// probe it concerns the remote: afterwards one call at a time tries whether it is back, and after
// such holds of several tenants the sink is held too, for sinkHold at most, because the cause may
// be in the calls (O14). It reports whether the hold is new: they were held neither now nor a
// moment ago.
func (g *Gate) Hold(k Key, d time.Duration, probe bool, why string) (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	first = now.Sub(g.heldLimit(k).heldUntil) > holdsGoOn
	g.hold(k, heldFor{now.Add(min(d, MaxHold)), why})
	switch {
	case !probe:
	case k == All:
		g.loads.probe()
	default:
		soon := now.Add(min(d, sinkHold))
		if g.loads.failed(k.Tenant, soon) {
			g.hold(All, heldFor{soon, why})
		}
	}
	return first
}

// holdsGoOn is how long after a hold another one counts as the same: a probe failed meanwhile.
const holdsGoOn = time.Minute

// hold is Hold of one kind of calls, under the lock.
func (g *Gate) hold(k Key, held heldFor) {
	l := g.heldLimit(k)
	if held.until.After(l.heldUntil) {
		l.heldUntil = held.until
		g.holds[k] = held
		pace.Signal(g.needed)
	}
}

// heldLimit is limit, and makes one if there is none.
func (g *Gate) heldLimit(k Key) *limit {
	if l := g.limit(k); l != nil {
		return l
	}
	return limitOf(g.limits, k)
}

// Unwritten returns the holds that are to be written.
func (g *Gate) Unwritten() (all []Hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, held := range g.holds {
		all = append(all, Hold{k, held.until, held.why})
	}
	return all
}

// Written notes that holds are written. One that has become longer meanwhile is not.
func (g *Gate) Written(all []Hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range all {
		if g.holds[h.Key].until.Equal(h.Until) {
			delete(g.holds, h.Key)
		}
	}
}
