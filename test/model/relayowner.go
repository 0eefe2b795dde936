package main

// owner is what an owner does next, or its end.
func (g *relayScope) owner(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	if o.stage == relayAway {
		free := !s.held() || g.faults.raiseDoesNotWait
		inTurn := i != 1 || s.owners[0].stage != relayAway
		if s.lane.epoch < g.leases && free && inTurn {
			s.lane.epoch++
			*o = relayOwner{stage: relayLoads, epoch: s.lane.epoch}
			to(s, "relay of epoch %d takes the lane's lease", int(o.epoch), 0)
		}
		return
	}
	e := int(o.epoch)
	if s.lane.epoch < g.leases && (!o.move.sent || !s.late.sent) {
		t := s
		t.end(i)
		to(t, "relay of epoch %d dies", e, 0)
	}
	works := !o.drains && o.stage != relayLoads
	if g.drains && works && s.lane.epoch < g.leases {
		t := s
		t.owners[i].drains = true
		to(t, "relay of epoch %d is to give the lane back", e, 0)
	}
	if o.held || s.holds < g.holds {
		t := s
		if n := &t.owners[i]; n.held {
			n.held = false
			to(t, "the sink of the relay of epoch %d takes calls again", e, 0)
		} else {
			n.held = true
			t.holds++
			to(t, "the sink of the relay of epoch %d takes no calls", e, 0)
		}
	}
	rests := o.stage == relayIdle || o.stage == relayLoads
	if o.drains && rests && o.attempts == [relayCalls]uint8{} {
		t := s
		t.end(i)
		to(t, "relay of epoch %d has given the lane back", e, 0)
	}
	switch o.stage {
	case relaySent:
		g.carryOut(s, func(t *relayState) *relayMove { return &t.owners[i].move }, to)
		if s.lost < g.lost && !s.late.sent {
			t := s
			t.lost++
			t.late = o.move
			t.owners[i].move = relayMove{}
			t.owners[i].stage = relayUnknown
			to(t, "relay of epoch %d: the connection breaks, the move's outcome is unknown", e, 0)
		}
		return // it waits
	case relayLoads:
		t := s
		n := &t.owners[i]
		n.behind = false
		n.last = s.lane.last
		n.unread = s.lane.begun
		n.stage = relayIdle
		to(t, "relay of epoch %d reads the cursor, last id %d", e, int(s.lane.last))
	case relayIdle:
		g.readPass(s, i, to)
	case relayMoved:
		g.readChunk(s, i, to)
	case relayWorks:
		g.nextRow(s, i, to)
		g.finishChunk(s, i, to)
	case relayUnknown:
		if g.faults.callsWhileUnknown {
			g.nextRow(s, i, to)
		}
		g.finishChunk(s, i, to)
	}
	g.returns(s, i, to)
	g.parkedCalls(s, i, to)
}

// held reports whether a transaction has held the lease and is open.
func (s *relayState) held() bool {
	return s.late.held || s.owners[0].move.held || s.owners[1].move.held
}

// shut reports whether an owner begins no calls.
func (o *relayOwner) shut() bool { return o.drains || o.held }

// end is the end of an owner. What it has sent may still be carried out.
func (s *relayState) end(i int) {
	o := &s.owners[i]
	if o.move.sent {
		s.late = o.move
	}
	*o = relayOwner{}
}

// carryOut is the server's part of a move: onlyonce.hold, parkSQL, onlyonce.advance, COMMIT. If
// the take-over waits for the lease's lock, nothing that matters comes in between, and it is one
// step.
func (g *relayScope) carryOut(s relayState, of func(*relayState) *relayMove, to emit[relayState]) {
	m := *of(&s)
	if !m.sent {
		return
	}
	owner := -1
	for i := range s.owners {
		if of(&s) == &s.owners[i].move {
			owner = i
		}
	}
	refused := m.epoch != s.lane.epoch && !m.held && !g.faults.noHold
	if g.faults.raiseDoesNotWait && !m.held && !refused {
		t := s
		of(&t).held = true
		to(t, "a move under epoch %d holds the lease", int(m.epoch), 0)
		return
	}
	*of(&s) = relayMove{}
	switch {
	case refused:
		if owner >= 0 {
			s.end(owner)
		}
		to(s, "a move under epoch %d: OO001, the lease is another's", int(m.epoch), 0)
		return
	case m.behind && !g.faults.versionNotCompared:
		if owner >= 0 {
			s.chunkEnds(g, owner)
			s.owners[owner].stage = relayLoads
		}
		to(s, "a move under epoch %d: OO008, the lane has moved", int(m.epoch), 0)
		return
	}
	if m.epoch != s.lane.epoch {
		s.breach(relayZombie)
	}
	if !g.faults.cursorBeforeParking {
		s.parkAll(g, &m)
	}
	l := &s.lane
	switch {
	case m.newPass:
		if l.begun {
			l.prev = l.target
			if g.faults.targetNotStored {
				l.prev = m.target
			}
		}
		l.target = s.now()
		l.begun = true
		if !g.faults.lastKept {
			l.last = 0
		}
	default:
		l.last = m.last
	}
	for i := range s.owners {
		s.owners[i].behind, s.owners[i].move.behind = s.owners[i].stage > relayLoads, s.owners[i].move.sent
	}
	s.late.behind = s.late.sent
	if owner >= 0 {
		o := &s.owners[owner]
		o.behind = false
		o.last = l.last
		s.chunkEnds(g, owner)
		o.stage = relayMoved
		if g.faults.cursorBeforeParking {
			o.move.park = m.park
		}
		if !m.newPass && !o.same {
			o.stage = relayIdle
			o.unread = true
		}
	}
	if m.newPass {
		to(s, "a move under epoch %d: a new pass, COMMIT", int(m.epoch), 0)
		return
	}
	to(s, "a move under epoch %d: last id %d, COMMIT", int(m.epoch), int(m.last))
}

// parkAll is parkSQL.
func (s *relayState) parkAll(g *relayScope, m *relayMove) {
	for x := range g.calls {
		if m.park[x] != callNotParked && s.parked[x] == callNotParked {
			s.parked[x] = m.park[x]
			s.cut |= m.cut & bit(x)
		}
	}
}

// chunkEnds is (*lanePass).chunkCommitted: calls that are under way are settled in their parked
// rows, and keys with a call that was parked behind another are looked at again.
func (s *relayState) chunkEnds(g *relayScope, i int) {
	o := &s.owners[i]
	for x := range g.calls {
		switch o.rows[x] {
		case sentUnderWay:
			if o.attempts[x] == sentUnderWay {
				s.breach(relayTwo)
			}
			o.attempts[x] = sentUnderWay
		case sentBehind:
			if !g.faults.noPromoteBehind {
				o.promote |= bit(g.keys[x])
			}
		}
	}
	o.rows = [relayCalls]uint8{}
}

// send sends a move.
func (g *relayScope) send(t *relayState, i int, m relayMove) {
	o := &t.owners[i]
	m.sent = true
	m.epoch = o.epoch
	m.behind = o.behind
	if g.faults.targetNotStored {
		m.target = t.now()
	}
	o.move = m
	o.stage = relaySent
}

// readPass goes on with the pass that is there, or begins the next one.
func (g *relayScope) readPass(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	e := int(o.epoch)
	switch {
	case o.shut():
	case o.unread:
		o.same = true
		g.send(&s, i, relayMove{last: o.last})
		to(s, "relay of epoch %d goes on with the pass after id %d", e, int(o.last))
	case o.behind, !s.lane.begun, s.lane.target != s.now(), s.lane.prev != s.lane.target:
		o.same = false
		g.send(&s, i, relayMove{newPass: true})
		to(s, "relay of epoch %d begins a pass", e, 0)
	}
}

// pass are the calls of the lane's pass above the last id.
func (s *relayState) pass(g *relayScope, last uint8) (calls uint8) {
	l := &s.lane
	for x := range g.calls {
		w := s.of(g, x)
		target := l.target
		if g.faults.targetNotStored {
			target = s.now()
		}
		if w.stage != relayCommitted || !target.sees(w.xid) {
			continue
		}
		first := w.number * relayBlock
		above := s.id(g, x) > last
		if g.faults.batchByFirstID {
			above = above && first > last
		}
		ranThen := has(l.prev.xip, w.xid) && !g.faults.inProgressIgnored
		if above && (w.xid >= l.prev.xmax || ranThen) {
			calls |= bit(x)
		}
	}
	return calls
}

// readChunk reads the next chunk: some batches of the pass, and which ordering keys are blocked.
func (g *relayScope) readChunk(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	e := int(o.epoch)
	if g.faults.cursorBeforeParking && o.move.park != [relayCalls]uint8{} {
		s.parkAll(g, &o.move)
		o.move.park = [relayCalls]uint8{}
		to(s, "relay of epoch %d parks what the chunk has left", e, 0)
		return
	}
	calls := uint8(0)
	if !o.behind {
		calls = s.pass(g, o.last)
	}
	if o.unread = calls != 0; !o.unread {
		o.stage = relayIdle
		to(s, "relay of epoch %d: the pass has no call left", e, 0)
		return
	}
	o.blocked = 0
	switch {
	case g.faults.blockedNotAsked:
	case g.faults.blockedKept && o.same:
		o.blocked = o.asked
	default:
		for k := uint8(1); k < relayKeys; k++ {
			if s.first(g, k) >= 0 {
				o.blocked |= bit(k)
			}
		}
	}
	if g.faults.blockedKept {
		o.asked = o.blocked
	}
	if !g.faults.keysUnderWayIgnored {
		o.blocked |= o.keysUnderWay(g)
	}
	o.stage = relayWorks
	for n := 1; calls != 0; n++ {
		next := -1
		for x := range g.calls {
			if has(calls, x) && (next < 0 || g.before(&s, x, next)) {
				next = x
			}
		}
		for x := range g.calls {
			if has(calls, x) && g.writer[x] == g.writer[next] {
				o.rows[x] = sentUnlooked
				calls &^= bit(x)
			}
		}
		o.more = calls != 0
		t := s
		g.skipRows(&t, &t.owners[i])
		to(t, "relay of epoch %d reads a chunk of %d batches", e, n)
	}
}
