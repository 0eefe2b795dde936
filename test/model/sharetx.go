package main

// shareTxStep is the next statement of transaction i, or its answer.
func (g *shareScope) shareTxStep(s shareState, i int, to emit[shareState]) {
	b := &s.txs[i]
	fits := s.db.position <= b.offset && !b.single || s.db.position == b.offset || g.faults.positionNotCompared
	t := s
	u := &t.txs[i]
	switch b.stage {
	case slotNone:
		return
	case slotSent:
		u.seen, u.snapPosition, u.snapOwner = s.db.position, fits, s.db.nonce == b.nonce
		shareTo(t, i, slotBegun, to, "process %d, record %d: BEGIN")
	case slotBegun:
		if g.oldSnapshots && !g.faults.noRowLock && b.snapOwner && s.db.nonce != b.nonce {
			shareTo(t, i, slotRefused, to, "process %d, record %d: 40001, another owner has taken over")
			break
		}
		shareTo(t, i, slotLocked, to, "process %d, record %d: shares the owner's lock")
	case slotLocked:
		owner := s.db.nonce == b.nonce || g.faults.noEpoch && b.who != shareKeeper
		if g.oldSnapshots || g.faults.oneStatement {
			owner = b.snapOwner
		}
		if g.oldSnapshots {
			fits = b.snapPosition
		}
		if !owner || !fits {
			shareTo(t, i, slotRefused, to, "process %d, record %d: another owner, or below the position")
			break
		}
		shareTo(t, i, slotCompared, to, "process %d, record %d: owner compared, and the position is not above it")
	case slotCompared:
		g.insertShare(s, i, to)
	case slotInserted:
		g.finishShare(s, i, to)
	default:
		g.answerShare(s, i, to)
	}
	if !b.orphan && s.lost > 0 {
		t = s
		t.lost--
		t.processes[b.who].unknown = unknownOf(b)
		if t.txs[i].orphan = true; b.stage >= slotCommitted {
			t.txs[i] = shareTx{}
		}
		to(t, "process %d, record %d: the outcome is unknown", int(b.who), int(b.offset))
	}
}

// shareTo emits s with transaction i in another stage. An orphan that has ended disappears.
func shareTo(s shareState, i int, stage uint8, to emit[shareState], step string) {
	b := &s.txs[i]
	who, offset := int(b.who), int(b.offset)
	if b.stage = stage; b.orphan && stage >= slotCommitted {
		*b = shareTx{}
	}
	to(s, step, who, offset)
}

// keyed reports whether a transaction's row excludes others.
func (g *shareScope) keyed(b *shareTx) bool {
	return !g.faults.noKey && !(g.faults.keeperAsksOnly && b.who == shareKeeper)
}

// insertShare inserts the row of onlyonce.done, which waits for another one of the offset. A plain
// owner's transaction inserts one of onlyonce.progress.
func (g *shareScope) insertShare(s shareState, i int, to emit[shareState]) {
	b := &s.txs[i]
	for j := range s.txs {
		if other := &s.txs[j]; j != i && other.stage == slotInserted && other.offset == b.offset && other.single == b.single && g.keyed(b) && g.keyed(other) {
			return // waits
		}
	}
	if b.single && s.db.position > b.offset || !b.single && has(s.db.done, b.offset) && g.keyed(b) {
		shareTo(s, i, slotRefused, to, "process %d, record %d: 23505")
		return
	}
	shareTo(s, i, slotInserted, to, "process %d, record %d: inserted, the handler runs")
}

// finishShare ends a transaction in each of the ways that it may end.
func (g *shareScope) finishShare(s shareState, i int, to emit[shareState]) {
	b := &s.txs[i]
	t := s
	d, one := &t.db, uint8(1)<<b.offset
	switch {
	case (d.applied|d.parked)&one == 0:
	case b.park || d.parked&one != 0:
		t.breach(shareBoth)
	default:
		t.breach(shareTwice)
	}
	if b.single {
		d.position = b.offset + 1
	} else {
		d.done |= one
	}
	if b.park {
		d.parked |= one
	} else {
		d.applied |= one
	}
	shareTo(t, i, slotCommitted, to, "process %d, record %d: COMMIT")
	if b.orphan {
		shareTo(s, i, slotFailed, to, "process %d, record %d: rolled back")
	} else if s.fails > 0 && !b.park {
		t = s
		t.fails--
		shareTo(t, i, slotFailed, to, "process %d, record %d: the handler fails")
	}
}

// answerShare is what a process does with an answer: it acknowledges what is done, gives back or
// parks what has failed. If its fence has raised, it asks the database what is done.
func (g *shareScope) answerShare(s shareState, i int, to emit[shareState]) {
	b := s.txs[i]
	t := s
	t.txs[i] = shareTx{}
	p, o := int(b.who), b.offset
	one := &t.processes[p]
	switch {
	case b.stage == slotFailed && (one.last || p == shareKeeper) && t.send(g, p, o, true):
		to(t, "process %d parks %d", p, int(o))
		return
	case p < shareKeeper && int(s.broker[o]) == 1+p && (b.stage == slotFailed || b.stage == slotRefused && !has(s.db.done|below(s.db.position), o)):
		t.giveBack(g, o)
	case p < shareKeeper && int(s.broker[o]) == 1+p:
		t.broker[o] = shareAcknowledged
	}
	*one = shareProcess{}
	to(t, "process %d, record %d: answered", p, int(o))
}
