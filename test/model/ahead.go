package main

// Calls that are made before their pass is stored: rule O6, as readAheadSQL, onlyonce.advance and
// moveAheadSQL have it. A lane, two calls at most, a clock, relays that die and are replaced and
// do not know.
//
//   - Each pass that is stored opens a window for the calls after it: in columns of the lane, from
//     when and until when they may be called ahead. The pass that is stored next takes the window
//     over as its own, and opens another one.
//   - A relay calls ahead what no pass holds, after one read that says: it has the lease, the lane
//     is at its version, the clock and the calls' times are within the window. It does so only
//     after it has stored a pass itself.
//   - While the lane is idle and it has called nothing, it moves the window, by a statement that
//     may arrive late, and whose answer may be lost.
//   - Checked: whoever makes a call takes as the start of its age no later tick than that of the
//     first one that was really made; and a call that cannot have been made is not aged from before
//     it was written.
//
// A chunk is one call: of a pass only the first call above last may have been made. Ticks are the
// database's clock, and a call takes none. Left out: parking, ordering keys (window.go), a failover
// (what it loses is aged from when it was written), a clock that goes back, and a lane that is
// given back, whose windows are closed.

const aheadCalls = 2

// aheadScope is what is explored, and which protection is left out.
type aheadScope struct {
	calls, end, width, leases uint8
	lostAnswers               bool

	faults aheadFaults
}

// aheadFaults are protections that can be left out.
type aheadFaults struct {
	ownStart, notTakenOver, versionNotCompared, timer                          bool
	withoutAPass, movedAfterCalls, calledWhileItMoves, agedAll, forgottenEarly bool
}

// aheadCall is a call of the log.
type aheadCall struct {
	state, created, first uint8 // first: the tick in which it was first made; 0: never
}

// States of an aheadCall.
const (
	aheadNone = iota
	aheadOpen
	aheadCommitted
)

// aheadNever is onlyonce.lanes.started_at while no call of the pass has been made.
const aheadNever = 31

// aheadWindow is from when and until when calls may be made ahead; zero: none.
type aheadWindow struct{ from, until uint8 }

func (w aheadWindow) holds(c aheadCall) bool { return w.until != 0 && c.created <= w.until }

// aheadLane is the lane's row, and its lease. Sets of calls are bits.
type aheadLane struct {
	prev, target, last, started uint8
	pass, next                  aheadWindow // of calls in the pass; of those after it
	version, owner, until       uint8       // until: when the lease ends; 0: it is free
}

// Stages of a relay.
const (
	aheadAway = iota
	aheadIdle
	aheadRead // calls were read, and are about to be made ahead
	aheadPass
	aheadChunk // a call of the pass was made
)

// aheadRelay is a relay.
type aheadRelay struct {
	stage, owner, version uint8
	read, readAt          uint8 // calls that were read to be made ahead
	made                  uint8 // calls that it made ahead, and no chunk holds yet
	knows                 bool  // of the pass, which calls were made ahead
	mine                  bool  // the window after the pass is its own
	moving                bool  // a statement that moves the window is under way, or its answer was lost
	suspects              bool  // the first call above last may have been made by the owner before
	current               uint8
}

type aheadState struct {
	now    uint8
	calls  [aheadCalls]aheadCall
	lane   aheadLane
	moving struct{ owner, version uint8 } // the statement that moves the window; owner 0: none
	relays [2]aheadRelay
	bad    uint8
}

const (
	aheadYoung = iota + 1
	aheadOld
)

var aheadBreaches = []string{"", "TOO YOUNG: the age of a call begins after the first one", "TOO OLD: a call that cannot have been made is aged from before it was written"}

func aheadModel(g *aheadScope) model[aheadState] {
	return model[aheadState]{
		init: aheadState{now: 1, lane: aheadLane{started: aheadNever}},
		bad:  func(s *aheadState) string { return aheadBreaches[s.bad] },
		next: func(s aheadState, out emit[aheadState]) {
			if s.now < g.end {
				t := s
				t.now++
				out(t, "it is %d o'clock", int(t.now), 0)
			}
			for x := range s.calls[:g.calls] {
				t := s
				switch s.calls[x].state {
				case aheadNone:
					t.calls[x] = aheadCall{state: aheadOpen, created: s.now}
					out(t, "call %d is written", x, 0)
				case aheadOpen:
					t.calls[x].state = aheadCommitted
					out(t, "call %d is committed", x, 0)
				}
			}
			if s.moving.owner != 0 {
				g.windowMoves(s, out)
			}
			for i := range s.relays {
				g.relay(s, i, out)
			}
		},
	}
}

// committed is the calls that a snapshot shows.
func (s *aheadState) committed() (set uint8) {
	for x, c := range s.calls {
		if c.state == aheadCommitted {
			set |= 1 << x
		}
	}
	return set
}

// rest is the calls of the pass above last.
func (l *aheadLane) rest() uint8 { return l.target &^ l.prev &^ (1<<l.last - 1) }

// windowMoves is the statement that renews the lease and moves the window.
func (g *aheadScope) windowMoves(s aheadState, out emit[aheadState]) {
	t := s
	t.moving.owner, t.moving.version = 0, 0
	if s.lane.owner != s.moving.owner || s.lane.version != s.moving.version {
		out(t, "the window's move finds the lane moved", 0, 0)
		return
	}
	t.lane.next, t.lane.until = aheadWindow{s.now, s.now + g.width}, s.now+g.width
	if g.lostAnswers {
		out(t, "the window is moved, and the answer is lost", 0, 0)
	}
	for i := range t.relays {
		if r := &t.relays[i]; r.stage != aheadAway && r.owner == s.moving.owner {
			r.moving, r.mine = false, true
		}
	}
	out(t, "the window is moved", 0, 0)
}

// relay is what a relay does next, or its end.
func (g *aheadScope) relay(s aheadState, i int, out emit[aheadState]) {
	r := &s.relays[i]
	l := &s.lane
	who := int(r.owner)
	if r.stage == aheadAway {
		if l.owner < g.leases && (l.until == 0 || s.now > l.until) {
			t := s
			t.lane.owner++
			t.lane.until = s.now + g.width
			t.relays[i] = aheadRelay{stage: aheadIdle, owner: t.lane.owner, version: l.version, suspects: l.rest() != 0 && l.started != aheadNever,
				mine: g.faults.withoutAPass && l.next.until != 0}
			out(t, "relay %d takes the lane over", int(t.lane.owner), 0)
		}
		return
	}
	t := s
	t.relays[i] = aheadRelay{}
	out(t, "relay %d dies", who, 0)
	current := l.owner == r.owner && l.version == r.version
	switch r.stage {
	case aheadIdle:
		idle := l.rest() == 0
		if idle {
			g.moveWindow(s, i, current, out)
			g.readAhead(s, i, current, out)
		}
		switch {
		case !current:
			out(t, "relay %d is fenced out", who, 0)
		case !idle:
			g.goOn(s, i, out)
		case s.committed() != l.target || !r.mine:
			g.storePass(s, i, out)
		}
	case aheadRead:
		g.callAhead(s, i, out)
	case aheadPass:
		g.callNext(s, i, out)
	case aheadChunk:
		if !current {
			out(t, "relay %d is fenced out", who, 0)
			return
		}
		g.endChunk(s, i, out)
	}
}

// moveWindow sends the statement that moves the window.
func (g *aheadScope) moveWindow(s aheadState, i int, current bool, out emit[aheadState]) {
	r := &s.relays[i]
	if !current || !r.mine || r.moving || s.moving.owner != 0 || r.suspects || s.lane.next.from == s.now || r.made != 0 && !g.faults.movedAfterCalls {
		return
	}
	s.moving.owner, s.moving.version = r.owner, r.version
	r.moving = true
	out(s, "relay %d asks for the window to be moved", int(r.owner), 0)
}

// readAhead is readAheadSQL.
func (g *aheadScope) readAhead(s aheadState, i int, current bool, out emit[aheadState]) {
	r := &s.relays[i]
	w := s.lane.next
	switch {
	case !current && !g.faults.versionNotCompared, !r.mine, r.moving && !g.faults.calledWhileItMoves,
		w.until == 0, s.now > w.until && !g.faults.timer:
		return
	}
	found := s.committed() &^ s.lane.target &^ r.made
	for x, c := range s.calls {
		if !w.holds(c) && !g.faults.timer {
			found &^= 1 << x
		}
	}
	if found == 0 {
		return
	}
	r.read, r.readAt, r.stage = found, s.now, aheadRead
	out(s, "relay %d reads calls ahead: set %d", int(r.owner), int(found))
}

// callAhead makes the first of the calls that were read ahead.
func (g *aheadScope) callAhead(s aheadState, i int, out emit[aheadState]) {
	r := &s.relays[i]
	x := lowest(r.read)
	s.call(x, r.readAt, true)
	r.made |= 1 << x
	if r.read &^= 1 << x; r.read == 0 {
		r.stage, r.readAt = aheadIdle, 0
	}
	out(s, "relay %d makes call %d ahead", int(r.owner), x)
}

// storePass stores the pass that follows: onlyonce.advance with freeze.
func (g *aheadScope) storePass(s aheadState, i int, out emit[aheadState]) {
	r, l := &s.relays[i], &s.lane
	l.prev, l.target, l.last, l.started = l.target, s.committed(), 0, s.now
	if l.pass = l.next; g.faults.notTakenOver {
		l.pass = aheadWindow{}
	}
	l.next = aheadWindow{s.now, s.now + g.width}
	l.version++
	r.version, r.stage, r.suspects, r.moving = l.version, aheadPass, false, false
	r.knows, r.mine = r.mine, true
	out(s, "relay %d stores a pass of set %d", int(r.owner), int(l.target))
}

// goOn begins the pass that the owner before has left.
func (g *aheadScope) goOn(s aheadState, i int, out emit[aheadState]) {
	r, l := &s.relays[i], &s.lane
	if !r.suspects {
		l.started = s.now
	}
	l.version++
	r.version, r.stage = l.version, aheadPass
	out(s, "relay %d goes on with the pass", int(r.owner), 0)
}

// callNext makes the next call of the pass, unless it made it ahead.
func (g *aheadScope) callNext(s aheadState, i int, out emit[aheadState]) {
	r, l := &s.relays[i], &s.lane
	if l.version != r.version { // it has read nothing yet
		t := s
		t.relays[i] = aheadRelay{}
		out(t, "relay %d is fenced out", int(r.owner), 0)
		return
	}
	left := l.rest()
	if left == 0 {
		r.stage = aheadIdle
		out(s, "relay %d has made all of the pass", int(r.owner), 0)
		return
	}
	x := lowest(left)
	age, may := l.started, r.suspects
	if suspect := l.pass.holds(s.calls[x]) && !r.knows; suspect && !g.faults.ownStart || g.faults.agedAll && l.pass.until != 0 {
		age, may = min(age, l.pass.from), may || suspect
	}
	if r.made>>x&1 == 0 {
		s.call(x, age, may)
	}
	r.current, r.stage = uint8(x), aheadChunk
	out(s, "relay %d makes call %d", int(r.owner), x)
}

// endChunk moves the cursor over the call that was made.
func (g *aheadScope) endChunk(s aheadState, i int, out emit[aheadState]) {
	r, l := &s.relays[i], &s.lane
	l.last, l.started = r.current+1, s.now
	r.made &^= 1 << r.current
	if r.knows && r.made == 0 || g.faults.forgottenEarly {
		l.pass = aheadWindow{}
	}
	l.version++
	r.version, r.suspects, r.current, r.stage = l.version, false, 0, aheadPass
	out(s, "relay %d moves the cursor to %d", int(r.owner), int(l.last))
}

// call makes a call whose age counts from a tick. may is whether somebody may have made it before.
func (s *aheadState) call(x int, from uint8, may bool) {
	c := &s.calls[x]
	if c.first == 0 {
		c.first = s.now
	}
	switch {
	case from > c.first:
		s.bad = aheadYoung
	case !may && from < c.created:
		s.bad = aheadOld
	}
}

// lowest is the number of the lowest bit of a set.
func lowest(set uint8) (x int) {
	for set>>x&1 == 0 {
		x++
	}
	return x
}

func aheadTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*aheadScope)) {
		all = append(all, entry{"ahead/" + name, want, nightly, func() result {
			g := aheadScope{calls: 2, end: 4, width: 2, leases: 2}
			change(&g)
			return explore(aheadModel(&g))
		}})
	}
	add("O6/2 owners, a call", "", false, func(g *aheadScope) { g.calls, g.end = 1, 6 })
	add("O6/2 owners, 2 calls", "", false, func(*aheadScope) {})
	add("O6/2 owners, 2 calls, lost answers", "", true, func(g *aheadScope) { g.lostAnswers = true })
	add("O6/2 owners, 2 calls, a longer time", "", true, func(g *aheadScope) { g.end, g.lostAnswers = 5, true })
	add("O6/3 owners, a call, lost answers", "", true, func(g *aheadScope) { g.leases, g.end, g.calls, g.lostAnswers = 3, 8, 1, true })

	fault := func(name, want string, seed func(*aheadScope)) {
		add(name, want, false, seed)
	}
	fault("O6/the next owner counts from its own start", "YOUNG", func(g *aheadScope) { g.faults.ownStart = true })
	fault("O6/a pass does not take the window over", "YOUNG", func(g *aheadScope) { g.faults.notTakenOver = true })
	fault("O6/the window of a pass is forgotten by an owner that does not know", "YOUNG", func(g *aheadScope) { g.faults.forgottenEarly = true })
	fault("O6/by a timer, not by the database's clock", "YOUNG", func(g *aheadScope) { g.faults.timer, g.calls, g.end = true, 1, 7 })
	fault("O6/the version is not compared", "YOUNG", func(g *aheadScope) { g.faults.versionNotCompared, g.calls, g.end = true, 1, 7 })
	fault("O6/a new owner calls ahead before it has stored a pass", "YOUNG", func(g *aheadScope) { g.faults.withoutAPass, g.calls, g.end = true, 1, 7 })
	fault("O6/the window is moved after calls", "YOUNG", func(g *aheadScope) { g.faults.movedAfterCalls, g.calls, g.end = true, 1, 7 })
	fault("O6/calls are made ahead while the window moves", "YOUNG", func(g *aheadScope) { g.faults.calledWhileItMoves, g.calls, g.end = true, 1, 7 })
	fault("O6/all calls of a pass are aged from the window", "OLD", func(g *aheadScope) { g.faults.agedAll = true })
	return all
}
