package main

// A lane's cursor over a promotion, and over a restore into another cluster: rules O3 and O9, as
// onlyonce.advance, loadCursorSQL, (*heldLane).awaitStandbys and ops.Rebase have them. A new
// primary has what the standby has replayed: its next transaction id follows the highest one that
// left a record there, so that ids are used again for other transactions. A dump has what had
// committed, and its ids are those of the old cluster, while the new one begins with small ones.
//
// Each transaction writes a batch of two calls. A pass is two steps: its target is stored, and
// calls are made; it may be left in the middle of a batch, with the first call delivered or
// parked. The cursor is in the database, with the system identifier.
//
// Rebase tells batches of this cluster from restored ones by xmin and by time (judgedSQL); here it
// simply knows. Left out: relays that live on with calls under way (attempts.go), ages of keys
// (window.go), and a second failover.

// Bounds of the arrays. The scopes choose less.
const (
	historyTxs   = 4 // the last two begin on the new primary
	historyCalls = 2
)

// historyScope is what is explored, and which protection is left out.
type historyScope struct {
	txs     int
	ids     uint8 // that are given out at most
	dump    bool  // in place of a promotion
	waitFor bool
	halves  bool // passes are left in the middle of a batch

	faults historyFaults
}

// historyFaults are protections that can be left out.
type historyFaults struct {
	fromMemory, notCompared, olderID, notWaited bool
	standWithID, notDivided                     bool
}

// Stages of a transaction that enqueues.
const (
	historyNew = iota
	historyOpen
	historyWritten // left a record
	historyCommitted
	historyEnded
)

// States of a call.
const (
	historyPending = iota
	historyDelivered
	historyParked
)

type historyTx struct {
	stage, xid uint8
	xids       [historyCalls]uint8 // of the batch's parts, after a rebase
	calls      [historyCalls]uint8
	restored   bool
}

// historyDB is what is committed, and what has left a record.
type historyDB struct {
	txs           [historyTxs]historyTx
	prev, target  relaySnap
	begun, half   bool // half: last_id is in the middle of the batch of transaction 0
	otherCluster  bool // the system identifier is not the cursor's
	highestRecord uint8
}

// Stages of a rebase.
const (
	rebaseNone = iota
	rebaseStands
	rebaseRewritten
	rebaseDone
)

type historyState struct {
	db, standby        historyDB
	next, own          uint8
	memory             relaySnap
	replayed, promoted bool
	flushed            bool // the standby has the pass
	rebase, rebaseID   uint8
	stand              relaySnap
	made               [historyTxs]bool // calls of it went out
	bad                uint8
}

const (
	historyHidden = iota + 1
	historyHalt
	historyUndone
	historyAgain
)

var historyBreaches = []string{"", "call HIDDEN by the cursor", "FALSE HALT", "call of UNDONE work", "PARKED, and made again"}

func historyModel(g *historyScope) model[historyState] {
	s := historyState{next: 1, memory: relaySnap{xmax: 1}}
	s.db.prev.xmax = 1
	return model[historyState]{
		init: s,
		bad:  func(s *historyState) string { return historyBreaches[s.bad] },
		next: func(s historyState, out emit[historyState]) {
			to := func(t historyState, step string, a, b int) { g.judge(&t); out(t, step, a, b) }
			for i := range g.txs {
				if i < 2 || s.promoted {
					g.write(s, i, to)
				}
			}
			if s.halted(g) {
				g.rebase(s, to)
			} else {
				g.pass(s, to)
			}
			g.standby(s, to)
		},
	}
}

// halted reports whether the relay halts with OO007.
func (s *historyState) halted(g *historyScope) bool {
	return s.db.otherCluster && !g.faults.notCompared
}

func (g *historyScope) judge(s *historyState) {
	if s.bad != 0 {
		return
	}
	d := &s.db
	if s.promoted && !g.dump && s.next < max(d.prev.xmax, d.target.xmax) {
		s.bad = historyHalt
	}
	if s.halted(g) {
		return
	}
	for i := range d.txs {
		for c, xid := range d.txs[i].xids {
			if d.txs[i].stage == historyCommitted && d.txs[i].calls[c] == historyPending && s.prev(g).sees(xid) {
				s.bad = historyHidden
			}
		}
	}
}

// prev is the cursor that the relay goes by.
func (s *historyState) prev(g *historyScope) relaySnap {
	if g.faults.fromMemory {
		return s.memory
	}
	return s.db.prev
}

func (s *historyState) now() relaySnap {
	n := relaySnap{xmax: s.next}
	for _, x := range s.db.txs {
		if x.stage == historyOpen || x.stage == historyWritten {
			n.xip |= bit(x.xid)
		}
	}
	return n
}

func (s *historyState) draw() (xid uint8) {
	xid = s.next
	s.next++
	return xid
}

func (d *historyDB) record(xid uint8) { d.highestRecord = max(d.highestRecord, xid) }

// write is the next statement of a transaction, or its ROLLBACK.
func (g *historyScope) write(s historyState, i int, to emit[historyState]) {
	x := s.db.txs[i]
	t := s
	n := &t.db.txs[i]
	switch x.stage {
	case historyNew:
		if s.next < g.ids {
			n.xid = t.draw()
			n.stage = historyOpen
			to(t, "transaction %d: BEGIN, id %d", i, int(n.xid))
		}
	case historyOpen, historyWritten:
		u := s
		u.db.txs[i] = historyTx{stage: historyEnded}
		u.db.record(x.xid)
		to(u, "transaction %d: ROLLBACK", i, 0)
		t.db.record(x.xid)
		n.xids = [historyCalls]uint8{x.xid, x.xid}
		if n.stage++; n.stage == historyWritten {
			to(t, "transaction %d: INSERT", i, 0)
			return
		}
		to(t, "transaction %d: COMMIT", i, 0)
	}
}

// pass is what a relay does: it begins a pass, or makes calls of it.
func (g *historyScope) pass(s historyState, to emit[historyState]) {
	d := &s.db
	if g.faults.olderID && s.own == 0 && s.next < g.ids {
		t := s
		t.own = t.draw()
		to(t, "the relay: BEGIN, id %d", int(t.own), 0)
	}
	left := false
	for i := range d.txs {
		x := &d.txs[i]
		if x.stage != historyCommitted || !d.begun {
			continue
		}
		t := s
		made := false
		for c, xid := range x.xids {
			prev := s.prev(g)
			if !d.target.sees(xid) || prev.sees(xid) {
				continue
			}
			halfDone := c == 0 && i == 0 && d.half
			if x.calls[c] == historyDelivered || halfDone {
				continue
			}
			if x.calls[c] == historyParked {
				t.bad = historyAgain
			}
			made = true
			t.db.txs[i].calls[c] = historyDelivered
			if c == 0 && i == 0 && g.halves {
				u := t
				u.made[i] = true
				u.db.half = true
				to(u, "the relay leaves the batch of transaction %d in the middle", i, 0)
				u.db.txs[i].calls[c] = historyParked
				to(u, "the relay parks a call of transaction %d, and leaves the batch", i, 0)
			}
		}
		left = left || made
		mayCall := s.flushed || !g.waitFor || s.promoted
		if made && (mayCall || g.faults.notWaited) {
			t.made[i] = true
			to(t, "the relay makes the calls of transaction %d", i, 0)
		}
	}
	now := s.now()
	over := !left && s.next <= g.ids
	moved := !d.begun || now != d.target || d.prev != d.target
	if mayBegin := !g.faults.olderID || s.own != 0; over && moved && mayBegin {
		t := s
		if d.begun {
			t.db.prev = d.target
			t.memory = d.target
		}
		own := s.own
		t.db.target = now
		t.own = 0
		if own == 0 {
			own = t.draw()
		}
		t.db.begun = true
		t.db.half = false
		t.flushed = false
		t.db.record(own)
		to(t, "the relay begins a pass, target %d", int(now.xmax), 0)
	}
}

// standby is a standby that replays, a promotion, and a restore of a dump.
func (g *historyScope) standby(s historyState, to emit[historyState]) {
	if s.promoted {
		return
	}
	replays := !g.dump && (!s.replayed || g.waitFor)
	if replays && s.standby != s.db {
		t := s
		t.standby = s.db
		t.replayed = true
		t.flushed = true
		to(t, "the standby has replayed to here", 0, 0)
	}
	if !g.dump && !s.replayed {
		return
	}
	t := s
	t.promoted = true
	t.own = 0
	if !g.dump {
		t.db = s.standby
		t.standby = historyDB{}
		t.next = t.db.highestRecord + 1
	} else {
		t.next = 1
		t.db.otherCluster = true
	}
	for i := range t.db.txs {
		x := &t.db.txs[i]
		switch {
		case i >= 2:
			*x = historyTx{}
		case x.stage != historyCommitted:
			*x = (historyTx{stage: historyEnded})
			if g.waitFor && s.made[i] {
				t.bad = historyUndone
			}
		default:
			x.restored = true
			for c, state := range s.db.txs[i].calls {
				if state == historyDelivered && x.calls[c] == historyPending {
					x.calls[c] = historyDelivered // the remote has it, whatever the database has lost
				}
			}
		}
	}
	if g.dump {
		to(t, "a dump is restored into another cluster, whose next id is %d", int(t.next), 0)
		return
	}
	to(t, "PROMOTION: the next id is %d", int(t.next), 0)
}

// rebase is `onlyonce outbox rebase`: a snapshot, the rows, the cursor.
func (g *historyScope) rebase(s historyState, to emit[historyState]) {
	t := s
	switch s.rebase {
	case rebaseNone:
		if g.faults.standWithID {
			t.rebaseID = t.draw()
		}
		t.stand = t.now()
		t.rebase = rebaseStands
		to(t, "rebase takes the snapshot that becomes the cursor", 0, 0)
	case rebaseStands:
		if t.rebaseID == 0 {
			t.rebaseID = t.draw()
		}
		d := &t.db
		for i := range d.txs {
			x := &d.txs[i]
			if x.stage != historyCommitted {
				continue
			}
			left := false
			for c, xid := range x.xids {
				done := x.restored &&
					(d.prev.sees(xid) || x.calls[c] == historyParked || d.begun && d.target.sees(xid) && i == 0 && c == 0 && d.half)
				x.xids[c] = t.rebaseID
				if done {
					x.xids[c] = 0
				}
				left = left || !done
			}
			if g.faults.notDivided && left {
				x.xids = [historyCalls]uint8{t.rebaseID, t.rebaseID}
			}
		}
		t.rebase = rebaseRewritten
		to(t, "rebase stamps the batches anew, with id %d", int(t.rebaseID), 0)
	case rebaseRewritten:
		t.db.prev = t.stand
		t.db.target = relaySnap{}
		t.db.begun = false
		t.db.half = false
		t.db.otherCluster = false
		t.memory = t.db.prev
		t.stand = relaySnap{}
		t.rebase = rebaseDone
		t.rebaseID = 0
		to(t, "rebase: the cursor, COMMIT", 0, 0)
	}
}

func historyTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*historyScope)) {
		all = append(all, entry{"history/" + name, want, nightly, func() result {
			g := historyScope{txs: 4, ids: 7}
			change(&g)
			return explore(historyModel(&g))
		}})
	}
	dump := func(g *historyScope) {
		g.dump = true
		g.txs = 3
		g.ids = 5
	}
	add("O3/promotion", "", false, func(*historyScope) {})
	add("O3/a dump, rebase", "", false, dump)
	add("O3/a dump, rebase, batches in halves", "", false, func(g *historyScope) { dump(g); g.halves = true })
	add("O3/a dump, rebase, 4 transactions, batches in halves", "", true, func(g *historyScope) {
		g.dump = true
		g.halves = true
		g.ids = 6
	})
	add("O9/a standby that is waited for", "", false, func(g *historyScope) { g.waitFor = true })

	add("O3/the cursor is remembered over a promotion", "HIDDEN", false, func(g *historyScope) { g.faults.fromMemory = true })
	add("O3/the target is stored by a transaction with an older id", "HALT", false, func(g *historyScope) { g.faults.olderID = true })
	add("O3/another cluster is not noticed", "HIDDEN", false, func(g *historyScope) { dump(g); g.faults.notCompared = true })
	add("O3/rebase takes its snapshot with an id", "HIDDEN", false, func(g *historyScope) { dump(g); g.faults.standWithID = true })
	add("O3/rebase does not divide a batch", "PARKED", false, func(g *historyScope) {
		dump(g)
		g.halves = true
		g.faults.notDivided = true
	})
	add("O9/the standby is not waited for", "UNDONE", false, func(g *historyScope) {
		g.waitFor = true
		g.faults.notWaited = true
	})
	return all
}
