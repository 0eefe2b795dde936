package main

// A lane of the outbox: rules O2, O4 and O5, calls in batches, and of O3 the version. The model
// has what the code has: onlyonce.enqueue_batch (the locks of the ordering keys, then the id),
// passRefs and onlyonce.advance (passes between two snapshots), (*passReader).callsAboveLast,
// parkSQL in the transaction that moves the cursor, (*chunk).skipRows, nextOfKey and rowsToPark,
// pickSQL, settleSQL, onlyonce.promote and sweepSQL, onlyonce.hold and onlyonce.raise_epoch.
//
//   - A batch is what one transaction writes. Four ids stand for a block of 1,024: call i of batch
//     number n has the id 4n+i. A batch is read whole, and may be left in the middle.
//   - A snapshot is what Postgres has: the first id that is not given out, and the ids in
//     progress.
//   - A relay is called an owner from the time that it has taken the lease, also when it has lost
//     it and does not know. A lease may be taken over at any moment. The move of a cursor is sent,
//     carried out and answered; the answer may be lost, and then the transaction may still be
//     carried out at any later time, or never.
//   - A request that has left may reach the remote at any later time, also behind its relay's end.
//     The remote honours keys. A call may fail whether it took effect or not.
//   - A sink may take no calls for a while: an operator pauses it, or the remote asks for a pause.
//
// A pick and a settlement are a step each: see attempts.go for what comes late there. Left out:
// ages of keys (window.go), segments and places (log.go), lost history (history.go), calls that
// are put off (NotBefore), completions, and calls in a batch of another lane: lanes share nothing.

// Bounds of the arrays. The scopes choose less.
const (
	relayCalls   = 4
	relayWriters = 3
	relayOwners  = 2
	relayKeys    = 3 // ordering keys 1 and 2; 0: none
	relayBlock   = 4 // ids of a batch
)

// relayScope is what is explored, and which protection is left out.
type relayScope struct {
	calls   int
	keys    [relayCalls]uint8 // ordering keys
	writer  [relayCalls]uint8 // which transaction writes the call: its calls are a batch, in this order
	early   bool              // transactions may have an id before they enqueue
	leases  uint8             // how often the lease is taken
	fails   uint8             // how many calls fail
	lost    uint8             // how many answers to a move of the cursor are lost
	rejects bool              // a call that fails may be rejected: an operator decides
	discard uint8             // how many unsettled rows an operator gives up
	drains  bool              // owners may be asked to give the lane back
	holds   uint8             // how often a sink takes no calls for a while
	live    bool              // from every state all calls can be done

	faults relayFaults
}

// relayFaults are protections that can be left out.
type relayFaults struct {
	inProgressIgnored, byTransaction, targetNotStored, lastKept        bool // O2
	batchByFirstID, lastOfBatch, versionNotCompared, callsWhileUnknown bool
	restForgotten                                                      bool
	idBeforeLock, firstLockOnly                                        bool // O4
	blockedNotAsked, blockedKept, followsFailure, pickedWhileUnderWay  bool
	keysUnderWayIgnored, pickedOutOfTurn, cursorBeforeParking          bool
	lateNotParked, waitingNotParked, cutDueAtOnce                      bool
	noPromoteSettled, noPromoteBehind, noSweep                         bool
	noHold, raiseDoesNotWait                                           bool // O5
}

// relaySnap is a snapshot: ids below xmax that are not in progress have ended.
type relaySnap struct{ xmax, xip uint8 }

func (n relaySnap) sees(xid uint8) bool { return xid != 0 && xid < n.xmax && !has(n.xip, xid) }

// Stages of a transaction that enqueues.
const (
	relayNew = iota
	relayLocked
	relayInserted
	relayCommitted
	relayRolledBack
)

// relayWriter is a transaction that enqueues one batch.
type relayWriter struct{ stage, xid, number, lock uint8 }

// What a chunk knows of a call.
const (
	sentAbsent = iota // not in the chunk
	sentUnlooked
	sentWaits
	sentUnderWay
	sentDelivered
	sentFails
	sentRejected
	sentBehind
)

// States of a row of onlyonce.parked.
const (
	callNotParked = iota
	callRetrying
	callBlocked
	callWaiting
	callResolved
	callDiscarded
)

// relayMove is a transaction that parks what a chunk leaves and moves the cursor.
type relayMove struct {
	sent, newPass, behind, held bool
	epoch, last                 uint8
	target                      relaySnap // a fault: carried over
	cut                         uint8     // of those to be parked: under way
	park                        [relayCalls]uint8
}

// relayLane is the row of onlyonce.lane_cursors and its lease.
type relayLane struct {
	prev, target relaySnap
	begun        bool
	last, epoch  uint8
}

// Stages of an owner.
const (
	relayAway = iota
	relayLoads
	relayIdle
	relaySent    // waits for the answer to its move
	relayMoved   // its move is committed: it reads the next chunk
	relayWorks   // has a chunk
	relayUnknown // the answer to its move was lost
)

// relayOwner is a relay and what it remembers of the lane.
type relayOwner struct {
	stage, epoch, last uint8
	behind             bool // the lane has moved since the owner has read its version
	unread, more, same bool // more: the pass goes on after the chunk; same: the move goes on with the pass
	drains, held       bool // held: its sink takes no calls
	rows               [relayCalls]uint8
	blocked, asked     uint8             // ordering keys; asked (a fault): when the pass began
	attempts           [relayCalls]uint8 // at parked calls: sentUnderWay, or how it ended
	promote            uint8             // ordering keys
	move               relayMove
}

type relayState struct {
	writers          [relayWriters]relayWriter
	lane             relayLane
	owners           [relayOwners]relayOwner
	late             relayMove // whose owner does not wait for it any more
	parked           [relayCalls]uint8
	sent, effect     uint8 // sets of calls
	gone             uint8 // calls that were given up
	cut              uint8 // calls that were parked while they were under way: due when a lease has passed
	xid, number      uint8 // how many were drawn
	locks            uint8
	fails, lost, ops uint8
	holds            uint8
	bad              uint8
}

const (
	relayLost = iota + 1
	relayOrder
	relayPhantom
	relayZombie
	relayTwo
	relayAgain
	relayFalse
)

var relayBreaches = []string{
	"",
	"call LOST",
	"ORDER of a key inverted",
	"an UNCOMMITTED call was made",
	"a ZOMBIE moves the cursor or settles",
	"TWO attempts of one relay at a call",
	"parked AND called from the log",
	"resolved WITHOUT an effect",
}

func relayModel(g *relayScope) model[relayState] {
	m := model[relayState]{
		init: relayState{lane: relayLane{prev: relaySnap{xmax: 1}}},
		bad:  func(s *relayState) string { return relayBreaches[s.bad] },
		next: func(s relayState, out emit[relayState]) {
			to := func(t relayState, step string, a, b int) { g.judge(&t); g.normalize(&t); out(t, step, a, b) }
			for i := range g.writers() {
				g.write(s, i, to)
			}
			for x := range g.calls {
				if has(s.sent, x) && !has(s.effect, x) {
					t := s
					g.apply(&t, x)
					to(t, "the remote applies call %d", x, 0)
				}
			}
			for i := range relayOwners {
				g.owner(s, i, to)
			}
			g.carryOut(s, func(t *relayState) *relayMove { return &t.late }, to)
			g.operator(s, to)
		},
	}
	if g.live {
		m.goal = g.done
	}
	return m
}

func (g *relayScope) writers() int {
	n := uint8(0)
	for x := range g.calls {
		n = max(n, g.writer[x]+1)
	}
	return int(n)
}

// done reports whether everything has come to its end.
func (g *relayScope) done(s *relayState) bool {
	for i := range g.writers() {
		if s.writers[i].stage < relayCommitted {
			return false
		}
	}
	for x := range g.calls {
		parked := s.parked[x] >= callRetrying && s.parked[x] <= callWaiting
		if s.committed(g, x) && (parked || !s.lane.prev.sees(s.of(g, x).xid)) {
			return false
		}
	}
	return true
}

func (s *relayState) of(g *relayScope, x int) *relayWriter { return &s.writers[g.writer[x]] }

func (s *relayState) committed(g *relayScope, x int) bool {
	return s.of(g, x).stage == relayCommitted
}

// id is the id of a call in the log.
func (s *relayState) id(g *relayScope, x int) uint8 {
	first := 0
	for g.writer[first] != g.writer[x] {
		first++
	}
	return s.of(g, x).number*relayBlock + uint8(x-first)
}

// now is a snapshot that is taken now.
func (s *relayState) now() relaySnap {
	n := relaySnap{xmax: s.xid + 1}
	for _, w := range s.writers {
		if w.xid != 0 && w.stage < relayCommitted {
			n.xip |= bit(w.xid)
		}
	}
	return n
}

// earlier reports whether call x precedes call y of its ordering key.
func (s *relayState) earlier(g *relayScope, x, y int) bool {
	related := g.keys[x] != 0 && g.keys[x] == g.keys[y]
	if x == y || !related || !s.committed(g, x) {
		return false
	}
	if g.writer[x] == g.writer[y] {
		return x < y
	}
	return s.of(g, x).lock < s.of(g, y).lock
}

// apply is the effect of a call at the remote.
func (g *relayScope) apply(s *relayState, x int) {
	for y := range g.calls {
		if s.earlier(g, y, x) && !has(s.effect|s.gone, y) && !has(s.gone, x) {
			s.breach(relayOrder)
		}
	}
	s.effect |= bit(x)
}

// judge finds calls that the cursor has passed over.
func (g *relayScope) judge(s *relayState) {
	for x := range g.calls {
		xid := s.of(g, x).xid
		if !s.committed(g, x) || has(s.effect, x) {
			continue
		}
		passed := s.lane.prev.sees(xid) || s.lane.begun && s.lane.target.sees(xid) && s.id(g, x) <= s.lane.last
		if passed && s.parked[x] == callNotParked {
			s.breach(relayLost)
		}
		if s.parked[x] == callResolved {
			s.breach(relayFalse)
		}
	}
}

// normalize forgets what is not needed any more, and sorts the owners, which are alike.
func (g *relayScope) normalize(s *relayState) {
	for i := range s.owners {
		o := &s.owners[i]
		if o.stage == relayAway {
			*o = relayOwner{}
		}
		if o.stage == relayIdle || o.stage == relayLoads {
			o.blocked = 0
			o.more = false
			o.same = false
		}
	}
	if !s.late.sent {
		s.late = relayMove{}
	}
	s.sent &^= s.effect
	a := &s.owners[0]
	b := &s.owners[1]
	if a.epoch < b.epoch || a.epoch == b.epoch && a.stage < b.stage {
		*a, *b = *b, *a
	}
}

func (s *relayState) breach(b uint8) {
	if s.bad == 0 {
		s.bad = b
	}
}

// write is the next statement of a transaction that enqueues, or its ROLLBACK.
func (g *relayScope) write(s relayState, i int, to emit[relayState]) {
	w := &s.writers[i]
	if w.stage >= relayCommitted {
		return
	}
	if w.xid != 0 || w.stage > relayNew {
		t := s
		t.writers[i].stage = relayRolledBack
		to(t, "transaction %d: ROLLBACK", i, 0)
	}
	switch w.stage {
	case relayNew:
		if g.early && w.xid == 0 {
			t := s
			t.xid++
			t.writers[i].xid = t.xid
			to(t, "transaction %d: BEGIN, id %d", i, int(t.xid))
		}
		if g.faults.idBeforeLock && w.number == 0 {
			t := s
			t.number++
			t.writers[i].number = t.number
			to(t, "transaction %d draws the number %d of its batch", i, int(t.number))
			return
		}
		if g.lockFree(&s, i) {
			s.locks++
			w.lock = s.locks
			w.stage = relayLocked
			to(s, "transaction %d has the locks of its ordering keys", i, 0)
		}
	case relayLocked:
		if w.xid == 0 {
			s.xid++
			w.xid = s.xid
		}
		if w.number == 0 {
			s.number++
			w.number = s.number
		}
		w.stage = relayInserted
		to(s, "transaction %d: INSERT of batch number %d", i, int(w.number))
	case relayInserted:
		w.stage = relayCommitted
		to(s, "transaction %d: COMMIT", i, 0)
	}
}

// lockFree reports whether no other transaction has the lock of an ordering key of transaction i.
func (g *relayScope) lockFree(s *relayState, i int) bool {
	locked := func(i int) (keys uint8) {
		for x := range g.calls {
			if int(g.writer[x]) == i {
				keys |= bit(g.keys[x])
				if g.faults.firstLockOnly {
					break
				}
			}
		}
		return keys &^ 1
	}
	for j := range g.writers() {
		st := s.writers[j].stage
		holds := st == relayLocked || st == relayInserted
		if j != i && holds && locked(i)&locked(j) != 0 {
			return false
		}
	}
	return true
}

// operator redrives a call that waits, or gives a call up. If it dies, what was blocked is not
// made due.
func (g *relayScope) operator(s relayState, to emit[relayState]) {
	for x := range g.calls {
		if s.parked[x] == callWaiting {
			t := s
			t.parked[x] = callRetrying
			to(t, "an operator redrives call %d", x, 0)
		}
		if s.parked[x] >= callRetrying && s.parked[x] <= callWaiting && s.ops < g.discard {
			t := s
			t.ops++
			t.parked[x] = callDiscarded
			t.gone |= bit(x)
			u := t
			to(t, "an operator gives call %d up, and dies before it promotes", x, 0)
			u.promoteKey(g, g.keys[x])
			to(u, "an operator gives call %d up", x, 0)
		}
	}
}

// first is the first unsettled parked call of an ordering key, or -1.
func (s *relayState) first(g *relayScope, key uint8) int {
	first := -1
	for x := range g.calls {
		if g.keys[x] != key || s.parked[x] < callRetrying || s.parked[x] > callWaiting {
			continue
		}
		if first < 0 || s.id(g, x) < s.id(g, first) {
			first = x
		}
	}
	return first
}

// promoteKey is onlyonce.promote.
func (s *relayState) promoteKey(g *relayScope, key uint8) bool {
	if x := s.first(g, key); key != 0 && x >= 0 && s.parked[x] == callBlocked {
		s.parked[x] = callRetrying
		return true
	}
	return false
}
