package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Source is the consumer's one seam to where messages come from. Package kafkasource is the one for segmentio/kafka-go,
// package franzsource the one for twmb/franz-go. Whoever writes another runs consumertest.Conformance on it.
//
// A Source decides which partitions this process owns; the consumer decides what happens to their messages, and the
// database has the last word on who may: a Source that is wrong about ownership costs work and never an effect.
//
// A Source that has a method Topics() []string as well names the topics that it reads: New then refuses several without a choice
// of [Config.Copies]. Of one that has none it shows when partitions of a second topic are handed over, and these halt. A method
// Validate() error returns faults of the Source's own configuration, which New joins to its own.
type Source interface {
	// Group names who consumes: a cursor belongs to one group, and another group is refused by name.
	Group() string

	// Run joins and hands over every partition that this process comes to own, by calling own in a goroutine of its own for each.
	// The context of own ends when the partition is to be given up (a rebalance, or ctx is done); Run lets
	// the partition go only when own has returned, or when the group's patience is over; after that Commit fails. When own returns [ErrOwnershipLost] while its context
	// is alive, Run must prove membership anew (rejoin) before it hands over that partition again.
	// Any other error of own ends Run, which returns it; so does its return without one, which is an error then. Once own's context has ended, ErrOwnershipLost and
	// context.Canceled count as nil.
	//
	// Run returns nil once ctx is done and every own has returned. Brokers that cannot be reached are
	// retried without end, but for the first connection: that must fail with an error that names the
	// address. A topic that does not exist is an error too.
	Run(ctx context.Context, own func(ctx context.Context, p Partition) error) error
}

// EventSource is a Source of events that were claimed when they were appended, in the transaction that appended them: no two of its messages
// have one (EventTenant, EventID). The consumer takes that for the message's tenant and id, and claims it no second time: redeliveries
// are the position's affair.
type EventSource interface {
	Source
	// Events does nothing.
	Events()
}

// Partition is one partition while this process owns it, or believes so. Methods are called by one goroutine at a
// time, but for Commit, which may run beside Fetch.
type Partition interface {
	// Identity says which partition of which incarnation of the topic this is, asked of the cluster at the
	// time of the call, not remembered.
	Identity(ctx context.Context) (Identity, error)

	// Committed returns the group's committed offset and the metadata stored with it, offset -1 where there is none.
	Committed(ctx context.Context) (offset int64, metadata string, err error)

	// Commit commits an offset in this very generation of the group; it succeeds only for a member, so it proves
	// membership. It returns an error that wraps [ErrOwnershipLost] when the group says that this process does
	// not own the partition any more. It is never carried over into a generation in which the partition was handed over
	// anew, here or elsewhere. Where a source keeps a partition through rebalances, without an end of own's context, "this generation"
	// is the latest of those that the partition has come through as this member's.
	Commit(ctx context.Context, offset int64, metadata string) error

	// Bounds returns how far the log goes.
	Bounds(ctx context.Context) (Bounds, error)

	// Verify checks that the log still goes up to offset at, as it did when it was read (F5). epoch is a leader epoch that no batch below at
	// exceeded then: [Fetched.LeaderEpoch], or [Bounds.LeaderEpoch]; -1 where none is known, and then there is nothing to compare. It returns an
	// *[OutOfRangeError] if the log was cut off below at since then (an unclean election), also if other records have been written there: Start is the
	// log's start, End where it was cut off. If retention has deleted everything below at it returns nil.
	//
	// A Fetch from at that follows, and each later one that goes on where the one before ended, makes the same check when the leader has
	// changed in between. A source whose log has no leader epochs, because it loses nothing in an election, returns nil.
	Verify(ctx context.Context, at int64, epoch int32) error

	// Fetch returns committed records at or above offset from, as many as their [Message.Size] together is at most the given number of bytes, and
	// one at least. It takes no more memory than that for records, but keeps what they lie in, compressed, for the fetches that go on
	// where it ends. It waits for the first record a bounded time (about
	// half a second), after which it returns none and no error. That means that from is at the last stable offset: a broker
	// that cannot answer is an error. Records of aborted transactions and control
	// records are never returned, but Next passes over them. It returns an *[OutOfRangeError] when the log does not
	// hold from, and an error that wraps [ErrIncarnation] when the topic is not the one that Identity named.
	Fetch(ctx context.Context, from int64, most int) (Fetched, error)

	// Retained returns the earliest time at which retention by time may delete the record at offset, or, where that holds none, the
	// first record above: its timestamp and the topic's retention.ms together. It is a promise of nothing: brokers delete whole
	// segments, later, and retention by size knows no time. The zero time means that there is no bound by time, no such record yet, or
	// that the source cannot know. It returns an *[OutOfRangeError] when the log does not hold offset (any more), and may take
	// as long as a Fetch.
	Retained(ctx context.Context, offset int64) (until time.Time, err error)
}

// Identity names a partition for good.
type Identity struct {
	ClusterID string
	TopicID   [16]byte // zero where the source has none
	Topic     string
	Partition int32
	// Partitions is how many partitions the topic has, 0 where the source does not know. It may grow while the identity stays.
	Partitions int32
	// Compacted says that records may be removed from the middle of the log, so that one which was read may be gone although the
	// log was not truncated. False where the source does not know.
	Compacted bool
}

// Bounds is how far a partition's log goes.
type Bounds struct {
	// Start is the first offset that the log still holds.
	Start int64
	// End is the last stable offset: everything below it is committed or aborted for good.
	End int64
	// LeaderEpoch is the epoch of the leader that said so, -1 where the source has none.
	LeaderEpoch int32
}

// Fetched is what one Fetch found.
type Fetched struct {
	// Messages are committed records in order of offset.
	Messages []*Message
	// Next is the position behind everything that was looked at: behind the last message, and behind the control,
	// aborted and removed records that follow it.
	Next int64
	// LeaderEpoch is the leader epoch of the last batch that was looked at, messages or not: no batch below Next has a higher one. -1 where the
	// source has none; it does not count where Next has not moved.
	LeaderEpoch int32
	// HighWatermark is the offset behind the last record that is replicated; lag is counted against it.
	HighWatermark int64
	// LastStable is the last stable offset: what lies between it and HighWatermark belongs to a transaction that is still open, or was written after
	// that one began, and is not returned before it ends. HighWatermark where the source has no transactions.
	LastStable int64
	// Kept says that nothing was asked: the messages were kept by the fetch before, and HighWatermark is what that one was told.
	Kept bool
}

// ErrOwnershipLost says that the group has given the partition to somebody else, or may have. What is not committed
// is theirs; join again.
var ErrOwnershipLost = errors.New("partition ownership lost")

// ErrIncarnation says that the topic was deleted and created again while it was being read: offsets mean something else now.
var ErrIncarnation = errors.New("topic was deleted and created again")

// OutOfRangeError says that the log does not hold an offset: below Start it was deleted (retention), above End it was
// never written, or was lost (truncation).
type OutOfRangeError struct {
	Offset, Start, End int64
}

func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d is out of range: the log holds %d to %d", e.Offset, e.Start, e.End)
}
