package pace_test

import (
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// A poll waits for a fiftieth of the time since it last found something, within its bounds (O19).
func TestO19Pursuit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var p pace.Pursuit
	if got := p.Next(now, 500*time.Millisecond); got != 500*time.Millisecond {
		t.Errorf("a poll that has found nothing yet waits for %v", got)
	}
	p.Found(now)
	for _, c := range []struct{ since, slowest, want time.Duration }{
		{0, 500 * time.Millisecond, 25 * time.Millisecond},
		{time.Second, 500 * time.Millisecond, 25 * time.Millisecond},
		{5 * time.Second, 500 * time.Millisecond, 100 * time.Millisecond},
		{25 * time.Second, 500 * time.Millisecond, 500 * time.Millisecond},
		{time.Hour, 500 * time.Millisecond, 500 * time.Millisecond},
		{0, 40 * time.Millisecond, 10 * time.Millisecond},
		{0, 5 * time.Millisecond, 5 * time.Millisecond},
		{time.Second, time.Minute, 3 * time.Second},
		{-time.Hour, 500 * time.Millisecond, 25 * time.Millisecond}, // times of one process are monotonic; no wait is negative
	} {
		if got := p.Next(now.Add(c.since), c.slowest); got != c.want {
			t.Errorf("%v after something was found, with %v at most: %v, want %v", c.since, c.slowest, got, c.want)
		}
	}
}
