package main

import "math"

// effect is a row that a worker has written. Its number says in which order.
type effect struct {
	number int64
	id     string
	record string // which record of the message it is: its partition and offset
}

// verdict is what became of a stream.
type verdict struct {
	Kills, Resets int // that were played

	ByKill    int // effects of a record that had one, without a reset in between
	ByReset   int // the same, with a reset in between
	ByCopy    int // effects of another record of the message
	Lost      int // messages without an effect
	Overtaken int // messages whose first effect came after that of a later message of their key
}

// judge compares the effects, ordered by their numbers, with the messages. resets are the greatest
// numbers of effects that there were at each.
func judge(messages []content, effects []effect, resets []int64) verdict {
	var v verdict
	first := map[string]int64{}   // by id
	last := map[[2]string]int64{} // by id and record
	for _, e := range effects {
		before, again := last[[2]string{e.id, e.record}]
		_, applied := first[e.id]
		switch {
		case again && resetBetween(resets, before, e.number):
			v.ByReset++
		case again:
			v.ByKill++
		case applied:
			v.ByCopy++
		default:
			first[e.id] = e.number
		}
		last[[2]string{e.id, e.record}] = e.number
	}
	earliest := map[string]int64{} // by key, of the messages behind this one
	for i := len(messages) - 1; i >= 0; i-- {
		m := messages[i]
		number, applied := first[m.ID]
		if !applied {
			v.Lost++
			continue
		}
		least, any := earliest[m.Key]
		if !any {
			least = math.MaxInt64
		}
		if number > least {
			v.Overtaken++
		}
		earliest[m.Key] = min(least, number)
	}
	return v
}

func resetBetween(resets []int64, before, after int64) bool {
	for _, r := range resets {
		if before <= r && r < after {
			return true
		}
	}
	return false
}
