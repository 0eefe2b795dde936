package main

// before reports whether call x comes before y in a pass.
func (g *relayScope) before(s *relayState, x, y int) bool {
	a := s.of(g, x).xid
	b := s.of(g, y).xid
	if g.faults.byTransaction && a != b {
		return a < b
	}
	return s.id(g, x) < s.id(g, y)
}

// keysUnderWay is (*parkedCalls).keysUnderWay.
func (o *relayOwner) keysUnderWay(g *relayScope) (keys uint8) {
	for x := range g.calls {
		if o.attempts[x] != sentAbsent {
			keys |= bit(g.keys[x])
		}
	}
	return keys &^ 1
}

// nextUnlooked is the first call of the chunk that was not looked at, or -1.
func (g *relayScope) nextUnlooked(s *relayState, o *relayOwner) int {
	next := -1
	for x := range g.calls {
		if o.rows[x] == sentUnlooked && (next < 0 || g.before(s, x, next)) {
			next = x
		}
	}
	return next
}

// busy reports whether the chunk has a call of the key under way, or waiting for its turn.
func (o *relayOwner) busy(g *relayScope, key uint8) bool {
	for x := range g.calls {
		if g.keys[x] == key && (o.rows[x] == sentUnderWay || o.rows[x] == sentWaits) {
			return true
		}
	}
	return false
}

// skipRows is (*chunk).skipRows.
func (g *relayScope) skipRows(s *relayState, o *relayOwner) {
	for x := g.nextUnlooked(s, o); x >= 0; x = g.nextUnlooked(s, o) {
		switch key := g.keys[x]; {
		case key != 0 && has(o.blocked, key):
			o.rows[x] = sentBehind
		case key != 0 && o.busy(g, key):
			o.rows[x] = sentWaits
		default:
			return
		}
	}
}

// nextRow begins the next call of the chunk.
func (g *relayScope) nextRow(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	x := g.nextUnlooked(&s, o)
	if x < 0 || o.shut() {
		return
	}
	o.rows[x] = sentUnderWay
	g.skipRows(&s, o)
	g.begin(&s, i, x, false)
	to(s, "relay of epoch %d makes call %d", int(o.epoch), x)
}

// begin is a call that leaves.
func (g *relayScope) begin(s *relayState, i, x int, parked bool) {
	o := &s.owners[i]
	if !s.committed(g, x) {
		s.breach(relayPhantom)
	}
	if o.epoch == s.lane.epoch {
		if !parked && s.parked[x] != callNotParked {
			s.breach(relayAgain)
		}
		for y := range g.calls {
			if s.earlier(g, y, x) && (o.attempts[y] == sentUnderWay || o.rows[y] == sentUnderWay) {
				s.breach(relayOrder)
			}
		}
	}
	if o.attempts[x] == sentUnderWay && !parked {
		s.breach(relayTwo)
	}
	s.sent |= bit(x)
}

// returns takes in calls that have returned.
func (g *relayScope) returns(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	e := int(o.epoch)
	for x := range g.calls {
		inChunk := o.rows[x] == sentUnderWay
		if !inChunk && o.attempts[x] != sentUnderWay {
			continue
		}
		ends := func(t relayState, as uint8, step string) {
			n := &t.owners[i]
			if !inChunk {
				n.attempts[x] = as
			} else {
				n.rows[x] = as
				g.nextOfKey(&t, i, x, as)
			}
			to(t, step, e, x)
		}
		if has(s.effect, x) {
			ends(s, sentDelivered, "relay of epoch %d is told that call %d is delivered")
		}
		if s.fails < g.fails {
			t := s
			t.fails++
			ends(t, sentFails, "relay of epoch %d gets no answer to call %d")
			if g.rejects {
				ends(t, sentRejected, "relay of epoch %d: call %d is rejected")
			}
		}
	}
}

// nextOfKey is (*chunk).nextOfKey: a call of the key that waits is made, or parked with those
// behind it.
func (g *relayScope) nextOfKey(t *relayState, i, x int, as uint8) {
	o := &t.owners[i]
	if g.keys[x] == 0 {
		return
	}
	if as != sentDelivered && !g.faults.followsFailure {
		g.blockKey(t, o, g.keys[x])
		return
	}
	next := -1
	for y := range g.calls {
		if o.rows[y] != sentWaits || g.keys[y] != g.keys[x] {
			continue
		}
		if next < 0 || t.id(g, y) < t.id(g, next) {
			next = y
		}
	}
	if next >= 0 && !o.shut() {
		o.rows[next] = sentUnderWay
		g.begin(t, i, next, false)
	}
	g.skipRows(t, o)
}

// blockKey is (*chunk).blockKey.
func (g *relayScope) blockKey(t *relayState, o *relayOwner, key uint8) {
	o.blocked |= bit(key)
	for y := range g.calls {
		if o.rows[y] == sentWaits && g.keys[y] == key {
			o.rows[y] = sentBehind
		}
	}
	g.skipRows(t, o)
}

// finishChunk writes what became of the chunk, also while calls are under way.
func (g *relayScope) finishChunk(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	if o.stage == relayUnknown && o.rows == [relayCalls]uint8{} {
		// It was a read of a pass, which is made again.
		o.stage = relayIdle
		g.readPass(s, i, to)
		return
	}
	m := relayMove{last: o.last}
	m.park = g.rowsToPark(&s, o)
	looked := false
	for x := range g.calls {
		if o.rows[x] == sentUnderWay {
			m.cut |= bit(x)
		}
		if o.rows[x] > sentUnlooked {
			looked = true
			if id := s.id(g, x); id > m.last || g.faults.byTransaction {
				m.last = id
			}
		}
	}
	if g.faults.lastOfBatch {
		m.last |= relayBlock - 1
	}
	if !looked && !o.shut() {
		return
	}
	whole := g.nextUnlooked(&s, o) < 0
	m.newPass = whole && !o.more && !o.shut()
	o.same = whole && o.more && !o.shut()
	if g.faults.restForgotten && !o.same {
		o.more = false
	}
	if m.newPass {
		m.last = 0
	}
	g.send(&s, i, m)
	to(s, "relay of epoch %d writes what became of the chunk", int(o.epoch), 0)
}

// rowsToPark is (*chunk).rowsToPark.
func (g *relayScope) rowsToPark(s *relayState, o *relayOwner) (park [relayCalls]uint8) {
	for x := range g.calls {
		if o.rows[x] == sentUnderWay && g.keys[x] != 0 {
			g.blockKey(s, o, g.keys[x])
		}
	}
	for n := uint8(0); n < (relayWriters+1)*relayBlock; n++ { // in the order of ids
		for x := range g.calls {
			if o.rows[x] == sentAbsent || s.id(g, x) != n {
				continue
			}
			if o.rows[x] == sentWaits && g.keys[x] != 0 {
				if has(o.blocked, g.keys[x]) {
					o.rows[x] = sentBehind
				}
				o.blocked |= bit(g.keys[x])
			}
			switch o.rows[x] {
			case sentFails:
				park[x] = callRetrying
			case sentUnderWay:
				if !g.faults.lateNotParked {
					park[x] = callRetrying
				}
			case sentWaits:
				if !g.faults.waitingNotParked {
					park[x] = callRetrying
				}
			case sentRejected:
				park[x] = callWaiting
			case sentBehind:
				park[x] = callBlocked
			}
		}
	}
	return park
}

// parkedCalls picks and settles parked calls, and promotes. An owner that waits for the answer to
// a move does neither.
func (g *relayScope) parkedCalls(s relayState, i int, to emit[relayState]) {
	o := &s.owners[i]
	e := int(o.epoch)
	owns := o.epoch == s.lane.epoch || g.faults.noHold
	for x := range g.calls {
		if as := o.attempts[x]; as > sentUnderWay {
			t := s
			if !owns {
				t.end(i)
				to(t, "relay of epoch %d: its settlement of call %d raises OO001", e, x)
				continue
			}
			t.settle(g, i, x, as)
			to(t, "relay of epoch %d settles call %d", e, x)
		}
		if g.mayPick(&s, o, x) {
			t := s
			if !owns {
				t.end(i)
				to(t, "relay of epoch %d: its pick of call %d raises OO001", e, x)
				continue
			}
			if t.owners[i].attempts[x] == sentUnderWay || t.owners[i].rows[x] == sentUnderWay {
				t.breach(relayTwo)
			}
			t.owners[i].attempts[x] = sentUnderWay
			t.cut &^= bit(x)
			g.begin(&t, i, x, true)
			to(t, "relay of epoch %d picks call %d, and makes it", e, x)
		}
	}
	for k := uint8(1); k < relayKeys; k++ {
		if has(o.promote, k) {
			t := s
			t.owners[i].promote &^= bit(k)
			t.promoteKey(g, k)
			to(t, "relay of epoch %d promotes key %d", e, int(k))
		}
		if t := s; !g.faults.noSweep && o.stage == relayIdle && t.promoteKey(g, k) {
			to(t, "relay of epoch %d sweeps, and promotes key %d", e, int(k))
		}
	}
}

// mayPick is what pickSQL asks, and what of it an owner remembers.
func (g *relayScope) mayPick(s *relayState, o *relayOwner, x int) bool {
	if s.parked[x] != callRetrying || o.shut() || o.stage == relayLoads {
		return false
	}
	tried := o.attempts[x] != sentAbsent && !g.faults.pickedWhileUnderWay
	if tried || o.attempts[x] > sentUnderWay {
		return false
	}
	if o.stage == relayUnknown && has(s.cut, x) && !g.faults.cutDueAtOnce {
		return false
	}
	return g.keys[x] == 0 ||
		(g.faults.pickedOutOfTurn || s.first(g, g.keys[x]) == x) &&
			(g.faults.keysUnderWayIgnored || g.faults.pickedWhileUnderWay || !has(o.keysUnderWay(g), g.keys[x]))
}

// settle is settleSQL. A row that an operator has changed stays as it is.
func (s *relayState) settle(g *relayScope, i, x int, as uint8) {
	o := &s.owners[i]
	if o.epoch != s.lane.epoch {
		s.breach(relayZombie)
	}
	o.attempts[x] = sentAbsent
	if as == sentDelivered && !g.faults.noPromoteSettled {
		o.promote |= bit(g.keys[x]) &^ 1
	}
	if s.parked[x] != callRetrying {
		return
	}
	switch as {
	case sentDelivered:
		s.parked[x] = callResolved
	case sentRejected:
		s.parked[x] = callWaiting
	}
}
