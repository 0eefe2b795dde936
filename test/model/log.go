package main

// The log of the outbox and its segments: rule O8, and of O2 how batches are read again by their
// places. The model has what the code has: onlyonce.enqueue_batch (a transaction id first, then
// the ring's row, then the INSERT), internal/ring's Rotator with outboxNeeded, passRefs and
// (*passReader).fetchNext.
//
//   - Each transaction writes one batch. A batch's place is its segment and its number there.
//   - TRUNCATE waits for transactions that have inserted into the table.
//   - The rotator derives each step from the row. It waits for the transactions that had an id
//     when it began to wait.
//   - A relay is told of a batch's place, and reads it later. It may have been replaced meanwhile.
//
// Left out: rotators that are replaced (ring.go), erased calls, which move their batch, segments
// of several lanes, and chunks (relay.go).

// Bounds of the arrays. The scopes choose less.
const (
	logWriters = 3
	logSlots   = 3
	logRelays  = 2
)

// logScope is what is explored, and which protection is left out.
type logScope struct {
	writers, slots int
	announces      uint8
	leases         uint8
	oldSnapshots   bool // above READ COMMITTED: a transaction reads the row as of its begin

	faults logFaults
}

// logFaults are protections that can be left out.
type logFaults struct {
	rowBeforeID, closeAtOnce, noSecondLook, oldRowNotRefused bool
	neededByTarget, inProgressIgnored, placeOnly             bool
}

// Stages of a transaction that enqueues.
const (
	logNew = iota
	logBegun
	logRead // has read the ring's row
	logInserted
	logCommitted
	logEnded // rolled back, or its segment was emptied
)

// logWriter is a transaction with its batch.
type logWriter struct {
	stage, xid, place uint8
	slot              int8
	version           uint8 // of the row as of its snapshot
	snapSlot          int8
	waitedFor         bool
}

// Stages of the rotator.
const (
	logDecides = iota
	logWaitsToClose
	logCloses
	logLooked // a fault: it has looked, and empties without a second look
)

// logRelay is a relay. Refs are the batches of its pass that it has not read.
type logRelay struct {
	owner, refs uint8
	slots       [logWriters]int8
	places      [logWriters]uint8
}

type logState struct {
	writers            [logWriters]logWriter
	current, draining  int8
	closed, retired    uint8
	version, announced uint8
	places             [logSlots]uint8
	rotator            uint8
	prev, target       relaySnap
	owner, xid         uint8
	relays             [logRelays]logRelay
	sent               uint8
	bad                uint8
}

const (
	logDeleted = iota + 1
	logPlace
	logSkipped
)

var logBreaches = []string{"", "call DELETED that was not made", "another call in its PLACE", "call LOST"}

func logModel(g *logScope) model[logState] {
	s := logState{draining: -1, announced: 1, prev: relaySnap{xmax: 1}, target: relaySnap{xmax: 1}}
	for i := range s.writers {
		s.writers[i].slot = -1
		s.writers[i].snapSlot = -1
	}
	return model[logState]{
		init: s,
		bad:  func(s *logState) string { return logBreaches[s.bad] },
		next: func(s logState, out emit[logState]) {
			to := func(t logState, step string, a, b int) { g.judge(&t); out(t, step, a, b) }
			for i := range g.writers {
				g.write(s, i, to)
			}
			g.rotate(s, to)
			for i := range s.relays {
				g.relay(s, i, to)
			}
		},
	}
}

func (g *logScope) judge(s *logState) {
	for i := range s.writers {
		w := &s.writers[i]
		passed := w.stage == logCommitted && s.prev.sees(w.xid)
		if s.bad == 0 && passed && !has(s.sent, i) {
			s.bad = logSkipped
		}
	}
	a := &s.relays[0]
	b := &s.relays[1]
	if a.owner < b.owner {
		*a, *b = *b, *a
	}
}

func (s *logState) now() relaySnap {
	n := relaySnap{xmax: s.xid + 1}
	for _, w := range s.writers {
		if w.xid != 0 && w.stage < logCommitted {
			n.xip |= bit(w.xid)
		}
	}
	return n
}

// write is the next statement of a transaction, or its ROLLBACK.
func (g *logScope) write(s logState, i int, to emit[logState]) {
	w := &s.writers[i]
	id := func() {
		if w.xid == 0 {
			s.xid++
			w.xid = s.xid
		}
	}
	if w.stage == logInserted {
		t := s
		t.writers[i] = logWriter{stage: logEnded, slot: -1, snapSlot: -1}
		to(t, "transaction %d: ROLLBACK", i, 0)
	}
	switch w.stage {
	case logNew:
		if g.oldSnapshots && w.snapSlot < 0 {
			w.snapSlot = s.current
			w.version = s.version
			to(s, "transaction %d: its snapshot is taken", i, 0)
			return
		}
		w.stage = logBegun
		if !g.faults.rowBeforeID {
			id()
		}
		to(s, "transaction %d: BEGIN", i, 0)
	case logBegun:
		w.slot = s.current
		w.stage = logRead
		if g.oldSnapshots {
			w.slot = w.snapSlot
			if w.version != s.version && !g.faults.oldRowNotRefused {
				*w = logWriter{stage: logEnded, slot: -1, snapSlot: -1}
				to(s, "transaction %d is refused: 40001", i, 0)
				return
			}
		}
		to(s, "transaction %d reads that slot %d is current", i, int(w.slot))
	case logRead:
		id()
		w.place = s.places[w.slot]
		w.stage = logInserted
		s.places[w.slot]++
		to(s, "transaction %d inserts into slot %d", i, int(w.slot))
	case logInserted:
		w.stage = logCommitted
		w.snapSlot = -1
		w.version = 0
		w.waitedFor = false
		to(s, "transaction %d: COMMIT", i, 0)
	}
}

// needed is outboxNeeded: whether the segment has a batch that is not done.
func (g *logScope) needed(s *logState, slot int8) bool {
	prev := s.prev
	if g.faults.neededByTarget {
		prev = s.target
	}
	for _, w := range s.writers {
		ignored := g.faults.inProgressIgnored && w.xid < prev.xmax
		there := w.stage == logCommitted && w.slot == slot
		if there && !prev.sees(w.xid) && !ignored {
			return true
		}
	}
	return false
}

// rotate is the rotator's next step.
func (g *logScope) rotate(s logState, to emit[logState]) {
	switch s.rotator {
	case logWaitsToClose:
		for _, w := range s.writers {
			if w.waitedFor && w.stage < logCommitted {
				return
			}
		}
		s.rotator = logCloses
		to(s, "the rotator: all transactions have ended that had an id", 0, 0)
		return
	case logCloses:
		s.closed |= bit(s.draining)
		slot := s.draining
		s.draining = -1
		s.rotator = logDecides
		s.version++
		to(s, "the rotator closes slot %d", int(slot), 0)
		return
	case logLooked:
		g.truncate(s, to)
		return
	}
	switch {
	case s.draining >= 0:
		s.rotator = logCloses
		if !g.faults.closeAtOnce {
			s.rotator = logWaitsToClose
			for i := range s.writers {
				if w := &s.writers[i]; w.xid != 0 && w.stage < logCommitted {
					w.waitedFor = true
				}
			}
		}
		to(s, "the rotator begins to wait", 0, 0)
		return
	case s.retired != 0:
		if g.faults.noSecondLook {
			s.rotator = logLooked
			to(s, "the rotator goes on to TRUNCATE", 0, 0)
			return
		}
		g.truncate(s, to)
		return
	}
	for slot := range int8(g.slots) {
		t := s
		if has(s.closed, slot) && !g.needed(&s, slot) {
			t.closed &^= bit(slot)
			t.retired |= bit(slot)
			t.version++
			to(t, "the rotator retires slot %d", int(slot), 0)
		}
		if t := s; s.announced < g.announces && slot != s.current && !has(s.closed, slot) {
			t.draining = s.current
			t.current = slot
			t.announced++
			t.version++
			to(t, "the rotator announces slot %d", int(slot), 0)
		}
	}
}

// truncate empties the retired segment, when no transaction that has inserted is open, and after a
// second look under the lock.
func (g *logScope) truncate(s logState, to emit[logState]) {
	slot := int8(0)
	for !has(s.retired, slot) {
		slot++
	}
	for _, w := range s.writers {
		if w.stage == logInserted && w.slot == slot {
			return
		}
	}
	if !g.faults.noSecondLook && g.needed(&s, slot) {
		return // until it is not needed
	}
	for i := range s.writers {
		if w := &s.writers[i]; w.stage == logCommitted && w.slot == slot {
			if !has(s.sent, i) {
				s.bad = logDeleted
			}
			*w = logWriter{stage: logEnded, xid: w.xid, slot: -1, snapSlot: -1}
		}
	}
	s.places[slot] = 0
	s.rotator = logDecides
	s.retired &^= bit(slot)
	s.version++
	to(s, "the rotator empties slot %d", int(slot), 0)
}

// relay is what a relay does next.
func (g *logScope) relay(s logState, i int, to emit[logState]) {
	r := &s.relays[i]
	if s.owner < g.leases && !(i == 1 && s.relays[0].owner == 0) {
		t := s
		t.owner++
		t.relays[i] = logRelay{owner: t.owner}
		g.refs(&t, &t.relays[i])
		to(t, "relay %d takes the lane, and reads where the pass's batches are", int(t.owner), 0)
	}
	if r.owner == 0 {
		return
	}
	free := r.refs == 0 && r.owner == s.owner
	if free && (s.target != s.now() || s.prev != s.target) {
		t := s
		t.prev, t.target = s.target, s.now()
		g.refs(&t, &t.relays[i])
		to(t, "relay %d begins a pass, and reads where its batches are", int(r.owner), 0)
	}
	for x := range g.writers {
		if !has(r.refs, x) {
			continue
		}
		t := s
		n := &t.relays[i]
		at := -1
		for y := range g.writers {
			if w := &s.writers[y]; w.stage == logCommitted && w.slot == r.slots[x] && w.place == r.places[x] {
				at = y
			}
		}
		if at >= 0 && at != x && g.faults.placeOnly {
			t.bad = logPlace
			to(t, "relay %d reads batch %d by its place, where another one is", int(r.owner), x)
			continue
		}
		if at != x {
			*n = logRelay{}
			to(t, "relay %d: batch %d is not in its place, the relay ends", int(r.owner), x)
			continue
		}
		n.refs &^= bit(x)
		n.slots[x] = 0
		n.places[x] = 0
		t.sent |= bit(x)
		to(t, "relay %d reads batch %d, and makes its calls", int(r.owner), x)
	}
}

// refs is passRefs: the places of the pass's batches, in all segments. It reads them at once: those
// of a pass are frozen, so that reading them in portions finds the same.
func (g *logScope) refs(s *logState, r *logRelay) {
	for x := range g.writers {
		if w := &s.writers[x]; w.stage == logCommitted && s.target.sees(w.xid) && !s.prev.sees(w.xid) {
			r.refs |= bit(x)
			r.slots[x] = w.slot
			r.places[x] = w.place
		}
	}
}

func logTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*logScope)) {
		all = append(all, entry{"log/" + name, want, nightly, func() result {
			g := logScope{writers: 2, slots: 2, announces: 3, leases: 1}
			change(&g)
			return explore(logModel(&g))
		}})
	}
	old := func(g *logScope) { g.oldSnapshots = true }
	taken := func(g *logScope) { g.leases = 2 }
	add("O8/2 transactions, 2 slots", "", false, func(*logScope) {})
	add("O8/2 transactions, 2 slots, old snapshots", "", false, old)
	add("O8/2 relays", "", false, taken)
	add("O8/3 transactions, 3 slots", "", true, func(g *logScope) {
		g.writers = 3
		g.slots = 3
	})
	add("O8/3 transactions, 2 slots, 2 relays", "", true, func(g *logScope) { taken(g); g.writers = 3 })
	add("O8/3 transactions, 2 slots, old snapshots", "", true, func(g *logScope) { old(g); g.writers = 3 })
	// The second look under the lock makes up for each of the others, and they for it.
	add("O8/closed without waiting for writers: holds too", "", false, func(g *logScope) { taken(g); g.faults.closeAtOnce = true })
	add("O8/row read before the transaction has an id: holds too", "", false, func(g *logScope) { taken(g); g.faults.rowBeforeID = true })
	add("O8/an old snapshot's row is believed: holds too", "", false, func(g *logScope) { old(g); g.faults.oldRowNotRefused = true })
	add("O8/no second look under the lock: holds too", "", false, func(g *logScope) { taken(g); g.faults.noSecondLook = true })

	fault := func(name, want string, scope func(*logScope), seed func(*logFaults)) {
		add(name, want, false, func(g *logScope) { scope(g); seed(&g.faults) })
	}
	once := func(*logScope) {}
	fault("O8/closed without waiting for writers, no second look", "DELETED", once, func(f *logFaults) {
		f.closeAtOnce = true
		f.noSecondLook = true
	})
	fault("O8/row read before the transaction has an id, no second look", "DELETED", once, func(f *logFaults) {
		f.rowBeforeID = true
		f.noSecondLook = true
	})
	fault("O8/an old snapshot's row is believed, no second look", "DELETED", old, func(f *logFaults) {
		f.oldRowNotRefused = true
		f.noSecondLook = true
	})
	fault("O8/a pass counts as done when it begins", "DELETED", once, func(f *logFaults) { f.neededByTarget = true })
	fault(
		"O8/transactions in progress at the cursor are not looked at",
		"DELETED",
		func(g *logScope) { g.writers = 3 },
		func(f *logFaults) { f.inProgressIgnored = true },
	)
	fault("O2/batches are read again by their place alone", "PLACE", taken, func(f *logFaults) { f.placeOnly = true })
	return all
}
