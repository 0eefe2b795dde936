package main

// Calls that are looked for by their keys: rule O1, as onlyonce.index_calls, onlyonce.indexed_calls
// and onlyonce.logged_calls have it. A message is handled again after the transaction that asked
// for its call first has committed; its call must be found. Indexers note keys, one at a time, as
// of a snapshot; what that does not show is read from the log. They note a portion in each
// transaction, so others read notes of a snapshot that is not stored yet. A dump may be restored
// into another cluster, with the notes and their snapshots.
//
// Each statement is a step. At READ COMMITTED each has its own snapshot; above it, all have that
// of the transaction's begin. Left out: calls of your own transactions, which claim their keys
// (ring.go), parked calls, which are one look by an index, and segments that are emptied together
// with their notes.

const callsWriters = 3

// callsScope is what is explored, and which protection is left out.
type callsScope struct {
	oldSnapshots, dump bool

	faults callsFaults
}

// callsFaults are protections that can be left out.
type callsFaults struct{ inProgressIgnored, lateSnapshot, notesFirst, anyCluster, portionIsAll bool }

// callsWriter is a transaction that enqueues a call.
type callsWriter struct {
	committed, ended bool
	xid              uint8
}

// callsLook is a transaction that looks for the call of writer of.
type callsLook struct {
	stage, of    uint8
	seen         relaySnap // the notes' snapshot, as it was read
	notes, calls uint8     // what its snapshot shows, or what it has read of the notes
}

type callsState struct {
	writers     [callsWriters]callsWriter
	next        uint8
	seen        relaySnap // of the row of onlyonce.call_index
	notes       uint8
	foreign     bool // the notes are of another cluster
	restored    bool
	indexing    uint8 // stage of the pass that the indexers are in
	upto        relaySnap
	noted       uint8 // in this pass
	look        callsLook
	missed      bool
	indexerRuns uint8
}

func callsModel(g *callsScope) model[callsState] {
	return model[callsState]{
		init: callsState{next: 1, seen: relaySnap{xmax: 1}},
		bad: func(s *callsState) string {
			if s.missed {
				return "call written AGAIN"
			}
			return ""
		},
		next: func(s callsState, to emit[callsState]) {
			g.write(s, to)
			g.index(s, to)
			g.find(s, to)
			if g.dump && !s.restored {
				t := s
				t.restored = true
				t.foreign = true
				t.next = 1
				t.look = callsLook{}
				for i := range t.writers {
					if w := &t.writers[i]; w.xid != 0 && !w.committed {
						*w = callsWriter{ended: true, xid: w.xid}
					}
				}
				to(t, "a dump is restored into another cluster", 0, 0)
			}
		},
	}
}

func (s *callsState) now() relaySnap {
	n := relaySnap{xmax: s.next}
	for _, w := range s.writers {
		if w.xid != 0 && !w.committed && !w.ended {
			n.xip |= bit(w.xid)
		}
	}
	return n
}

// write begins and ends transactions that enqueue.
func (g *callsScope) write(s callsState, to emit[callsState]) {
	for i := range s.writers {
		t := s
		switch w := &t.writers[i]; {
		case w.xid == 0:
			w.xid = t.next
			t.next++
			to(t, "transaction %d: BEGIN, id %d", i, int(w.xid))
		case !w.committed && !w.ended:
			w.committed = true
			to(t, "transaction %d: COMMIT of a call", i, 0)
		}
	}
}

// shown is which calls of the log a statement finds that a snapshot of the notes does not show.
func (g *callsScope) shown(s *callsState, seen relaySnap) (calls uint8) {
	for i, w := range s.writers {
		ranThen := has(seen.xip, w.xid) && !g.faults.inProgressIgnored
		if w.committed && (w.xid >= seen.xmax || ranThen) {
			calls |= bit(i)
		}
	}
	return calls
}

// known is onlyonce.indexed_calls.
func (g *callsScope) known(s *callsState) relaySnap {
	if s.foreign && !g.faults.anyCluster {
		return relaySnap{xmax: 1}
	}
	return s.seen
}

// index is onlyonce.index_calls. Each step is a transaction.
func (g *callsScope) index(s callsState, to emit[callsState]) {
	if s.foreign && !g.faults.anyCluster { // notes of the other cluster find nothing
		s.foreign = false
		s.seen = relaySnap{xmax: 1}
		s.notes = 0
		s.indexing = 0
		s.noted = 0
		s.upto = relaySnap{}
	}
	if s.indexing == 0 {
		if s.indexerRuns < 2 {
			s.indexerRuns++
			s.upto = s.now()
			s.indexing = 1
			to(s, "a pass begins: its snapshot is stored", 0, 0)
		}
		return
	}
	left := false
	if s.indexing == 2 {
		s.upto = s.now()
	}
	for i, w := range s.writers {
		if s.indexing != 1 || has(s.noted, i) {
			continue
		}
		ended := s.upto.sees(w.xid) || g.faults.lateSnapshot
		if ended && has(g.shown(&s, s.seen), i) {
			left = true
			t := s
			t.noted, t.notes = t.noted|bit(i), t.notes|bit(i)
			to(t, "the call of transaction %d is noted", i, 0)
		}
	}
	if left && !g.faults.portionIsAll {
		return
	}
	if g.faults.lateSnapshot && s.indexing == 1 {
		s.indexing = 2
		to(s, "the log was read; the snapshot that is stored comes later", 0, 0)
		return
	}
	s.seen = s.upto
	s.foreign = false
	s.indexing = 0
	s.noted = 0
	s.upto = relaySnap{}
	to(s, "the pass ends: all are noted", 0, 0)
}

// find is onlyonce.logged_calls, for a call whose transaction has committed.
func (g *callsScope) find(s callsState, to emit[callsState]) {
	l := &s.look
	switch l.stage {
	case 0:
		for i, w := range s.writers {
			if !w.committed {
				continue
			}
			t := s
			n := &t.look
			*n = callsLook{stage: 1, of: uint8(i), seen: g.known(&s)} //nolint:gosec // a writer
			step := "transaction %d's message is handled again: reads the notes' snapshot"
			switch {
			case g.oldSnapshots:
				n.notes, n.calls = s.notes, g.shown(&s, n.seen)
			case g.faults.notesFirst:
				n.notes = s.notes
				step = "transaction %d's message is handled again: reads the notes"
			}
			to(t, step, i, 0)
		}
	case 1:
		seen := l.seen
		notes := s.notes
		calls := uint8(0)
		switch {
		case g.oldSnapshots:
			notes = l.notes
			calls = l.calls
		case g.faults.notesFirst:
			seen = g.known(&s)
			notes = l.notes
			calls = g.shown(&s, seen)
		default:
			calls = g.shown(&s, seen)
		}
		s.missed = !has(notes|calls, l.of)
		of := int(l.of)
		*l = callsLook{}
		to(s, "the call of transaction %d is looked for", of, 0)
	}
}

func callsTable() (all []entry) {
	add := func(name, want string, change func(*callsScope)) {
		all = append(all, entry{"calls/" + name, want, false, func() result {
			g := callsScope{}
			change(&g)
			return explore(callsModel(&g))
		}})
	}
	add("O1/keys are noted meanwhile", "", func(*callsScope) {})
	add("O1/keys are noted meanwhile, old snapshots", "", func(g *callsScope) { g.oldSnapshots = true })
	add("O1/a dump", "", func(g *callsScope) { g.dump = true })
	add("O1/transactions in progress at the notes' snapshot are ignored", "AGAIN", func(g *callsScope) {
		g.faults.inProgressIgnored = true
	})
	add("O1/the snapshot is taken after the log was read", "AGAIN", func(g *callsScope) { g.faults.lateSnapshot = true })
	add("O1/the notes are read before their snapshot", "AGAIN", func(g *callsScope) { g.faults.notesFirst = true })
	add("O1/a portion counts as all", "AGAIN", func(g *callsScope) { g.faults.portionIsAll = true })
	add("O1/notes of another cluster count", "AGAIN", func(g *callsScope) {
		g.dump = true
		g.faults.anyCluster = true
	})
	return all
}
