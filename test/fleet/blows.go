package fleet

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Change lets a worker join. If there are more workers than usual, it lets one leave in order.
func (f *Fleet) Change(random *rand.Rand, usual int) error {
	if f.Size() > usual {
		if p := f.Any(random); p != nil {
			f.Leave(p)
		}
		return nil
	}
	_, err := f.Start()
	return err
}
