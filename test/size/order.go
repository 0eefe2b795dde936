package main

// edge is a reference from a file to another one of its package, by their indexes.
type edge struct{ from, to int }

// against returns how many edges lead backwards in the order that the heuristic of Eades, Lin and
// Smyth finds for n nodes: a greedy order with few such edges, not always the fewest. It takes
// nodes away until none is left: a sink to the back, otherwise a source to the front, otherwise the
// node with the most outgoing less incoming edges to the front. Of equal nodes it takes the first,
// so that the answer depends on the graph alone.
func against(n int, edges []edge) (count int) {
	place := make([]int, n) // from 1; 0: not taken yet
	for front, back := 1, n; front <= back; {
		out := make([]int, n)
		in := make([]int, n)
		for _, e := range edges {
			if place[e.from] == 0 && place[e.to] == 0 {
				out[e.from]++
				in[e.to]++
			}
		}
		best := -1
		most := 0
		for node := range n {
			rank := out[node] - in[node]
			if in[node] == 0 {
				rank = n
			}
			if out[node] == 0 {
				rank = n + 1
			}
			if place[node] == 0 && (best < 0 || rank > most) {
				best = node
				most = rank
			}
		}
		if most > n {
			place[best] = back
			back = back - 1
		} else {
			place[best] = front
			front = front + 1
		}
	}
	for _, e := range edges {
		if place[e.from] > place[e.to] {
			count++
		}
	}
	return count
}
