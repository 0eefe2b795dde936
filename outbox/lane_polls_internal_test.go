package outbox

import (
	"testing"
	"time"
)

// A relay looks for work again soon after it has found new calls. Calls that were there at the last
// look too are no reason: their lane is at work, or stands still (O19).
func TestO19PaceFollowsCalls(t *testing.T) {
	t.Parallel()
	p := newPoll(&heldLanes{relaySink: &relaySink{cfg: RelayConfig{PollInterval: 500 * time.Millisecond}}})
	now := time.Now()
	look := func(after time.Duration, want time.Duration, found ...wakeup) {
		t.Helper()
		now = now.Add(after)
		p.postpone(now)
		p.noteFresh(found, now)
		if got := p.work.Sub(now); got != want {
			t.Errorf("after %+v it looks again in %v, want %v", found, got, want)
		}
	}
	const idle, soon = 500 * time.Millisecond, 25 * time.Millisecond
	look(0, idle)
	look(idle, idle, wakeup{Lane: 3, Due: true}, wakeup{Lane: 4}) // parked calls are due when they are known to be
	look(idle, soon, wakeup{Lane: 3, Fresh: true})
	look(time.Minute, idle, wakeup{Lane: 3, Fresh: true}) // the lane has halted, for example
	look(0, soon, wakeup{Lane: 3, Fresh: true}, wakeup{Lane: 15, Fresh: true})
	look(time.Minute, idle)
	look(0, soon, wakeup{Lane: 3, Fresh: true})
	look(2500*time.Millisecond, 2*soon)
	look(time.Hour, idle)
}
