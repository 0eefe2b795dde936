package consumer

import (
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// Batch describes a transaction that begins.
type Batch struct {
	source.TopicPartition
	// From is the position before the transaction. With Config.Concurrency it is the first offset
	// of the transaction. It is 0 for a parked message that is retried.
	From     int64
	Messages int  // records in the batch
	Alone    bool // one message only, after a failure or an unclean take-over
}

// BatchResult describes a transaction that has ended. If COMMIT's answer was lost and the consumer
// found out later that it had committed, Handled, Duplicates, Skipped and Parked are 0, and
// Hooks.Parked is not called, because only the database has the counts.
type BatchResult struct {
	Batch
	// Next is the position after the transaction. With Config.Concurrency it is the offset after
	// its last. It is 0 for a parked message that is retried.
	Next       int64
	Handled    int // messages whose handler ran and whose effects committed
	Duplicates int // messages that were skipped because they had been claimed before
	Skipped    int // records that are no messages: see [ErrSkip]
	Parked     int
	Fallback   bool // the optimistic attempt met a duplicate and the batch ran again
	Duration   time.Duration
}

// RetryEvent describes a failure that will be retried.
type RetryEvent struct {
	source.TopicPartition
	Offset   int64 // of the first message, or -1 if none is concerned
	Messages int   // how many are retried
	Err      error
	Wait     time.Duration // before the retry
	// Attempt counts the attempts of a message that is alone. It is 0 in a batch, or if the fault
	// is not the message's.
	Attempt int
	// Parked means that the message is retried from the database and only its ordering key waits.
	Parked bool
}

// ParkReason is why a message was parked.
type ParkReason string

// Reasons. [ParkedEvent].State says whether the message is tried again.
const (
	ParkedFailed    ParkReason = parked.Failed    // an attempt failed
	ParkedPermanent ParkReason = parked.Permanent // the handler returned a Permanent error
	ParkedExhausted ParkReason = parked.Exhausted // Config.MaxAttempts have failed
	ParkedCrashed   ParkReason = parked.Crashed   // its attempts ended the process
	ParkedBehind    ParkReason = parked.Behind    // an earlier message of its ordering key is parked
	ParkedConflict  ParkReason = parked.Conflict  // its id was used before for another payload
	ParkedNoKey     ParkReason = parked.NoKey     // it has no id
	ParkedTooOld    ParkReason = parked.TooOld    // its key may be forgotten
)

// ParkState is what will happen with a parked message.
type ParkState string

// States.
const (
	StateRetrying ParkState = parked.Retrying // it is tried again when it is due
	StateBlocked  ParkState = parked.Blocked  // it waits for an earlier one of its ordering key
	StateWaiting  ParkState = parked.Waiting  // for an operator
)

// ParkedEvent describes a message that was parked, or is now left to an operator.
type ParkedEvent struct {
	source.TopicPartition
	Offset int64
	Reason ParkReason
	State  ParkState
	Err    error
	// ID names the event that a message was left to an operator, for Config.OnParked: another one
	// for each time, each reason, and each message that ever had the offset. It is the same if the
	// transaction that parks is run again.
	ID string
}

// ResolvedEvent describes a parked message that was applied.
type ResolvedEvent struct {
	source.TopicPartition
	Offset  int64
	Attempt int // counts from 1
	// Duplicate means that it was a copy of an applied message: its handler did not run.
	Duplicate bool
}

// HungEvent describes a handler that does not return.
type HungEvent struct {
	source.TopicPartition
	Offset int64
	// Stack is the stack of the handler's goroutine, in the format of runtime.Stack.
	Stack string
}

// WindowFullEvent describes a partition that waits for one message.
type WindowFullEvent struct {
	source.TopicPartition
	Blocked *BlockedBy
}

// PausedEvent describes a partition that an operator has paused.
type PausedEvent struct {
	source.TopicPartition
	Position int64
}

// OwnedEvent describes a partition that this process has taken over.
type OwnedEvent struct {
	source.TopicPartition
	Position int64 // from which it starts
	Epoch    int64 // of the lease
	Clean    bool  // the previous owner had released the partition
}

// ReleasedEvent describes a partition that this process has given up.
type ReleasedEvent struct {
	source.TopicPartition
	Position int64
	Err      error // source.ErrOwnershipLost if it was taken away
}

// OffsetIgnoredEvent describes an offset that another program has committed in Kafka. To handle
// messages again use `onlyonce replay`.
type OffsetIgnoredEvent struct {
	source.TopicPartition
	Position int64 // of this consumer
	Offset   int64 // the other program's
	Metadata string
}

// RepartitionedEvent describes a topic with more partitions than before.
type RepartitionedEvent struct {
	Topic   string
	Was, Is int32 // numbers of partitions
}
