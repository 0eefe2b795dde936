package main

// claimStep is the next statement of claimer i, or its ROLLBACK.
func (g *ringScope) claimStep(s ringState, i int, to emit[ringState]) {
	c := &s.claimers[i]
	if c.stage != claimIdle {
		t := s
		t.claimers[i].reset()
		to(t, "claimer %d: ROLLBACK", i, 0)
	}
	switch c.stage {
	case claimIdle:
		g.beginClaim(s, i, to)
	case claimBegun:
		c.row = s.row
		c.retiredBefore = s.retiredSoFar
		c.stage = claimRead
		if c.row.closed == 0 {
			c.stage = claimDraining
		}
		to(s, "claimer %d reads the ring's row", i, 0)
	case claimRead:
		c.id = true
		c.stage = claimProbes
		for k := range g.keys {
			for q := range g.slots {
				if has(s.keys[q], k) {
					c.seen[k] |= bit(q)
				}
			}
		}
		to(s, "claimer %d: the query of the closed segments has its snapshot", i, 0)
	case claimProbes:
		g.probe(s, i, to)
	case claimDraining:
		if c.row.draining < 0 || g.faults.drainingSkipped {
			c.stage = claimCurrent
			c.key = 0
			g.claimInsert(s, i, c.row.current, to)
			return
		}
		g.claimInsert(s, i, c.row.draining, to)
	case claimCurrent:
		g.claimInsert(s, i, c.row.current, to)
	case claimHandled:
		g.commitClaim(s, i, to)
	}
}

func (g *ringScope) beginClaim(s ringState, i int, to emit[ringState]) {
	c := &s.claimers[i]
	if c.left == 0 {
		return
	}
	for q := range g.slots {
		if g.filters && s.storedOf[q] != 0 && s.storedOf[q] != c.filterOf[q] {
			t := s
			t.claimers[i].filterOf[q], t.claimers[i].filter[q] = s.storedOf[q], s.stored[q]
			to(t, "claimer %d loads the filter of slot %d", i, q)
		}
	}
	c.left--
	if g.faults.stateBeforeID {
		c.stage = claimRead
		c.row = s.row
		c.retiredBefore = s.retiredSoFar
		to(s, "claimer %d: BEGIN; reads the ring's row without an id", i, 0)
		return
	}
	c.stage = claimBegun
	c.id = true
	to(s, "claimer %d: BEGIN; has a transaction id", i, 0)
}

// probe asks the closed segments, first by their filters. A table that is being truncated is waited
// for; its rows are gone then, whatever the snapshot.
func (g *ringScope) probe(s ringState, i int, to emit[ringState]) {
	c := &s.claimers[i]
	for q := range g.slots {
		if !has(c.row.closed, q) || g.faults.closedSkipped {
			continue
		}
		for k := range g.keys {
			built := g.filters && c.filterOf[q] != 0
			ofUse := c.filterOf[q] == c.row.uses[q] || g.faults.filterOfSlot
			if built && ofUse && !has(c.filter[q], k) {
				if g.faults.filterTrusted { // a filter that errs, and is believed
					s.duplicate(i, k)
				}
				continue
			}
			if int(s.emptied) == q {
				return
			}
			c.locked |= bit(q)
			if has(c.seen[k], q) && has(s.keys[q], k) {
				s.duplicate(i, k)
			}
		}
	}
	c.seen = [ringKeys]uint8{}
	c.stage = claimDraining
	to(s, "claimer %d has asked the closed segments", i, 0)
}

// duplicate notes that a claim has found a key.
func (s *ringState) duplicate(i, k int) {
	s.claimers[i].duplicates |= bit(k)
	if s.newest[k] == 0 {
		s.breach(ringFalse)
	}
}

// nextKey is the key that the claim inserts next: keys are sorted.
func (c *ringClaimer) nextKey(g *ringScope) int {
	if c.reversed {
		return g.keys - 1 - int(c.key)
	}
	return int(c.key)
}

// claimInsert inserts the next key into a slot's table. It emits nothing while it has to wait.
func (g *ringScope) claimInsert(s ringState, i int, slot int8, to emit[ringState]) {
	c := &s.claimers[i]
	k := c.nextKey(g)
	step := "claimer %d: key %d is a duplicate already"
	if !has(c.duplicates, k) {
		if s.emptied == slot {
			return
		}
		c.locked |= bit(slot)
		switch {
		case has(s.keys[slot], k):
			step = "claimer %d: the insert of key %d conflicts"
			if !g.faults.drainingIgnored || c.stage != claimDraining {
				s.duplicate(i, k)
			}
		case s.insertedByOther(g, i, k, slot) && !g.faults.uncommittedIsDuplicate:
			return
		case s.insertedByOther(g, i, k, slot):
			step = "claimer %d: key %d is inserted by another"
			s.duplicate(i, k)
		default:
			c.inserted[k] |= bit(slot)
			step = "claimer %d inserts key %d into the current segment"
			if c.stage == claimDraining {
				step = "claimer %d inserts key %d into the draining segment"
			}
		}
	}
	if int(c.key)+1 < g.keys {
		c.key++
	} else {
		c.key = 0
		c.stage++
	}
	to(s, step, i, k)
}

func (s *ringState) insertedByOther(g *ringScope, i, k int, slot int8) bool {
	for o := range g.claimers {
		if o != i && has(s.claimers[o].inserted[k], slot) {
			return true
		}
	}
	return false
}

func (g *ringScope) commitClaim(s ringState, i int, to emit[ringState]) {
	c := &s.claimers[i]
	for k := range g.keys {
		fresh := !has(c.duplicates, k)
		if fresh && s.newest[k] > c.retiredBefore {
			s.breach(ringDouble)
		}
		for q := range g.slots {
			if !has(c.inserted[k], q) {
				continue
			}
			s.keys[q] |= bit(k)
			if fresh {
				s.newest[k] = max(s.newest[k], s.row.uses[q])
			}
		}
	}
	duplicates := int(c.duplicates)
	c.reset()
	to(s, "claimer %d: COMMIT (set of duplicates: %d)", i, duplicates)
}
