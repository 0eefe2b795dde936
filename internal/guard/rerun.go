package guard

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/fields"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// Attempts are the bounds of one transaction and of its attempts, as each DoConfig has them.
type Attempts struct {
	Lock, Statement, Idle, Commit *time.Duration
	// Max is the most attempts, the first included.
	Max *int
	// BackoffMin is the first wait and BackoffMax the longest; a wait doubles from one to the next
	// and is spread by half of itself either way.
	BackoffMin, BackoffMax *time.Duration
}

// Default fills in defaults and notes what is out of range.
func (a Attempts) Default(l *fields.List) {
	l.Span("Timeouts.Lock", a.Lock, 5*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Statement", a.Statement, 30*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Idle", a.Idle, 60*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Commit", a.Commit, 15*time.Second, time.Millisecond, time.Hour)
	l.Number("MaxAttempts", a.Max, 5, 1, 100)
	l.Backoff(a.BackoffMin, a.BackoffMax, 20*time.Millisecond, 2*time.Second, time.Hour)
}

// Run calls once until it does not ask for another attempt, the attempts are used up, or ctx ends.
// It returns the last error of once.
func (a Attempts) Run(ctx context.Context, once func() (again bool, err error)) error {
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(*a.BackoffMin),
		backoff.WithMaxInterval(*a.BackoffMax),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0),
	)
	for n := 1; ; n++ {
		again, err := once()
		if !again || n >= *a.Max {
			return err
		}
		if !pace.Sleep(ctx, waits.NextBackOff()) {
			return err
		}
	}
}
