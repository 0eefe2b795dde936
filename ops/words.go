package ops

import "github.com/onlyonce/onlyonce/internal/show"

// remembered says how long a ring remembers keys. Nil: forever.
func remembered(horizon *float64) string {
	if horizon == nil {
		return "forever"
	}
	return "at least " + show.Ago(*horizon)
}
