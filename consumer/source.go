package consumer

import (
	"context"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// Source is where a consumer's messages come from. Package kafkasource has one for
// segmentio/kafka-go, package franzsource one for twmb/franz-go. To write another, use the types of
// package source and run consumertest.Conformance on it.
//
// A Source decides which partitions this process owns. The consumer handles their messages, and the
// database decides which process may commit. A Source that is wrong about ownership therefore costs
// work, but never causes a second effect.
//
// A Source may also implement [SourceTopics], [SourceValidate], [SourceReady] and
// [SourceGroupMetadata].
type Source interface {
	// Group is the name of the consumer group. A cursor belongs to one group; under another group
	// the partition halts, with an error that names the cursor's. A group is of one scope: each
	// consumer with a scope of its own needs its own group.
	Group() string

	// Run joins the group and hands over each partition that this process comes to own, by calling
	// own in a new goroutine for each. The context of own ends when the partition is to be given
	// up: after a rebalance, or when ctx is done. Run releases the partition only after own has
	// returned, or when the group waits no longer. After that, Commit fails.
	//
	// If own returns [source.ErrOwnershipLost] while its context is alive, Run must prove
	// membership anew (rejoin) before it hands over that partition again. If own returns any other
	// error, Run ends and returns it. If own returns nil while its context is alive, Run ends with
	// an error too. Once own's context has ended, ErrOwnershipLost and context.Canceled count as
	// nil.
	//
	// Run returns nil once ctx is done and every own has returned. If brokers cannot be reached, it
	// retries without end. Only the first connection must fail, with an error that names the
	// address. A topic that does not exist is an error too.
	Run(ctx context.Context, own func(ctx context.Context, p source.Partition[*Message]) error) error
}

// SourceTopics is for a [Source] that knows which topics it reads: [New] then refuses several
// topics without a choice of [Config.Copies]. Without it, several topics are found only when the
// source hands over partitions of a second one, and these partitions halt.
type SourceTopics interface {
	// Topics returns the topics that the source reads.
	Topics() []string
}

// SourceValidate is for a [Source] that can be configured wrongly.
type SourceValidate interface {
	// Validate returns all faults of the source's configuration. New adds them to its own.
	Validate() error
}

// SourceReady is for a [Source] that can tell whether it is a member of its group.
type SourceReady interface {
	// Ready returns nil while the source is a member. [Consumer.Ready] calls it.
	Ready() error
}

// SourceGroupMetadata is for a [Source] that can read its group's commits. The consumer then
// refuses a group in which a consumer of another scope works. Without it, another scope is found
// only in partitions that it has owned.
type SourceGroupMetadata interface {
	// GroupMetadata asks the group for the metadata of all offsets that it has committed in the
	// source's topics. It returns every commit that had succeeded before the call.
	GroupMetadata(ctx context.Context) (map[source.TopicPartition]string, error)
}

// These have this package's messages.
type (
	partition = source.Partition[*Message]
	fetched   = source.Fetched[*Message]
)
