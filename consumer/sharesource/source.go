package sharesource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/franzsource"
	"github.com/onlyonce/onlyonce/consumer/source"
)

const (
	// dialTimeout bounds making a connection, including its TLS handshake.
	dialTimeout = 5 * time.Second
	// requestTimeout bounds a request.
	requestTimeout = 10 * time.Second
)

// Source reads topics as a member of a share group, and as a keeper of some of their partitions.
// Make one with New. Use it for one consumer.
type Source struct {
	cfg    Config
	faults error
	keeper *franzsource.Source
	asking atomic.Pointer[kgo.Client] // of the present Run; nil: none
}

var _ source.Shared[*consumer.Message] = (*Source)(nil)

// New returns a Source. It does not connect. It returns no error, so that it can be an argument of
// consumer.New, which calls Validate and reports its faults with all others.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg.withDefaults(), faults: cfg.faults()}
	s.keeper = franzsource.New(s.cfg.keeper())
	return s
}

// Validate returns every fault of the configuration at once, each with its field, or nil.
func (s *Source) Validate() error { return s.faults }

// Group returns Config.KeeperGroupID, which owns the cursors.
func (s *Source) Group() string { return s.cfg.KeeperGroupID }

// Topics returns Config.Topics.
func (s *Source) Topics() []string { return slices.Clone(s.cfg.Topics) }

// Ready returns nil while this process is a member of the keepers' group, and otherwise an error
// with the reason. It is for [consumer.Consumer.Ready].
func (s *Source) Ready() error { return s.keeper.Ready() }

// Run joins the keepers' group and calls own for each partition that this process is to keep. It is
// [franzsource.Source.Run].
func (s *Source) Run(ctx context.Context, own func(ctx context.Context, p source.Partition[*consumer.Message]) error) error {
	if s.faults != nil {
		return s.faults
	}
	cl, err := s.client()
	if err != nil {
		return err
	}
	s.asking.Store(cl)
	defer func() {
		s.asking.Store(nil)
		cl.Close()
	}()
	return s.keeper.Run(ctx, own)
}

// client returns a client of the cluster.
func (s *Source) client(more ...kgo.Opt) (*kgo.Client, error) {
	opts := []kgo.Opt{
		kgo.SeedBrokers(s.cfg.Brokers...), kgo.ClientID(s.cfg.ClientID), kgo.DialTimeout(dialTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout), kgo.DisableClientMetrics(),
	}
	if s.cfg.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(s.cfg.TLS))
	}
	if s.cfg.SASL != nil {
		opts = append(opts, kgo.SASL(s.cfg.SASL))
	}
	cl, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		return nil, fmt.Errorf("sharesource: %w", err)
	}
	return cl, nil
}

// Settled returns the start offset of the share partition: everything below it was acknowledged or
// given up. It is 0 if the share group has not begun with the partition. It asks only during Run
// (G3).
func (s *Source) Settled(ctx context.Context, topic string, partition int32) (int64, error) {
	cl := s.asking.Load()
	if cl == nil {
		return 0, errors.New("sharesource: Run has ended")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The broker writes down a new start with the next acknowledgement only. So that the last
	// records of a partition at rest are not waited for, its lag counts too: if it is 0, everything
	// below an end that was read before is acknowledged or given up.
	end, err := lastStable(ctx, cl, topic, partition)
	if err != nil {
		return 0, fmt.Errorf("sharesource: end of %s/%d: %w", topic, partition, err)
	}
	one := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
	one.Topic, one.Partitions = topic, []int32{partition}
	group := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	group.GroupID, group.Topics = s.cfg.GroupID, []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{one}
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, fmt.Errorf("sharesource: start offset of %s/%d: %w", topic, partition, err)
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); errors.Is(err, kerr.GroupIDNotFound) {
			return 0, nil // it has no member yet
		} else if err != nil {
			return 0, fmt.Errorf("sharesource: share group %q: %w", s.cfg.GroupID, err)
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if t.Topic != topic || p.Partition != partition {
					continue
				}
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return 0, fmt.Errorf("sharesource: start offset of %s/%d: %w", topic, partition, err)
				}
				if p.StartOffset >= 0 && p.Lag == 0 {
					return max(p.StartOffset, end), nil
				}
				return max(p.StartOffset, 0), nil // -1: not begun
			}
		}
	}
	return 0, nil
}

// lastStable returns the last stable offset of a partition.
func lastStable(ctx context.Context, cl *kgo.Client, topic string, partition int32) (int64, error) {
	one := kmsg.NewListOffsetsRequestTopicPartition()
	one.Partition, one.Timestamp = partition, -1
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic, of.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{one}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel, req.Topics = -1, 1, []kmsg.ListOffsetsRequestTopic{of}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return 0, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return p.Offset, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, errors.New("the broker has not answered for it")
}
