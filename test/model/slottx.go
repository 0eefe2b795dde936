package main

import "math/bits"

// txStep is the next statement of transaction i, or its answer.
func (g *slotScope) txStep(s slotState, i int, to emit[slotState]) {
	b := &s.txs[i]
	switch b.stage {
	case slotNone:
		return
	case slotSent:
		g.begin(s, i, to)
	case slotBegun:
		g.lock(s, i, to)
	case slotLocked:
		g.compare(s, i, to)
	case slotCompared:
		g.insert(s, i, to)
	case slotInserted:
		g.finish(s, i, to)
	default:
		g.answer(s, i, to)
	}
	if !b.orphan && s.lost > 0 {
		g.loseAnswer(s, i, to)
	}
}

// txTo emits s with transaction i in another stage. An orphan that has ended disappears.
func txTo(s slotState, i int, stage uint8, to emit[slotState], step string) {
	b := &s.txs[i]
	owner := int(b.owner)
	messages := int(b.messages)
	b.stage = stage
	if b.orphan && stage >= slotCommitted {
		*b = slotTx{}
	}
	to(s, step, owner, messages)
}

func (g *slotScope) owns(d *slotDB, b *slotTx) bool { return d.nonce == b.nonce }

func (g *slotScope) begin(s slotState, i int, to emit[slotState]) {
	b := &s.txs[i]
	b.seen = s.db.position
	if g.oldSnapshots || g.faults.comparedBeforeLock {
		b.snapOwner = g.owns(&s.db, b)
	}
	if g.oldSnapshots {
		b.snapPosition, b.park = g.fits(&s.db, b), g.blocked(&s, b)
	}
	txTo(s, i, slotBegun, to, "owner %d, messages %d: BEGIN")
}

// lock shares the owner's lock. It waits for a take-over that has the lock to itself, and for one
// that has asked for it before (T14). Above READ COMMITTED it locks the lease's row besides, which
// fails with 40001 if it has changed since the snapshot.
func (g *slotScope) lock(s slotState, i int, to emit[slotState]) {
	for k := range s.owners {
		if s.owners[k].stage != ownerRaising || !s.owners[k].asked {
			continue
		}
		if s.owners[k].locked || !g.faults.rowInsteadOfLock {
			return
		}
		s.breach(slotOvertaken)
	}
	b := &s.txs[i]
	if g.oldSnapshots && !g.faults.noRowLock && b.snapOwner != g.owns(&s.db, b) {
		txTo(s, i, slotRefused, to, "owner %d, messages %d: 40001, the lease has changed")
		return
	}
	txTo(s, i, slotLocked, to, "owner %d, messages %d: the owner's lock is shared")
}

// fits is what the fence asks of position and predecessors.
func (g *slotScope) fits(d *slotDB, b *slotTx) bool {
	if d.run != b.run && !g.faults.comparedBeforeLock {
		return false // there is no position of that run
	}
	if b.kind == kindChain {
		return d.position == b.low
	}
	if d.position < b.low || b.messages&below(d.position) != 0 && !g.faults.positionNotCompared {
		return false
	}
	return b.after&^d.set() == 0
}

// blocked returns which of the messages are to be parked, because one before them by ordering
// key is.
func (g *slotScope) blocked(s *slotState, b *slotTx) (park uint8) {
	for o := range g.offsets {
		for before := range o {
			if has(b.messages, o) && has(s.db.parked|park, before) && g.key(before, b.owner) == g.key(o, b.owner) {
				park |= bit(o)
			}
		}
	}
	return park
}

func (g *slotScope) compare(s slotState, i int, to emit[slotState]) {
	b := &s.txs[i]
	owner := g.owns(&s.db, b)
	fits := g.fits(&s.db, b)
	if g.oldSnapshots || g.faults.comparedBeforeLock {
		owner = b.snapOwner
	}
	if g.oldSnapshots {
		fits = b.snapPosition
	}
	b.snapOwner = false
	b.snapPosition = false
	if !owner || !fits {
		txTo(s, i, slotRefused, to, "owner %d, messages %d: OO001, replaced, or position or predecessors")
		return
	}
	if !g.oldSnapshots && !g.faults.blockedFromMemory {
		b.park = g.blocked(&s, b)
	}
	txTo(s, i, slotCompared, to, "owner %d, messages %d: owner, position and predecessors compared")
}

// insert inserts the rows of onlyonce.done, or that of onlyonce.progress. It waits for an open
// transaction that has one of them.
func (g *slotScope) insert(s slotState, i int, to emit[slotState]) {
	b := &s.txs[i]
	for j := range s.txs {
		o := &s.txs[j]
		alike := o.run == b.run && (o.kind == kindChain) == (b.kind == kindChain)
		if j == i || o.stage != slotInserted || !alike {
			continue
		}
		same := o.messages&b.messages != 0 && !g.faults.noKey
		if b.kind == kindChain {
			same = o.low == b.low
		}
		if same {
			return
		}
	}
	rows := s.db.rowsOf(b.run)
	there := b.kind != kindChain && rows&b.messages != 0 && !g.faults.noKey
	if there || b.kind == kindChain && s.db.position != b.low {
		txTo(s, i, slotRefused, to, "owner %d, messages %d: 23505, done already")
		return
	}
	if b.kind == kindPark {
		b.park = b.messages
	}
	txTo(s, i, slotInserted, to, "owner %d, messages %d: rows inserted; handlers")
}

func (g *slotScope) finish(s slotState, i int, to emit[slotState]) {
	b := &s.txs[i]
	t := s
	g.commit(&t, b)
	txTo(t, i, slotCommitted, to, "owner %d, messages %d: COMMIT")
	switch {
	case b.orphan:
		txTo(s, i, slotFailed, to, "owner %d, messages %d: ROLLBACK")
	case s.fails > 0 && b.kind == kindSlot:
		t := s
		t.fails--
		txTo(t, i, slotFailed, to, "owner %d, messages %d: a handler fails, ROLLBACK")
	}
}

// commit makes a transaction's rows and effects visible, and judges them.
func (g *slotScope) commit(t *slotState, b *slotTx) {
	d := &t.db
	if b.run != d.run {
		t.breach(slotOldRun)
		return
	}
	for k := range t.owners {
		if w := &t.owners[k]; b.nonce != d.nonce && w.stage == ownerWorks && w.nonce == d.nonce {
			t.breach(slotZombie)
		}
	}
	for o := range g.offsets {
		if has(b.messages, o) && !(b.owner == 1 && has(g.holes, o)) {
			g.commitMessage(t, b, o)
		}
	}
	if b.kind != kindChain {
		d.done |= b.messages
		return
	}
	for has(b.messages, d.position) {
		d.position++
	}
}

func (g *slotScope) commitMessage(t *slotState, b *slotTx, o int) {
	d := &t.db
	effects := d.effects()
	parks := has(b.park, o)
	switch {
	case has(d.parked, o), has(*effects, o) && parks && t.cut == 0:
		t.breach(slotBoth)
	case has(*effects, o) && t.cut == 0:
		t.breach(slotTwice)
	}
	ordered := !g.anyOrder && g.holes == 0 && t.cut == 0
	for before := range o {
		if !ordered || g.keys[0][before] != g.keys[0][o] {
			continue
		}
		handled := has(*effects|d.parked, before)
		if !handled || !parks && has(d.parked, before) {
			t.breach(slotOrder)
		}
	}
	if parks {
		d.parked |= bit(o)
	} else {
		*effects |= bit(o)
	}
	if has(t.cut, o) {
		d.rewritten |= bit(o)
	}
}

// answer hands the outcome to the owner.
func (g *slotScope) answer(s slotState, i int, to emit[slotState]) {
	b := s.txs[i]
	t := s
	t.txs[i] = slotTx{}
	w := &t.owners[b.owner]
	w.hands[b.slot] = 0
	owner := int(b.owner)
	messages := int(b.messages)
	switch b.stage {
	case slotCommitted:
		w.knows |= b.messages
		if b.kind == kindChain {
			w.position = b.low + uint8(bits.OnesCount8(b.messages))
		}
		to(t, "owner %d, messages %d: COMMIT is answered", owner, messages)
	case slotFailed:
		to(t, "owner %d, messages %d: the error is answered", owner, messages)
		if g.parking && bits.OnesCount8(b.messages) == 1 && t.send(g, owner, int(b.slot), b.messages, kindPark) {
			to(t, "owner %d, messages %d: the error is answered, parks the message", owner, messages)
		}
	case slotRefused:
		t.read(owner)
		to(t, "owner %d, messages %d: the refusal is answered, reads position and set anew", owner, messages)
	}
}

// loseAnswer breaks the connection of transaction i. The slot keeps its messages, and runs them
// again (C1).
func (g *slotScope) loseAnswer(s slotState, i int, to emit[slotState]) {
	t := s
	t.lost--
	b := &t.txs[i]
	owner := int(b.owner)
	slot := int(b.slot)
	messages := b.messages
	w := &t.owners[owner]
	w.unknown[slot] = 1 + b.kind
	b.orphan = true
	if b.stage >= slotCommitted {
		*b = slotTx{}
	}
	if g.faults.secondHalfFirst {
		w.unknown[slot] = 0
		w.hands[slot] = 0
		if half := messages & (messages - 1); half != 0 {
			t.send(g, owner, slot, half, kindSlot)
		}
	}
	to(t, "owner %d, messages %d: the outcome is UNKNOWN", owner, int(messages))
}

// send puts messages on a connection of their own, if one is free.
func (s *slotState) send(g *slotScope, k, slot int, messages, kind uint8) bool {
	free := -1
	for i := range g.txs {
		if s.txs[i].stage == slotNone {
			free = i
		}
	}
	if free < 0 {
		return false
	}
	w := &s.owners[k]
	b := slotTx{
		stage:    slotSent,
		owner:    uint8(k),
		slot:     uint8(slot),
		kind:     kind,
		messages: messages,
		nonce:    w.nonce,
		run:      w.run,
		low:      w.position,
	}
	if !g.faults.noPredecessors && kind != kindChain {
		b.after = g.predecessors(messages, uint8(k))
	}
	s.txs[free] = b
	w.hands[slot] = messages
	w.unknown[slot] = 0
	return true
}

// predecessors are the offsets before these messages by ordering key, those among them left out.
func (g *slotScope) predecessors(messages, owner uint8) (after uint8) {
	for o := range g.offsets {
		for before := o - 1; has(messages, o) && before >= 0; before-- {
			if g.key(before, owner) == g.key(o, owner) {
				after |= bit(before) &^ messages
				break
			}
		}
	}
	return after
}
