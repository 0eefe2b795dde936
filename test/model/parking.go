package main

// Parking by ordering key, attempts at parked rows, and copies of parked messages: rules D4 and K7
// as (*engine).checkOrder, retrier, onlyonce.promote, onlyonce.claim_consumer and onlyonce.settle
// have them.
//
// All messages have one ordering key and are in one partition. Its worker handles them in order; a
// handler may fail, and then the message is parked. Two attempts at parked rows run beside it, the
// second one of an owner that was replaced or of another goroutine. No ordering key is locked: each
// transaction that parks a message behind another, and each that settles a row, is followed by a
// statement that makes the first row due if it is blocked. A process may die before that
// statement; the next owner looks for such rows. An operator redrives and gives up what waits. A
// copy of message 0 comes through another partition, at any time, also after its key was forgotten.
// The key is forgotten while the message is parked, and not under a transaction that has claimed it
// or found it: the ring waits for those (the ring's model has that).
//
// Not modelled: fences of attempts (the fence's model has them), several ordering keys, replays.

const (
	parkMessages = 3
	parkAttempts = 2
)

// parkScope is what is explored, and which protection is left out.
type parkScope struct {
	messages      uint8
	failures      uint8 // of handlers
	crashes       uint8 // between a COMMIT and the statement after it
	discards      bool
	copies, older bool // a copy of message 0 comes; its key is forgotten while it is parked

	noLook, settleLast                              bool // D4
	noPromoteBehind, noPromoteSettled, noSweep      bool
	parkWithoutClaim, noProbe, settleWithoutKey     bool // K7
	probeFirst, conflictIsDuplicate, discardWithout bool
}

// States of a row. A message that was applied at once has none.
const (
	rowNone = iota
	rowRetrying
	rowWaiting
	rowBlocked
	rowApplied
	rowDiscarded
)

func unsettled(row uint8) bool { return row >= rowRetrying && row <= rowBlocked }

// Stages of a transaction, and of the statement after it.
const (
	parkIdle    = iota
	parkBegun   // an attempt has read that its row is the first; a message has claimed its key
	parkProbed  // a copy has found no parked row
	parkLooked  // the worker has read whether the key is blocked; an attempt has settled its row
	parkHandled // the handlers have run
	parkAfter   // committed: the first row is to be made due
	parkHead    // has read which row is the first
)

// parkTx is a process that runs one transaction after another.
type parkTx struct {
	stage, row uint8
	claims     bool // has inserted the key of message 0, uncommitted
	sick       bool // has read that the key is blocked
	duplicate  bool
}

type parkState struct {
	next      uint8 // the position
	rows      [parkMessages]uint8
	effects   [parkMessages]uint8
	applied   uint8 // one above the last message that was applied
	key       bool  // the key of message 0 is claimed
	forgotten bool
	copyDone  bool

	worker, copy      parkTx
	attempts          [parkAttempts]parkTx
	failures, crashes uint8
	bad               uint8
}

var parkBreaches = []string{"", "order INVERTED", "message applied TWICE", "applied AND parked", "applied AND given up", "copy LOST"}

func parkModel(g *parkScope) model[parkState] {
	return model[parkState]{
		bad: func(s *parkState) string { return parkBreaches[s.bad] },
		goal: func(s *parkState) bool {
			return s.next == g.messages && s.first() < 0 && (s.copyDone || !g.copies)
		},
		next: func(s parkState, out emit[parkState]) {
			to := func(t parkState, step string, a, b int) { t.verify(); out(t, step, a, b) }
			g.worker(s, to)
			for k := range s.attempts {
				g.attempt(s, k, to)
			}
			g.operator(s, to)
			if g.copies {
				g.copy(s, to)
			}
			if h := s.first(); !g.noSweep && h >= 0 && s.rows[h] == rowBlocked {
				t := s
				t.rows[h] = rowRetrying
				to(t, "the owner finds that row %d waits for nothing", h, 0)
			}
			known := g.older && s.key && !s.forgotten
			free := known && s.claimer(nil) == nil && !s.locked(0, -1)
			if free && unsettled(s.rows[0]) {
				t := s
				t.key = false
				t.forgotten = true
				to(t, "the key of message 0 is forgotten", 0, 0)
			}
		},
	}
}

func (s *parkState) verify() {
	for m, n := range s.effects {
		switch {
		case s.bad != 0:
		case n > 1:
			s.bad = 2
		case n > 0 && unsettled(s.rows[m]):
			s.bad = 3
		case n > 0 && s.rows[m] == rowDiscarded:
			s.bad = 4
		}
	}
}

// first is the first row that is not settled, or -1.
func (s *parkState) first() int {
	for m, row := range s.rows {
		if unsettled(row) {
			return m
		}
	}
	return -1
}

// claimer is a transaction other than tx that has inserted the key of message 0 and is open.
func (s *parkState) claimer(tx *parkTx) *parkTx {
	for _, of := range []*parkTx{&s.worker, &s.copy, &s.attempts[0], &s.attempts[1]} {
		if of != tx && of.claims {
			return of
		}
	}
	return nil
}

// locked reports whether an attempt other than k has settled the row and is open.
func (s *parkState) locked(row uint8, k int) bool {
	for i, a := range s.attempts {
		locks := a.stage == parkLooked || a.stage == parkHandled
		if i != k && a.row == row && locks {
			return true
		}
	}
	return false
}

func (s *parkState) apply(m uint8) {
	s.effects[m]++
	if m < s.applied && s.bad == 0 {
		s.bad = 1
	}
	s.applied = max(s.applied, m+1)
}

// worker handles the message at the position.
func (g *parkScope) worker(s parkState, to emit[parkState]) {
	w := s.worker
	m := s.next
	move := func(change func(t *parkState), stage uint8, step string) {
		t := s
		t.worker.stage = stage
		if change != nil {
			change(&t)
		}
		to(t, step, int(m), 0)
	}
	if w.stage > parkIdle && w.stage < parkAfter {
		move(func(t *parkState) { t.worker = parkTx{} }, parkIdle, "worker, message %d: ROLLBACK")
	}
	switch w.stage {
	case parkIdle:
		switch {
		case m == g.messages:
		case m == 0 && g.copies && s.claimer(nil) != nil: // waits for that transaction
		case m == 0 && s.key:
			move(func(t *parkState) { t.next++ }, parkIdle, "worker, message %d: a duplicate, COMMIT")
		default:
			move(func(t *parkState) { t.worker.claims = m == 0 }, parkBegun, "worker, message %d: BEGIN, claims its key")
		}
	case parkBegun:
		move(
			func(t *parkState) { t.worker.sick = s.first() >= 0 && !g.noLook },
			parkLooked,
			"worker, message %d: looks whether its key is blocked",
		)
	case parkLooked:
		if w.sick {
			after := uint8(parkAfter)
			if g.noPromoteBehind {
				after = parkIdle
			}
			move(func(t *parkState) { g.park(t, rowBlocked) }, after, "worker, message %d: parked behind another, COMMIT")
			return
		}
		move(nil, parkHandled, "worker, message %d: its handler runs")
		if s.failures < g.failures {
			move(
				func(t *parkState) { t.failures++; g.park(t, rowRetrying) },
				parkIdle,
				"worker, message %d: its handler fails; parked, COMMIT",
			)
		}
	case parkHandled:
		move(func(t *parkState) {
			t.key = t.key || w.claims
			t.next++
			t.worker = parkTx{}
			t.apply(m)
		}, parkIdle, "worker, message %d: COMMIT, applied")
	default:
		g.promote(s, func(t *parkState) *parkTx { return &t.worker }, to)
	}
}

// park is the COMMIT of a worker's transaction that parks the message at the position.
func (g *parkScope) park(t *parkState, row uint8) {
	t.rows[t.next] = row
	t.key = t.key || t.worker.claims && !g.parkWithoutClaim
	t.worker = parkTx{stage: t.worker.stage}
	t.next++
}

// promote makes the first row due if it is blocked: a statement after COMMIT, which reads and then
// updates.
func (g *parkScope) promote(s parkState, of func(*parkState) *parkTx, to emit[parkState]) {
	p := *of(&s)
	if s.crashes < g.crashes {
		t := s
		t.crashes++
		*of(&t) = parkTx{}
		to(t, "the process dies before it looks for the first row", 0, 0)
	}
	t := s
	switch h := s.first(); {
	case p.stage == parkAfter && h >= 0 && s.rows[h] == rowBlocked:
		*of(&t) = parkTx{stage: parkHead, row: uint8(h)}
		to(t, "promote: row %d is the first, and blocked", h, 0)
	case p.stage == parkAfter:
		*of(&t) = parkTx{}
		to(t, "promote: no first row is blocked", 0, 0)
	default:
		*of(&t) = parkTx{}
		if s.rows[p.row] == rowBlocked {
			t.rows[p.row] = rowRetrying
		}
		to(t, "promote: row %d is due, if it is still blocked", int(p.row), 0)
	}
}

// attempt tries a parked row that is due. Its first statement settles the row, and claims its key.
func (g *parkScope) attempt(s parkState, k int, to emit[parkState]) {
	a := s.attempts[k]
	move := func(change func(t *parkState, n *parkTx), stage uint8, step string) {
		t := s
		n := &t.attempts[k]
		n.stage = stage
		if change != nil {
			change(&t, n)
		}
		to(t, step, k, int(a.row))
	}
	end := func(_ *parkState, n *parkTx) { *n = parkTx{} }
	if a.stage > parkIdle && a.stage < parkAfter {
		move(end, parkIdle, "attempt %d at row %d: ROLLBACK")
	}
	switch a.stage {
	case parkIdle:
		for m, row := range s.rows {
			if row == rowRetrying && s.first() == m {
				t := s
				t.attempts[k] = parkTx{stage: parkBegun, row: uint8(m)}
				to(t, "attempt %d chooses row %d", k, m)
			}
		}
	case parkBegun:
		claims := g.copies && a.row == 0 && !g.settleWithoutKey
		switch {
		case !g.settleLast && s.locked(a.row, k):
		case !g.settleLast && s.rows[a.row] != rowRetrying:
			move(end, parkIdle, "attempt %d: row %d is settled, or no longer due")
		case claims && s.claimer(nil) != nil:
		default:
			move(func(_ *parkState, n *parkTx) {
				if claims {
					n.claims = !s.key
					n.duplicate = s.key && g.conflictIsDuplicate
				}
			}, parkLooked, "attempt %d settles row %d, and claims its key")
		}
	case parkLooked:
		move(nil, parkHandled, "attempt %d at row %d: its handler runs")
		if s.failures < g.failures {
			move(
				func(t *parkState, n *parkTx) { t.failures++; end(t, n) },
				parkIdle,
				"attempt %d at row %d: its handler fails; later again",
			)
			move(
				func(t *parkState, n *parkTx) { t.failures++; t.rows[a.row] = rowWaiting; end(t, n) },
				parkIdle,
				"attempt %d at row %d: its handler fails; it waits for an operator",
			)
		}
	case parkHandled:
		move(func(t *parkState, n *parkTx) {
			t.rows[a.row] = rowApplied
			t.key = t.key || a.claims
			*n = parkTx{stage: parkAfter}
			if g.noPromoteSettled {
				*n = parkTx{}
			}
			if a.duplicate {
				if t.effects[a.row] == 0 && t.bad == 0 {
					t.bad = 5
				}
				return
			}
			t.apply(a.row)
		}, parkAfter, "attempt %d at row %d: COMMIT, applied")
	default:
		g.promote(s, func(t *parkState) *parkTx { return &t.attempts[k] }, to)
	}
}

// operator redrives a row that waits, or gives it up, which claims its key and makes the next one
// due in the same transaction.
func (g *parkScope) operator(s parkState, to emit[parkState]) {
	for m, row := range s.rows {
		if row != rowWaiting {
			continue
		}
		t := s
		t.rows[m] = rowRetrying
		to(t, "an operator redrives row %d", m, 0)
		if !g.discards || m == 0 && s.claimer(nil) != nil {
			continue
		}
		t = s
		t.rows[m] = rowDiscarded
		t.key = t.key || m == 0 && !g.discardWithout
		if h := t.first(); h >= 0 && t.rows[h] == rowBlocked {
			t.rows[h] = rowRetrying
		}
		to(t, "an operator gives row %d up", m, 0)
	}
}

// copy handles a copy of message 0 from another partition. It claims the key, and then looks at
// parked rows.
func (g *parkScope) copy(s parkState, to emit[parkState]) {
	move := func(change func(t *parkState), stage uint8, step string) {
		t := s
		t.copy.stage = stage
		if change != nil {
			change(&t)
		}
		to(t, step, 0, 0)
	}
	claim := func(stage uint8) {
		switch {
		case s.claimer(nil) != nil: // waits for that transaction
		case s.key:
			move(func(t *parkState) {
				t.copyDone = true
				t.copy = parkTx{}
				if s.effects[0] == 0 && s.rows[0] == rowNone && t.bad == 0 {
					t.bad = 5
				}
			}, parkIdle, "copy: its key is claimed, a duplicate")
		default:
			move(func(t *parkState) { t.copy.claims = true }, stage, "copy: claims its key")
		}
	}
	probe := func(stage uint8) {
		if unsettled(s.rows[0]) && !g.noProbe {
			move(
				func(t *parkState) {
					t.key = s.key || s.copy.claims
					t.copyDone = true
					t.copy = parkTx{}
				},
				parkIdle,
				"copy: it is parked, a duplicate, COMMIT",
			)
			return
		}
		move(nil, stage, "copy: it is not parked")
	}
	if s.copy.stage > parkIdle {
		move(func(t *parkState) { t.copy = parkTx{} }, parkIdle, "copy: ROLLBACK")
	}
	switch s.copy.stage {
	case parkIdle:
		if s.copyDone {
			return
		}
		if g.probeFirst {
			probe(parkBegun)
		} else {
			claim(parkBegun)
		}
	case parkBegun:
		if g.probeFirst {
			claim(parkProbed)
		} else {
			probe(parkProbed)
		}
	case parkProbed:
		move(func(t *parkState) {
			t.key = true
			t.copyDone = true
			t.copy = parkTx{}
			t.effects[0]++
		}, parkIdle, "copy: COMMIT, applied")
	}
}
