package main

// A request's record, the call that it has begun, and the remote's memory of the call's key: rules
// H31 and O6, as onlyonce.http_look, onlyonce.has_expired, outcome.After and
// parked.KnownCall.Decide have them.
//
// A client uses a key, and later once more for something else; a request runs unless there is a
// record. Its call has the key that derives from the request's, so both requests' calls have one.
// Attempts at a call may be applied or not, and answered, refused by a gateway, or not answered. An
// operator redrives what waits, and decides by what is shown of open attempts, or because he has
// looked at the remote. The purge looks at the record at any time from when it is due. A tick
// passes for all of them at once.
//
// Left out: attempts that are under way during a tick (window.go), copies of a request (they get
// the record's answer), several relays (relay.go), and clocks (window.go).

const (
	recordRequests = 2
	// In ticks: how long the remote remembers a key, how long a record is kept, and how often the
	// purge looks: their difference.
	remembered = 2
	recordKept = 3
	recordLook = recordKept - remembered
)

// recordsScope is what is explored, and which protection is left out.
type recordsScope struct {
	ticks, fails uint8

	faults recordsFaults
}

// recordsFaults are protections that can be left out.
type recordsFaults struct {
	byTimeAlone, parkedOnly, notRemembered   bool // H31
	lastVerdict, newKeyOfOpen, windowIgnored bool // O6
}

// States of a call.
const (
	recordedNone = iota
	recordedInLog
	recordedRetrying
	recordedWaiting
	recordedReconcile
	recordedSettled
)

// recordedCall is the call of one request.
type recordedCall struct {
	state, effects uint8
	open           bool  // an attempt may have been applied, and nothing has shown that it was not
	age            uint8 // of the first open attempt
	newKey         bool
}

func (c *recordedCall) unsettled() bool {
	return c.state >= recordedInLog && c.state <= recordedReconcile
}

type recordsState struct {
	requests     uint8 // that have run
	there, looks bool  // the record; looks: something that it has begun may be unsettled
	left, lookIn uint8 // ticks until it expires, and until the purge looks
	calls        [recordRequests]recordedCall
	derived      uint8                 // ticks for which the remote remembers the derived key
	others       [recordRequests]uint8 // and each call's new key
	ticks, fails uint8
	bad          uint8
}

const (
	recordsLost = iota + 1
	recordsTwice
	recordsFalse
)

var recordsBreaches = []string{"", "call LOST: it counts as delivered", "applied TWICE", "an applied call is shown as NOT APPLIED"}

func recordsModel(g *recordsScope) model[recordsState] {
	return model[recordsState]{
		bad: func(s *recordsState) string { return recordsBreaches[s.bad] },
		next: func(s recordsState, out emit[recordsState]) {
			to := func(t recordsState, step string, a, b int) { t.judge(); out(t, step, a, b) }
			g.request(s, to)
			for i := range s.calls {
				g.attempt(s, i, to)
				g.decide(s, i, to)
			}
			g.look(s, to)
			g.tick(s, to)
		},
	}
}

func (s *recordsState) judge() {
	for i := range s.calls {
		c := &s.calls[i]
		switch {
		case s.bad != 0:
		case c.state == recordedSettled && c.effects == 0:
			s.bad = recordsLost
		case c.effects > 1:
			s.bad = recordsTwice
		case c.unsettled() && c.effects > 0 && !c.open:
			s.bad = recordsFalse
		}
	}
}

// request runs a request, unless its key has a record. It writes its call, unless one of its key is
// parked and unsettled, which is taken for the same (O1).
func (g *recordsScope) request(s recordsState, to emit[recordsState]) {
	kept := s.left > 0 || s.looks && !g.faults.byTimeAlone
	if s.requests == recordRequests || s.there && kept {
		return
	}
	n := s.requests
	s.requests++
	s.there = true
	s.looks = true
	s.left = recordKept
	s.lookIn = recordLook
	s.calls[n].state = recordedInLog
	for i := range n {
		if s.calls[i].unsettled() && s.calls[i].state != recordedInLog {
			s.calls[n].state = recordedSettled // as the other one will be
		}
	}
	to(s, "request %d runs, and enqueues its call", int(n), 0)
}

// memory is what the remote knows of the key of a call.
func (s *recordsState) memory(i int) *uint8 {
	if s.calls[i].newKey {
		return &s.others[i]
	}
	return &s.derived
}

// attempt makes a call that is due.
func (g *recordsScope) attempt(s recordsState, i int, to emit[recordsState]) {
	c := &s.calls[i]
	if c.state != recordedInLog && c.state != recordedRetrying {
		return
	}
	if c.open && c.age >= remembered && !g.faults.windowIgnored {
		c.state = recordedReconcile
		to(s, "call %d: the window of its key has passed: it waits for an operator", i, 0)
		return
	}
	noAnswer := func(t recordsState, step string) {
		n := &t.calls[i]
		t.fails++
		n.state = recordedRetrying
		if !n.open {
			n.open = true
			n.age = 0
		}
		to(t, step, i, 0)
	}
	if s.fails < g.fails {
		noAnswer(s, "call %d does not reach the remote, and has no answer")
		t := s
		t.fails++
		t.calls[i].state = recordedWaiting
		t.calls[i].open = c.open && !g.faults.lastVerdict
		to(t, "call %d is refused by a gateway", i, 0)
	}
	if known := s.memory(i); *known == 0 {
		*known = remembered
		c.effects++
	}
	if s.fails < g.fails {
		noAnswer(s, "call %d reaches the remote, and its answer is lost")
	}
	c.state = recordedSettled
	c.open = false
	to(s, "call %d is delivered", i, 0)
}

// decide is an operator.
func (g *recordsScope) decide(s recordsState, i int, to emit[recordsState]) {
	c := s.calls[i]
	if c.state != recordedWaiting && c.state != recordedReconcile {
		return
	}
	redrive := func(newKey bool, step string) {
		t := s
		n := &t.calls[i]
		n.state = recordedRetrying
		if newKey {
			n.newKey = true
			n.open = false
			t.others[i] = 0 // each new key is another one
		}
		to(t, step, i, 0)
	}
	if c.state == recordedWaiting {
		redrive(false, "an operator redrives call %d")
		if !c.open || g.faults.newKeyOfOpen {
			redrive(true, "an operator redrives call %d under a new key")
		}
	}
	if c.effects == 0 {
		redrive(true, "an operator has seen that call %d was not applied, and redrives it under a new key")
		return
	}
	s.calls[i].state = recordedSettled
	s.calls[i].open = false
	to(s, "an operator has seen that call %d was applied", i, 0)
}

// look is the purge: onlyonce.http_look.
func (g *recordsScope) look(s recordsState, to emit[recordsState]) {
	if !s.there || !s.looks || s.lookIn > 0 {
		return
	}
	for i := range s.calls {
		c := &s.calls[i]
		if c.unsettled() && (c.state != recordedInLog || !g.faults.parkedOnly) {
			s.left = recordKept
			s.lookIn = recordLook
			to(s, "the purge looks: call %d is unsettled", i, 0)
			return
		}
	}
	s.looks = false
	if !g.faults.notRemembered {
		s.left = max(s.left, recordKept-recordLook)
	}
	to(s, "the purge looks: all calls are settled", 0, 0)
}

func (g *recordsScope) tick(s recordsState, to emit[recordsState]) {
	if s.ticks == g.ticks {
		return
	}
	s.ticks++
	for _, n := range []*uint8{&s.left, &s.lookIn, &s.derived, &s.others[0], &s.others[1]} {
		*n -= min(*n, 1)
	}
	for i := range s.calls {
		if c := &s.calls[i]; c.open {
			c.age = min(c.age+1, remembered)
		}
	}
	to(s, "time passes", 0, 0)
}

func recordsTable() (all []entry) {
	add := func(name, want string, change func(*recordsScope)) {
		all = append(all, entry{"records/" + name, want, false, func() result {
			g := recordsScope{ticks: 9, fails: 3}
			change(&g)
			return explore(recordsModel(&g))
		}})
	}
	add("H31/2 requests under one key, 3 attempts fail", "", func(*recordsScope) {})
	add("O6/3 ticks, 5 attempts fail", "", func(g *recordsScope) {
		g.ticks = 3
		g.fails = 5
	})
	add("H31/a record ends by time alone", "LOST", func(g *recordsScope) { g.faults.byTimeAlone = true })
	add("H31/calls in the log do not count", "LOST", func(g *recordsScope) { g.faults.parkedOnly = true })
	add("H31/a record ends when its calls are settled", "LOST", func(g *recordsScope) { g.faults.notRemembered = true })
	add("O6/the last attempt decides what is open", "NOT APPLIED", func(g *recordsScope) { g.faults.lastVerdict = true })
	add("O6/a call with an open attempt gets a new key", "NOT APPLIED", func(g *recordsScope) { g.faults.newKeyOfOpen = true })
	add("O6/attempts begin after the window of the key", "TWICE", func(g *recordsScope) { g.faults.windowIgnored = true })
	return all
}
