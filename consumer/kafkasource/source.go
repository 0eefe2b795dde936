package kafkasource

import (
	"context"
	"slices"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/internal/kafkalog"
)

// Source reads topics as a member of a Kafka consumer group. Make one with New. Each Run is a member of its own.
type Source struct {
	cfg    Config
	faults error
}

var _ consumer.Source = (*Source)(nil)

// New returns a Source, without connecting to anything. It returns no error, so that it can stand among the arguments of
// consumer.New, which asks Validate and reports its faults with all others.
func New(cfg Config) *Source {
	return &Source{cfg: cfg.withDefaults(), faults: cfg.faults()}
}

// Validate returns every fault of the configuration at once, each naming its field; nil where there is none.
func (s *Source) Validate() error { return s.faults }

// Group is Config.GroupID.
func (s *Source) Group() string { return s.cfg.GroupID }

// Topics is Config.Topics.
func (s *Source) Topics() []string { return slices.Clone(s.cfg.Topics) }

// Run joins the group and calls own, in a goroutine of its own, for each partition that the group assigns to this process, until
// ctx is done; then it waits for every own, leaves the group and returns nil.
//
// The context of own ends when a rebalance takes the partitions back or ctx is done. Until own returns, Run goes on
// telling the group that this process lives, so that what own still commits is accepted; after RebalanceTimeout it stops doing so, and
// others take over. Run itself waits for own however long that takes.
//
// It returns an error where the first connection fails, where a topic does not exist or is compacted, and where
// own returns one (but for ErrOwnershipLost, after which it pauses and joins anew). A broker that fails later is
// waited for.
func (s *Source) Run(ctx context.Context, own func(ctx context.Context, p consumer.Partition) error) error {
	if s.faults != nil {
		return s.faults
	}
	net := newNetwork(s.cfg)
	defer net.close()
	topics, err := preflight(ctx, net)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := &membership{net: net, own: own, ctx: ctx, stop: stop, lost: kafkalog.Backoff(lostMin, lostMax)}
	m.remember(topics)
	return m.run()
}
