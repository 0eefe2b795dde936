package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
)

// facts are what a run has left behind in the database and at the payment endpoint.
type facts struct {
	ids     []string       // unique message ids that were produced
	effects map[string]int // order -> rows of effect
	parked  map[string]int // order -> parked rows
	reasons map[string]int // reason -> parked rows
	charged map[string]int // order -> distinct keys at the payment endpoint
	changed int            // calls under a known key with other bytes
}

const (
	faultMissing = "neither applied nor parked: lost"
	faultDoubled = "applied more than once"
)

// verdict is what is wrong, by kind, each with the ids that it is wrong about.
type verdict struct {
	faults []fault
}

type fault struct {
	what string
	ids  []string
}

func (v verdict) ok() bool { return len(v.faults) == 0 }

// judge compares the facts with what must hold: each message has one effect, or is parked, and never both; each effect is
// charged under one key; nothing else is there.
func judge(f facts) verdict {
	var v verdict
	produced := make(map[string]bool, len(f.ids))
	var missing, doubled, both, parkedTwice, invented, unpaid, paidTwice, paidWithout []string
	for _, id := range f.ids {
		produced[id] = true
		effects, parked := f.effects[id], f.parked[id]
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
	for id := range f.effects {
		if !produced[id] {
			invented = append(invented, id)
		}
		if f.charged[id] == 0 {
			unpaid = append(unpaid, id)
		}
	}
	for id := range f.parked {
		if !produced[id] {
			invented = append(invented, id)
		}
	}
	for id, keys := range f.charged {
		if f.effects[id] == 0 {
			paidWithout = append(paidWithout, id)
		}
		if keys > 1 {
			paidTwice = append(paidTwice, id)
		}
	}
	note := func(what string, ids []string) {
		if len(ids) > 0 {
			slices.Sort(ids)
			v.faults = append(v.faults, fault{what, ids})
		}
	}
	note(faultMissing, missing)
	note(faultDoubled, doubled)
	note("applied and parked", both)
	note("parked more than once", parkedTwice)
	note("applied or parked, and never produced", invented)
	note("applied, and not charged", unpaid)
	note("charged under more than one key", paidTwice)
	note("charged, and not applied", paidWithout)
	if f.changed > 0 {
		v.faults = append(v.faults, fault{what: fmt.Sprintf("%d calls came with other bytes than their key's first", f.changed)})
	}
	return v
}

// sum adds up the counts of a map.
func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// readJournal returns how often the handler ran, and how many of those runs were of a record that another process had begun with
// before: it was fetched again.
func readJournal(name string) (delivered, refetched int, err error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, 0, err
	}
	type position struct {
		partition uint32
		offset    uint64
	}
	seen := make(map[position][]uint32, len(data)/invocationSize)
	for ; len(data) >= invocationSize; data = data[invocationSize:] {
		var i invocation
		if _, err := binary.Decode(data, binary.BigEndian, &i); err != nil {
			return 0, 0, err
		}
		delivered++
		at := position{i.Partition, i.Offset}
		if workers := seen[at]; !slices.Contains(workers, i.Worker) {
			if len(workers) > 0 {
				refetched++
			}
			seen[at] = append(workers, i.Worker)
		}
	}
	return delivered, refetched, nil
}
