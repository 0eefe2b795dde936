package onlyoncetest

import "time"

// SetPerPlay changes the bound of one history, and returns a function to undo it.
func SetPerPlay(d time.Duration) (undo func()) {
	was := perPlay
	perPlay = d
	return func() { perPlay = was }
}
