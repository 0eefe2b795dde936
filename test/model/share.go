package main

// Share groups: rules G1 to G6 (docs/rules). Two members of a share group and the keeper of
// a partition; the broker delivers, redelivers when a record's lock ends, and archives at the
// limit. The model has what the code has: onlyonce.fence_slot over the rows of onlyonce.done, for
// members under the epoch of the keeper that they have read; the keeper's look at what the broker
// has settled and at the set, onlyonce.sweep, (*pruning).step, and take-over by
// onlyonce.take_cursor.
//
// A consumer that reads through no share group may take over too (a plain owner). If nothing is
// done above the position then, its transactions begin with onlyonce.fence, one at a time.
//
// Each statement of a transaction is a step. The keeper's look, a sweep, a pruning and a take-over
// are a step each. A transaction whose client has given it up goes on whenever it likes. A failover
// goes back to an earlier state of the database, and the broker keeps what was acknowledged.
//
// Left out: batches, a truncated log (G5), transactions of producers (G7), and a second failover.

const (
	shareOffsets = 3
	shareTxs     = 3
	shareKeeper  = 2 // the process after the two members
)

// shareScope is what is explored, and which protection is left out.
type shareScope struct {
	offsets, txs                   int
	limit                          uint8 // deliveries until the broker archives
	fails, lost, expiries, crashes uint8
	takeOvers                      uint8
	plain                          bool // a take-over may be by a plain owner
	oldSnapshots, failover, reset  bool
	keeperApplies                  bool // the keeper's handler succeeds, else it parks
	live                           bool // from every state all messages can be done
	faults                         shareFaults
}

// shareFaults are protections that can be left out.
type shareFaults struct {
	noKey, positionNotCompared, readBeforeBegin, keeperAsksOnly bool
	neverLooks, positionFollowsBroker, pruneAtOnce, pruneByID   bool
	takeOverDoesNotWait, noEpoch, noRowLock, oneStatement       bool
}

// shareDB is what is committed. Sets of offsets are bit masks.
type shareDB struct {
	position, nonce, done, applied, parked uint8

	plain, single bool // who has taken over: a plain owner, whose transactions move the position
}

// Stages of a transaction of a share group. They are those of a slot, see slots.go.

// shareTx is a transaction.
type shareTx struct {
	stage, who, offset uint8
	park, single       bool  // single: it begins with onlyonce.fence
	nonce, seen        uint8 // nonce: of the keeper that its process has read; seen: position at the begin
	snapOwner          bool  // its snapshot has that keeper
	snapPosition       bool  // its snapshot has the position at or below the offset
	orphan             bool
}

func (b *shareTx) open() bool  { return b.stage >= slotBegun && b.stage <= slotInserted }
func (b *shareTx) holds() bool { return b.stage >= slotLocked && b.stage <= slotInserted }

func (b *shareTx) rank() (n uint64) {
	for _, f := range [...]uint8{b.stage, b.who, b.offset, b.nonce, b.seen} {
		n = n<<5 | uint64(f)
	}
	for _, f := range [...]bool{b.park, b.single, b.snapOwner, b.snapPosition, b.orphan} {
		if n <<= 1; f {
			n |= 1
		}
	}
	return n
}

// Stages of a process.
const (
	shareIdle = iota
	shareHolds
	shareWaits
)

// shareProcess is a member, or the keeper.
type shareProcess struct {
	stage, offset uint8
	unknown       uint8 // 1: the outcome of its transaction is unknown; 2: and it parks
	last          bool  // it parks what fails
}

// Records at the broker: 0 available, 1 and 2 at a member.
const (
	shareAcknowledged = 8 + iota
	shareArchived
)

type shareState struct {
	db, standby                              shareDB
	txs                                      [shareTxs]shareTx
	processes                                [3]shareProcess
	broker, deliveries                       [shareOffsets]uint8
	copied, promoted, wasReset               bool
	fails, lost, expiries, crashes, takeOver uint8
	bad                                      uint8
}

const (
	shareTwice = iota + 1
	shareLost
	shareBoth
)

var shareBreaches = []string{"", "effect TWICE", "message LOST", "applied AND parked"}

func shareModel(g *shareScope) model[shareState] {
	s := shareState{fails: g.fails, lost: g.lost, expiries: g.expiries, crashes: g.crashes, takeOver: g.takeOvers}
	m := model[shareState]{
		init: s,
		bad:  func(s *shareState) string { return shareBreaches[s.bad] },
		next: func(s shareState, out emit[shareState]) {
			to := func(t shareState, step string, a, b int) {
				if below(t.db.position)&^(t.db.applied|t.db.parked) != 0 {
					t.breach(shareLost)
				}
				t.sort()
				out(t, step, a, b)
			}
			g.database(s, to)
			g.deliver(s, to)
			for i := range s.txs {
				g.shareTxStep(s, i, to)
			}
			for p := range s.processes {
				g.processStep(s, p, to)
			}
			g.keeperStep(s, to)
		},
	}
	if g.live {
		m.goal = func(s *shareState) bool { return int(s.db.position) == g.offsets }
	}
	return m
}

func (s *shareState) sort() {
	for i := range s.txs {
		for j := i; j > 0 && s.txs[j-1].rank() < s.txs[j].rank(); j-- {
			s.txs[j-1], s.txs[j] = s.txs[j], s.txs[j-1]
		}
	}
}

func (s *shareState) breach(b uint8) {
	if s.bad == 0 {
		s.bad = b
	}
}

// settled is the first offset that the broker may still deliver.
func (s *shareState) settled(g *shareScope) int {
	for o := range g.offsets {
		if s.broker[o] < shareAcknowledged {
			return o
		}
	}
	return g.offsets
}

// giveBack makes a record available again, or archives it.
func (s *shareState) giveBack(g *shareScope, o uint8) {
	if s.broker[o] = 0; s.deliveries[o] >= g.limit {
		s.broker[o] = shareArchived
	}
}

// database is a failover.
func (g *shareScope) database(s shareState, to emit[shareState]) {
	if g.failover && !s.copied && s.db.done != 0 {
		t := s
		t.standby, t.copied = s.db, true
		to(t, "the standby has replayed to here", 0, 0)
	}
	if !s.copied || s.promoted || s.db == s.standby {
		return
	}
	t := s
	t.db, t.standby, t.promoted = s.standby, shareDB{}, true
	for i := range t.txs {
		b := &t.txs[i]
		if !b.open() {
			continue
		}
		if !b.orphan {
			t.processes[b.who].unknown = unknownOf(b)
		}
		*b = shareTx{}
	}
	to(t, "FAILOVER to the standby", 0, 0)
}

func unknownOf(b *shareTx) uint8 {
	if b.park {
		return 2
	}
	return 1
}

// deliver is what the broker does.
func (g *shareScope) deliver(s shareState, to emit[shareState]) {
	if g.reset && !s.wasReset {
		t := s
		t.wasReset, t.broker, t.deliveries = true, [shareOffsets]uint8{}, [shareOffsets]uint8{}
		to(t, "the share group is reset to the first record", 0, 0)
	}
	for o := range g.offsets {
		switch at := s.broker[o]; {
		case at == 0:
			for p := range shareKeeper {
				if s.processes[p].stage == shareIdle {
					t := s
					t.broker[o] = uint8(1 + p) //nolint:gosec // at most 2
					t.deliveries[o]++
					t.processes[p] = shareProcess{stage: shareHolds, offset: uint8(o), last: t.deliveries[o] == g.limit} //nolint:gosec // an offset
					to(t, "the broker delivers %d to member %d", o, p)
				}
			}
		case at < shareAcknowledged && s.expiries > 0:
			t := s
			t.expiries--
			t.giveBack(g, uint8(o)) //nolint:gosec // an offset
			to(t, "the lock of record %d ends", o, 0)
		}
	}
}

// send begins a transaction, if a connection is free. A member reads the cursor before, and keeps
// what it has in its hands while the owner is no keeper.
func (s *shareState) send(g *shareScope, p int, offset uint8, park bool) bool {
	if s.db.plain && p != shareKeeper {
		return false
	}
	for i := range g.txs {
		if s.txs[i].stage == slotNone {
			s.txs[i] = shareTx{stage: slotSent, who: uint8(p), offset: offset, park: park, nonce: s.db.nonce, single: p == shareKeeper && s.db.single} //nolint:gosec // a process
			one := &s.processes[p]
			one.stage, one.offset, one.unknown = shareWaits, offset, 0
			return true
		}
	}
	return false
}

// processStep is what a process does with what it has in its hands.
func (g *shareScope) processStep(s shareState, p int, to emit[shareState]) {
	one := &s.processes[p]
	t := s
	switch {
	case one.stage == shareWaits && one.unknown != 0:
		if t.send(g, p, one.offset, one.unknown == 2) {
			to(t, "process %d runs %d again", p, int(one.offset))
		}
	case one.stage == shareHolds && t.send(g, p, one.offset, false):
		to(t, "member %d begins with %d", p, int(one.offset))
	}
	if one.stage != shareIdle && s.crashes > 0 {
		t = s
		t.crashes--
		t.stop(g, p)
		to(t, "process %d dies", p, 0)
	}
}

// stop ends a process. Its transactions go on as orphans.
func (s *shareState) stop(g *shareScope, p int) {
	for i := range s.txs {
		b := &s.txs[i]
		if b.stage == slotNone || int(b.who) != p {
			continue
		}
		if b.orphan = true; b.stage >= slotCommitted {
			*b = shareTx{}
		}
	}
	o := s.processes[p].offset
	if p < shareKeeper && int(s.broker[o]) == 1+p {
		s.giveBack(g, o)
	}
	s.processes[p] = shareProcess{}
}

// keeperStep is what the owner sends, a sweep, a pruning, and the take-over by another owner.
func (g *shareScope) keeperStep(s shareState, to emit[shareState]) {
	if missing := s.toOwner(g); s.processes[shareKeeper].stage == shareIdle && missing != 0 && !g.faults.neverLooks {
		for o := range g.offsets {
			if t := s; has(missing, o) && t.send(g, shareKeeper, uint8(o), !g.keeperApplies && !s.db.plain) { //nolint:gosec // an offset
				to(t, "the owner begins with %d", o, 0)
			}
		}
	}
	next := s.db.position
	for has(s.db.done, next) && !s.db.single {
		next++
	}
	if g.faults.positionFollowsBroker {
		next = max(next, uint8(s.settled(g))) //nolint:gosec // an offset
	}
	if next > s.db.position {
		t := s
		t.db.position = next
		to(t, "the position moves to %d", int(next), 0)
	}
	prunable := s.prunable(g)
	if s.db.single {
		prunable = below(s.db.position) // what it finds was left before its raise
	}
	if old := s.db.done & below(s.db.position) & prunable; old != 0 {
		t := s
		t.db.done &^= old
		to(t, "rows are pruned", 0, 0)
	}
	if s.takeOver > 0 && (g.faults.takeOverDoesNotWait || !s.anyHolds()) {
		t := s
		t.takeOver--
		t.stop(g, shareKeeper)
		t.db.nonce = g.takeOvers - t.takeOver
		t.db.plain, t.db.single = false, false
		to(t, "another keeper takes over", 0, 0)
		if g.plain {
			t.db.plain, t.db.single = true, t.db.done&^below(t.db.position) == 0
			to(t, "a plain owner takes over", 0, 0)
		}
	}
}

// toOwner are the offsets that the owner may begin with: a keeper with what the broker has given up
// and what is not in the set, a plain owner with what it finds in the log.
func (s *shareState) toOwner(g *shareScope) uint8 {
	missing := below(g.offsets) &^ (s.db.done | below(s.db.position))
	switch {
	case s.db.single:
		missing &= bit(s.db.position)
	case !s.db.plain:
		missing &= below(uint8(s.settled(g))) //nolint:gosec // an offset
	}
	return missing
}

func (s *shareState) anyHolds() bool {
	for i := range s.txs {
		if s.txs[i].holds() {
			return true
		}
	}
	return false
}

// prunable are the offsets that no open transaction can need: each has seen a position above them.
func (s *shareState) prunable(g *shareScope) uint8 {
	all := below(g.offsets)
	for i := range s.txs {
		b := &s.txs[i]
		counts := b.open() && !g.faults.pruneAtOnce
		if b.stage == slotBegun && g.faults.pruneByID || b.stage < slotInserted && g.faults.readBeforeBegin {
			counts = false
		}
		if counts {
			all &= below(b.seen)
		}
	}
	return all
}
