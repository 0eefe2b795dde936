package onlyoncetest

import "time"

// SetPerPlay changes the bound of one history, and returns a function to undo it.
func SetPerPlay(d time.Duration) (undo func()) {
	was := perPlay
	perPlay = d
	return func() { perPlay = was }
}

// Draws makes Run play pairs of faults that are drawn with a seed, and nothing else.
func Draws(c *Case, seed uint64, pairs int) { c.seed, c.draws = seed, pairs }

// DDMin is ddmin.
func DDMin(all []int, fails func([]int) bool) []int { return ddmin(all, fails) }
