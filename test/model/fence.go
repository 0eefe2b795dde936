package main

// The fence of a consumer with one transaction at a time: rules F1, F2, T2 and T4 as
// onlyonce.fence, onlyonce.raise_epoch and (*pruning).step have them.
//
// A transaction shares the owner's lock (onlyonce.owner_lock), and a take-over waits for all that
// share it. At READ COMMITTED the statement after the lock compares owner and position. Above that
// level it locks the lease's row besides, which PostgreSQL does not do for a snapshot that is older
// than the row. A take-over has both, and holds them until it has committed.
//
// Two members of a group; the broker moves the partition between them. A member of an older
// generation knows nothing of it and goes on. Each attempt of a batch is a transaction of its
// own on the server, which takes its steps whenever it likes: the client may lose sight of it
// (the outcome is unknown) and send another. A failover goes back to an earlier state of the
// database.

// Bounds of the arrays. The scopes choose less.
const (
	fenceOffsets  = 3
	fenceMembers  = 2
	fenceAttempts = 2 // transactions of a member on the server at once
)

// fenceScope is what is explored, and which protection is left out.
type fenceScope struct {
	offsets, generations int
	failover             bool
	oldSnapshots         bool // above READ COMMITTED: a transaction has the snapshot of its begin

	noRaise, noPosition, noOwner, epochOnly, noLock, noKey bool
	oneStatement, noRowLock, raiseBeforeLock               bool
	pruneAtOnce, pruneByID                                 bool
	anyRowIsMine, unknownIsSuccess, raiseWithoutProof      bool
}

// Stages of an attempt on the server.
const (
	fenceNone = iota
	fenceSent
	fenceBegun    // has its snapshot, and no transaction id
	fenceLocked   // shares the owner's lock
	fenceCompared // has compared epoch, nonce and position
	fenceInserted // has its row of onlyonce.progress; the handlers run
	fenceRaised
	fenceCommitted
	fenceRolledBack
)

// fenceAttempt is one transaction.
type fenceAttempt struct {
	stage, from, next, epoch, nonce, seen uint8 // seen: the position at its begin
	snapOwner, snapPosition               bool  // what its snapshot answers
	skips                                 bool  // seeded: the fence failed and did not raise
	orphan                                bool  // its client has given it up
}

func (a *fenceAttempt) locks() bool { return a.stage >= fenceLocked && a.stage <= fenceInserted }

// Stages of a member.
const (
	memberIdle = iota
	memberRead
	memberProved
	memberRaises // has the owner's lock to itself
	memberRaised // seeded: has raised the epoch, and waits for the lock
	memberOwner
	memberWaits
	memberUnknown
	memberRefused // its fence raised OO001
	memberOut
)

// fenceMember is a process. seenEpoch is the epoch that it read; position what it remembers.
type fenceMember struct {
	generation, stage, seenEpoch, epoch, nonce, position, from, next, current uint8
	attempts                                                                  [fenceAttempts]fenceAttempt
}

// fenceDB is what is committed. rows has onlyonce.progress: the next offset for each offset from
// which a batch went, 0 for none.
type fenceDB struct {
	rows                     [fenceOffsets]uint8
	epoch, nonce, generation uint8
	effects                  [fenceOffsets]uint8
}

func (d *fenceDB) position() uint8 {
	for from := fenceOffsets - 1; from >= 0; from-- {
		if d.rows[from] != 0 {
			return d.rows[from]
		}
	}
	return 0
}

type fenceState struct {
	db, standby       fenceDB
	copied, promoted  bool
	generation, nonce uint8 // the newest that were given out
	members           [fenceMembers]fenceMember
	bad               uint8
}

var fenceBreaches = []string{
	"", "effect TWICE", "offset LOST", "a stale member FENCED the owner", "a ZOMBIE commits under another owner",
	"success BEYOND the position",
}

func fenceModel(g *fenceScope) model[fenceState] {
	s := fenceState{generation: 1}
	s.members[0].generation = 1
	return model[fenceState]{
		init: s,
		bad:  func(s *fenceState) string { return fenceBreaches[s.bad] },
		next: func(s fenceState, out emit[fenceState]) {
			to := func(t fenceState, step string, a, b int) { t.verify(g); out(t, step, a, b) }
			g.environment(s, to)
			for i := range s.members {
				for k := range s.members[i].attempts {
					g.serverStep(s, i, k, to)
				}
				g.memberStep(s, i, to)
			}
			g.prune(s, to)
		},
	}
}

func (s *fenceState) verify(g *fenceScope) {
	if s.bad != 0 {
		return
	}
	for o := range g.offsets {
		switch {
		case s.db.effects[o] > 1:
			s.bad = 1
		case o < int(s.db.position()) && s.db.effects[o] == 0:
			s.bad = 2
		}
	}
	for i := range s.members {
		m := &s.members[i]
		owns := m.stage >= memberOwner && m.stage <= memberRefused
		ahead := m.generation == s.generation && s.db.generation < s.generation
		if owns && ahead && !s.promoted {
			s.bad = 3
		}
	}
}

// environment moves the partition, and fails over to a standby that has an earlier state.
func (g *fenceScope) environment(s fenceState, to emit[fenceState]) {
	if int(s.generation) < g.generations {
		for i := range s.members {
			t := s
			t.generation++
			m := &t.members[i]
			for k := range m.attempts {
				m.attempts[k].orphan = m.attempts[k].stage != fenceNone
			}
			*m = fenceMember{generation: t.generation, attempts: m.attempts}
			to(t, "the broker gives the partition to member %d in generation %d", i, int(t.generation))
		}
	}
	if g.failover && !s.copied && s.db.position() > 0 {
		t := s
		t.standby = s.db
		t.copied = true
		to(t, "the standby has replayed to here", 0, 0)
	}
	if s.copied && !s.promoted {
		t := s
		t.db = s.standby
		t.promoted = true
		t.standby = fenceDB{}
		for i := range t.members {
			t.members[i].attempts = [fenceAttempts]fenceAttempt{}
			switch t.members[i].stage {
			case memberWaits:
				t.members[i].stage = memberUnknown
			case memberRaises:
				t.members[i].stage = memberIdle
			}
		}
		to(t, "FAILOVER to the standby", 0, 0)
	}
}

// serverStep is the next statement of attempt k of member i.
func (g *fenceScope) serverStep(s fenceState, i, k int, to emit[fenceState]) {
	a := s.members[i].attempts[k]
	move := func(change func(t *fenceState, n *fenceAttempt), stage uint8, step string) {
		t := s
		n := &t.members[i].attempts[k]
		n.stage = stage
		if change != nil {
			change(&t, n)
		}
		if n.orphan && stage >= fenceRaised {
			*n = fenceAttempt{}
		}
		to(t, step, i, int(a.from))
	}
	switch a.stage {
	case fenceSent:
		if !g.oldSnapshots && !g.oneStatement { // it begins with the lock: to begin earlier could only hold up pruning
			g.serverLock(s.db.position(), &s, &a, move)
			return
		}
		move(func(_ *fenceState, n *fenceAttempt) {
			n.seen = s.db.position()
			n.snapOwner, n.snapPosition = g.owns(&s.db, &a), s.db.position() == a.from
		}, fenceBegun, "a transaction of member %d, from %d: BEGIN")
	case fenceBegun:
		g.serverLock(a.seen, &s, &a, move)
	case fenceLocked:
		owner := g.owns(&s.db, &a)
		same := s.db.position() == a.from
		if g.oldSnapshots || g.oneStatement {
			owner = a.snapOwner
			same = a.snapPosition
		}
		passes := (owner || g.noOwner) && (same || g.noPosition)
		switch {
		case passes:
			move(nil, fenceCompared, "a transaction of member %d, from %d: compares owner and position")
		case g.noRaise:
			move(
				func(_ *fenceState, n *fenceAttempt) { n.skips = true },
				fenceInserted,
				"a transaction of member %d, from %d: the fence does not raise",
			)
		default:
			move(nil, fenceRaised, "a transaction of member %d, from %d: OO001, replaced or moved")
		}
	case fenceCompared:
		if !g.noKey {
			if s.inserting(a.from) {
				return // waits for that transaction
			}
			if s.db.rows[a.from] != 0 {
				move(nil, fenceRaised, "a transaction of member %d, from %d: 23505, there is a row")
				return
			}
		}
		move(func(_ *fenceState, n *fenceAttempt) {
			n.snapOwner = false
			n.snapPosition = false
			n.seen = 0
		}, fenceInserted,
			"a transaction of member %d, from %d: inserts its row; handlers")
	case fenceInserted:
		move(func(t *fenceState, n *fenceAttempt) { g.commit(t, n) }, fenceCommitted, "a transaction of member %d, from %d: COMMIT")
		move(nil, fenceRolledBack, "a transaction of member %d, from %d: ROLLBACK")
	}
}

// serverLock shares the owner's lock. It waits for a take-over that has the lock to itself. Above
// READ COMMITTED it fails if the lease's row has changed since the snapshot.
func (g *fenceScope) serverLock(seen uint8, s *fenceState, a *fenceAttempt, move func(func(*fenceState, *fenceAttempt), uint8, string)) {
	for i := range s.members {
		if s.members[i].stage == memberRaises {
			return
		}
	}
	locks := !g.noRowLock && !g.noOwner && !g.noRaise
	if g.oldSnapshots && locks && a.snapOwner != g.owns(&s.db, a) {
		move(nil, fenceRaised, "a transaction of member %d, from %d: 40001, the lease has changed")
		return
	}
	move(func(_ *fenceState, n *fenceAttempt) { n.seen = seen }, fenceLocked, "a transaction of member %d, "+
		"from %d: shares the owner's lock")
}

func (g *fenceScope) owns(d *fenceDB, a *fenceAttempt) bool {
	return d.epoch == a.epoch && (d.nonce == a.nonce || g.epochOnly)
}

// inserting reports whether an open transaction has inserted the row of an offset.
func (s *fenceState) inserting(from uint8) bool {
	for i := range s.members {
		for _, a := range s.members[i].attempts {
			if a.stage == fenceInserted && !a.skips && a.from == from {
				return true
			}
		}
	}
	return false
}

func (g *fenceScope) commit(t *fenceState, a *fenceAttempt) {
	for o := a.from; o < a.next; o++ {
		t.db.effects[o]++
	}
	if a.skips {
		return
	}
	t.db.rows[a.from] = a.next
	if t.db.nonce != a.nonce && t.bad == 0 {
		t.bad = 4
	}
}

// prune deletes a row below the newest one. Every transaction that was open when a later batch had
// committed must have ended: each open one has begun at a position above the row (T4).
func (g *fenceScope) prune(s fenceState, to emit[fenceState]) {
	newest := -1
	for from := fenceOffsets - 1; from >= 0; from-- {
		if s.db.rows[from] == 0 {
			continue
		}
		if newest < 0 {
			newest = from
			continue
		}
		if g.pruneAtOnce || !s.needed(g, uint8(from)) {
			t := s
			t.db.rows[from] = 0
			to(t, "the owner prunes the row of %d", from, 0)
		}
	}
}

// needed reports whether an open transaction may have read a position that is not above the row.
func (s *fenceState) needed(g *fenceScope, from uint8) bool {
	for i := range s.members {
		for _, a := range s.members[i].attempts {
			switch a.stage {
			case fenceBegun:
				if !g.pruneByID && a.seen <= from {
					return true
				}
			case fenceLocked, fenceCompared:
				if a.seen <= from {
					return true
				}
			}
		}
	}
	return false
}
