// Package source has the types for writing a source of messages for package consumer. A
// consumer.Source hands over each partition that its process comes to own as a [Partition]. M is
// *consumer.Message. Packages kafkasource and franzsource read Kafka.
//
// A source decides which partitions a process owns, and the database decides which process may
// commit. A source that is wrong about ownership therefore costs work, but never causes a second
// effect. Run consumertest.Conformance on a new one.
package source

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Partition is one partition while this process owns it, or believes that it does. The consumer
// calls its methods from one goroutine at a time, except Commit, which may run at the same time as
// Fetch.
type Partition[M any] interface {
	// Identity returns the partition and the incarnation of its topic. It must ask the cluster at
	// each call and not answer from memory.
	Identity(ctx context.Context) (Identity, error)

	// Committed returns the group's committed offset and the metadata stored with it. If there is
	// none, offset is -1.
	Committed(ctx context.Context) (offset int64, metadata string, err error)

	// Commit commits an offset in this very generation of the group. It succeeds only for a member,
	// so it proves membership. If the group answers that this process no longer owns the partition,
	// it returns an error that wraps [ErrOwnershipLost].
	//
	// A commit is never carried over into a generation in which the partition was handed over anew,
	// here or elsewhere. If a source keeps a partition through rebalances, without ending own's
	// context, "this generation" is the latest one through which this member has kept the
	// partition.
	Commit(ctx context.Context, offset int64, metadata string) error

	// Bounds returns the first and the last offset of the log.
	Bounds(ctx context.Context) (Bounds, error)

	// OffsetAt returns the offset of the first record whose timestamp is at or after t, to the
	// millisecond, or [Bounds.End] if there is none. That end must have been read before the look
	// for the record: one that is written meanwhile must not be passed over.
	OffsetAt(ctx context.Context, t time.Time) (int64, error)

	// Verify checks that the log still reaches offset at and is the log that was read. epoch is the
	// highest leader epoch that a batch below at may have had when it was read, from
	// [Fetched.LeaderEpoch] or [Bounds.LeaderEpoch]. If epoch is -1, it is unknown, and there is no
	// epoch to compare.
	//
	// If the log was cut off below at since then (an unclean election), Verify returns an
	// *[OutOfRangeError], even if other records have been written there since. Its Start is the
	// log's start, its End is the offset of the cut. If retention has deleted everything below at,
	// Verify returns nil.
	//
	// The next Fetch from at, and each later one that continues from the one before, makes the same
	// check if the leader has changed in between. A source whose log has no leader epochs, because
	// it loses no records in an election, returns nil.
	Verify(ctx context.Context, at int64, epoch int32) error

	// Fetch returns committed records at or above offset from: at least one, and more while their
	// consumer.Message.Size is at most most bytes together. It takes no more memory than that for
	// records. Later records that the brokers sent stay compressed, for the fetches that continue
	// from here.
	//
	// Fetch waits a bounded time for the first record (about half a second), and then returns no
	// records and no error: from is at the last stable offset. If a broker cannot answer, Fetch
	// returns an error.
	//
	// Records of aborted transactions and control records are never returned, but Next passes over
	// them. If the log does not hold from, Fetch returns an *[OutOfRangeError]. If the topic is not
	// Identity's, it returns an error that wraps [ErrIncarnation].
	Fetch(ctx context.Context, from int64, most int) (Fetched[M], error)

	// Retained returns the earliest time at which retention by time may delete the record at
	// offset, or, if there is none at that offset, the first record above it. That is its timestamp
	// plus the topic's retention.ms. It is no promise: brokers delete whole segments, and later,
	// and retention by size does not depend on time.
	//
	// The zero time means no bound by time, no such record yet, or that the source cannot know. If
	// the log does not hold offset, or no longer, it returns an *[OutOfRangeError]. It may take as
	// long as a Fetch.
	Retained(ctx context.Context, offset int64) (until time.Time, err error)
}

// TopicPartition names a partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// Identity names a partition for good. A topic that is deleted and created again has another.
type Identity struct {
	TopicPartition
	ClusterID string
	TopicID   [16]byte // zero if the source has none

	// Partitions is how many partitions the topic has, 0 if the source does not know: then a
	// consumer with Config.Start does not begin. It may grow while the identity stays the same.
	Partitions int32

	// Compacted means that records may be removed from the middle of the log. A record that was
	// read may then be gone although the log was not truncated. False if the source does not know.
	Compacted bool
}

// Bounds is the range of offsets in a partition's log.
type Bounds struct {
	// Start is the first offset that the log still holds.
	Start int64

	// End is the last stable offset: everything below it is committed or aborted for good.
	End int64

	// LeaderEpoch is the epoch of the leader that answered, -1 if the source has none.
	LeaderEpoch int32
}

// Fetched is the result of one Fetch.
type Fetched[M any] struct {
	// Messages are committed records in order of offset.
	Messages []M

	// Next is the first offset that was not looked at. It is above the last message, and above the
	// control, aborted and removed records that follow it.
	Next int64

	// LeaderEpoch is the leader epoch of the last batch that was looked at, whether it held
	// messages or not. No batch below Next has a higher one. It is -1 if the source has none, and
	// does not count if Next has not moved.
	LeaderEpoch int32

	// HighWatermark is the offset after the last replicated record. Lag is measured from it.
	HighWatermark int64

	// LastStable is the last stable offset. Records between it and HighWatermark belong to an open
	// transaction, or were written after it began; they are not returned before it ends. A source
	// without transactions returns HighWatermark here.
	LastStable int64

	// Kept means that no broker was asked: the messages and HighWatermark are left over from the
	// previous fetch.
	Kept bool
}

// ErrOwnershipLost means that the group has given the partition to another member, or may have.
// Uncommitted work is that member's now. Join again.
var ErrOwnershipLost = errors.New("consumer/source: partition ownership lost")

// ErrIncarnation means that the topic was deleted and created again while it was being read. Its
// offsets now mean other records.
var ErrIncarnation = errors.New("consumer/source: topic was deleted and created again")

// ErrNoTopic means that the cluster has no such topic, or no such partition of it: for example it
// was deleted.
var ErrNoTopic = errors.New("consumer/source: the topic does not exist")

// OutOfRangeError means that the log does not hold an offset. Below Start it was deleted
// (retention). Above End it was never written, or was lost (truncation).
type OutOfRangeError struct {
	Offset, Start, End int64
}

func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d is out of range: the log holds %d to %d", e.Offset, e.Start, e.End)
}
