package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/recordbatch"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// isolationCommitted makes brokers stop at the last stable offset and list aborted transactions.
const isolationCommitted = 1

// errEmptyResponse is a broker's empty answer about offsets that exist. It must not be taken for
// the end of the log: a consumer that looks for a record that it has seen before would take it for
// lost.
var errEmptyResponse = errors.New("the broker returned nothing")

// Fetch returns committed records at or above from, of up to most bytes. Where that is less than
// the broker's response holds, the next Fetch goes on with the rest of it. While a leader moves it
// asks again, for some seconds, and only then fails (F14).
func (l *Log) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	var got source.Fetched[*consumer.Message]
	if l.unread != nil && l.unread.next == from {
		got, err := l.nextMessages(from, most)
		if err != nil {
			return source.Fetched[*consumer.Message]{}, fmt.Errorf("%v: going on from offset %d: %w", l, from, err)
		}
		got.Kept = true
		return got, nil
	}
	l.dropUnread()
	err := RetryTransient(ctx, l.cluster, leaderPatience, func() error {
		err := l.confirmTopic(ctx)
		if err == nil {
			err = l.checkEpoch(ctx, from)
		}
		if err == nil {
			got, err = l.fetchOnce(ctx, from, most)
		}
		if err == nil {
			return nil
		}
		l.recheck = true
		if hasCode(l.cluster, err, kerr.OffsetOutOfRange) {
			err = l.outOfRange(ctx, from)
		}
		return err
	})
	if err != nil {
		return source.Fetched[*consumer.Message]{}, fmt.Errorf("%v: fetching from offset %d: %w", l, from, err)
	}
	return got, nil
}

// outOfRange makes sure that the log does not hold from: that the topic is still the same, and that
// a broker which knows that it leads says so. A leader that was replaced and has not heard of it
// may be behind.
func (l *Log) outOfRange(ctx context.Context, from int64) error {
	if err := l.confirmTopic(ctx); err != nil {
		return err
	}
	start, end, err := l.askBounds(ctx)
	switch {
	case err != nil:
		l.recheck = true
		return err
	case start <= from && from <= end:
		return fmt.Errorf("a broker takes offset %d for out of range, although the log holds %d to %d: %w",
			from, start, end, l.cluster.Error(kerr.OffsetNotAvailable.Code))
	}
	return &source.OutOfRangeError{Offset: from, Start: start, End: end}
}

// checkEpoch checks the log after a change of leader: it asks how far the new leader's log goes in
// the epoch of the last record read (KIP-320). After an unclean election the offset may exist and
// be within bounds, while the records below it are others (F5).
func (l *Log) checkEpoch(ctx context.Context, from int64) error {
	r := l.lastRead
	known := r.next == from && r.next != 0 && r.epoch >= 0
	if !known || r.checkedUnder == l.leader.Epoch {
		return nil
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition = l.index
	rp.CurrentLeaderEpoch = l.leader.Epoch
	rp.LeaderEpoch = r.epoch
	rt.Topic = l.topic
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := ask[*kmsg.OffsetForLeaderEpochResponse](ctx, l.cluster, &l.leader.Leader, req)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, e := range t.Partitions {
			switch {
			case t.Topic != l.topic || e.Partition != l.index:
				continue
			case e.ErrorCode != 0:
				return l.cluster.Error(e.ErrorCode)
			case e.EndOffset >= 0 && e.EndOffset < from:
				start, err := l.listOffset(ctx, earliest)
				if err != nil {
					return err
				}
				if start >= from {
					// Not cut off, but deleted from the front together with the epoch: the fetch
					// itself will report it.
					return nil
				}
				return &source.OutOfRangeError{Offset: from, Start: start, End: e.EndOffset}
			}
			l.lastRead.checkedUnder = l.leader.Epoch
			return nil
		}
	}
	return ErrUnanswered
}

// fetchOnce asks once.
func (l *Log) fetchOnce(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	resp, err := ask[*kmsg.FetchResponse](ctx, l.cluster, &l.leader.Leader, l.fetchRequest(from, most))
	l.lastFetchAt = time.Now()
	if err != nil {
		return source.Fetched[*consumer.Message]{}, err
	}
	if resp.ErrorCode != 0 {
		return source.Fetched[*consumer.Message]{}, l.cluster.Error(resp.ErrorCode)
	}
	l.fetchesByName = resp.Version < FetchByID
	r := l.partOf(resp)
	// The broker has sent nothing of what the partition holds behind from.
	empty := r != nil && len(r.RecordBatches) == 0 && r.ErrorCode == 0 && from < r.LastStableOffset
	if empty && resp.ThrottleMillis == 0 && r.PreferredReadReplica < 0 {
		return l.passEmptyRange(ctx, r, from)
	}
	if r == nil || empty {
		if throttle := time.Duration(resp.ThrottleMillis) * time.Millisecond; throttle > 0 {
			// A quota is used up: the answer is empty, and the next one comes when this time is
			// over (KIP-219).
			l.opts.Throttled(l.topic, l.index, throttle)
			pace.Sleep(ctx, throttle)
			return source.Fetched[*consumer.Message]{}, fmt.Errorf("%w: it throttles this client, by %v",
				errEmptyResponse, throttle)
		}
		return source.Fetched[*consumer.Message]{}, errEmptyResponse
	}
	if r.ErrorCode != 0 {
		return source.Fetched[*consumer.Message]{}, l.cluster.Error(r.ErrorCode)
	}
	l.empty = emptyAnswers{}
	return l.openBatches(r, from, most)
}

// holeAnswers is how many answers without a batch say that there is none.
const holeAnswers = 3

// emptyAnswers counts them: in a row, for one offset, of one leader.
type emptyAnswers struct {
	from  int64
	epoch int32 // the leader's
	count int
}

// passEmptyRange handles an answer without a batch where the log goes on. A broker returns the
// first batch at least, if there is one below the last stable offset. In a compacted topic there
// may be none: the cleaner has removed all of them, and what comes next is not stable yet, or not
// written. The position passes over such a hole as over any other. In other topics nothing removes
// batches from the middle, and the answer is taken for no answer.
//
// A broker that does not get old batches from its slow storage in time may answer the same. So the
// answer counts if the same leader has given it several times. No batch says which leader epoch the
// hole has: it has none above the leader's own (F6).
func (l *Log) passEmptyRange(
	ctx context.Context,
	r *kmsg.FetchResponseTopicPartition,
	from int64,
) (source.Fetched[*consumer.Message], error) {
	compacted, err := l.Compacted(ctx)
	switch {
	case err != nil:
		return source.Fetched[*consumer.Message]{}, err
	case !compacted:
		return source.Fetched[*consumer.Message]{}, errEmptyResponse
	}
	if l.empty.from != from || l.empty.epoch != l.leader.Epoch {
		l.empty = emptyAnswers{from: from, epoch: l.leader.Epoch}
	}
	if l.empty.count++; l.empty.count < holeAnswers {
		return source.Fetched[*consumer.Message]{}, errEmptyResponse
	}
	l.lastRead = lastRead{next: r.LastStableOffset, epoch: l.leader.Epoch, checkedUnder: l.leader.Epoch}
	return source.Fetched[*consumer.Message]{
		Next:          r.LastStableOffset,
		LeaderEpoch:   l.leader.Epoch,
		HighWatermark: r.HighWatermark,
		LastStable:    r.LastStableOffset,
	}, nil
}

// minRequestBytes is how much is asked for however little there is room for: it stays compressed
// until there is.
const minRequestBytes = 64 << 10

func (l *Log) fetchRequest(from int64, most int) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = -1
	req.IsolationLevel = isolationCommitted
	// The limit is the partition's, of which there is one. (kfake, where it hits the request's,
	// lists no aborted transactions.)
	req.MinBytes = 1
	req.MaxBytes = math.MaxInt32
	req.MaxWaitMillis = int32(l.opts.MaxWait.Milliseconds())
	// no fetch session
	req.SessionID = 0
	req.SessionEpoch = -1
	rt := kmsg.NewFetchRequestTopic()
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition = l.index
	rp.FetchOffset = from
	rp.PartitionMaxBytes = int32(
		min(l.opts.MaxBytes, max(most, minRequestBytes)),
	)
	rp.CurrentLeaderEpoch = l.leader.Epoch
	rp.LastFetchedEpoch = -1
	rp.LogStartOffset = -1
	rt.Topic = l.topic
	rt.TopicID = l.identity.TopicID
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

// partOf returns the part of a response that is about this partition, nil where there is none.
func (l *Log) partOf(resp *kmsg.FetchResponse) *kmsg.FetchResponseTopicPartition {
	for i := range resp.Topics {
		t := &resp.Topics[i]
		same := t.TopicID == l.identity.TopicID
		if l.fetchesByName {
			same = t.Topic == l.topic
		}
		if !same {
			continue
		}
		for j := range t.Partitions {
			if t.Partitions[j].Partition == l.index {
				return &t.Partitions[j]
			}
		}
	}
	return nil
}

// openBatches takes the batches apart and keeps what is committed (F8).
func (l *Log) openBatches(
	r *kmsg.FetchResponseTopicPartition,
	from int64,
	most int,
) (source.Fetched[*consumer.Message], error) {
	section := recordbatch.Section{Topic: l.topic, Partition: l.index, From: from, Stable: r.LastStableOffset}
	for _, a := range r.AbortedTransactions {
		section.Aborted = append(section.Aborted, recordbatch.Aborted{Producer: a.ProducerID, First: a.FirstOffset})
	}
	c, err := section.Open(r.RecordBatches, l.opts.Codecs, l.opts.MaxRecord)
	switch {
	case err != nil:
		return source.Fetched[*consumer.Message]{}, err
	case c.Batches > 0 && c.Last < from:
		return source.Fetched[*consumer.Message]{}, fmt.Errorf("%w at or above offset %d, and %d batches below it",
			errEmptyResponse, from, c.Batches)
	}
	l.unread = &unreadResponse{
		contents:      c,
		next:          from,
		highWatermark: r.HighWatermark,
		lastStable:    r.LastStableOffset,
		leaderEpoch:   l.leader.Epoch,
	}
	return l.nextMessages(from, most)
}

// nextMessages returns what comes next in a response.
func (l *Log) nextMessages(from int64, most int) (source.Fetched[*consumer.Message], error) {
	r := l.unread
	p, err := r.contents.Read(most)
	if err != nil {
		l.dropUnread()
		return source.Fetched[*consumer.Message]{}, err
	}
	if p.Next > from {
		l.lastRead = lastRead{next: p.Next, epoch: p.Epoch, checkedUnder: r.leaderEpoch}
	}
	r.next = p.Next
	if !p.More {
		l.unread = nil
	}
	return source.Fetched[*consumer.Message]{
		Messages:      p.Messages,
		Next:          p.Next,
		LeaderEpoch:   l.lastRead.epoch,
		HighWatermark: r.highWatermark,
		LastStable:    r.lastStable,
	}, nil
}

// dropUnread gives up what is left of the last response.
func (l *Log) dropUnread() {
	if l.unread != nil {
		l.unread.contents.Close()
		l.unread = nil
	}
}
