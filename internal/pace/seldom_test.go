package pace_test

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// One event of a kind goes through in each interval; the next one says how many did not.
func TestSeldom(t *testing.T) {
	var s pace.Seldom
	at := time.Unix(1000, 0)
	for i, step := range []struct {
		kind  string
		after time.Duration
		held  int
		yes   bool
	}{
		{"a", 0, 0, true},
		{"a", 0, 0, false},
		{"b", 0, 0, true}, // another kind
		{"a", 59 * time.Second, 0, false},
		{"a", time.Minute, 2, true},
		{"a", time.Minute, 0, false},
		{"a", 2 * time.Minute, 1, true},
		{"a", 3 * time.Minute, 0, true},
	} {
		if held, yes := s.Let(step.kind, at.Add(step.after), time.Minute); held != step.held || yes != step.yes {
			t.Errorf("step %d: %d, %v, want %d, %v", i, held, yes, step.held, step.yes)
		}
	}
}
