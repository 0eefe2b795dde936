package main

// Ages of keys: rule O6, as onlyonce.advance, firstCallTime, parkSQL and pickSQL have it. Two
// calls of one pass of a lane, a clock, and a remote that remembers a key for some time after it
// has first seen it. Relays read chunks, make calls, park them, try them again, die, are replaced
// and do not know, and live on over a failover, which goes back to an earlier state of the
// database.
//
//   - An attempt lasts for a tick at most: a request arrives in the tick in which it left, or in
//     the next. So a call may be started until two ticks before the window of its key ends.
//   - A move of the cursor, with what it parks and the chunk that is read behind it, is a step. So
//     is a pick. Outcomes are known: relay.go has those that are not, and a relay that reads its
//     cursor anew takes all calls for made, as here.
//   - Two calls stand for the 1,024 that may have been made above the cursor.
//
// Left out: calls that are put off, completions, sealed bodies (O13), replays (their calls' ages
// count from the message, as those of a lost history count from the row), and operators
// (attempts.go).

const windowCalls = 2

// windowNever is a time that does not come: onlyonce.lane_cursors.started_at is infinity.
const windowNever = 31

// windowScope is what is explored, and which protection is left out.
type windowScope struct {
	window, end uint8 // ticks
	leases      uint8
	fails       uint8
	calls       uint8
	keyed       bool // both calls have one ordering key
	failover    bool

	faults windowFaults
}

// windowFaults are protections that can be left out.
type windowFaults struct {
	ownStart, keptOnce, notQuiet, neverAsked           bool
	cutNotCalled, journalAfterCall                     bool
	historyOfLog, historyOfParked, timelineNotCompared bool
	numberNotCompared, historyWhenParked               bool
}

// windowParked is a row of onlyonce.parked.
type windowParked struct {
	state, first, at, number uint8 // first: 0 if null; number: of attempts
	untried                  bool  // of reason behind or cut
	older                    bool  // than what a failover has lost
}

// windowDB is what is committed.
type windowDB struct {
	owner, last, started          uint8
	begun, otherTimeline, history bool // history: a failover was seen, lanes.history_at is set
	parked                        [windowCalls]windowParked
}

// Stages of a relay.
const (
	windowAway = iota
	windowLoads
	windowIdle
	windowWorks
)

// What a relay knows of an attempt.
const (
	tryNone = iota
	tryReady
	tryWaits // for the call before it
	tryUnderWay
	tryDelivered
	tryFails
	tryExpired
)

// windowRelay is a relay.
type windowRelay struct {
	stage, owner, last, maybe, notAfter uint8
	rows, picks, numbers                [windowCalls]uint8 // numbers: of the attempts at picks
	behind, matches                     bool               // its version is not the lane's; is the standby's
	lost                                bool               // a lost history may have made the chunk's calls
}

type windowState struct {
	now              uint8
	db, standby      windowDB
	copied, promoted bool
	moved            bool // the lane has moved since the standby's copy
	relays           [2]windowRelay
	taken            uint8
	flying, seen     [windowCalls]uint8 // when the last request left; when the remote first saw the key
	exposed          [windowCalls]uint8 // since when the journal says that it may have been made
	fails, bad       uint8
}

const (
	windowDouble = iota + 1
	windowEarly
)

var windowBreaches = []string{"", "DOUBLE: the remote has forgotten the key", "set aside TOO EARLY"}

func windowModel(g *windowScope) model[windowState] {
	return model[windowState]{
		init: windowState{now: 1, db: windowDB{started: windowNever}},
		bad:  func(s *windowState) string { return windowBreaches[s.bad] },
		next: func(s windowState, out emit[windowState]) {
			to := func(t windowState, step string, a, b int) { g.normalize(&t); out(t, step, a, b) }
			if s.now < g.end {
				t := s
				t.now++
				to(t, "it is %d o'clock", int(t.now), 0)
			}
			for x := range s.flying {
				if s.flying[x] != 0 {
					t := s
					t.flying[x] = 0
					if s.seen[x] == 0 {
						t.seen[x] = s.now
					} else if s.now >= s.seen[x]+g.window {
						t.bad = windowDouble
					}
					to(t, "call %d reaches the remote", x, 0)
				}
			}
			g.database(s, to)
			for i := range s.relays {
				g.relay(s, i, to)
			}
		},
	}
}

// normalize forgets what is not needed any more.
func (g *windowScope) normalize(s *windowState) {
	for x, at := range s.flying {
		if at != 0 && s.now > at+1 {
			s.flying[x] = 0
		}
	}
	for i := range s.relays {
		r := &s.relays[i]
		if r.stage == windowAway {
			*r = windowRelay{}
		}
		if r.stage != windowWorks {
			r.notAfter = 0
			r.lost = false
		}
	}
	a := &s.relays[0]
	b := &s.relays[1]
	if a.owner < b.owner {
		*a, *b = *b, *a
	}
}

// database is a failover.
func (g *windowScope) database(s windowState, to emit[windowState]) {
	if !g.failover || s.promoted {
		return
	}
	t := s
	if !s.copied {
		t.copied = true
		t.standby = s.db
		for i := range t.relays {
			t.relays[i].matches = !t.relays[i].behind
		}
		to(t, "the standby has replayed to here", 0, 0)
		return
	}
	if s.db == s.standby {
		return
	}
	t.db = s.standby
	t.standby = windowDB{}
	t.promoted = true
	t.db.otherTimeline = true
	for x := range t.db.parked {
		t.db.parked[x].older = t.db.parked[x].state != callNotParked
	}
	for i := range t.relays {
		t.relays[i].behind = !t.relays[i].matches
	}
	to(t, "FAILOVER to the standby", 0, 0)
}

// relay is what a relay does next, or its end.
func (g *windowScope) relay(s windowState, i int, to emit[windowState]) {
	r := &s.relays[i]
	if r.stage == windowAway {
		if s.taken < g.leases && !(i == 1 && s.relays[0].stage == windowAway) {
			s.taken++
			s.db.owner = s.taken
			*r = windowRelay{stage: windowLoads, owner: s.taken}
			to(s, "relay %d takes the lane's lease", int(s.taken), 0)
		}
		return
	}
	who := int(r.owner)
	if s.taken < g.leases {
		t := s
		t.relays[i] = windowRelay{}
		to(t, "relay %d dies", who, 0)
	}
	switch r.stage {
	case windowLoads:
		t := s
		n := &t.relays[i]
		*n = windowRelay{stage: windowIdle, owner: r.owner, last: s.db.last, picks: r.picks, numbers: r.numbers, matches: !s.moved}
		if s.db.begun && s.db.started != windowNever {
			n.maybe = windowCalls
		}
		to(t, "relay %d reads the cursor", who, 0)
	case windowIdle:
		if r.last < g.calls {
			g.move(s, i, 0, true, to)
		}
	case windowWorks:
		g.rows(s, i, to)
	}
	g.picks(s, i, to)
}

// move is the transaction that parks what the chunk leaves and moves the cursor over done calls;
// and the read of the next chunk behind it.
func (g *windowScope) move(s windowState, i int, done uint8, reads bool, to emit[windowState]) {
	r := &s.relays[i]
	d := &s.db
	who := int(r.owner)
	switch {
	case d.owner != r.owner:
		*r = windowRelay{}
		to(s, "relay %d: OO001, the lease is another's", who, 0)
		return
	case r.behind:
		r.stage = windowLoads
		r.rows = [windowCalls]uint8{}
		to(s, "relay %d: OO008, the lane has moved", who, 0)
		return
	}
	for x := range r.last + done {
		if x >= r.last {
			g.park(&s, r, x)
		}
	}
	left := r.maybe - min(r.maybe, done)
	keep := left > 0 && !g.faults.ownStart && !(g.faults.keptOnce && done > 0)
	d.last += done
	if !keep {
		d.started = s.now
		if !reads && !g.faults.notQuiet {
			d.started = windowNever
		}
		s.exposed = [windowCalls]uint8{}
	}
	if reads {
		for x := range s.exposed {
			if s.exposed[x] == 0 {
				s.exposed[x] = s.now
			}
		}
	}
	d.begun = true
	s.moved = true
	for k := range s.relays {
		s.relays[k].behind = s.relays[k].stage > windowLoads
	}
	d.otherTimeline, d.history = false, d.history || d.otherTimeline
	r.behind = false
	r.matches = false
	r.last = d.last
	r.maybe = left
	r.stage = windowIdle
	r.rows = [windowCalls]uint8{}
	if !reads || r.last == g.calls {
		to(s, "relay %d moves the cursor, and reads nothing", who, 0)
		return
	}
	r.stage = windowWorks
	r.notAfter = g.firstCall(&s) + g.window - 1
	r.lost = d.history && !g.faults.historyOfLog
	for x := r.last; x < g.calls; x++ {
		r.rows[x] = tryReady
		behind := g.keyed && x > 0
		if behind && (r.rows[x-1] != tryNone || d.parked[x-1].state == callRetrying) {
			r.rows[x] = tryWaits
		}
		to(s, "relay %d moves the cursor, and reads a chunk up to call %d", who, int(x))
	}
}

// firstCall is firstCallTime: all calls were written at 1 o'clock.
func (g *windowScope) firstCall(s *windowState) uint8 {
	if s.db.history && !g.faults.historyOfLog {
		return min(1, s.db.started)
	}
	return s.db.started
}

// park is parkSQL for one call.
func (g *windowScope) park(s *windowState, r *windowRelay, x uint8) {
	p := windowParked{state: callRetrying, at: s.now}
	called := x < r.last+r.maybe || r.lost && !g.faults.historyWhenParked
	switch r.rows[x] {
	case tryDelivered:
		return
	case tryExpired:
		p.state = callWaiting
		if !s.promoted && s.now < s.exposed[x]+g.window-1 {
			s.bad = windowEarly
		}
	case tryFails:
		called = true
		p.number = 1
	case tryUnderWay:
		p.untried = true
		p.number = 1
		called = called || !g.faults.cutNotCalled
	default:
		p.untried = true
	}
	if called {
		p.first = g.firstCall(s)
	}
	s.db.parked[x] = p
	if r.rows[x] == tryUnderWay {
		r.picks[x] = tryUnderWay
		r.numbers[x] = 1
	}
}

// rows makes the calls of the chunk, takes in what returns, and ends the chunk.
func (g *windowScope) rows(s windowState, i int, to emit[windowState]) {
	r := &s.relays[i]
	who := int(r.owner)
	looked := uint8(0)
	open := false
	for x := r.last; x < g.calls && r.rows[x] != tryNone; x++ {
		switch r.rows[x] {
		case tryReady:
			open = true
			if x == r.last+looked {
				t := s
				t.start(g, &t.relays[i].rows[x], x, r.notAfter)
				to(t, "relay %d begins call %d", who, int(x))
			}
			continue
		case tryUnderWay:
			g.returns(s, x, func(t *windowState) *uint8 { return &t.relays[i].rows[x] }, to)
		case tryWaits:
			if r.rows[x-1] == tryDelivered {
				t := s
				t.start(g, &t.relays[i].rows[x], x, r.notAfter)
				to(t, "relay %d begins call %d", who, int(x))
			}
		}
		if !open {
			looked++
		}
	}
	if looked > 0 {
		g.move(s, i, looked, true, to)
	}
	g.move(s, i, looked, false, to)
}

// start is a call that is begun, or that may not be any more.
func (s *windowState) start(g *windowScope, as *uint8, x, notAfter uint8) {
	if s.now >= notAfter && !g.faults.neverAsked {
		*as = tryExpired
		return
	}
	*as = tryUnderWay
	s.flying[x] = s.now
}

// returns is the end of an attempt: delivered, or without an answer.
func (g *windowScope) returns(s windowState, x uint8, as func(*windowState) *uint8, to emit[windowState]) {
	if s.seen[x] != 0 {
		t := s
		*as(&t) = tryDelivered
		to(t, "call %d is delivered", int(x), 0)
	}
	if s.fails < g.fails {
		t := s
		t.fails++
		*as(&t) = tryFails
		to(t, "call %d ends without an answer", int(x), 0)
	}
}

// picks tries parked calls again, and settles.
func (g *windowScope) picks(s windowState, i int, to emit[windowState]) {
	r := &s.relays[i]
	who := int(r.owner)
	for x := range g.calls {
		p := &s.db.parked[x]
		switch r.picks[x] {
		case tryNone:
			behind := g.keyed && x > 0 && (s.db.parked[x-1].state == callRetrying || s.db.parked[x-1].state == callWaiting)
			works := s.db.owner == r.owner && r.stage != windowLoads
			if p.state != callRetrying || behind || !works {
				continue
			}
			t := s
			q := &t.db.parked[x]
			first := q.first
			if first == 0 {
				first = s.now
				lost := s.db.history || s.db.otherTimeline && !g.faults.timelineNotCompared
				maybeCalled := q.untried && q.older && lost
				if maybeCalled && !g.faults.historyOfParked {
					first = q.at
				}
			}
			if !g.faults.journalAfterCall {
				q.first = first
			}
			t.start(g, &t.relays[i].picks[x], x, first+g.window-1)
			if t.relays[i].picks[x] == tryUnderWay {
				q.number++
			}
			t.relays[i].numbers[x] = q.number
			to(t, "relay %d picks call %d, and makes it if it may", who, int(x))
		case tryUnderWay:
			g.returns(s, x, func(t *windowState) *uint8 { return &t.relays[i].picks[x] }, to)
		default:
			t := s
			t.relays[i].picks[x] = tryNone
			t.relays[i].numbers[x] = 0
			if q := &t.db.parked[x]; s.db.owner != r.owner {
				t.relays[i] = windowRelay{}
			} else if q.state == callRetrying && (q.number == r.numbers[x] || g.faults.numberNotCompared) {
				switch r.picks[x] {
				case tryDelivered:
					q.state = callResolved
				case tryExpired:
					q.state = callWaiting
				default:
					if q.first == 0 {
						q.first = s.now
					}
					q.untried = false
				}
			}
			to(t, "relay %d settles call %d", who, int(x))
		}
	}
}

func windowTable() (all []entry) {
	add := func(name, want string, nightly bool, change func(*windowScope)) {
		all = append(all, entry{"window/" + name, want, nightly, func() result {
			g := windowScope{calls: 1, window: 3, end: 5, leases: 2, fails: 1}
			change(&g)
			return explore(windowModel(&g))
		}})
	}
	two := func(g *windowScope) { g.calls = 2 }
	keyed := func(g *windowScope) {
		g.calls = 2
		g.keyed = true
	}
	failover := func(g *windowScope) {
		g.failover = true
		g.leases = 1
	}
	both := func(g *windowScope) { failover(g); keyed(g); g.fails = 0 }
	fails := func(g *windowScope) { both(g); g.fails = 1 }
	sure := func(g *windowScope) { two(g); g.fails = 0 }

	add("O6/take-over", "", false, func(*windowScope) {})
	add("O6/take-over, 2 failures, a longer time", "", true, func(g *windowScope) {
		g.fails = 2
		g.end = 8
	})
	add("O6/take-over, 2 calls", "", true, two)
	add("O6/take-over, 2 calls of a key", "", true, keyed)
	add("O6/failover", "", false, failover)
	add("O6/failover, 2 calls of a key, no call fails", "", false, both)
	add("O6/failover, 2 calls of a key", "", true, fails)
	add("O6/failover, 2 calls", "", true, func(g *windowScope) { failover(g); two(g) })
	add("O6/failover, take-over", "", true, func(g *windowScope) { g.failover = true })

	fault := func(name, want string, scope func(*windowScope), seed func(*windowFaults)) {
		add(name, want, false, func(g *windowScope) { scope(g); seed(&g.faults) })
	}
	once := func(*windowScope) {}
	fault("O6/the next owner counts from its own start", "DOUBLE", once, func(f *windowFaults) { f.ownStart = true })
	fault("O6/the age of a pass is kept for the first chunk only", "DOUBLE", sure, func(f *windowFaults) { f.keptOnce = true })
	fault("O6/the journal stays when a chunk is left", "EARLY", once, func(f *windowFaults) { f.notQuiet = true })
	fault("O6/the age is not asked before a call", "DOUBLE", once, func(f *windowFaults) { f.neverAsked = true })
	fault("O6/a call that is parked under way counts as not made", "DOUBLE", once, func(f *windowFaults) { f.cutNotCalled = true })
	fault("O6/an attempt is journaled at its end", "DOUBLE", keyed, func(f *windowFaults) { f.journalAfterCall = true })
	fault("O6/a lost history is not thought of, in the log", "DOUBLE", failover, func(f *windowFaults) { f.historyOfLog = true })
	fault("O6/a call of a lost history is parked as not made", "DOUBLE", both, func(f *windowFaults) { f.historyWhenParked = true })
	fault("O6/a lost history is not thought of, among parked calls", "DOUBLE", both, func(f *windowFaults) { f.historyOfParked = true })
	fault("O6/the timeline is not compared when calls are picked", "DOUBLE", both, func(f *windowFaults) { f.timelineNotCompared = true })
	fault("O6/an attempt settles by its id alone", "DOUBLE", fails, func(f *windowFaults) { f.numberNotCompared = true })
	return all
}
