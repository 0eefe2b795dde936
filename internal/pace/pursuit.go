package pace

import "time"

const (
	// pursuit is the part of the time since something was last found for which a poll waits.
	pursuit = 50
	// quickest is the part of the slowest pace that the quickest one is.
	quickest = 20
	// least is a wait that no pace goes below.
	least = 10 * time.Millisecond
)

// Pursuit is the pace of a poll. It follows what the poll finds: what was found a moment ago is
// looked for again soon, and the longer nothing was found, the longer the poll waits, up to the
// slowest pace. So what arrives waits for a fiftieth of the pause before it, and a poll that finds
// nothing costs what the slowest pace costs. The zero value has found nothing yet.
type Pursuit struct {
	found time.Time
}

// Found notes that something new was found.
func (p *Pursuit) Found(now time.Time) { p.found = now }

// Next returns how long the poll waits now, at most slowest. It is at least a twentieth of that, so
// that slowest sets what a poll costs, also while it finds something each time.
func (p *Pursuit) Next(now time.Time, slowest time.Duration) time.Duration {
	if p.found.IsZero() {
		return slowest
	}
	quick := min(max(slowest/quickest, least), slowest)
	return min(max(now.Sub(p.found)/pursuit, quick), slowest)
}
