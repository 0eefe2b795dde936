package intake

import "slices"

// State returns how many events wait, how many names are busy, and how many storers there are.
func (g *Gather[E]) State() (waiting, busy, storers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting), len(g.busy), g.storers
}

// Parts returns the sets of one transaction each that a set is divided into.
func Parts(set []*Item) (all [][]*Item) { return slices.Collect(parts(set)) }

// MaxSetBytes is the most that the bodies of a set have.
const MaxSetBytes = maxSetBytes
