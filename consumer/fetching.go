package consumer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/internal/fault"
)

// fetching reads one fetch ahead of the worker, as long as the process's budget lasts.
type fetching struct {
	results chan fetched
	cancel  context.CancelFunc
	done    chan struct{}
	budget  *budget
	held    atomic.Int64 // bytes fetched and not handled
}

type fetched struct {
	Fetched
	err error
}

func startFetching(ctx context.Context, w *worker) *fetching {
	ctx, cancel := context.WithCancel(ctx)
	f := &fetching{results: make(chan fetched, 1), cancel: cancel, done: make(chan struct{}), budget: &w.c.budget}
	go func() {
		defer close(f.done)
		f.run(ctx, w.c, w.id, w.p, w.state, w.pos)
	}()
	return f
}

func (f *fetching) run(ctx context.Context, c *Consumer, id Identity, p Partition, state *partitionState, from int64) {
	for ctx.Err() == nil {
		if !f.budget.wait(ctx, &f.held) {
			return
		}
		began := time.Now()
		got, err := fetch(ctx, &c.cfg.Hooks, id, p, from)
		if err == nil {
			state.fetched(seen{began, got.HighWatermark}, got.LastStable)
			c.stall(id, state, from, got)
		}
		if err == nil && got.Next <= from {
			continue // nothing there yet; Fetch has waited
		}
		n := bytesOf(got.Messages)
		f.held.Add(n)
		f.budget.add(n)
		select {
		case f.results <- fetched{got, err}:
		case <-ctx.Done():
		}
		if err != nil {
			return
		}
		from = got.Next
	}
}

func fetch(ctx context.Context, hooks *Hooks, id Identity, p Partition, from int64) (got Fetched, err error) {
	start := FetchStart{Topic: id.Topic, Partition: id.Partition, From: from}
	if hooks.FetchStart != nil {
		ctx = hooks.FetchStart(ctx, start)
	}
	if err = fault.Point(fault.Fetching); err == nil {
		got, err = p.Fetch(ctx, from)
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

// handled gives back what messages took of the budget.
func (f *fetching) handled(msgs []*Message) {
	n := bytesOf(msgs)
	f.held.Add(-n)
	f.budget.add(-n)
}

// stop returns when nothing reads the partition any more.
func (f *fetching) stop() {
	f.cancel()
	<-f.done
	f.budget.add(-f.held.Swap(0))
}

// bytesOf counts what a message mostly consists of.
func bytesOf(msgs []*Message) (n int64) {
	for _, m := range msgs {
		n += int64(len(m.Value) + len(m.Key))
		for _, h := range m.Headers {
			n += int64(len(h.Name) + len(h.Value))
		}
	}
	return n
}

// budget bounds what all partitions of a process have fetched and not handled. A partition that has nothing may always fetch
// once, so that none waits for another.
type budget struct {
	limit int64

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when something is given back; nil while nobody waits
}

func (b *budget) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	if n < 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}

// wait returns when a fetch may begin, and false when ctx ended first.
func (b *budget) wait(ctx context.Context, held *atomic.Int64) bool {
	for {
		b.mu.Lock()
		if b.used < b.limit || held.Load() == 0 {
			b.mu.Unlock()
			return true
		}
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}
