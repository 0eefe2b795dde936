package main

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// emit receives one successor of a state. The step is a format with up to two %d, for a and b; it
// is formatted only for traces.
type emit[S any] func(t S, step string, a, b int)

// model is a protocol as a transition system. A state is a comparable value.
type model[S comparable] struct {
	init S
	next func(S, emit[S]) // emits every successor
	bad  func(*S) string  // the rule that a state violates, or ""
	goal func(*S) bool    // nil, or: from every state a goal must be reachable
}

// result is what an exploration found.
type result struct {
	states    int
	violation string   // "": none
	trace     []string // a shortest one to the violation
	capped    bool     // the scope has more than maxStates states
	took      time.Duration
}

// maxStates bounds an exploration. A scope that reaches it proves nothing and counts as a breach.
const maxStates = 64_000_000

const wedged = "WEDGED: no way on to the end"

// visited holds states in the order in which they were found, with a hash table of their indexes.
// States are compared whole, so no two states are taken for one.
type visited[S comparable] struct {
	chunks [][]S
	n      int
	table  []uint64 // index+1 in the upper half, part of the hash in the lower; 0: empty
	seed   maphash.Seed
	parent []uint32
}

const chunkSize = 1 << 14

func newVisited[S comparable]() *visited[S] {
	return &visited[S]{table: make([]uint64, 1<<12), seed: maphash.MakeSeed()}
}

func (v *visited[S]) at(i int) *S { return &v.chunks[i/chunkSize][i%chunkSize] }

// put returns the index of a state, and whether it is new.
func (v *visited[S]) put(s S, parent int) (int, bool) {
	h := maphash.Comparable(v.seed, s)
	mask := uint64(len(v.table) - 1)
	p := h & mask
	for ; v.table[p] != 0; p = (p + 1) & mask {
		i := int(v.table[p]>>32) - 1
		if uint32(v.table[p]) == uint32(h>>32) && *v.at(i) == s {
			return i, false
		}
	}
	i := v.n
	if i/chunkSize == len(v.chunks) {
		v.chunks = append(v.chunks, make([]S, chunkSize))
	}
	*v.at(i) = s
	v.n++
	v.parent = append(v.parent, uint32(parent))
	v.table[p] = uint64(i+1)<<32 | h>>32
	if v.n*2 > len(v.table) {
		v.grow()
	}
	return i, true
}

func (v *visited[S]) grow() {
	old := v.table
	v.table = make([]uint64, 2*len(old))
	mask := uint64(len(v.table) - 1)
	for _, e := range old {
		if e == 0 {
			continue
		}
		p := maphash.Comparable(v.seed, *v.at(int(e>>32) - 1)) & mask
		for v.table[p] != 0 {
			p = (p + 1) & mask
		}
		v.table[p] = e
	}
}

// explore visits every state that can be reached, breadth first, until one is bad. So the trace is
// a shortest one, and a result without a violation and not capped is a proof for this scope.
func explore[S comparable](m model[S]) (r result) {
	begin := time.Now()
	v := newVisited[S]()
	v.put(m.init, 0)
	found := -1
	var from, to []uint32
	for i := 0; i < v.n && found < 0; i++ {
		if v.n > maxStates {
			r.capped = true
			break
		}
		m.next(*v.at(i), func(t S, _ string, _, _ int) {
			if found >= 0 {
				return
			}
			j, fresh := v.put(t, i)
			if m.goal != nil {
				from = append(from, uint32(i))
				to = append(to, uint32(j))
			}
			if !fresh {
				return
			}
			if bad := m.bad(&t); bad != "" {
				r.violation = bad
				found = j
			}
		})
	}
	if m.goal != nil && found < 0 && !r.capped {
		if found = v.stuck(m.goal, from, to); found >= 0 {
			r.violation = wedged
		}
	}
	if found >= 0 {
		r.trace = v.trace(m, found)
	}
	r.states = v.n
	r.took = time.Since(begin)
	return r
}

// stuck returns a state from which no goal can be reached, or -1. Edges lead from[e] to to[e].
func (v *visited[S]) stuck(goal func(*S) bool, from, to []uint32) int {
	live := make([]bool, v.n)
	for i := range live {
		live[i] = goal(v.at(i))
	}
	for again := true; again; {
		again = false
		for e := len(from) - 1; e >= 0; e-- {
			if live[to[e]] && !live[from[e]] {
				live[from[e]] = true
				again = true
			}
		}
	}
	return slices.Index(live, false)
}

// trace returns the steps from the initial state to state i.
func (v *visited[S]) trace(m model[S], i int) (steps []string) {
	for i > 0 {
		parent := int(v.parent[i])
		want := *v.at(i)
		label := ""
		m.next(*v.at(parent), func(t S, step string, a, b int) {
			if label == "" && t == want {
				label = fmt.Sprintf(step, []any{a, b}[:strings.Count(step, "%d")]...)
			}
		})
		steps = append(steps, label)
		i = parent
	}
	slices.Reverse(steps)
	return steps
}

// bit is the set that has only i.
func bit[T ~int | ~int8 | ~uint8](i T) uint8 { return 1 << uint(i) }

// below is the set of all offsets below n.
func below[T ~int | ~uint8](n T) uint8 { return 1<<uint(n) - 1 }

// has reports whether a set has i.
func has[T ~int | ~int8 | ~uint8](set uint8, i T) bool { return set>>uint(i)&1 == 1 }
