package consumer

import (
	"context"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// Hooks are functions that the consumer calls at events. They run in the goroutines that work on a
// partition, so a hook that blocks holds up its partition. Hooks of several partitions run at once,
// and with Config.Concurrency those of one partition: they must be safe for concurrent use. Nil
// hooks are skipped. [Hooks.Join] joins several users of them. Later versions may add fields to the
// structs.
//
// A pair of Start and End encloses a step, so that it can be timed and traced. The context that
// Start returns is the step's, and is passed to End; it must derive from the one that Start gets.
// The other hooks are called once, after the event and outside any transaction.
//
// A hook observes the consumer and cannot change its work. If a hook panics, the consumer logs
// that, at most once a minute for each hook, and continues. If a Start panics or returns nil, the
// step's context is the one that Start got. A hook must not call runtime.Goexit, nor use the
// messages that it gets after it has returned.
type Hooks struct {
	// AttemptStart and AttemptEnd enclose one transaction, including the runs that follow at once
	// after a serialization failure. The handlers' contexts derive from Start's. In AttemptEnd, err
	// is nil if the transaction committed.
	AttemptStart func(ctx context.Context, a BatchDone) context.Context
	AttemptEnd   func(ctx context.Context, a BatchDone, err error)

	// HandleStart and HandleEnd enclose one call of a message handler, and Config.Middleware around
	// it.
	HandleStart func(ctx context.Context, m *Message) context.Context
	HandleEnd   func(ctx context.Context, m *Message, err error)

	// HandleBatchStart and HandleBatchEnd enclose the handler's calls of one run of a transaction:
	// those of a message handler, one after another, or the one call of a [BatchHandler]. msgs are
	// the messages that it gets, and must not be changed. HandleStart's context derives from
	// HandleBatchStart's.
	HandleBatchStart func(ctx context.Context, msgs []*Message) context.Context
	HandleBatchEnd   func(ctx context.Context, msgs []*Message, err error)

	// Batch is called after each committed transaction of messages from the log.
	Batch func(BatchDone)

	// Retry is called after a failure that will be retried.
	Retry func(MessageEvent)

	// Parked is called for each parked message, after the commit. It is called again if a message
	// was retried from the database and is then left to an operator.
	Parked func(MessageEvent)

	// Resolved is called for each parked message that was applied later, after the commit.
	Resolved func(MessageEvent)

	// Hung is called if a handler does not return although its context has ended. The consumer cuts
	// its connection, and the partition continues without it.
	Hung func(MessageEvent)

	// Halted is called when a partition halts, and each time it is found still halted.
	Halted func(*HaltError)

	// Paused is called when a partition stops because an operator paused it.
	Paused func(PartitionEvent)

	// WindowFull is called when a partition with Config.Concurrency waits for one message because
	// it has read Config.Window messages above it. It is called once for each such message.
	WindowFull func(MessageEvent)

	// Owned is called when this process has taken over a partition, with the position from which it
	// starts.
	Owned func(PartitionEvent)

	// Released is called when this process has given up a partition.
	Released func(PartitionEvent)

	// OffsetIgnored is called if another program committed the offset in Kafka, for example
	// kafka-consumer-groups. Such an offset has no effect.
	OffsetIgnored func(PartitionEvent)

	// Repartitioned is called if a topic has more partitions than when this scope began to read it.
	// Messages with the same ordering key may then be in two partitions: order holds before the
	// change and after it, but not across it.
	Repartitioned func(PartitionEvent)
}

// BatchDone describes one transaction. If COMMIT's answer was lost and the consumer found out later
// that it had committed, Handled, Duplicates, Skipped and Parked are 0, and Hooks.Parked is not
// called, because only the database has the counts.
type BatchDone struct {
	source.TopicPartition
	// From and Next are the position before and after. With Config.Concurrency they are the first
	// offset of the transaction and the one after its last. Both are 0 for a parked message that is
	// retried.
	From, Next int64
	Messages   int // records in the batch
	Handled    int // messages whose handler ran and whose effects committed
	Duplicates int // messages that were skipped because they had been claimed before
	Skipped    int // records that are no messages: see [ErrSkip]
	Parked     int
	Alone      bool // one message only, after a failure or an unclean take-over
	Fallback   bool // the optimistic attempt met a duplicate and the batch ran again
	Duration   time.Duration
}

// MessageEvent describes an event of a message, or of several from Offset on.
type MessageEvent struct {
	source.TopicPartition
	Offset int64 // -1 if a Retry concerns no message
	Err    error // why it is tried again, or was parked

	// Of a Retry: the number of messages that are retried, and the wait before it. Parked means
	// that the message is retried from the database and only its ordering key waits.
	Messages int
	Wait     time.Duration
	Parked   bool

	// Attempt counts attempts of a message that is alone, for Retry and Resolved. It is 0 in a
	// batch, or if the fault is not the message's.
	Attempt int

	// Of a message that was parked: failed, permanent, exhausted, crashed, behind, conflict, no-key
	// or too-old; and retrying, blocked or waiting (for an operator).
	Reason, State string

	// ID names the event that a message was left to an operator, for Config.OnParked: another one
	// for each time, each reason, and each message that ever had the offset. It is the same if the
	// transaction that parks is run again.
	ID string

	// Duplicate means that a resolved message was a copy of an applied one: its handler did not
	// run.
	Duplicate bool

	// Stack is the stack of a hung handler's goroutine, in the format of runtime.Stack.
	Stack string

	// Blocked is the message that a full window waits for.
	Blocked *BlockedBy
}

// PartitionEvent describes an event of a partition.
type PartitionEvent struct {
	source.TopicPartition
	Position int64
	Err      error // of Released: source.ErrOwnershipLost if it was taken away

	// Of Owned: the lease's epoch, and whether the previous owner released the partition cleanly.
	Epoch int64
	Clean bool

	// Offset is the offset in Kafka that this consumer commits or another program wrote. Metadata
	// is the other program's. To handle messages again use `onlyonce replay`.
	Offset   int64
	Metadata string

	// Was and Is are the numbers of partitions of a topic that was Repartitioned.
	Was, Is int32
}
