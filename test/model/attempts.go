package main

// Attempts at parked calls, and what settles them: rules O3, O5, O6 and O9, as pickSQL, settleSQL
// and RedriveCallsSQL have them. A relay makes calls, parks them while they are under way or when
// they have failed, tries them again, and settles each attempt in a transaction. That transaction
// may have an unknown outcome; then the relay sends it again, and the first one arrives late. A
// failover goes back to an earlier state of the database: sequences go back with it, so that ids
// are drawn again. The relay lives on, with its calls under way. A remote that has rejected a call
// rejects each copy of it, until an operator redrives it.
//
// The id of a call in the log stands for the id of its parked row too: both are drawn from
// sequences. Left out: take-over, ordering keys and promotion (relay.go), ages of keys
// (window.go).

// Bounds of the arrays. The scopes choose less.
const (
	attemptCalls = 2
	attemptIDs   = 2
	attemptMemos = 3
)

// attemptScope is what is explored, and which protection is left out.
type attemptScope struct {
	fails, lost uint8 // how many attempts fail, how many outcomes of settlements are unknown
	failover    bool
	redrives    uint8
	rejects     bool
	waits       bool // the relay waits for the standby (WaitFor)

	keyNotCompared, numberNotCompared, countsAnew, oldTimeline bool // faults
}

// States of a call's row.
const (
	attemptNone    = iota
	attemptPending // in the log, above the cursor
	attemptRetrying
	attemptWaiting // rejected: for an operator
	attemptSettled // delivered
)

// attemptRow is a row. Its number is picks, which parkSQL begins with 1.
type attemptRow struct{ state, call, number uint8 }

// attemptDB is what is committed.
type attemptDB struct {
	rows  [attemptIDs]attemptRow
	drawn uint8
}

// How an attempt ends.
const (
	endNone = iota // under way
	endDelivered
	endFailed
	endRejected
)

// attemptMemo is an attempt that the relay remembers.
type attemptMemo struct {
	taken, inChunk, left bool // left: the request is under way
	id, call             uint8
	number, end          uint8
}

type attemptState struct {
	db, standby          attemptDB
	memos                [attemptMemos]attemptMemo
	late                 attemptMemo // a settlement that comes late
	enqueued, effect     uint8
	refused              uint8 // calls that the remote rejects
	copied, promoted     bool
	fails, lost, redrive uint8
	bad                  uint8
}

const (
	attemptLost = iota + 1
	attemptFalse
)

var attemptBreaches = []string{"", "call LOST", "REJECTED, and was applied"}

func attemptModel(g *attemptScope) model[attemptState] {
	return model[attemptState]{
		bad: func(s *attemptState) string { return attemptBreaches[s.bad] },
		goal: func(s *attemptState) bool {
			for _, r := range s.db.rows {
				if r.state != attemptNone && r.state != attemptSettled && r.state != attemptWaiting {
					return false
				}
			}
			return true
		},
		next: func(s attemptState, out emit[attemptState]) {
			to := func(t attemptState, step string, a, b int) { t.judge(); out(t, step, a, b) }
			g.database(s, to)
			for k := range s.memos {
				g.memo(s, k, to)
			}
			for id := range s.db.rows {
				g.row(s, id, to)
			}
			if s.late.taken {
				t := s
				t.settle(g, &s.late)
				t.late = attemptMemo{}
				to(t, "a late settlement of attempt %d at id %d arrives", int(s.late.number), int(s.late.id))
			}
		},
	}
}

func (s *attemptState) judge() {
	for _, r := range s.db.rows {
		switch {
		case s.bad != 0:
		case r.state == attemptSettled && !has(s.effect, r.call):
			s.bad = attemptLost
		case r.state == attemptWaiting && has(s.effect, r.call):
			s.bad = attemptFalse
		}
	}
}

// database is an enqueued call, and a failover.
func (g *attemptScope) database(s attemptState, to emit[attemptState]) {
	for x := range uint8(attemptCalls) {
		if !has(s.enqueued, x) && s.db.drawn < attemptIDs {
			t := s
			t.enqueued |= bit(x)
			t.db.rows[t.db.drawn] = attemptRow{state: attemptPending, call: x}
			t.db.drawn++
			to(t, "call %d is enqueued with id %d", int(x), int(s.db.drawn))
		}
	}
	if !g.failover || s.promoted {
		return
	}
	if !s.copied || g.waits && s.db != s.standby {
		t := s
		t.copied = true
		t.standby = s.db
		to(t, "the standby has replayed to here", 0, 0)
	}
	if s.copied && s.db != s.standby {
		t := s
		t.db = s.standby
		t.standby = attemptDB{}
		t.promoted = true
		t.late = attemptMemo{}
		for k := range t.memos {
			t.memos[k].inChunk = false // the cursor has moved back: OO008
			if m := &t.memos[k]; m.left && g.awaits(&s, m) && !g.oldTimeline {
				*m = attemptMemo{}
			}
		}
		to(t, "FAILOVER to the standby", 0, 0)
	}
}

// awaits reports whether the relay waits until the standby has what an attempt has committed.
func (g *attemptScope) awaits(s *attemptState, m *attemptMemo) bool {
	if !g.waits || s.promoted {
		return false
	}
	r := s.standby.rows[m.id]
	return m.inChunk && r.state == attemptNone || !m.inChunk && r.number < m.number
}

// remember adds an attempt that leaves now.
func (s *attemptState) remember(m attemptMemo) bool {
	for k := range s.memos {
		if !s.memos[k].taken {
			m.taken = true
			m.left = true
			s.memos[k] = m
			return true
		}
	}
	return false
}

// row is what a relay does with a row: it makes the call, from the log or as one that is due.
func (g *attemptScope) row(s attemptState, id int, to emit[attemptState]) {
	r := &s.db.rows[id]
	for _, m := range s.memos {
		underWay := m.taken && (m.inChunk || r.state != attemptPending)
		if underWay && int(m.id) == id {
			return // pickSQL leaves it out
		}
	}
	m := attemptMemo{id: uint8(id), call: r.call, number: r.number + 1, inChunk: r.state == attemptPending} //nolint:gosec // an id
	switch r.state {
	case attemptPending:
		if t := s; t.remember(m) {
			to(t, "the relay makes the call of id %d from the log", id, 0)
		}
	case attemptRetrying:
		r.number++
		if s.remember(m) {
			to(s, "the relay picks id %d, attempt %d", id, int(r.number))
		}
	case attemptWaiting:
		if s.redrive < g.redrives {
			s.redrive++
			s.refused &^= bit(r.call)
			r.state = attemptRetrying
			if g.countsAnew {
				r.number = 0
			}
			to(s, "an operator redrives id %d", id, 0)
		}
	}
}

// memo is what becomes of an attempt.
func (g *attemptScope) memo(s attemptState, k int, to emit[attemptState]) {
	m := &s.memos[k]
	if !m.taken {
		return
	}
	id := int(m.id)
	if m.left && g.awaits(&s, m) {
		return
	}
	if m.left {
		t := s
		t.memos[k].left = false
		if !has(s.refused, m.call) {
			t.effect |= bit(m.call)
			t.memos[k].end = endDelivered
			to(t, "call %d is applied, and the relay is told", int(m.call), 0)
		}
		mayReject := g.rejects && s.fails < g.fails && !has(s.effect, m.call)
		if has(s.refused, m.call) || mayReject {
			t.fails = min(s.fails+1, g.fails)
			t.effect = s.effect
			t.refused |= bit(m.call)
			t.memos[k].end = endRejected
			to(t, "call %d is rejected", int(m.call), 0)
		}
		if s.fails < g.fails {
			t.fails = s.fails + 1
			t.refused = s.refused
			t.effect = s.effect
			t.memos[k].end = endFailed
			to(t, "call %d fails", int(m.call), 0)
			if !has(s.refused, m.call) {
				t.effect |= bit(m.call)
				to(t, "call %d is applied, and its answer is lost", int(m.call), 0)
			}
		}
	}
	if m.inChunk {
		t := s
		r := &t.db.rows[id]
		r.number = 1
		switch m.end {
		case endDelivered:
			*r = attemptRow{state: attemptSettled, call: r.call}
		case endRejected:
			r.state = attemptWaiting
		default:
			r.state = attemptRetrying
		}
		t.memos[k].inChunk = false
		if !m.left {
			t.memos[k] = attemptMemo{}
		}
		to(t, "the relay moves the cursor over id %d", id, 0)
		return
	}
	if m.left {
		return
	}
	t := s
	t.settle(g, m)
	t.memos[k] = attemptMemo{}
	to(t, "the relay settles attempt %d at id %d", int(m.number), id)
	if s.lost < g.lost && !s.late.taken {
		t := s
		t.lost++
		t.late = *m
		to(t, "the settlement of attempt %d at id %d has an unknown outcome", int(m.number), id)
	}
}

// settle is settleSQL.
func (s *attemptState) settle(g *attemptScope, m *attemptMemo) {
	r := &s.db.rows[m.id]
	otherNumber := r.number != m.number && !g.numberNotCompared
	otherKey := r.call != m.call && !g.keyNotCompared
	if r.state != attemptRetrying || otherNumber || otherKey {
		return
	}
	switch m.end {
	case endDelivered:
		r.state = attemptSettled
		r.number = 0
	case endRejected:
		r.state = attemptWaiting
	}
}

func attemptTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*attemptScope)) {
		all = append(all, entry{"attempts/" + name, want, nightly, func() result {
			g := attemptScope{fails: 3, rejects: true}
			change(&g)
			return explore(attemptModel(&g))
		}})
	}
	operator := func(g *attemptScope) { g.redrives = 2 }
	late := func(g *attemptScope) { g.lost = 1 }
	add("O3/failover, ends well", "", false, func(g *attemptScope) {
		g.failover = true
		g.fails = 2
	})
	add("O3/failover, a settlement comes late, ends well", "", true, func(g *attemptScope) { late(g); g.failover = true })
	add("O5/a settlement comes late, ends well", "", false, late)
	add("O6/an operator, ends well", "", false, operator)
	add("O6/an operator, a settlement comes late, ends well", "", false, func(g *attemptScope) { late(g); operator(g) })
	add("O9/failover, an operator, ends well", "", false, func(g *attemptScope) {
		operator(g)
		g.failover = true
		g.waits = true
	})

	add("O3/an attempt settles by id and number alone", "LOST", false, func(g *attemptScope) {
		g.failover = true
		g.keyNotCompared = true
	})
	add("O6/an attempt settles by id and key alone", "REJECTED", false, func(g *attemptScope) {
		late(g)
		operator(g)
		g.numberNotCompared = true
	})
	add("O6/an attempt settles by a number that a redrive counts anew", "REJECTED", false, func(g *attemptScope) {
		late(g)
		operator(g)
		g.countsAnew = true
	})
	add("O9/a position of the old timeline counts", "REJECTED", false, func(g *attemptScope) {
		operator(g)
		g.failover = true
		g.waits = true
		g.oldTimeline = true
	})
	add("O9/the standby is not waited for, and loses a redrive", "REJECTED", false, func(g *attemptScope) {
		operator(g)
		g.failover = true
	})
	return all
}
