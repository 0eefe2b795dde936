// Package rerun repeats a transaction that the database asked to run again, with bounded waits.
package rerun

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// Policy says how often something is tried, and how long the waits between the tries are.
type Policy struct {
	// Attempts is the most tries, the first included; at least 1.
	Attempts int
	// Min is the first wait and Max the longest; a wait doubles from one to the next and is spread
	// by half of itself either way.
	Min, Max time.Duration
}

// Run calls once until it does not ask for another try, the attempts are used up, or ctx ends. It
// returns the last error of once.
func (p Policy) Run(ctx context.Context, once func() (again bool, err error)) error {
	waits := backoff.NewExponentialBackOff(backoff.WithInitialInterval(p.Min), backoff.WithMaxInterval(p.Max), backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
	for n := 1; ; n++ {
		again, err := once()
		if !again || n >= p.Attempts {
			return err
		}
		if !pace.Sleep(ctx, waits.NextBackOff()) {
			return err
		}
	}
}
