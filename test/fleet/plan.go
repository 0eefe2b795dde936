package fleet

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// Kill is the kind of all blows of a plan that are of no other kind.
const Kill = "kill"

// Blow is one event of a storm.
type Blow struct {
	Kind string
	At   float64 // the share of the stream that must be done before it
	// How long a server is down, or a process is suspended beyond the time that it may be.
	Wait time.Duration
}

// Shares are how many of a hundred blows are of a kind; the others are kills.
type Shares []struct {
	Kind    string
	Percent int
}

// Plan draws n blows, spread over the stream. If n is at least eight, each kind is among them.
func Plan(n int, of Shares, random *rand.Rand) []Blow {
	var kinds []string
	for _, s := range of {
		count := (n*s.Percent + 50) / 100
		if n >= 8 {
			count = max(count, 1)
		}
		kinds = append(kinds, slices.Repeat([]string{s.Kind}, count)...)
	}
	for len(kinds) < n {
		kinds = append(kinds, Kill)
	}
	kinds = kinds[:n]
	random.Shuffle(n, func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	plan := make([]Blow, n)
	for i, kind := range kinds {
		plan[i] = Blow{
			Kind: kind,
			At:   (float64(i) + 0.2 + 0.6*random.Float64()) / float64(n+1),
			Wait: time.Duration(random.IntN(1000)) * time.Millisecond,
		}
	}
	return plan
}

// PollEvery is the interval between two checks of a condition.
const PollEvery = 20 * time.Millisecond

// Until waits for a condition. It gives up if a worker cannot be started. It also gives up if moves
// has returned the same for as long as patience; the error is then what stuck makes of the
// condition's last error.
func (f *Fleet) Until(
	ctx context.Context,
	patience time.Duration,
	is func(context.Context) (bool, error),
	moves func() string,
	stuck func(error) error,
) error {
	tick := time.NewTicker(PollEvery)
	defer tick.Stop()
	last := ""
	since := time.Now()
	for {
		done, err := is(ctx)
		switch {
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case f.Failure() != nil:
			return f.Failure()
		case done && err == nil:
			return nil
		}
		if now := moves(); now != last {
			last = now
			since = time.Now()
		}
		// It waits for an error to pass too, because a server may be away for a moment.
		if time.Since(since) > patience {
			return stuck(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
