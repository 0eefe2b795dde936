// Package check decides whether the outcome of a run is as onlyonce promises: the invariants I1 to
// I7 of docs/faults.md, and that calls were charged once. It does not know how the facts were
// collected.
package check

import (
	"fmt"
	"slices"
	"strings"
)

// Facts are the outcome of a run.
type Facts struct {
	IDs     []string       // unique message ids that were produced and acknowledged
	Unknown []string       // ids whose production has an unknown outcome
	Effects map[string]int // id -> rows of effect
	Parked  map[string]int // id -> parked rows

	// Id -> distinct keys at the payment endpoint; nil: nothing was to be charged.
	Charged map[string]int
	Changed int // calls under a known key with other bytes

	History *History // nil: only counted
}

// History is what a storm also records: every record and every effect, each with its place.
type History struct {
	Log      []Record          // the committed records, each partition in the order of its offsets
	Applied  []Effect          // in the order in which they were applied
	Claimed  map[string]bool   // ids whose key is in the inbox; nil: the run had no keys
	Calls    map[string]int    // id -> rows of the outbox
	WithCall func(string) bool // whether the handler asks for a call
	Faulty   func(string) bool // whether the message can only be parked
	Parked   []Parked          // what is parked still
	Resolved []string          // ids of what was parked, and applied from there
	// Whether a message that fails had to hold back all later messages of its ordering key.
	ByKey     bool
	Cursor    map[int32]int64 // partition -> position in Postgres
	Committed map[int32]int64 // partition -> Kafka's committed offset, -1: none
	Ends      map[int32]int64 // partition -> end of the log
}

// Record is one record of the log.
type Record struct {
	ID        string
	Partition int32
	Offset    int64
}

// Effect is one row of effect.
type Effect struct {
	ID        string
	Key       string // ordering key
	Seq       int    // of the message among those of its key, in the order of production
	Partition int32
	Offset    int64
}

// Parked is one parked message that is not settled.
type Parked struct {
	ID        string
	Key       string // ordering key
	Partition int32
	Offset    int64
	State     string
}

// States of parked messages.
const (
	waiting  = "waiting"  // for an operator
	retrying = "retrying" // tried again when it is due
	blocked  = "blocked"  // after another of its ordering key
)

// Names of faults.
const (
	Missing  = "neither applied nor parked: lost"
	Doubled  = "applied more than once"
	Invented = "applied or parked, and never produced"
	Passed   = "applied although an earlier message of their ordering key is parked"
	Inverted = "applied after a later message of their ordering key"
)

// Verdict lists the faults by kind, each with the ids concerned.
type Verdict struct {
	Faults []Fault
}

// Fault is one kind of fault.
type Fault struct {
	Rule string // the invariant, I1 to I9
	What string
	IDs  []string
}

// OK reports whether there are no faults.
func (v Verdict) OK() bool { return len(v.Faults) == 0 }

// Note adds a fault, if it has ids.
func (v *Verdict) Note(rule, what string, ids []string) {
	if len(ids) > 0 {
		slices.Sort(ids)
		v.Faults = append(v.Faults, Fault{rule, what, ids})
	}
}

// Judge compares the facts with what must hold.
func Judge(f Facts) Verdict {
	var v Verdict
	produced := make(map[string]bool, len(f.IDs))
	var missing, doubled, both, parkedTwice, invented []string
	for _, id := range f.IDs {
		produced[id] = true
		effects := f.Effects[id]
		parked := f.Parked[id]
		switch {
		case effects == 0 && parked == 0:
			missing = append(missing, id)
		case effects > 0 && parked > 0:
			both = append(both, id)
		case parked > 1:
			parkedTwice = append(parkedTwice, id)
		}
		if effects > 1 {
			doubled = append(doubled, id)
		}
	}
	for _, id := range f.Unknown {
		produced[id] = true
	}
	for id := range f.Effects {
		if !produced[id] {
			invented = append(invented, id)
		}
	}
	for id := range f.Parked {
		if !produced[id] {
			invented = append(invented, id)
		}
	}
	v.Note("I1", Missing, missing)
	v.Note("I2", Doubled, doubled)
	v.Note("I5", "applied and parked", both)
	v.Note("I5", "parked more than once", parkedTwice)
	v.Note("I3", Invented, invented)
	if f.Charged != nil {
		v.charges(f)
	}
	if f.History != nil {
		v.history(f, f.History)
	}
	return v
}

// charges judges the charges: one for each effect, and no other.
func (v *Verdict) charges(f Facts) {
	var unpaid, paidTwice, paidWithout []string
	for id := range f.Effects {
		if f.Charged[id] == 0 {
			unpaid = append(unpaid, id)
		}
	}
	for id, keys := range f.Charged {
		if f.Effects[id] == 0 {
			paidWithout = append(paidWithout, id)
		}
		if keys > 1 {
			paidTwice = append(paidTwice, id)
		}
	}
	v.Note("I9", "applied, and not charged", unpaid)
	v.Note("I9", "charged under more than one key", paidTwice)
	v.Note("I9", "charged, and not applied", paidWithout)
	if f.Changed > 0 {
		v.Faults = append(v.Faults, Fault{
			Rule: "I9",
			What: fmt.Sprintf("%d calls came with other bytes than their key's first", f.Changed),
		})
	}
}

// Sum adds up the counts of a map.
func Sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// shown is how many ids of a fault are named.
const shown = 10

func (f Fault) String() string {
	if len(f.IDs) == 0 {
		return f.What
	}
	more := ""
	if len(f.IDs) > shown {
		more = ", ..."
	}
	return fmt.Sprintf("%s: %d (%s%s)", f.What, len(f.IDs), strings.Join(f.IDs[:min(len(f.IDs), shown)], ", "), more)
}
