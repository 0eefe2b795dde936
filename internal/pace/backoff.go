package pace

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Backoff returns waits that grow from least to most, each random around its value, without end.
func Backoff(least, most time.Duration) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(least),
		backoff.WithMaxInterval(most),
		backoff.WithMaxElapsedTime(0),
	)
}

// BackoffAfter returns the n-th of the waits of Backoff, for attempts that no single process makes.
func BackoffAfter(least, most time.Duration, n int) (wait time.Duration) {
	b := Backoff(least, most)
	for range min(n, 100) {
		wait = b.NextBackOff()
	}
	return wait
}
