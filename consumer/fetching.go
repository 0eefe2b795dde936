package consumer

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// fetching reads one fetch ahead of the worker, if the process's budget allows it.
type fetching struct {
	results chan fetched
	cancel  context.CancelFunc
	done    chan struct{}
	budget  *budget
	share   *share
}

type fetched struct {
	Fetched
	err error
}

func startFetching(ctx context.Context, w *worker) *fetching {
	ctx, cancel := context.WithCancel(ctx)
	f := &fetching{results: make(chan fetched, 1), cancel: cancel, done: make(chan struct{}), budget: &w.c.budget, share: w.c.budget.open()}
	go func() {
		defer close(f.done)
		f.run(ctx, w.c, w.id, w.p, w.state, w.pos)
	}()
	return f
}

func (f *fetching) run(ctx context.Context, c *Consumer, id Identity, p Partition, state *partitionState, from int64) {
	more := false // the log holds more than was fetched
	for ctx.Err() == nil {
		room, ok := f.budget.reserve(ctx, f.share, more)
		if !ok {
			return
		}
		began := time.Now()
		got, err := fetch(ctx, &c.cfg.Hooks, id, p, from, int(room))
		f.budget.add(f.share, bytesOf(got.Messages)-room)
		if err == nil && !got.Kept {
			state.fetched(seen{began, got.HighWatermark}, got.LastStable)
			c.stall(id, state, from, got)
		}
		if err == nil && got.Next <= from {
			more = false
			continue // no records yet; Fetch has waited
		}
		select {
		case f.results <- fetched{got, err}:
		case <-ctx.Done():
		}
		if err != nil {
			return
		}
		from, more = got.Next, got.Next < got.HighWatermark
	}
}

func fetch(ctx context.Context, hooks *Hooks, id Identity, p Partition, from int64, most int) (got Fetched, err error) {
	start := FetchStart{Topic: id.Topic, Partition: id.Partition, From: from}
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
		hooks.FetchEnd(ctx, FetchEnd{FetchStart: start, Messages: len(got.Messages), Bytes: int(bytesOf(got.Messages)), Next: got.Next,
			HighWatermark: got.HighWatermark, LastStable: got.LastStable, Err: err})
	}
	return got, err
}

// handled returns to the budget what messages took of it.
func (f *fetching) handled(msgs []*Message) {
	f.budget.add(f.share, -bytesOf(msgs))
}

// stop returns when no fetch of the partition is running.
func (f *fetching) stop() {
	f.cancel()
	<-f.done
	f.budget.close(f.share)
}

func bytesOf(msgs []*Message) (n int64) {
	for _, m := range msgs {
		n += int64(m.Size())
	}
	return n
}
