package main

// Calls that are looked for by their keys: rule O1, as onlyonce.index_calls,
// onlyonce.indexed_calls and onlyonce.logged_calls have it. A message is handled again after the
// transaction that asked for its call first has committed; its call must be found. Indexers note
// keys, one at a time, as of a snapshot; what that does not show is read from the log. A dump may
// be restored into another cluster, with the notes and their snapshot.
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
type callsFaults struct{ inProgressIgnored, lateSnapshot, notesFirst, anyCluster bool }

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
	indexing    uint8 // stage of the indexer
	upto        relaySnap
	from        relaySnap
	noted       uint8
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
				t.restored, t.foreign, t.next, t.indexing, t.noted, t.look = true, true, 1, 0, 0, callsLook{}
				t.upto, t.from = relaySnap{}, relaySnap{}
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
		if w.committed && (w.xid >= seen.xmax || has(seen.xip, w.xid) && !g.faults.inProgressIgnored) {
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

// index is onlyonce.index_calls.
func (g *callsScope) index(s callsState, to emit[callsState]) {
	switch s.indexing {
	case 0:
		if s.indexerRuns < 2 {
			s.indexerRuns++
			s.from, s.upto, s.indexing = g.known(&s), s.now(), 1
			to(s, "the indexer takes its snapshot", 0, 0)
		}
	case 1:
		for i, w := range s.writers {
			if has(g.shown(&s, s.from), i) && (s.upto.sees(w.xid) || g.faults.lateSnapshot) {
				s.noted |= bit(i)
			}
		}
		if s.indexing = 2; !g.faults.lateSnapshot {
			to(s, "the indexer reads the log", 0, 0)
			return
		}
		to(s, "the indexer reads the log, before it takes the snapshot that it stores", 0, 0)
	case 2:
		if g.faults.lateSnapshot {
			s.upto = s.now()
		}
		if s.foreign && !g.faults.anyCluster {
			s.notes = 0
		}
		s.notes |= s.noted
		s.seen, s.foreign, s.indexing, s.noted, s.upto, s.from = s.upto, false, 0, 0, relaySnap{}, relaySnap{}
		to(s, "the indexer: COMMIT", 0, 0)
	}
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
		seen, notes, calls := l.seen, s.notes, uint8(0)
		switch {
		case g.oldSnapshots:
			notes, calls = l.notes, l.calls
		case g.faults.notesFirst:
			seen, notes = g.known(&s), l.notes
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
	add("O1/transactions in progress at the notes' snapshot are ignored", "AGAIN", func(g *callsScope) { g.faults.inProgressIgnored = true })
	add("O1/the snapshot is taken after the log was read", "AGAIN", func(g *callsScope) { g.faults.lateSnapshot = true })
	add("O1/the notes are read before their snapshot", "AGAIN", func(g *callsScope) { g.faults.notesFirst = true })
	add("O1/notes of another cluster count", "AGAIN", func(g *callsScope) { g.dump, g.faults.anyCluster = true, true })
	return all
}
