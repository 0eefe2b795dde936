package source

import (
	"context"
	"time"
)

// Shared has the additional methods of a source whose broker delivers messages one by one to any
// member of a share group (KIP-932). No process owns a delivered message; Deliver hands it over in
// the process that gets it. The partition's owner is its keeper: it reads the same log through
// consumer.Source, moves the position over done messages, and handles those that the broker has
// given up. Package sharesource has one for twmb/franz-go. See docs/rules, rules G1 to G7.
//
// Group is the name of the keepers' consumer group.
type Shared[M any] interface {
	// Deliver joins the share group and calls apply with delivered messages, from at most atOnce
	// goroutines, with at most most messages each. It acknowledges the messages that apply returns
	// as done, and gives the others back to the broker. It never acknowledges a message because a
	// later one is fetched.
	//
	// When ctx is done, it waits for the calls under way, acknowledges, leaves the group and
	// returns nil. If brokers cannot be reached, it retries without end. It returns an error only
	// for a fault that a person has to correct, for example a share group that also delivers
	// aborted records.
	Deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d Delivery[M]) Applied) error

	// Settled returns the offset below which the broker will deliver no message of the partition
	// any more: each was acknowledged, or given up. It may return a lower one, for example 0 if the
	// share group has not begun. It asks the cluster at each call.
	Settled(ctx context.Context, topic string, partition int32) (int64, error)
}

// Delivery holds records that a broker has delivered from one partition.
type Delivery[M any] struct {
	// TopicPartition, ClusterID and TopicID are those of [Identity].
	TopicPartition
	ClusterID string
	TopicID   [16]byte

	// Messages are the records, in order of offset, with gaps. No other call has one of them. If
	// empty, the source asks, after a rest, whether the partition takes messages again.
	Messages []M

	// Again means that all of them were delivered before. The process that had them may have died
	// of one, so each is handled alone.
	Again bool

	// Until is when the broker may deliver them to another member. No new attempt begins after it.
	Until time.Time
}

// Applied is the result of a Delivery.
type Applied struct {
	// Done are the offsets whose effects are committed, here or elsewhere, or which are parked.
	Done []int64

	// Rest is how long the source must not fetch from the partition, for example because an
	// operator has paused it. After it the source asks again with a Delivery without messages,
	// because the broker counts each delivery. If 0, the source continues.
	Rest time.Duration
}
