package franzsource

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

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
		own, err := newNetwork(s.cfg)
		if err != nil {
			return nil, err
		}
		defer own.close()
		net = own
	}
	found := map[source.TopicPartition]string{}
	err := kafkalog.RetryTransient(ctx, net, kafkalog.CoordinatorPatience, func() error {
		topics, err := net.fetchOffsets(ctx, nil)
		if err != nil {
			return err
		}
		clear(found)
		for _, t := range topics {
			if !slices.Contains(s.cfg.Topics, t.Topic) {
				continue
			}
			for _, r := range t.Partitions {
				if err := net.Error(r.ErrorCode); err != nil {
					return err
				}
				if r.Offset >= 0 && r.Metadata != nil {
					found[source.TopicPartition{Topic: t.Topic, Partition: r.Partition}] = *r.Metadata
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
// assigns to this process. When ctx is done, it waits for every own, leaves the group (unless it is
// a static member) and returns nil.
//
// The context of own ends when the partition is assigned elsewhere, when the group has lost this
// process, or when ctx is done. A rebalance that leaves the partition here does not end it. Until
// own returns, the group accepts its commits, for at most RebalanceTimeout. Run itself waits for
// own however long that takes.
//
// Run returns an error if the first connection fails, if a topic does not exist, if the group
// refuses this process for good (another protocol, another process with the same InstanceID, no
// permission), or if own returns one. After ErrOwnershipLost from own it pauses and joins again
// instead. If a broker fails later, Run waits for it.
func (s *Source) Run(
	ctx context.Context,
	own func(ctx context.Context, p source.Partition[*consumer.Message]) error,
) error {
	if s.faults != nil {
		return s.faults
	}
	net, err := newNetwork(s.cfg)
	if err != nil {
		return err
	}
	defer net.close()
	s.running.Store(net)
	defer s.running.Store(nil)
	if _, err = kafkalog.FindTopics(ctx, net, "franzsource",
		s.cfg.Brokers, s.cfg.Topics, "Describe and Read"); err == nil {
		err = net.checkVersions(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	m := newMembership(ctx, net, own)
	m.joined = &s.joined
	return m.joinAndServe()
}
