package main

// Several transactions of a partition at once: rules C1 to C8 and T14, and the interleavings L1 to
// L10 that they defend against (docs/rules). The model has what the code has: rows of
// onlyonce.done, one for each message, onlyonce.fence_slot and onlyonce.sweep, (*pruning).step,
// take-over by onlyonce.raise_epoch, and the single transaction of a Concurrency of 1 (here: the
// chain).
//
// Each statement of a slot's transaction is a step. All transactions of an owner share its lock
// (onlyonce.owner_lock), and a take-over waits for them: see fence.go.
// A sweep, a pruning and the retry of a parked message are a step each, because one process at a
// time takes them, in a transaction of its own. A transaction whose client has given it up goes on
// whenever it likes. A failover goes back to an earlier state of the database.
//
// Left out: users' own locks and deadlocks (L5 is K2's model), and more than one failover.

// Bounds of the arrays. The scopes choose less.
const (
	slotsMax    = 3
	slotOffsets = 5
	slotTxs     = 3
)

// slotScope is what is explored, and which protection is left out.
type slotScope struct {
	slots, offsets, txs int
	keys                [2][slotOffsets]uint8 // ordering keys, as each owner's deployment has them
	oldSnapshots        bool                  // above READ COMMITTED: a transaction has the snapshot of its begin
	failover, parking   bool
	takeOvers           uint8
	lost, fails         uint8 // how many outcomes become unknown, how many handlers fail
	crash, replay       bool
	truncate            bool  // the log loses its end, and other records are written there
	one                 bool  // owner 1 has a Concurrency of 1
	pairs               bool  // a transaction has up to two messages
	anyOrder            bool  // order is not checked: the ordering key changes
	holes               uint8 // offsets that hold a message for owner 0, and none for owner 1
	live                bool  // from every state all messages can be done

	faults slotFaults
}

// slotFaults are protections that can be left out.
type slotFaults struct {
	noKey, secondHalfFirst, noPredecessors, keyInTwoHands, blockedFromMemory      bool
	raiseDoesNotWait, comparedBeforeLock, noRowLock                               bool
	sweepFromMemory, neverLooks, positionNotCompared, readBeforeBegin             bool
	pruneAtOnce, pruneByID, pruneFromMemory                                       bool
	replayKeepsRows, replayDropsRows, chainBesideRows, chainInSameEpoch, noHashes bool
	rowInsteadOfLock                                                              bool
}

// slotDB is what is committed. Sets of offsets are bit masks.
type slotDB struct {
	position, nonce, run   uint8
	done                   uint8 // rows of onlyonce.done in the present run
	applied, parked        uint8
	rewritten              uint8 // applied after the log was truncated
	heldPosition, heldDone uint8 // of the run that a replay has interrupted
	doneByReplay           uint8 // rows of run 1, which its end leaves (a late transaction of it meets them)
	appliedByReplay        uint8
}

// set is what counts as done: below the position, and the rows above it.
func (d *slotDB) set() uint8 { return below(d.position) | d.done }

// rowsOf are the rows of onlyonce.done in a run.
func (d *slotDB) rowsOf(run uint8) uint8 {
	switch run {
	case d.run:
		return d.done
	case 1:
		return d.doneByReplay
	}
	return 0
}

// effects are the messages that took effect, in the replay or outside of it.
func (d *slotDB) effects() *uint8 {
	if d.run == 1 {
		return &d.appliedByReplay
	}
	return &d.applied
}

// Stages of a slot's transaction.
const (
	slotNone = iota
	slotSent
	slotBegun    // has a snapshot
	slotLocked   // shares the owner's lock
	slotCompared // has compared owner, position and predecessors, and asked which keys are blocked
	slotInserted // has its rows of onlyonce.done; the handlers run
	slotCommitted
	slotFailed // a handler has failed
	slotRefused
)

// Kinds of transactions.
const (
	kindSlot = iota
	kindPark // parks its message, whose handler has failed
	kindChain
)

// slotTx is a transaction.
type slotTx struct {
	stage, owner, slot, kind uint8
	messages, after          uint8 // after: predecessors by ordering key, which must be done
	park                     uint8 // of the messages: whose key is blocked
	nonce, run, low, seen    uint8 // low: the position that the owner remembers; seen: at the begin
	snapOwner, snapPosition  bool  // what its snapshot answers
	orphan                   bool
}

func (b *slotTx) open() bool { return b.stage >= slotBegun && b.stage <= slotInserted }

// holds reports whether a take-over has to wait for the transaction.
func (b *slotTx) holds() bool { return b.stage >= slotLocked && b.stage <= slotInserted }

// rank orders transactions, so that states that differ in the order of connections only are one.
func (b *slotTx) rank() (n uint64) {
	for _, f := range [...]uint8{b.stage, b.owner, b.slot, b.kind, b.messages, b.after, b.park, b.nonce, b.run, b.low, b.seen} {
		n = n<<5 | uint64(f)
	}
	for _, f := range [...]bool{b.snapOwner, b.snapPosition, b.orphan} {
		n <<= 1
		if f {
			n |= 1
		}
	}
	return n
}

// Stages of an owner.
const (
	ownerAway    = iota
	ownerRaising // asked: waits in line for the owner's lock; locked: has it to itself
	ownerRaised
	ownerWorks
)

// slotOwner is a process. knows and position are what it remembers.
type slotOwner struct {
	stage, seenNonce, nonce, run, knows, position uint8
	hands                                         [slotsMax]uint8 // messages of each slot
	unknown                                       [slotsMax]uint8 // 1+kind of a transaction of unknown outcome
	asked, locked, chain                          bool            // chain: goes on with one transaction at a time
	pruneLow                                      uint8           // seeded: what it has swept
}

type slotState struct {
	db, standby                    slotDB
	txs                            [slotTxs]slotTx
	owners                         [2]slotOwner
	copied, promoted, replayed     bool
	crashed                        bool
	nonces, takeOvers, lost, fails uint8
	cut                            uint8 // offsets that hold other records since the log was truncated
	bad                            uint8
}

const (
	slotTwice = iota + 1
	slotLost
	slotOrder
	slotZombie
	slotBoth
	slotOldRun
	slotPassed
	slotOvertaken
)

var slotBreaches = []string{
	"", "effect TWICE", "message LOST", "ORDER of a key inverted", "a ZOMBIE commits after the next owner has read what is done",
	"applied AND parked", "an old RUN commits", "new records PASSED OVER after a truncation",
	"a take-over that waits is OVERTAKEN by a transaction that came later",
}

func slotModel(g *slotScope) model[slotState] {
	s := slotState{nonces: 1, takeOvers: g.takeOvers, lost: g.lost, fails: g.fails}
	s.db.nonce = 1
	s.owners[0] = slotOwner{stage: ownerWorks, nonce: 1}
	m := model[slotState]{
		init: s,
		bad:  func(s *slotState) string { return slotBreaches[s.bad] },
		next: func(s slotState, out emit[slotState]) {
			to := func(t slotState, step string, a, b int) { t.verify(g); t.sort(); out(t, step, a, b) }
			g.environment(s, to)
			for i := range s.txs {
				g.txStep(s, i, to)
			}
			for k := range s.owners {
				g.ownerStep(s, k, to)
			}
		},
	}
	if g.live {
		m.goal = func(s *slotState) bool {
			return int(s.db.position) == g.offsets && s.db.applied|g.holes == below(g.offsets)
		}
	}
	return m
}

func (s *slotState) sort() {
	for i := range s.txs {
		for j := i; j > 0 && s.txs[j-1].rank() < s.txs[j].rank(); j-- {
			s.txs[j-1], s.txs[j] = s.txs[j], s.txs[j-1]
		}
	}
}

func (s *slotState) breach(b uint8) {
	if s.bad == 0 {
		s.bad = b
	}
}

func (s *slotState) verify(g *slotScope) {
	if s.cut == 0 && s.db.set()&^(*s.db.effects()|s.db.parked|g.holes) != 0 {
		s.breach(slotLost)
	}
}

// environment is what neither an owner nor its transactions do.
func (g *slotScope) environment(s slotState, to emit[slotState]) {
	if g.failover && !s.copied && s.db.set() != 0 {
		t := s
		t.standby = s.db
		t.copied = true
		to(t, "the standby has replayed to here", 0, 0)
	}
	if s.copied && !s.promoted && s.db != s.standby {
		g.promote(s, to)
	}
	if g.truncate && s.cut == 0 {
		for o := 1; o < g.offsets; o++ {
			t := s
			t.cut = below(g.offsets) &^ below(o)
			for k := range t.owners {
				t.stop(k)
			}
			t.txs = [slotTxs]slotTx{}
			to(t, "no owner; the log loses its records from %d on, and others are written there", o, 0)
		}
	}
	if g.replay && !s.replayed && s.db.position > 0 {
		g.beginReplay(s, to)
	}
}

func (g *slotScope) promote(s slotState, to emit[slotState]) {
	t := s
	t.db = s.standby
	t.promoted = true
	t.standby = slotDB{}
	for i := range t.txs {
		b := &t.txs[i]
		if !b.open() {
			continue
		}
		if !b.orphan {
			t.owners[b.owner].unknown[b.slot] = 1 + b.kind
		}
		*b = slotTx{}
	}
	for k := range t.owners {
		if t.owners[k].stage == ownerRaising {
			t.owners[k] = slotOwner{}
		}
	}
	to(t, "FAILOVER to the standby", 0, 0)
}

// beginReplay is an operator's replay from 0 to the position. It has the owner's lock to itself, so
// it waits for the owner's transactions, and fences the owner out.
func (g *slotScope) beginReplay(s slotState, to emit[slotState]) {
	for i := range s.txs {
		if s.txs[i].holds() {
			return
		}
	}
	t := s
	d := &t.db
	t.replayed = true
	d.heldPosition = d.position
	d.heldDone = d.done
	d.position = 0
	d.nonce = 0
	d.run = 1
	if !g.faults.replayKeepsRows {
		d.done = 0
	}
	to(t, "a replay from 0 begins: the owner is fenced out, run 1", 0, 0)
}

// key is the ordering key of an offset in an owner's deployment.
func (g *slotScope) key(o int, owner uint8) uint8 { return g.keys[owner][o] }

// end is the first offset that the present run does not read.
func (g *slotScope) end(d *slotDB) int {
	if d.run == 1 {
		return int(d.heldPosition)
	}
	return g.offsets
}

// stop ends an owner. Its transactions go on as orphans.
func (s *slotState) stop(k int) {
	for i := range s.txs {
		b := &s.txs[i]
		if b.stage == slotNone || int(b.owner) != k {
			continue
		}
		b.orphan = true
		if b.stage >= slotCommitted {
			*b = slotTx{}
		}
	}
	s.owners[k] = slotOwner{}
}
