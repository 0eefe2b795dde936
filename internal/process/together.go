package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Together calls run with each part of a layer or an endpoint that is spread over several
// databases, side by side, and returns when all have returned. When one returns,
// with an error or without, the context of the others ends. Names are those of the databases, for
// the errors.
func Together[T any](ctx context.Context, parts map[string]T, run func(context.Context, T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for name, part := range parts {
		wg.Go(func() {
			err := run(ctx, part)
			cancel()
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, fmt.Errorf("database %q: %w", name, err))
			}
		})
	}
	wg.Wait()
	return failed
}

// Beside calls run, and beside it another function in a goroutine of its own, and returns when both
// have returned. When one returns, with an error or without, the context of the other one ends.
func Beside(ctx context.Context, beside, run func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- beside(ctx)
	}()
	err := run(ctx)
	stop()
	return errors.Join(err, <-ended)
}
