package consumer

import (
	"context"
	"slices"
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
		c.cfg.Logger.Warn("onlyonce: partition waits for an open Kafka transaction: no record above the "+
			"last stable offset can be read before it ends; if it does not end by itself, find its producer",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition,
			"last_stable_offset", is.offset, "high_watermark", got.HighWatermark, "since", is.since,
			"find", "kafka-transactions.sh --bootstrap-server BROKERS describe-producers --topic "+show.Quote(id.Topic)+
				" --partition "+strconv.Itoa(int(id.Partition)))
	case was != nil && was.logged:
		c.cfg.Logger.Info("onlyonce: partition continues: the Kafka transaction that it waited for has ended",
			"scope", c.cfg.Scope, "topic", id.Topic, "partition", id.Partition,
			"last_stable_offset", got.LastStable, "since", was.since)
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

// startPrefetcher begins to read ahead. The caller ends that with stop.
func startPrefetcher(
	ctx context.Context,
	c *Consumer,
	id source.Identity,
	p partition,
	state *partitionState,
	from int64,
) *prefetcher {
	ctx, cancel := context.WithCancel(ctx)
	f := &prefetcher{
		results: make(chan fetchResult, 1),
		cancel:  cancel,
		done:    make(chan struct{}),
		budget:  &c.budget,
		share:   c.budget.AddShare(),
	}
	go func() {
		defer close(f.done)
		f.fetchAhead(ctx, c, id, p, state, from)
	}()
	return f
}

// fetchAhead fetches until ctx ends or a fetch fails. The memory of what a fetch brings is the
// receiver's to give back, once it has it from results.
func (f *prefetcher) fetchAhead(
	ctx context.Context,
	c *Consumer,
	id source.Identity,
	p partition,
	state *partitionState,
	from int64,
) {
	more := false // the log holds more than was fetched
	for ctx.Err() == nil {
		room, ok := f.budget.Reserve(ctx, f.share, more)
		if !ok {
			return
		}
		began := time.Now()
		got, err := fetchOnce(ctx, p, from, int(room))
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
		from = got.Next
		more = got.Next < got.HighWatermark
	}
}

func fetchOnce(ctx context.Context, p partition, from int64, most int) (got fetched, err error) {
	if err = fault.Point(fault.Fetching); err == nil {
		got, err = p.Fetch(ctx, from, most)
	}
	if err == nil {
		err = fault.Point(fault.Fetched)
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

// flushAfter is how long a position that moved without work (past control, aborted and removed
// records) may stay unwritten.
const flushAfter = 5 * time.Second

// reader makes batches of what the prefetcher fetches, and keeps what was fetched and not yet
// handled. It belongs to one run of a worker, and must be used by the worker's goroutine.
type reader struct {
	cfg     *Config
	mark    func([]*Message) // see worker.markAlone
	id      source.Identity
	cur     *cursor
	brake   *brake
	fetches *prefetcher

	msgs  []*Message // fetched, not yet handled
	next  int64      // position after msgs
	epoch int32      // no batch below next exceeded this leader epoch; -1: not known
	err   error      // of the fetch after msgs
	moved time.Time  // when next first moved ahead of the position with nothing to handle
}

// stop returns when no fetch of the partition is running.
func (r *reader) stop() {
	r.fetches.stop()
	r.msgs = nil
}

// release returns the memory of messages to the budget. Each message that admit lets in is released
// once: when what became of it is decided, or with everything that is left, by stop.
func (r *reader) release(msgs []*Message) { r.fetches.release(msgs) }

// nextBatch returns the next batch and the position after it. The batch is full, or as full as it
// got within Linger. No messages and a position ahead of pos mean that there was nothing to handle
// in between. It returns early when ctx is done, and fails with what it receives from lost. Neither
// the batch nor the position goes beyond the end of a replay, because admit lets in nothing that
// does.
func (r *reader) nextBatch(ctx context.Context, pos int64, lost <-chan error) ([]*Message, int64, error) {
	var linger <-chan time.Time
	for {
		n, full := r.batchLength()
		switch {
		// What was fetched is handled before the error is: it may be gone afterwards.
		case full, n > 0 && r.err != nil:
			return r.takeBatch(n)
		case n == 0 && r.next > pos && r.cur.pastReplay(r.next):
			return nil, r.next, nil // the replay ends, and nothing is left to handle before that
		case r.err != nil:
			return nil, 0, r.err
		}
		if n > 0 && linger == nil {
			t := time.NewTimer(r.cfg.Linger)
			defer t.Stop()
			linger = t.C
		}
		var flush <-chan time.Time
		if n == 0 && r.next > pos {
			t := time.NewTimer(time.Until(r.moved.Add(flushAfter)))
			defer t.Stop()
			flush = t.C
		}
		select {
		case got := <-r.fetches.results:
			r.add(got, pos)
		case <-linger:
			return r.takeBatch(n)
		case <-flush:
			return nil, r.next, nil
		case err := <-lost:
			return nil, 0, err
		case <-ctx.Done():
			return nil, pos, nil
		}
	}
}

// add keeps the result of a fetch.
func (r *reader) add(got fetchResult, pos int64) {
	if got.err != nil {
		r.err = got.err
		return
	}
	if len(r.msgs) == 0 && r.next == pos {
		r.moved = time.Now()
	}
	all := r.admit(got.fetched)
	r.msgs = append(r.msgs, all.Messages...)
	r.next = all.Next
	r.epoch = all.LeaderEpoch
}

// admit returns what a fetch brings into the engine. During a replay it leaves out what is at or
// above the end, and gives back the memory of that. Each fetch passes here before anything is made
// of it, so no batch, no slot and no position goes beyond the end of a replay: nobody else has to
// see to that (F10).
//
// It marks messages with the cluster of their log, with the replay that they are part of, and as
// alone (F9).
func (r *reader) admit(got fetched) fetched {
	if until := r.cur.replayUntil; until != nil && got.Next > *until {
		n := slices.IndexFunc(got.Messages, func(m *Message) bool { return m.Offset >= *until })
		if n >= 0 {
			r.release(got.Messages[n:])
			got.Messages = got.Messages[:n]
		}
		got.Next = *until
	}
	for _, m := range got.Messages {
		m.clusterID = r.id.ClusterID
		m.topicID = r.id.TopicID
		m.contents = m.hashContents()
		if r.cur.replayUntil != nil {
			m.replay = r.cur.replayNo
			m.resend = r.cur.replayResend
		}
	}
	r.mark(got.Messages)
	return got
}

// batchLength returns how many buffered messages make the next batch, and whether it is full. It
// also counts as full if a replay ends behind it: no other message follows.
func (r *reader) batchLength() (n int, full bool) {
	size := 0
	most := r.cfg.BatchSize
	if r.brake.Stopped() {
		most = 1
	}
	for n < len(r.msgs) && n < most {
		size += len(r.msgs[n].Value)
		if n > 0 && size > r.cfg.BatchBytes {
			return n, true
		}
		n++
	}
	ends := n > 0 && n == len(r.msgs) && r.cur.pastReplay(r.next)
	return n, ends || n == most || size >= r.cfg.BatchBytes
}

// takeBatch removes the first n messages, and returns the position after them.
func (r *reader) takeBatch(n int) ([]*Message, int64, error) {
	msgs := r.msgs[:n:n]
	r.msgs = r.msgs[n:]
	if len(r.msgs) == 0 {
		r.msgs = nil
		return msgs, r.next, nil
	}
	return msgs, r.msgs[0].Offset, nil
}

// leaderEpochBound returns a leader epoch that no batch below the end of the current batch
// exceeded: that of the first message after it, or, if there is none yet, of the last batch that
// was looked at. An upper bound is enough, because records that are written after an unclean
// election have a higher epoch than everything that was ever read (F5).
func (r *reader) leaderEpochBound() int32 {
	if len(r.msgs) > 0 {
		return r.msgs[0].LeaderEpoch
	}
	return r.epoch
}

// discard drops what was fetched, because the position moves elsewhere. epoch is the leader epoch
// that belongs to that position. The work ends with it, and stop gives the memory back.
func (r *reader) discard(epoch int32) {
	r.msgs = nil
	r.epoch = epoch
}
