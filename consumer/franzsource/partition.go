package franzsource

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// partition is one partition from one hand-over to the end of its own. Commit may run beside the
// other methods and does not use the log.
type partition struct {
	*kafkalog.Log
	m   *membership
	key partitionKey

	// Under m.mu: the member and generation as which the partition is owned. It follows the member
	// from generation to generation while the partition stays. Then it is frozen, so that the
	// brokers refuse late commits.
	groupMember groupMember
	frozen      bool
}

// groupMember is a member in a generation.
type groupMember struct {
	member     string
	generation int32
}

var _ source.Partition[*consumer.Message] = (*partition)(nil)

func (p *partition) String() string { return fmt.Sprintf("%s/%d", p.key.topic, p.key.partition) }

// Identity adds to the log's answer whether the topic is compacted.
func (p *partition) Identity(ctx context.Context) (source.Identity, error) {
	id, err := p.Log.Identity(ctx)
	if err != nil {
		return id, err
	}
	id.Compacted, err = p.Compacted(ctx)
	return id, err
}

// Committed asks the group's coordinator.
func (p *partition) Committed(ctx context.Context) (offset int64, metadata string, err error) {
	err = kafkalog.RetryTransient(ctx, p.m.net, kafkalog.CoordinatorPatience, func() error {
		rt := kmsg.NewOffsetFetchRequestGroupTopic()
		rt.Topic = p.key.topic
		rt.Partitions = []int32{p.key.partition}
		topics, err := p.m.net.fetchOffsets(ctx, []kmsg.OffsetFetchRequestGroupTopic{rt})
		if err != nil {
			return err
		}
		for _, t := range topics {
			for _, r := range t.Partitions {
				if t.Topic != p.key.topic || r.Partition != p.key.partition {
					continue
				}
				offset = r.Offset
				metadata = ""
				if r.Metadata != nil {
					metadata = *r.Metadata
				}
				return p.m.net.Error(r.ErrorCode)
			}
		}
		return kafkalog.ErrUnanswered
	})
	if err != nil {
		return 0, "", fmt.Errorf("%v: committed offset: %w", p, err)
	}
	return offset, metadata, nil
}

// fetchOffsets asks the group's coordinator for committed offsets: of these topics, or of all that
// the group has if topics is nil.
func (n *network) fetchOffsets(
	ctx context.Context,
	topics []kmsg.OffsetFetchRequestGroupTopic,
) ([]kmsg.OffsetFetchResponseGroupTopic, error) {
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = n.cfg.GroupID
	rg.Topics = topics
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Groups = append(req.Groups, rg)
	req.RequireStable = true
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := ask[*kmsg.OffsetFetchResponse](ctx, n, req)
	if err != nil {
		return nil, err
	}
	for _, g := range resp.Groups {
		if g.Group == n.cfg.GroupID {
			return g.Topics, n.Error(g.ErrorCode)
		}
	}
	return nil, kafkalog.ErrUnanswered
}

// Commit commits as the member of the generation in which the partition is owned only (F7). It
// repeats the request while the coordinator moves. The commit may therefore be accepted twice, also
// after an answer that was lost, which is harmless: an offset in Kafka is a hint.
//
// While the group passes from one generation to the next, commits are refused in both: the old one
// is over, and this process has not learned yet what it owns in the new one. So a refusal counts
// only when the change is over and the partition is not this member's any more.
func (p *partition) Commit(ctx context.Context, offset int64, metadata string) error {
	var as groupMember
	err := kafkalog.RetryTransient(ctx, p.m.net, kafkalog.CommitPatience, func() error {
		for {
			as = p.m.memberOf(p)
			err := p.commit(ctx, as, offset, metadata)
			if !errors.Is(err, kerr.IllegalGeneration) && !errors.Is(err, kerr.RebalanceInProgress) ||
				!p.m.waitForNextGeneration(ctx, p, as) {
				return kafkalog.AsOwnershipLost(p.m.net, err)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("%v: committing offset %d in generation %d: %w", p, offset, as.generation, err)
	}
	return nil
}

// commit sends one request.
func (p *partition) commit(ctx context.Context, as groupMember, offset int64, metadata string) error {
	cfg := p.m.net.cfg
	rp := kmsg.NewOffsetCommitRequestTopicPartition()
	rp.Partition = p.key.partition
	rp.Offset = offset
	rp.Metadata = &metadata
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic = p.key.topic
	rt.Partitions = append(rt.Partitions, rp)
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = cfg.GroupID
	req.Generation = as.generation
	req.MemberID = as.member
	req.InstanceID = cfg.instance()
	req.Topics = append(req.Topics, rt)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := ask[*kmsg.OffsetCommitResponse](ctx, p.m.net, req)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, r := range t.Partitions {
			if t.Topic == p.key.topic && r.Partition == p.key.partition {
				return p.m.net.Error(r.ErrorCode)
			}
		}
	}
	return kafkalog.ErrUnanswered
}
