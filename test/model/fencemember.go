package main

// memberStep is what member i does next: take over, run batches, and find out what became of them.
func (g *fenceScope) memberStep(s fenceState, i int, to emit[fenceState]) {
	m := &s.members[i]
	t := s
	n := &t.members[i]
	switch m.stage {
	case memberIdle:
		if m.generation == 0 {
			return
		}
		n.seenEpoch = s.db.epoch
		n.stage = memberRead
		if g.raiseWithoutProof {
			n.stage = memberProved
		}
		to(t, "member %d reads epoch %d", i, int(n.seenEpoch))
	case memberRead:
		n.stage = memberProved
		if m.generation != s.generation {
			n.stage = memberOut
		}
		to(t, "member %d commits an offset in generation %d, as proof", i, int(m.generation))
	case memberProved, memberRaises, memberRaised:
		g.raise(s, i, to)
	case memberOwner, memberUnknown:
		if m.stage == memberUnknown && g.unknownIsSuccess {
			n.position = m.next
			n.stage = memberOwner
			if n.position > s.db.position() {
				t.bad = 5
			}
			to(t, "member %d takes the unknown COMMIT for a success", i, 0)
			return
		}
		for next := m.position + 1; next <= m.position+2 && int(next) <= g.offsets; next++ {
			u := s
			if u.members[i].send(next) {
				to(u, "member %d sends a batch up to %d", i, int(next))
			}
		}
	case memberWaits:
		g.answer(s, i, to)
	case memberRefused:
		g.explain(s, i, to)
	}
}

// send puts a batch from the member's position to next on a connection of its own, if one is free.
func (m *fenceMember) send(next uint8) bool {
	for k := range m.attempts {
		if m.attempts[k].stage == fenceNone {
			m.attempts[k] = fenceAttempt{stage: fenceSent, from: m.position, next: next, epoch: m.epoch, nonce: m.nonce}
			m.current = uint8(k)
			m.from = m.position
			m.next = next
			m.stage = memberWaits
			return true
		}
	}
	return false
}

// raise takes the owner's lock to itself, raises the epoch that was read, and commits. It waits for
// each transaction that shares the lock.
func (g *fenceScope) raise(s fenceState, i int, to emit[fenceState]) {
	m := &s.members[i]
	waits := s.locked() && !g.noLock
	t := s
	n := &t.members[i]
	switch {
	case m.stage == memberProved && !g.raiseBeforeLock:
		if !waits {
			n.stage = memberRaises
			to(t, "member %d has the owner's lock to itself", i, 0)
		}
	case m.stage == memberRaised:
		if !waits {
			n.position = s.db.position()
			n.stage = memberOwner
			to(t, "member %d has had the lock, and reads position %d", i, int(n.position))
		}
	case s.db.epoch != m.seenEpoch && !g.raiseWithoutProof:
		n.stage = memberIdle
		to(t, "member %d: the epoch is another one, begins anew", i, 0)
	default:
		t.nonce++
		t.db.epoch = s.db.epoch + 1
		t.db.nonce = t.nonce
		t.db.generation = m.generation
		n.epoch = t.db.epoch
		n.nonce = t.nonce
		n.position = s.db.position()
		n.stage = memberOwner
		n.seenEpoch = 0
		if g.raiseBeforeLock {
			n.stage = memberRaised
		}
		to(t, "member %d raises the epoch, COMMIT; position %d", i, int(n.position))
	}
}

// locked reports whether a transaction, or another take-over, has the owner's lock.
func (s *fenceState) locked() bool {
	for i := range s.members {
		if s.members[i].stage == memberRaises {
			return true
		}
		for _, a := range s.members[i].attempts {
			if a.locks() {
				return true
			}
		}
	}
	return false
}

// answer hands the answer to the member, or the connection breaks before.
func (g *fenceScope) answer(s fenceState, i int, to emit[fenceState]) {
	m := &s.members[i]
	t := s
	n := &t.members[i]
	a := &n.attempts[m.current]
	switch a.stage {
	case fenceRaised:
		*a, n.stage = fenceAttempt{}, memberRefused
		to(t, "member %d is answered OO001", i, 0)
	case fenceCommitted:
		*a = fenceAttempt{}
		n.stage = memberOwner
		n.position = m.next
		to(t, "member %d is answered COMMIT, position %d", i, int(n.position))
	case fenceRolledBack:
		*a, n.stage = fenceAttempt{}, memberOwner
		to(t, "member %d is answered an error", i, 0)
	}
	u := s
	v := &u.members[i]
	v.stage = memberUnknown
	if b := &v.attempts[m.current]; b.stage >= fenceRaised {
		*b = fenceAttempt{}
	} else {
		b.orphan = true
	}
	to(u, "member %d: the outcome is UNKNOWN", i, 0)
}

// explain reads the cursor in a later statement, as (*positionFence).explain does.
func (g *fenceScope) explain(s fenceState, i int, to emit[fenceState]) {
	m := &s.members[i]
	t := s
	n := &t.members[i]
	n.from = 0
	n.next = 0
	position := s.db.position()
	switch {
	case s.db.nonce != m.nonce:
		n.stage = memberOut
		to(t, "member %d: the cursor has another owner, stops", i, 0)
	case position == m.next || g.anyRowIsMine:
		n.position = m.next
		n.stage = memberOwner
		if n.position > position {
			t.bad = 5
		}
		to(t, "member %d: the cursor is mine, and at %d: that attempt has committed", i, int(m.next))
	default:
		n.position = position
		n.stage = memberOwner
		to(t, "member %d: the cursor is mine, and at %d: goes on there", i, int(position))
	}
}
