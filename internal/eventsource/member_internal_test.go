package eventsource

import (
	"testing"
	"time"
)

// A member looks for events again soon after some were appended. Those that were there when it
// first looked are no reason, and neither are events that a member does not handle (O19).
func TestO19PaceFollowsEvents(t *testing.T) {
	t.Parallel()
	m := &member{Source: &Source{cfg: Config{PollInterval: 500 * time.Millisecond}}}
	now := time.Now()
	look := func(after time.Duration, want time.Duration, ends ...int64) {
		t.Helper()
		now = now.Add(after)
		var found []partitionEnd
		for nr, end := range ends {
			found = append(found, partitionEnd{Topic: "hooks", Partition: int16(nr), End: end})
		}
		m.noteEnds(found, now)
		if got := m.pollAt.Sub(now); got != want {
			t.Errorf("with the ends %v it looks again in %v, want %v", ends, got, want)
		}
	}
	const idle, soon = 500 * time.Millisecond, 25 * time.Millisecond
	look(0, idle, 7)
	look(idle, idle, 7, 3) // a partition more
	look(idle, soon, 7, 4)
	look(time.Minute, idle, 7, 4)
	look(0, soon, 8, 4)
	look(2500*time.Millisecond, 2*soon, 8, 4)
	look(time.Minute, idle)       // it holds nothing
	look(idle, idle, 90)          // it was away
	look(time.Minute, idle, 0, 0) // the topic was made anew
}
