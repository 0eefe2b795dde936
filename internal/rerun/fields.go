package rerun

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Fields are the bounds of one transaction and of its attempts, as each DoConfig has them.
type Fields struct {
	Lock, Statement, Idle, Commit *time.Duration
	MaxAttempts                   *int
	BackoffMin, BackoffMax        *time.Duration
}

// Default fills in defaults and notes what is out of range.
func (f Fields) Default(l *fields.List) {
	l.Span("Timeouts.Lock", f.Lock, 5*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Statement", f.Statement, 30*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Idle", f.Idle, 60*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Commit", f.Commit, 15*time.Second, time.Millisecond, time.Hour)
	l.Number("MaxAttempts", f.MaxAttempts, 5, 1, 100)
	l.Backoff(f.BackoffMin, f.BackoffMax, 20*time.Millisecond, 2*time.Second, time.Hour)
}

// Policy is what the fields say about attempts.
func (f Fields) Policy() Policy {
	return Policy{Attempts: *f.MaxAttempts, Min: *f.BackoffMin, Max: *f.BackoffMax}
}
