package consumer

import (
	"context"
	"strconv"
	"time"

	"github.com/onlyonce/onlyonce/consumer/internal/budget"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/show"
)

// reportStall records what a fetch says about the last stable offset. If a partition waits for
// long, it logs that once, and once more when the partition continues.
func (c *Consumer) reportStall(id source.Identity, state *partitionState, from int64, got fetched) {
	was := state.stall.Load()
	is := was.after(from, got, time.Now())
	if is == was {
		return
	}
	state.stall.Store(is)
	switch {
	case is != nil && is.logged:
		c.cfg.Logger.Warn("onlyonce: partition waits for an open Kafka transaction: nothing behind the last stable offset can be read before it ends; if it does not end by itself, find its producer",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition, "last_stable_offset", is.offset, "high_watermark", got.HighWatermark, "since", is.since,
			"find", "kafka-transactions.sh --bootstrap-server BROKERS describe-producers --topic "+show.Quote(id.Topic)+" --partition "+strconv.Itoa(int(id.Partition)))
	case was != nil && was.logged:
		c.cfg.Logger.Info("onlyonce: partition goes on: the Kafka transaction that it waited for has ended",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition, "last_stable_offset", got.LastStable, "since", was.since)
	}
}

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

func startPrefetcher(ctx context.Context, c *Consumer, id source.Identity, p partition, state *partitionState, from int64) *prefetcher {
	ctx, cancel := context.WithCancel(ctx)
	f := &prefetcher{results: make(chan fetchResult, 1), cancel: cancel, done: make(chan struct{}), budget: &c.budget, share: c.budget.AddShare()}
	go func() {
		defer close(f.done)
		f.fetchAhead(ctx, c, id, p, state, from)
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
	start := Fetch{TopicPartition: id.TopicPartition, From: from}
	ctx = begin(ctx, hooks.FetchStart, start)
	if err = fault.Point(fault.Fetching); err == nil {
		got, err = p.Fetch(ctx, from, most)
	}
	if err == nil {
		err = fault.Point(fault.Fetched)
	}
	if hooks.FetchEnd != nil {
		hooks.FetchEnd(ctx, Fetch{TopicPartition: start.TopicPartition, From: from, Messages: len(got.Messages), Bytes: int(bytesOf(got.Messages)), Next: got.Next,
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
