package kafkasource

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/segmentio/kafka-go"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/ready"
)

// Source reads topics as a member of a Kafka consumer group. Make one with New. Each Run is a
// member of its own.
type Source struct {
	cfg    Config
	faults error
	joined ready.Link
	// running is the network of Run, nil while it does not run.
	running atomic.Pointer[network]
}

var _ consumer.Source = (*Source)(nil)

// New returns a Source. It does not connect. It returns no error, so that it can be an argument of
// consumer.New, which calls Validate and reports its faults with all others.
func New(cfg Config) *Source {
	return &Source{cfg: cfg.withDefaults(), faults: cfg.faults()}
}

// Validate returns every fault of the configuration at once, each with its field, or nil.
func (s *Source) Validate() error { return s.faults }

// Group returns Config.GroupID.
func (s *Source) Group() string { return s.cfg.GroupID }

// Topics returns Config.Topics.
func (s *Source) Topics() []string { return slices.Clone(s.cfg.Topics) }

// Ready returns nil while this process is a member of the group, with or without partitions, and
// otherwise an error with the reason. It is for [consumer.Consumer.Ready].
func (s *Source) Ready() error { return s.joined.Err() }

// GroupMetadata asks the group's coordinator for the metadata of the offsets that the group has
// committed in the source's topics. Before Run it does so on a connection of its own.
func (s *Source) GroupMetadata(ctx context.Context) (map[source.TopicPartition]string, error) {
	if s.faults != nil {
		return nil, s.faults
	}
	net := s.running.Load()
	if net == nil {
		net = newNetwork(s.cfg)
		defer net.close()
	}
	found := map[source.TopicPartition]string{}
	err := kafkalog.RetryTransient(ctx, net, kafkalog.CoordinatorPatience, func() error {
		ctx, cancel := net.bounded(ctx)
		defer cancel()
		resp, err := net.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: s.cfg.GroupID}) // of all topics
		if err != nil {
			return err
		}
		if resp.Error != nil {
			return resp.Error
		}
		clear(found)
		for _, topic := range s.cfg.Topics {
			for _, r := range resp.Topics[topic] {
				if r.Error != nil {
					return r.Error
				}
				if r.CommittedOffset >= 0 {
					found[source.TopicPartition{Topic: topic, Partition: int32(r.Partition)}] = r.Metadata
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("offsets of group %s: %w", s.cfg.GroupID, err)
	}
	return found, nil
}

// Run joins the group and calls own, in a goroutine of its own, for each partition that the group
// assigns to this process. When ctx is done, it waits for every own, leaves the group and returns
// nil.
//
// The context of own ends when a rebalance takes the partitions back or ctx is done. Until own
// returns, Run continues to send heartbeats, so that the group accepts own's commits. After
// RebalanceTimeout it stops sending them, and others take over. Run itself waits for own however
// long that takes.
//
// Run returns an error if the first connection fails, if a topic does not exist or is compacted, or
// if own returns one. After ErrOwnershipLost from own it pauses and joins again instead. If a
// broker fails later, Run waits for it.
func (s *Source) Run(
	ctx context.Context,
	own func(ctx context.Context, p source.Partition[*consumer.Message]) error,
) error {
	if s.faults != nil {
		return s.faults
	}
	net := newNetwork(s.cfg)
	defer net.close()
	s.running.Store(net)
	defer s.running.Store(nil)
	topics, err := kafkalog.FindTopics(ctx, net, "kafkasource",
		s.cfg.Brokers, s.cfg.Topics, "Describe, Read and DescribeConfigs")
	if err == nil {
		err = refuseCompacted(ctx, net)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &membership{net: net, own: own, joined: &s.joined, ctx: ctx, stop: stop}
	m.setPartitionCounts(topics)
	return m.joinAndServe()
}
