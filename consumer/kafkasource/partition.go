package kafkasource

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// partition is one partition in one generation of the group. Commit may run beside the other
// methods and does not use the log.
type partition struct {
	*kafkalog.Log
	net        *network
	topic      string
	index      int32
	generation int32
	member     string
}

var _ source.Partition[*consumer.Message] = (*partition)(nil)

func (p *partition) String() string { return fmt.Sprintf("%s/%d", p.topic, p.index) }

// Committed asks the group's coordinator.
func (p *partition) Committed(ctx context.Context) (offset int64, metadata string, err error) {
	err = kafkalog.RetryTransient(ctx, p.net, kafkalog.CoordinatorPatience, func() error {
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
				offset = r.CommittedOffset
				metadata = r.Metadata
				return r.Error
			}
		}
		return kafkalog.ErrUnanswered
	})
	if err != nil {
		return 0, "", fmt.Errorf("%v: committed offset: %w", p, err)
	}
	return offset, metadata, nil
}

// Commit commits as the member of the partition's generation only (F7). It repeats the request
// while the coordinator moves. The commit may therefore be accepted twice, also after an answer
// that was lost, which is harmless: an offset in Kafka is a hint.
func (p *partition) Commit(ctx context.Context, offset int64, metadata string) error {
	err := kafkalog.RetryTransient(ctx, p.net, kafkalog.CommitPatience, func() error {
		ctx, cancel := p.net.bounded(ctx)
		defer cancel()
		resp, err := p.net.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: p.net.cfg.GroupID, GenerationID: int(p.generation), MemberID: p.member,
			Topics: map[string][]kafka.OffsetCommit{p.topic: {{
				Partition: int(p.index),
				Offset:    offset,
				Metadata:  metadata,
			}}}})
		if err != nil {
			return err
		}
		for _, r := range resp.Topics[p.topic] {
			if int32(r.Partition) == p.index {
				return kafkalog.AsOwnershipLost(p.net, r.Error)
			}
		}
		return kafkalog.ErrUnanswered
	})
	if err != nil {
		return fmt.Errorf("%v: committing offset %d in generation %d: %w", p, offset, p.generation, err)
	}
	return nil
}
