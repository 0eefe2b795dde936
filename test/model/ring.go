package main

// The ring of segments in which keys are claimed: rules K3, K4 and K5, and the steps of
// internal/ring's Rotator. Claims at READ COMMITTED; the sequence that refuses older snapshots, and
// what a rotator carries over before it retires a segment (K6), are left out.
//
//   - Each statement is a step, and sees what had committed when it began.
//   - INSERT ... ON CONFLICT DO NOTHING does not use the snapshot. It waits for an open transaction
//     that has the key in that table, then conflicts or inserts.
//   - TRUNCATE waits for every lock on the table, and older snapshots see it.
//   - A rotator waits for the transactions that had an id when it began to wait.
//
// A claimer notes which segments were retired when it read the row. It must find each key whose
// newest segment was not.

// Bounds of the arrays. The scopes choose less.
const (
	ringSlots    = 5
	ringClaimers = 3
	ringKeys     = 2
	ringRotators = 2
)

// ringScope is what is explored, and which protection is left out.
type ringScope struct {
	slots, claimers, keys int
	keep                  int // closed segments that are not retired
	segments              int // that are ever announced, with the first one
	claims                int // of each claimer
	rotators, leases      int // leases: how often a rotator can take over
	filters               bool

	faults ringFaults
}

// ringFaults are protections that can be left out.
type ringFaults struct {
	stateBeforeID, closeAtOnce, truncateAtOnce                    bool
	truncateUnchecked, stepsUnchecked, announceWhileDraining      bool
	drainingSkipped, drainingIgnored, closedSkipped               bool
	uncommittedIsDuplicate, filterOfSlot, filterTrusted, unsorted bool
}

// ringRow is the row of onlyonce.rings: slots, and sets of slots.
type ringRow struct {
	current, draining int8 // draining: -1 for none
	closed, retired   uint8
	uses              [ringSlots]uint8 // which segment a slot is: they are numbered as they are announced
	version           uint8
}

// Stages of a claim.
const (
	claimIdle   = iota
	claimBegun  // has a transaction id
	claimRead   // has read the ring's row
	claimProbes // the query of the closed segments has its snapshot
	claimDraining
	claimCurrent
	claimHandled
)

// ringClaimer is a process with its transaction. Sets of keys are bit masks.
type ringClaimer struct {
	stage, left, key uint8 // key: how many are done in this table
	row              ringRow
	retiredBefore    uint8
	seen, inserted   [ringKeys]uint8 // slots in which the snapshot shows the key; in which it was inserted
	duplicates       uint8
	locked           uint8 // slots whose tables it has locked
	id, reversed     bool
	waitedFor        uint8 // rotators that wait for its transaction
	filterOf         [ringSlots]uint8
	filter           [ringSlots]uint8
}

// Stages of a rotator.
const (
	rotatorAway = iota
	rotatorDecides
	rotatorAnnounces
	rotatorMarksWriters // before it closes
	rotatorWaitsForWriters
	rotatorCloses
	rotatorRetires
	rotatorMarksReaders // before it truncates
	rotatorWaitsForReaders
	rotatorChecks
	rotatorTruncates
	rotatorFrees
	rotatorMarksLate // before it builds a filter
	rotatorWaitsForLate
	rotatorScans
	rotatorStores
)

// ringRotator is a process that may hold the ring's lease.
type ringRotator struct {
	stage, lease, version uint8
	slot                  int8
	use, keys             uint8
}

type ringState struct {
	row          ringRow
	lease        uint8
	rowLock      uint8 // 1+rotator
	emptied      int8  // slot whose table is locked by TRUNCATE, or -1
	keys         [ringSlots]uint8
	announced    uint8
	storedOf     [ringSlots]uint8 // filters: segment, keys
	stored       [ringSlots]uint8
	claimers     [ringClaimers]ringClaimer
	rotators     [ringRotators]ringRotator
	newest       [ringKeys]uint8 // segment of each key's newest effect
	retiredSoFar uint8
	bad          uint8
}

const (
	ringDouble = iota + 1
	ringFalse
	ringDeadlock
	ringInUse
)

var ringBreaches = []string{
	"",
	"DOUBLE effect within the horizon",
	"FALSE duplicate",
	"DEADLOCK of claims",
	"a segment was truncated IN USE",
}

func ringModel(g *ringScope) model[ringState] {
	s := ringState{emptied: -1, announced: 1}
	s.row.draining = -1
	s.row.uses[0] = 1
	for i := range g.claimers {
		s.claimers[i].left = uint8(g.claims)
		s.claimers[i].reversed = g.faults.unsorted && i == 1
	}
	for i := range s.rotators {
		s.rotators[i].slot = -1
	}
	return model[ringState]{
		init: s,
		bad:  g.judge,
		next: func(s ringState, out emit[ringState]) {
			to := func(t ringState, step string, a, b int) { g.normalize(&t); out(t, step, a, b) }
			for i := range g.claimers {
				g.claimStep(s, i, to)
			}
			for i := range g.rotators {
				g.rotatorStep(s, i, to)
			}
		},
	}
}

// judge also finds two claims that wait for each other's row.
func (g *ringScope) judge(s *ringState) string {
	if s.bad == 0 && g.keys > 1 && !g.faults.uncommittedIsDuplicate {
		for i := range g.claimers {
			for j := range i {
				if s.waits(g, i, j) && s.waits(g, j, i) {
					return ringBreaches[ringDeadlock]
				}
			}
		}
	}
	return ringBreaches[s.bad]
}

func (s *ringState) waits(g *ringScope, i, j int) bool {
	c := &s.claimers[i]
	slot := c.row.current
	switch c.stage {
	case claimDraining:
		if c.row.draining >= 0 {
			slot = c.row.draining
		}
	case claimCurrent:
	default:
		return false
	}
	k := c.nextKey(g)
	return !has(c.duplicates, k) && has(s.claimers[j].inserted[k], slot)
}

// normalize forgets what is not needed any more, and sorts the claimers, which are alike.
func (g *ringScope) normalize(s *ringState) {
	for i := range g.claimers {
		c := &s.claimers[i]
		c.row.retired = 0
		c.row.version = 0
		if !g.filters {
			c.row.uses = [ringSlots]uint8{}
		}
		if c.stage >= claimDraining {
			c.row.closed = 0
			c.row.uses = [ringSlots]uint8{}
		}
		if c.stage == claimHandled {
			c.row.current = 0
			c.row.draining = 0
		}
	}
	if g.faults.unsorted {
		return
	}
	for i := 1; i < g.claimers; i++ {
		for j := i; j > 0 && s.claimers[j].rank() < s.claimers[j-1].rank(); j-- {
			s.claimers[j], s.claimers[j-1] = s.claimers[j-1], s.claimers[j]
		}
	}
}

// rank orders claimers. Those of one rank may still differ; that only costs states.
func (c *ringClaimer) rank() (n uint64) {
	for _, f := range [...]uint8{
		c.stage,
		c.left,
		c.inserted[0],
		c.inserted[1],
		c.locked,
		c.waitedFor,
		c.duplicates,
		c.key,
		c.retiredBefore,
	} {
		n = n<<7 | uint64(f)
	}
	return n
}

// reset ends the claimer's transaction. The process keeps its filters.
func (c *ringClaimer) reset() {
	if c.left == 0 {
		*c = ringClaimer{}
		return
	}
	*c = ringClaimer{left: c.left, filterOf: c.filterOf, filter: c.filter, reversed: c.reversed}
}

func (s *ringState) breach(b uint8) {
	if s.bad == 0 {
		s.bad = b
	}
}
