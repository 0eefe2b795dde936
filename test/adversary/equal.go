package main

import (
	"maps"
	"regexp"
	"slices"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// lasting matches statements whose effects last before their round trip is over, or although their
// transaction does not commit.
var lasting = regexp.MustCompile(`(?i)\b(?:commit|prepare transaction|call|setval|nextval|vacuum)\b`)

// spare notes at each message the faults whose history is equal, by construction, to another one
// that is played. A clean run is divided into the round trips of its connections: what a connection
// sends up to a Sync, which is also as far as a client sends without having heard an answer. (It
// could ask for answers earlier by a Flush, which pgx sends only if it is asked to, and no code
// here asks.)
//
// First, cut before a message. The server has what the round trip sent before, sees the connection
// end, and rolls back: an implicit transaction commits at the Sync, and an explicit one at its
// commit. The client has heard nothing of the round trip. So wherever in the round trip the cut is,
// both sides are left alike, and the history is played for the first message only. It is played
// also for every message after a lasting statement, whose effects stay: a commit, or a sequence
// that is set. (Calls of functions that number rows by a sequence leave gaps, which nothing reads.)
//
// Second, a round trip that only prepares a statement changes nothing on the server, except that
// the statement is known there, that relations are locked in share mode and that a snapshot is
// taken, until the transaction ends. If it is kept back (late), its client waits, gives up, and
// never uses the session again; what is delivered later is the end of a Parse. That is what silent
// at its Sync does, whose session is left with these locks and this snapshot. So it is played as
// silent only.
func spare(sent []point) {
	open := map[int][]int{} // by connection: the indexes of the messages of its round trip
	for i, p := range sent {
		trip := append(open[p.conn], i)
		open[p.conn] = trip
		sent[i].equal = map[string]string{}
		if len(trip) > 1 && !slices.ContainsFunc(trip[:len(trip)-1], func(j int) bool { return sent[j].lasts }) {
			sent[i].equal["before"] = sent[trip[0]].String()
		}
		switch p.kind {
		case wire.Sync, wire.Query, wire.Startup:
			delete(open, p.conn)
		default:
			continue
		}
		prepares := p.kind == wire.Sync && len(trip) > 1
		for _, j := range trip[:len(trip)-1] {
			prepares = prepares && sent[j].kind == wire.Parse
		}
		if prepares {
			for _, j := range trip {
				sent[j].equal["late"] = p.String()
			}
		}
	}
}

// Third, a rotator that finds nothing to do looks again until the ring's row has its next version
// (scene.epoch). Looks at one version are alike: the next step follows from the row alone, and the
// rotator remembers no more than the id that it waits for, which the first look takes. So messages
// are numbered anew after each step, and the first of each kind is a point.

// sparedTwice keeps of what is spared in one clean run what is spared in another, for the same
// history.
func sparedTwice(a, b map[string]string) map[string]string {
	both := maps.Clone(a)
	maps.DeleteFunc(both, func(fault, by string) bool { return b[fault] != by })
	return both
}
