package rerun

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/fields"
)

// Fields are the bounds of one transaction and of its attempts, as each DoConfig has them.
type Fields struct {
	Lock, Statement, Idle, Commit *time.Duration
	Attempts                      *int
	RetryMin, RetryMax            *time.Duration
}

// Default fills in defaults and notes what is out of range.
func (f Fields) Default(l *fields.List) {
	l.Span("Timeouts.Lock", f.Lock, 5*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Statement", f.Statement, 30*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Idle", f.Idle, 60*time.Second, time.Millisecond, time.Hour)
	l.Span("Timeouts.Commit", f.Commit, 15*time.Second, time.Millisecond, time.Hour)
	l.Number("Attempts", f.Attempts, 5, 1, 100)
	l.Span("RetryMin", f.RetryMin, 20*time.Millisecond, time.Millisecond, time.Hour)
	l.Span("RetryMax", f.RetryMax, 2*time.Second, time.Millisecond, time.Hour)
	if *f.RetryMin > *f.RetryMax {
		l.Add("RetryMin", "%v is longer than RetryMax, %v", *f.RetryMin, *f.RetryMax)
	}
}

// Policy is what the fields say about attempts.
func (f Fields) Policy() Policy {
	return Policy{Attempts: *f.Attempts, Min: *f.RetryMin, Max: *f.RetryMax}
}
