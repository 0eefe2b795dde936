package consumer

import "context"

// fetching reads one fetch ahead of the worker.
type fetching struct {
	results chan fetched
	cancel  context.CancelFunc
	done    chan struct{}
}

type fetched struct {
	Fetched
	err error
}

func startFetching(ctx context.Context, p Partition, from int64) *fetching {
	ctx, cancel := context.WithCancel(ctx)
	f := &fetching{results: make(chan fetched, 1), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for ctx.Err() == nil {
			got, err := p.Fetch(ctx, from)
			if err == nil && got.Next <= from {
				continue // nothing there yet; Fetch has waited
			}
			select {
			case f.results <- fetched{got, err}:
			case <-ctx.Done():
			}
			if err != nil {
				return
			}
			from = got.Next
		}
	}()
	return f
}

// stop returns when nothing reads the partition any more.
func (f *fetching) stop() {
	f.cancel()
	<-f.done
}
