package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// stallHold is how long a transaction is held open elsewhere during a rotation.
const stallHold = 10 * time.Second

// stalled measures the longest time without a commit of a claim: during a rotation that waits for
// another session's transaction, and without either.
func (s *keyStores) stalled(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
	k, err := s.get(ctx, srv, keptShort/smallShare, false)
	if err != nil {
		return nil, nil, err
	}
	return k.stallSide(true), k.stallSide(false), nil
}

// gaps notes the longest time between two calls of done.
type gaps struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
}

func (g *gaps) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.last.IsZero() {
		g.longest = max(g.longest, now.Sub(g.last))
	}
	g.last = now
}

// reset forgets the recorded gaps, and begins now.
func (g *gaps) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.longest, g.last = 0, time.Now()
}

// read returns the longest, up to now.
func (g *gaps) read() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.longest, time.Since(g.last))
}

func (k *keyStore) stallSide(rotates bool) side {
	return func(ctx context.Context, _ *database, w *window) (got sample, err error) {
		w.length = stallHold + 2*time.Second
		if err := k.srv.exec(ctx, "checkpoint"); err != nil {
			return sample{}, err
		}
		g := &gaps{}
		work := &claimWork{k: k, done: g.done}
		work.start(ctx)
		ended := make(chan error, 1)
		var longest time.Duration
		go func() {
			err := pauseFor(ctx, settle)
			g.reset()
			switch {
			case err != nil:
			case rotates:
				err = k.rotateBeside(ctx)
			default:
				err = pauseFor(ctx, stallHold)
			}
			longest = g.read()
			ended <- err
		}()
		got, err = w.watch(ctx, k.database, work.count.Load, nil, work.failed)
		err = errors.Join(err, <-ended) // claims go on until then
		work.stop()
		got.gap = longest
		return got, err
	}
}

// rotateBeside rotates while a transaction that has written stays open elsewhere for as long as
// stallHold.
func (k *keyStore) rotateBeside(ctx context.Context) error {
	release, err := k.hold(ctx, "begin", "select pg_current_xact_id()")
	if err != nil {
		return err
	}
	released := make(chan error, 1)
	go func() {
		err := pauseFor(ctx, stallHold)
		released <- errors.Join(err, release())
	}()
	err = k.rotate(ctx)
	return errors.Join(err, <-released)
}

// longestGap is in milliseconds.
func longestGap(of sample) float64 { return of.gap.Seconds() * 1e3 }
