package onlyoncetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/onlyonce/onlyonce/internal/rig/wire"
)

// event is one fault of a history.
type event struct {
	what string
	at   string // a point; empty for events that have none
}

// Events. A point is the n-th time that something happens in a history, for example the second
// INSERT into stock, the first request to a remote, or the third call of the handler.
const (
	before    = "before"    // the process dies before the server gets the statement, or the remote the request
	after     = "after"     // ... after it was carried out, and before the answer comes
	cut       = "cut"       // the connection breaks before the server gets the statement; the process goes on
	lost      = "lost"      // the connection breaks after the statement was carried out; the process goes on
	zombie    = "zombie"    // the process stops there until another one has done all work, and then goes on
	rebalance = "rebalance" // all partitions are given up there and handed over again
	fail40001 = "40001"     // a serialization failure after that call of the handler
	fail40P01 = "40P01"     // a deadlock
	copies    = "copies"    // in the end each message comes again, at another offset
	moved     = "moved"     // ... in another partition
	reset     = "reset"     // when a process has died, the group's offsets are gone
	// a standby without that COMMIT takes over before the next batch's fence, or when all work is
	// done
	failover = "failover"
	rewind   = "rewind" // ... when all work is done, in any case
	single   = "single" // no fault: each message is a batch of its own (BatchSize 1)
)

func (e event) String() string {
	if e.at == "" {
		return e.what
	}
	return e.what + ":" + e.at
}

// history is what goes wrong in one run, and with which of the case's messages and requests.
type history struct {
	events []event
	only   []int // indexes of messages or requests; nil for all
}

func (h history) String() string {
	parts := make([]string, len(h.events))
	for i, e := range h.events {
		parts[i] = e.String()
	}
	s := cmp.Or(strings.Join(parts, ","), "nothing")
	if h.only != nil {
		s += fmt.Sprintf("@%s", strings.ReplaceAll(strings.Trim(fmt.Sprint(h.only), "[]"), " ", "."))
	}
	return s
}

// parseHistory reads what String has written.
func parseHistory(s string) (h history, err error) {
	bad := func() (history, error) {
		return history{}, fmt.Errorf("%q is no history: copy it from the test's output, for example "+
			"before:insert-stock#1a2b.bind.2,copies@0.1", s)
	}
	events, only, some := strings.Cut(s, "@")
	if some {
		for _, part := range strings.Split(only, ".") {
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil {
				return bad()
			}
			h.only = append(h.only, i)
		}
	}
	if events == "nothing" {
		return h, nil
	}
	for _, part := range strings.Split(events, ",") {
		what, at, _ := strings.Cut(part, ":")
		needs, known := pointed[what]
		if !known || needs != (at != "") {
			return bad()
		}
		h.events = append(h.events, event{what, at})
	}
	return h, nil
}

// pointed are all events, and whether they have a point.
var pointed = map[string]bool{
	before:    true,
	after:     true,
	cut:       true,
	lost:      true,
	zombie:    true,
	rebalance: true,
	fail40001: true,
	fail40P01: true,
	copies:    false,
	moved:     false,
	reset:     false,
	failover:  true,
	rewind:    true,
	single:    false,
}

// point is something that happens in a clean run.
type point struct {
	name string
	kind wire.Kind // of a statement's message; empty for requests and calls of the handler
	// users: the statement names none of our tables and functions.
	users bool
}

// kinds of points that are no statements begin their names.
const (
	requestPoint = "request."
	handlePoint  = "handler."
)

// transactional reports whether a point is at the fence or the COMMIT of a batch.
func (p point) transactional() bool {
	return isFence(p.name) || strings.HasPrefix(p.name, "commit.")
}

// isFence reports whether a label is the fence of a batch, of a transaction beside others, or of an
// attempt at a parked message.
func isFence(label string) bool {
	return strings.HasPrefix(label, "fence.") ||
		strings.HasPrefix(label, "fence_slot.") ||
		strings.HasPrefix(label, "settle.")
}

// committing reports whether a point is the COMMIT of a batch, before the server gets it.
func (p point) committing() bool {
	return strings.HasPrefix(p.name, "commit.") && p.kind != wire.Sync
}

// able is which faults a case can have.
type able struct {
	log      bool // it has topics
	copies   bool // copies of them can be recognized
	single   bool // its batches can be of one message
	failover bool // a failover that loses commits leaves all work to be done again
}

// pair draws a history with two faults.
func pair(all []history, random *rand.Rand) history {
	for {
		a := all[random.IntN(len(all))]
		b := all[random.IntN(len(all))]
		if a.String() != b.String() {
			return history{events: slices.Concat(a.events, b.events)}
		}
	}
}
