package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
)

// isolationCommitted makes brokers stop at the last stable offset and list aborted transactions.
const isolationCommitted = 1

// errNothing is what a broker's empty answer to a question about offsets that exist comes to. It must not be taken for the
// end of the log: a consumer that looks for a record that it has seen before would take it for lost.
var errNothing = errors.New("the broker returned nothing")

// Fetch returns committed records at or above from. While a leader moves it asks again, for some seconds, and only then fails.
func (p *partition) Fetch(ctx context.Context, from int64) (consumer.Fetched, error) {
	var got consumer.Fetched
	err := patiently(ctx, leaderPatience, func() error {
		err := p.confirm(ctx)
		if err == nil {
			err = p.validate(ctx, from)
		}
		if err == nil {
			got, err = p.fetch(ctx, from)
		}
		if err == nil {
			return nil
		}
		p.suspect = true
		if errors.Is(err, kafka.OffsetOutOfRange) {
			err = p.outOfRange(ctx, from)
		}
		return err
	})
	if err != nil {
		return consumer.Fetched{}, fmt.Errorf("%v: fetching from offset %d: %w", p, from, err)
	}
	return got, nil
}

// outOfRange makes sure that the log does not hold from: that the topic is still the same, and that a broker which
// knows that it leads says so. A leader that was replaced and has not heard of it may be behind.
func (p *partition) outOfRange(ctx context.Context, from int64) error {
	if err := p.confirm(ctx); err != nil {
		return err
	}
	start, end, err := p.bounds(ctx)
	switch {
	case err != nil:
		p.suspect = true
		return err
	case start <= from && from <= end:
		return fmt.Errorf("a broker takes offset %d for out of range, although the log holds %d to %d: %w", from, start, end, kafka.OffsetNotAvailable)
	}
	return &consumer.OutOfRangeError{Offset: from, Start: start, End: end}
}

// validate asks, when the leadership has changed since the last fetch, how far the new leader's log goes in the epoch of the record
// that was read last (KIP-320). Where an unclean election has cut the log off below from, and others have written since,
// from exists and is within bounds, and reading on would skip what stands below it.
func (p *partition) validate(ctx context.Context, from int64) error {
	r := p.read
	if r.next != from || r.epoch < 0 || r.next == 0 || r.under == p.at.epoch {
		return nil
	}
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID = -1
	rt, rp := kmsg.NewOffsetForLeaderEpochRequestTopic(), kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.LeaderEpoch = p.index, p.at.epoch, r.epoch
	rt.Topic, rt.Partitions = p.topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.OffsetForLeaderEpochResponse](ctx, p.net, p.net.leaderRequest(p.at.leader, req, epochEndVersion, 0))
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, e := range t.Partitions {
			switch {
			case t.Topic != p.topic || e.Partition != p.index:
				continue
			case e.ErrorCode != 0:
				return kafka.Error(e.ErrorCode)
			case e.EndOffset >= 0 && e.EndOffset < from:
				start, err := p.listOffset(ctx, earliest)
				if err != nil {
					return err
				}
				if start >= from {
					return nil // not cut off but deleted from the front, with the epoch: the fetch itself will tell
				}
				return &consumer.OutOfRangeError{Offset: from, Start: start, End: e.EndOffset}
			}
			p.read.under = p.at.epoch
			return nil
		}
	}
	return errUnanswered
}

// fetch asks once.
func (p *partition) fetch(ctx context.Context, from int64) (consumer.Fetched, error) {
	resp, err := call[*kmsg.FetchResponse](ctx, p.net, p.fetchRequest(from))
	p.fetched = time.Now()
	if err != nil {
		return consumer.Fetched{}, err
	}
	if resp.ErrorCode != 0 {
		return consumer.Fetched{}, kafka.Error(resp.ErrorCode)
	}
	p.byName = resp.Version < fetchByIDVersion
	r := p.find(resp)
	if r == nil || len(r.RecordBatches) == 0 && r.ErrorCode == 0 && from < r.LastStableOffset {
		if throttle := time.Duration(resp.ThrottleMillis) * time.Millisecond; throttle > 0 {
			// A quota is used up: the answer is empty, and the next one comes when this time is over (KIP-219).
			p.net.log.Debug("onlyonce: throttled by the broker", "topic", p.topic, "partition", p.index, "for", throttle)
			sleep(ctx, throttle)
			return consumer.Fetched{}, fmt.Errorf("%w: it throttles this client, by %v", errNothing, throttle)
		}
		return consumer.Fetched{}, errNothing
	}
	if r.ErrorCode != 0 {
		return consumer.Fetched{}, kafka.Error(r.ErrorCode)
	}
	return p.open(r, from)
}

func (p *partition) fetchRequest(from int64) *leaderExchange {
	cfg := p.net.cfg
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolationCommitted
	// The limit is the partition's, of which there is one. (kfake, where it hits the request's, lists no aborted transactions.)
	req.MinBytes, req.MaxBytes, req.MaxWaitMillis = 1, math.MaxInt32, int32(cfg.FetchMaxWait.Milliseconds())
	req.SessionID, req.SessionEpoch = 0, -1 // no fetch session
	rt, rp := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = p.index, from, int32(cfg.FetchMaxBytes)
	rp.CurrentLeaderEpoch, rp.LastFetchedEpoch, rp.LogStartOffset = p.at.epoch, -1, -1
	rt.Topic, rt.TopicID, rt.Partitions = p.topic, p.id.TopicID, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	version := int16(fetchByIDVersion)
	if p.id.TopicID == [16]byte{} {
		version = fetchByNameVersion
	}
	return p.net.leaderRequest(p.at.leader, req, version, fetchMinVersion)
}

// find returns the part of a response that is about this partition, nil where there is none.
func (p *partition) find(resp *kmsg.FetchResponse) *kmsg.FetchResponseTopicPartition {
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if p.byName && t.Topic != p.topic || !p.byName && t.TopicID != p.id.TopicID {
			continue
		}
		for j := range t.Partitions {
			if t.Partitions[j].Partition == p.index {
				return &t.Partitions[j]
			}
		}
	}
	return nil
}

// open takes the batches apart and keeps what is committed.
func (p *partition) open(r *kmsg.FetchResponseTopicPartition, from int64) (consumer.Fetched, error) {
	got := consumer.Fetched{Next: from, HighWatermark: r.HighWatermark}
	batches, err := splitBatches(r.RecordBatches)
	if err != nil {
		return consumer.Fetched{}, err
	}
	aborted := make([]abortedTransaction, len(r.AbortedTransactions))
	for i, a := range r.AbortedTransactions {
		aborted[i] = abortedTransaction{producer: a.ProducerID, first: a.FirstOffset}
	}
	kept, next, err := readCommitted(batches, aborted, from, r.LastStableOffset)
	if err != nil {
		return consumer.Fetched{}, err
	}
	for _, b := range kept {
		if got.Messages, err = b.appendMessages(got.Messages, p.topic, p.index, from, r.LastStableOffset); err != nil {
			return consumer.Fetched{}, err
		}
	}
	if len(batches) > 0 && batches[len(batches)-1].last < from {
		return consumer.Fetched{}, fmt.Errorf("%w at or above offset %d, and %d batches below it", errNothing, from, len(batches))
	}
	got.Next = next
	if next > from {
		p.read.next, p.read.under = next, p.at.epoch
		p.read.epoch = -1
		for _, b := range batches {
			if b.last < next {
				p.read.epoch = b.epoch
			}
		}
	}
	return got, nil
}
