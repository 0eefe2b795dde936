package main

import "math/bits"

// rotatorStep is what rotator i does next, or its end.
func (g *ringScope) rotatorStep(s ringState, i int, to emit[ringState]) {
	r := &s.rotators[i]
	if r.stage != rotatorAway {
		t := s
		t.rotatorEnds(i)
		to(t, "rotator %d: the process dies", i, 0)
	}
	switch r.stage {
	case rotatorAway:
		if int(s.lease) < g.leases && s.rowLock == 0 {
			s.lease++
			s.row.version++
			*r = ringRotator{stage: rotatorDecides, lease: s.lease, slot: -1}
			to(s, "rotator %d takes the ring's lease, the %d. time", i, int(s.lease))
		}
	case rotatorDecides:
		g.decide(s, i, to)
	case rotatorMarksWriters, rotatorMarksReaders, rotatorMarksLate:
		for j := range g.claimers {
			if s.claimers[j].id {
				s.claimers[j].waitedFor |= bit(i)
			}
		}
		r.stage++
		to(s, "rotator %d begins to wait for all transactions", i, 0)
	case rotatorWaitsForWriters, rotatorWaitsForReaders, rotatorWaitsForLate:
		for j := range g.claimers {
			if has(s.claimers[j].waitedFor, i) {
				return
			}
		}
		r.stage++
		to(s, "rotator %d: all of them have ended", i, 0)
	case rotatorScans:
		r.keys = s.keys[r.slot]
		r.stage = rotatorStores
		to(s, "rotator %d reads slot %d for its filter", i, int(r.slot))
	case rotatorStores:
		s.storedOf[r.slot] = r.use
		s.stored[r.slot] = r.keys
		r.stage = rotatorDecides
		r.keys = 0
		to(s, "rotator %d stores the filter of slot %d", i, int(r.slot))
	case rotatorTruncates, rotatorFrees:
		g.empty(s, i, to)
	default:
		g.change(s, i, to)
	}
}

// rotatorEnds is a rotator that dies, or gives up its lease. Its transaction is undone.
func (s *ringState) rotatorEnds(i int) {
	for j := range s.claimers {
		s.claimers[j].waitedFor &^= bit(i)
	}
	if int(s.rowLock) == i+1 {
		s.rowLock = 0
		if s.emptied == s.rotators[i].slot {
			s.emptied = -1
		}
	}
	s.rotators[i] = ringRotator{slot: -1}
}

// decide derives the next step from the row alone.
func (g *ringScope) decide(s ringState, i int, to emit[ringState]) {
	r := &s.rotators[i]
	if s.lease != r.lease && !g.faults.stepsUnchecked {
		s.rotatorEnds(i)
		to(s, "rotator %d sees another holder of the lease, stops", i, 0)
		return
	}
	r.version = s.row.version
	r.slot = -1
	r.use = 0
	choose := func(stage uint8, slot int8, step string) {
		t := s
		n := &t.rotators[i]
		n.stage = stage
		n.slot = slot
		if slot >= 0 {
			n.use = s.row.uses[slot]
		}
		to(t, step, i, int(slot))
	}
	announces := s.row.free(g) >= 0 && int(s.announced) < g.segments
	if g.faults.announceWhileDraining && announces && s.row.draining >= 0 {
		choose(rotatorAnnounces, -1, "rotator %d decides to announce")
	}
	switch {
	case s.row.draining >= 0:
		stage := uint8(rotatorMarksWriters)
		if g.faults.closeAtOnce {
			stage = rotatorCloses
		}
		choose(stage, -1, "rotator %d decides to close")
		return
	case s.row.retired != 0:
		stage := uint8(rotatorMarksReaders)
		if g.faults.truncateAtOnce {
			stage = rotatorChecks
		}
		choose(stage, s.row.oldest(s.row.retired), "rotator %d decides to truncate slot %d")
		return
	}
	if unbuilt := s.unbuilt(g); g.filters && unbuilt != 0 {
		choose(rotatorMarksLate, s.row.oldest(unbuilt), "rotator %d decides to build the filter of slot %d")
	}
	if bits.OnesCount8(s.row.closed) > g.keep {
		choose(rotatorRetires, s.row.oldest(s.row.closed), "rotator %d decides to retire slot %d")
	}
	if announces {
		choose(rotatorAnnounces, -1, "rotator %d decides to announce")
	}
}

// unbuilt are the closed slots without a filter.
func (s *ringState) unbuilt(g *ringScope) (slots uint8) {
	for q := range g.slots {
		if has(s.row.closed, q) && s.storedOf[q] != s.row.uses[q] {
			slots |= bit(q)
		}
	}
	return slots
}

// free returns the next slot after the current one that is in no state, or -1.
func (r *ringRow) free(g *ringScope) int8 {
	for d := 1; d < g.slots; d++ {
		q := int8((int(r.current) + d) % g.slots)
		if q != r.draining && !has(r.closed|r.retired, q) {
			return q
		}
	}
	return -1
}

func (r *ringRow) oldest(slots uint8) int8 {
	oldest := int8(-1)
	for q := range int8(ringSlots) {
		if has(slots, q) && (oldest < 0 || r.uses[q] < r.uses[oldest]) {
			oldest = q
		}
	}
	return oldest
}

// change is a step that updates the row, if the lease is held and the row's version is the one from
// which the step was derived. Otherwise the rotator gives up.
func (g *ringScope) change(s ringState, i int, to emit[ringState]) {
	r := &s.rotators[i]
	if s.rowLock != 0 {
		return
	}
	unchecked := g.faults.stepsUnchecked
	held := s.lease == r.lease && s.row.version == r.version
	if r.stage == rotatorChecks {
		held = held && has(s.row.retired, r.slot)
		unchecked = g.faults.truncateUnchecked
	}
	if !held && !unchecked {
		s.rotatorEnds(i)
		to(s, "rotator %d: the row is another one, stops", i, 0)
		return
	}
	switch r.stage {
	case rotatorAnnounces:
		g.announce(s, i, to)
		return
	case rotatorChecks:
		s.rowLock = uint8(i + 1)
		r.stage = rotatorTruncates
		to(s, "rotator %d has locked and checked the row", i, 0)
		return
	case rotatorCloses:
		slot := s.row.draining
		if slot >= 0 {
			s.row.closed |= bit(slot)
		}
		s.row.draining = -1
		s.row.version++
		r.stage = rotatorDecides
		to(s, "rotator %d: CLOSE slot %d", i, int(slot))
	case rotatorRetires:
		slot := r.slot
		if has(s.row.closed, slot) {
			s.retiredSoFar = max(s.retiredSoFar, s.row.uses[slot])
		}
		s.row.closed &^= bit(slot)
		s.row.retired |= bit(slot)
		s.row.version++
		r.stage = rotatorDecides
		to(s, "rotator %d: RETIRE slot %d", i, int(slot))
	}
}

func (g *ringScope) announce(s ringState, i int, to emit[ringState]) {
	r := &s.rotators[i]
	r.stage = rotatorDecides
	slot := s.row.free(g)
	if slot < 0 {
		to(s, "rotator %d finds no free slot", i, 0)
		return
	}
	s.announced++
	s.row.draining = s.row.current
	s.row.current = slot
	s.row.uses[slot] = s.announced
	s.row.version++
	r.version = s.row.version
	to(s, "rotator %d: ANNOUNCE slot %d", i, int(slot))
}

// empty truncates the retired slot's table, and frees the slot. The wait for the table's lock is
// bounded.
func (g *ringScope) empty(s ringState, i int, to emit[ringState]) {
	r := &s.rotators[i]
	slot := r.slot
	if r.stage == rotatorTruncates {
		for j := range g.claimers {
			if has(s.claimers[j].locked, slot) {
				s.rowLock = 0
				r.stage = rotatorDecides
				to(s, "rotator %d: lock_timeout, ROLLBACK", i, 0)
				return
			}
		}
		s.emptied = slot
		r.stage = rotatorFrees
		to(s, "rotator %d: TRUNCATE slot %d", i, int(slot))
		return
	}
	if s.row.current == slot || s.row.draining == slot || has(s.row.closed, slot) {
		s.breach(ringInUse)
	}
	s.keys[slot] = 0
	s.row.uses[slot] = 0
	s.row.retired &^= bit(slot)
	s.row.version++
	s.emptied = -1
	s.rowLock = 0
	r.stage = rotatorDecides
	to(s, "rotator %d: slot %d is free, COMMIT", i, int(slot))
}
