package main

import "math/bits"

// ownerStep is what owner k does next: take over, give messages to slots, move the position, prune.
func (g *slotScope) ownerStep(s slotState, k int, to emit[slotState]) {
	switch s.owners[k].stage {
	case ownerAway:
		if s.takeOvers == 0 {
			return
		}
		s.takeOvers--
		s.owners[k] = slotOwner{stage: ownerRaising, seenNonce: s.db.nonce}
		to(s, "owner %d reads the epoch, and proves its membership", k, 0)
	case ownerRaising:
		g.raise(s, k, to)
	case ownerRaised:
		g.readFirst(s, k, to)
	case ownerWorks:
		g.work(s, k, to)
	}
}

// raise asks for the owner's lock, and has it to itself when each transaction that shared it by
// then has ended: later ones wait behind it (T14). Then it raises the epoch, and commits.
func (g *slotScope) raise(s slotState, k int, to emit[slotState]) {
	w := &s.owners[k]
	if !w.asked {
		w.asked = true
		to(s, "owner %d takes over: it asks for the lock", k, 0)
		return
	}
	if !w.locked {
		for i := range s.txs {
			if s.txs[i].holds() && !g.faults.raiseDoesNotWait {
				return
			}
		}
		if s.owners[1-k].stage == ownerRaising && s.owners[1-k].locked {
			return
		}
		w.locked = true
		to(s, "owner %d takes over: it has the lock to itself", k, 0)
		return
	}
	if s.db.nonce != w.seenNonce {
		*w = slotOwner{}
		to(s, "owner %d: the epoch is another one", k, 0)
		return
	}
	s.nonces++
	s.db.nonce = s.nonces
	*w = slotOwner{stage: ownerRaised, nonce: s.nonces, run: s.db.run}
	to(s, "owner %d has raised the epoch", k, 0)
}

// readFirst reads position and set after a take-over, and compares the log with both (C8).
func (g *slotScope) readFirst(s slotState, k int, to emit[slotState]) {
	w := &s.owners[k]
	if s.db.nonce != w.nonce {
		*w = slotOwner{}
		to(s, "owner %d was replaced already", k, 0)
		return
	}
	w.stage = ownerWorks
	s.read(k)
	if g.one && k == 1 {
		w.chain = s.db.set() == below(s.db.position) || g.faults.chainBesideRows
		if g.faults.chainBesideRows {
			w.knows = below(s.db.position)
		}
	}
	if other := s.cut &^ s.db.rewritten & s.db.set(); other != 0 {
		if s.db.position > 0 && has(other, s.db.position-1) || !g.faults.noHashes {
			return // halts: truncated
		}
		s.breach(slotPassed)
	}
	to(s, "owner %d has read position and set", k, 0)
}

// read replaces what owner k remembers by what the database has.
func (s *slotState) read(k int) {
	w := &s.owners[k]
	if w.nonce != s.db.nonce {
		s.stop(k)
		return
	}
	w.run = s.db.run
	w.knows = s.db.set()
	w.position = s.db.position
	w.pruneLow = 0
}

func (g *slotScope) work(s slotState, k int, to emit[slotState]) {
	w := &s.owners[k]
	if g.crash && !s.crashed && s.takeOvers > 0 {
		t := s
		t.crashed = true
		t.stop(k)
		to(t, "owner %d: the process dies", k, 0)
	}
	mine := s.db.nonce == w.nonce
	second := g.one && k == 1
	if second && mine && !w.chain {
		g.backToOne(s, k, to)
	}
	for i := range g.slots {
		g.slotStep(s, k, i, to)
	}
	if mine && s.db.run == w.run {
		if !w.chain {
			g.sweep(s, k, to)
			g.prune(s, k, to)
		}
		g.retry(s, k, to)
		g.endReplay(s, k, to)
	}
	behind := !mine || w.knows != s.db.set() || w.position != s.db.position
	if behind && w.inHands() == 0 && !g.faults.neverLooks {
		s.read(k)
		to(s, "owner %d looks, and reads position and set anew", k, 0)
	}
}

func (w *slotOwner) inHands() (all uint8) {
	for _, h := range w.hands {
		all |= h
	}
	return all
}

// backToOne goes over to one transaction at a time, when nothing is done above the position. Both
// kinds do not see each other's rows, so that takes a new epoch (C7).
func (g *slotScope) backToOne(s slotState, k int, to emit[slotState]) {
	w := &s.owners[k]
	set := s.db.set()
	if w.inHands() != 0 || set != below(s.db.position) || int(s.db.position) == g.offsets {
		return
	}
	if g.faults.chainInSameEpoch {
		s.read(k)
		w.chain = true
		to(s, "owner %d goes over to one transaction at a time", k, 0)
		return
	}
	*w = slotOwner{stage: ownerRaising, seenNonce: w.nonce}
	to(s, "owner %d: nothing is done above the position; takes over anew", k, 0)
}

// slotStep runs a slot's messages again after an unknown outcome, or gives it new ones: the oldest
// whose ordering key no slot has in its hands.
func (g *slotScope) slotStep(s slotState, k, i int, to emit[slotState]) {
	w := &s.owners[k]
	if w.unknown[i] != 0 {
		if s.send(g, k, i, w.hands[i], w.unknown[i]-1) {
			to(s, "owner %d: slot %d runs the same messages again", k, i)
		}
		return
	}
	idle := g.one && k == 1 && i > 0
	if w.hands[i] != 0 || idle {
		return
	}
	var messages uint8
	hands := w.inHands()
	for o := range g.end(&s.db) {
		hole := k == 1 && has(g.holes, o)
		if hole || has(w.knows|hands, o) {
			continue
		}
		if g.keyInHands(o, k, hands) && !g.faults.keyInTwoHands {
			continue
		}
		if messages |= bit(o); w.chain && !has(messages, w.position) {
			return
		}
		kind := uint8(kindSlot)
		if w.chain {
			kind = kindChain
		}
		if t := s; t.send(g, k, i, messages, kind) {
			to(t, "owner %d: slot %d takes messages", k, i)
		}
		if !g.pairs || bits.OnesCount8(messages) == 2 {
			return
		}
	}
}

func (g *slotScope) keyInHands(o, k int, hands uint8) bool {
	for other := range g.offsets {
		if has(hands, other) && g.key(other, uint8(k)) == g.key(o, uint8(k)) {
			return true
		}
	}
	return false
}

// sweep proposes a position from memory. The database compares, and moves it or raises (C4).
func (g *slotScope) sweep(s slotState, k int, to emit[slotState]) {
	for i := range s.txs {
		if b := &s.txs[i]; b.kind == kindChain && b.holds() {
			return
		}
	}
	w := &s.owners[k]
	var empty uint8
	if k == 1 {
		empty = g.holes
	}
	next := w.position
	for int(next) < g.end(&s.db) && has(w.knows|empty, next) {
		next++
	}
	if next <= w.position {
		return
	}
	covered := (below(next)&^below(w.position))&^(s.db.done|empty) == 0
	if s.db.position != w.position || !covered && !g.faults.sweepFromMemory {
		s.read(k)
		to(s, "owner %d: the sweep raises; reads position and set anew", k, 0)
		return
	}
	s.db.position = next
	w.position = next
	w.knows |= below(next)
	if g.faults.pruneFromMemory {
		w.pruneLow = next
	}
	to(s, "owner %d: sweep, position %d", k, int(next))
}

// prune deletes a row of onlyonce.done below the position. Every transaction that was open when
// the sweep over it had committed must have ended: each open one began at a position above the
// row (C5).
func (g *slotScope) prune(s slotState, k int, to emit[slotState]) {
	low := s.db.position
	if g.faults.pruneFromMemory {
		low = s.owners[k].pruneLow
	}
	for o := range int(low) {
		if !has(s.db.done, o) || g.needed(&s, uint8(o)) {
			continue
		}
		t := s
		t.db.done &^= bit(o)
		to(t, "owner %d prunes the row of %d", k, o)
	}
}

// needed reports whether an open transaction may have read a position that is not above the row.
func (g *slotScope) needed(s *slotState, row uint8) bool {
	if g.faults.pruneAtOnce {
		return false
	}
	for i := range s.txs {
		b := &s.txs[i]
		passed := g.faults.pruneByID && b.stage < slotLocked || g.faults.readBeforeBegin && b.stage < slotInserted
		if b.open() && !passed && b.seen <= row {
			return true
		}
	}
	return false
}

// retry applies the first parked message of an ordering key.
func (g *slotScope) retry(s slotState, k int, to emit[slotState]) {
	for o := range g.offsets {
		first := has(s.db.parked, o)
		for before := range o {
			first = first && !(has(s.db.parked, before) && g.keys[0][before] == g.keys[0][o])
		}
		if !first {
			continue
		}
		t := s
		t.db.parked &^= bit(o)
		t.db.applied |= bit(o)
		for later := o + 1; later < g.offsets; later++ {
			if g.keys[0][later] == g.keys[0][o] && has(s.db.applied, later) {
				t.breach(slotOrder)
			}
		}
		to(t, "owner %d: the parked message %d is applied", k, o)
	}
}

// endReplay goes on where the replay interrupted the work, with what was done above that (C7).
func (g *slotScope) endReplay(s slotState, k int, to emit[slotState]) {
	d := &s.db
	w := &s.owners[k]
	if d.run != 1 || d.position != d.heldPosition || w.inHands() != 0 {
		return
	}
	d.doneByReplay = d.done
	d.run = 2
	d.done = d.heldDone
	if g.faults.replayDropsRows {
		d.done = 0
	}
	d.heldPosition = 0
	d.heldDone = 0
	s.read(k)
	to(s, "owner %d: the replay ends, run 2 goes on at %d", k, int(d.position))
}
