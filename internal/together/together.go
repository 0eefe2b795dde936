// Package together runs the parts of a layer or an endpoint that is spread over several databases.
package together

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Run calls run with each part, side by side, and returns when all have returned. When one returns,
// with an error or without, the context of the others ends. Names are those of the databases, and
// stand in the errors.
func Run[T any](ctx context.Context, parts map[string]T, run func(context.Context, T) error) error {
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
