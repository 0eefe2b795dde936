package intake

// State returns how many events wait, how many names are busy, and how many storers there are.
func (g *Gather[E]) State() (waiting, busy, storers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting), len(g.busy), g.storers
}
