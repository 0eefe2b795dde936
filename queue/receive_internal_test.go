package queue

import (
	"testing"

	"github.com/onlyonce/onlyonce/internal/intake"
)

// What is stored by several transactions is counted together, by each outcome.
func TestStoredEventsAddUp(t *testing.T) {
	t.Parallel()
	sum := StoredEvent{Fresh: 1, Copies: 2, Parked: 3}.plus(StoredEvent{Fresh: 10, Copies: 20, Parked: 30})
	for _, o := range []intake.Outcome{intake.Taken, intake.Copied, intake.Parked} {
		sum.count(o)
	}
	if sum != (StoredEvent{Fresh: 12, Copies: 23, Parked: 34}) {
		t.Errorf("%+v", sum)
	}
}
