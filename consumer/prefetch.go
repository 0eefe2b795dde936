package consumer

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/budget"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
)

// prefetcher reads one fetch ahead of the worker, if the process's budget allows it.
type prefetcher struct {
	results chan fetchResult
	cancel  context.CancelFunc
	done    chan struct{}
	budget  *budget.Budget
	share   *budget.Share
}

type fetchResult struct {
	fetched
	err error
}

func startPrefetcher(ctx context.Context, w *worker) *prefetcher {
	ctx, cancel := context.WithCancel(ctx)
	f := &prefetcher{results: make(chan fetchResult, 1), cancel: cancel, done: make(chan struct{}), budget: &w.c.budget, share: w.c.budget.AddShare()}
	go func() {
		defer close(f.done)
		f.fetchAhead(ctx, w.c, w.id, w.p, w.state, w.pos)
	}()
	return f
}

func (f *prefetcher) fetchAhead(ctx context.Context, c *Consumer, id source.Identity, p partition, state *partitionState, from int64) {
	more := false // the log holds more than was fetched
	for ctx.Err() == nil {
		room, ok := f.budget.Reserve(ctx, f.share, more)
		if !ok {
			return
		}
		began := time.Now()
		got, err := fetchOnce(ctx, &c.cfg.Hooks, id, p, from, int(room))
		f.budget.Add(f.share, bytesOf(got.Messages)-room)
		if err == nil && !got.Kept {
			state.fetchReturned(logEnd{began, got.HighWatermark}, got.LastStable)
			c.reportStall(id, state, from, got)
		}
		if err == nil && got.Next <= from {
			more = false
			continue // no records yet; Fetch has waited
		}
		select {
		case f.results <- fetchResult{got, err}:
		case <-ctx.Done():
		}
		if err != nil {
			return
		}
		from, more = got.Next, got.Next < got.HighWatermark
	}
}

func fetchOnce(ctx context.Context, hooks *Hooks, id source.Identity, p partition, from int64, most int) (got fetched, err error) {
	start := Fetch{Topic: id.Topic, Partition: id.Partition, From: from}
	if hooks.FetchStart != nil {
		ctx = hooks.FetchStart(ctx, start)
	}
	if err = fault.Point(fault.Fetching); err == nil {
		got, err = p.Fetch(ctx, from, most)
	}
	if err == nil {
		err = fault.Point(fault.Fetched)
	}
	if hooks.FetchEnd != nil {
		hooks.FetchEnd(ctx, Fetch{Topic: start.Topic, Partition: start.Partition, From: from, Messages: len(got.Messages), Bytes: int(bytesOf(got.Messages)), Next: got.Next,
			HighWatermark: got.HighWatermark, LastStable: got.LastStable, Err: err})
	}
	return got, err
}

// release returns to the budget what messages took of it.
func (f *prefetcher) release(msgs []*Message) {
	f.budget.Add(f.share, -bytesOf(msgs))
}

// stop returns when no fetch of the partition is running.
func (f *prefetcher) stop() {
	f.cancel()
	<-f.done
	f.budget.RemoveShare(f.share)
}

func bytesOf(msgs []*Message) (n int64) {
	for _, m := range msgs {
		n += int64(m.Size())
	}
	return n
}
