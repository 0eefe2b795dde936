package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
)

const (
	// leaderPatience is how long a request is repeated while a leader or coordinator moves, an election included.
	leaderPatience = 5 * time.Second
	// commitPatience is how long a commit is repeated, in its own generation.
	commitPatience = 10 * time.Second
	// seenFor is how long what was learned about a topic's incarnation is believed, where fetches do not say it themselves.
	seenFor = time.Second
)

// partition is one partition in one generation of the group. Commit, which may run beside the others, uses only the first block.
type partition struct {
	net        *network
	topic      string
	index      int32
	generation int32
	member     string

	named   bool              // whether identity is set
	id      consumer.Identity // what Identity said last
	at      place             // who leads it
	suspect bool              // something went wrong: look again who leads it, and whether it is still the same topic
	byName  bool              // the broker's fetches do not name the topic by its id
	fetched time.Time         // the last fetch's end
	read    lastRead
}

// lastRead is what was fetched last, of which the log must still be made.
type lastRead struct {
	next  int64 // position behind it
	epoch int32 // leader epoch of its last batch
	under int32 // leader epoch that the leader had then
}

var _ consumer.Partition = (*partition)(nil)

func (p *partition) String() string { return fmt.Sprintf("%s/%d", p.topic, p.index) }

// Identity asks the cluster, and makes the answer what later fetches are compared with.
func (p *partition) Identity(ctx context.Context) (consumer.Identity, error) {
	err := patiently(ctx, leaderPatience, func() error {
		id, at, err := p.locate(ctx)
		if err == nil {
			p.id, p.at, p.named, p.suspect = id, at, true, false
		}
		return err
	})
	if err != nil {
		return consumer.Identity{}, fmt.Errorf("%v: %w", p, err)
	}
	return p.id, nil
}

// locate asks who leads the partition, and of which incarnation of the topic it is.
func (p *partition) locate(ctx context.Context) (consumer.Identity, place, error) {
	topics, err := p.net.topics(ctx, p.topic)
	if err != nil {
		return consumer.Identity{}, place{}, err
	}
	t := topics[p.topic]
	at, ok := t.partitions[p.index]
	if !ok {
		return consumer.Identity{}, place{}, &topicError{Topic: p.topic, Err: kafka.UnknownTopicOrPartition}
	}
	return consumer.Identity{ClusterID: t.clusterID, TopicID: t.id, Topic: p.topic, Partition: p.index,
		Partitions: int32(len(t.partitions))}, at, nil
}

// confirm looks again where there is doubt: after an error, and, where fetches name the topic by its name only,
// when so much time has passed that the topic may have been deleted and created again. It fails with ErrIncarnation when that is so (F4).
func (p *partition) confirm(ctx context.Context) error {
	if p.named && !p.suspect && !(p.byName && time.Since(p.fetched) > seenFor) {
		return nil
	}
	id, at, err := p.locate(ctx)
	if err != nil {
		return err
	}
	if p.named {
		if err := sameIncarnation(p.id, id); err != nil {
			return err
		}
	} else {
		p.id, p.named = id, true
	}
	p.at, p.suspect = at, false
	return nil
}

// sameIncarnation compares what is known on both sides: a broker that is too old tells no topic id.
func sameIncarnation(was, is consumer.Identity) error {
	unknown := [16]byte{}
	switch {
	case was.ClusterID != is.ClusterID:
		return fmt.Errorf("%w: %s/%d was in cluster %q, and the brokers now are cluster %q", consumer.ErrIncarnation, was.Topic, was.Partition, was.ClusterID, is.ClusterID)
	case was.TopicID != is.TopicID && was.TopicID != unknown && is.TopicID != unknown:
		return fmt.Errorf("%w: the id of %q was %x and is %x", consumer.ErrIncarnation, was.Topic, was.TopicID, is.TopicID)
	}
	return nil
}

// Committed asks the group's coordinator.
func (p *partition) Committed(ctx context.Context) (offset int64, metadata string, err error) {
	err = patiently(ctx, leaderPatience, func() error {
		ctx, cancel := p.net.bounded(ctx)
		defer cancel()
		resp, err := p.net.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
			GroupID: p.net.cfg.GroupID, Topics: map[string][]int{p.topic: {int(p.index)}}})
		if err != nil {
			return err
		}
		if resp.Error != nil {
			return resp.Error
		}
		for _, r := range resp.Topics[p.topic] {
			if int32(r.Partition) == p.index {
				offset, metadata = r.CommittedOffset, r.Metadata
				return r.Error
			}
		}
		return errUnanswered
	})
	if err != nil {
		return 0, "", fmt.Errorf("%v: committed offset: %w", p, err)
	}
	return offset, metadata, nil
}

// errUnanswered says that a response does not mention what was asked for.
var errUnanswered = errors.New("the broker's response does not mention the partition")

// Commit commits as the member of the generation to which the partition belongs, and nobody else (F7). It repeats the request
// while the coordinator moves, and so may be accepted twice, or after an answer that was lost: an offset in Kafka is a hint.
func (p *partition) Commit(ctx context.Context, offset int64, metadata string) error {
	err := patiently(ctx, commitPatience, func() error {
		ctx, cancel := p.net.bounded(ctx)
		defer cancel()
		resp, err := p.net.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: p.net.cfg.GroupID, GenerationID: int(p.generation), MemberID: p.member,
			Topics: map[string][]kafka.OffsetCommit{p.topic: {{Partition: int(p.index), Offset: offset, Metadata: metadata}}}})
		if err != nil {
			return err
		}
		for _, r := range resp.Topics[p.topic] {
			if int32(r.Partition) == p.index {
				return lostOwnership(r.Error)
			}
		}
		return errUnanswered
	})
	if err != nil {
		return fmt.Errorf("%v: committing offset %d in generation %d: %w", p, offset, p.generation, err)
	}
	return nil
}

// Timestamps that stand for an end of the log in ListOffsets.
const (
	earliest = -2
	latest   = -1
)

// Bounds returns the log's start and its last stable offset: below that everything is committed or aborted for good.
func (p *partition) Bounds(ctx context.Context) (start, end int64, err error) {
	err = patiently(ctx, leaderPatience, func() (err error) {
		if err = p.confirm(ctx); err == nil {
			start, end, err = p.bounds(ctx)
		}
		p.suspect = p.suspect || err != nil
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%v: bounds of the log: %w", p, err)
	}
	return start, end, nil
}

func (p *partition) bounds(ctx context.Context) (start, end int64, err error) {
	if start, err = p.listOffset(ctx, earliest); err != nil {
		return 0, 0, err
	}
	end, err = p.listOffset(ctx, latest)
	return start, end, err
}

func (p *partition) listOffset(ctx context.Context, which int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolationCommitted
	rt, rp := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.CurrentLeaderEpoch, rp.Timestamp, rp.MaxNumOffsets = p.index, p.at.epoch, which, 1
	rt.Topic, rt.Partitions = p.topic, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.ListOffsetsResponse](ctx, p.net, p.net.leaderRequest(p.at.leader, req, listOffsetsVersion, listOffsetsMinVersion))
	if err != nil {
		return 0, err
	}
	for _, t := range resp.Topics {
		for _, r := range t.Partitions {
			if t.Topic != p.topic || r.Partition != p.index {
				continue
			}
			if r.ErrorCode != 0 {
				return 0, kafka.Error(r.ErrorCode)
			}
			return r.Offset, nil
		}
	}
	return 0, errUnanswered
}
