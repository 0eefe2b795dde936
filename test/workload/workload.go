// Package workload arranges what is produced to the programs that attack onlyonce: unique messages,
// and copies of some of them at other offsets.
package workload

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// Record is one copy of a message.
type Record struct {
	Message int  // which
	Copy    bool // comes after the message's first record
	Strayed bool // goes to another partition than the message's others
}

// nearby is how far after the first a further copy may come at most.
const nearby = 300

// Arrange puts the given messages into a stream, and after a fraction of them a further copy. The
// copy comes soon after the message, so that both may be in work at the same time. Every other copy
// is in another partition, so that two workers may have them.
func Arrange(messages []int, duplicates float64, random *rand.Rand) []Record {
	type placed struct {
		Record
		at float64
	}
	var all []placed
	for i, m := range messages {
		all = append(all, placed{Record{Message: m}, float64(i)})
		// True for exactly this fraction of all i, evenly spread.
		if int(float64(i+1)*duplicates) > int(float64(i)*duplicates) {
			all = append(all, placed{Record{Message: m, Copy: true, Strayed: random.IntN(2) == 0}, float64(i) + random.Float64()*nearby})
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	records := make([]Record, len(all))
	for i, p := range all {
		records[i] = p.Record
	}
	return records
}

// Partition is the partition of a name's records: its home, or, strayed, the next one.
func Partition(name string, strayed bool, partitions int) int {
	p := int(Hash(name) % uint32(partitions))
	if strayed {
		p++
	}
	return p % partitions
}

// Hash is the same in every process.
func Hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum32()
}
