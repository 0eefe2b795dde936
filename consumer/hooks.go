package consumer

import "context"

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
	AttemptStart func(ctx context.Context, b Batch) context.Context
	AttemptEnd   func(ctx context.Context, r BatchResult, err error)

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
	Batch func(BatchResult)

	// Retry is called after a failure that will be retried.
	Retry func(RetryEvent)

	// Parked is called for each parked message, after the commit. It is called again if a message
	// was retried from the database and is then left to an operator.
	Parked func(ParkedEvent)

	// Resolved is called for each parked message that was applied later, after the commit.
	Resolved func(ResolvedEvent)

	// Hung is called if a handler does not return although its context has ended. The consumer cuts
	// its connection, and the partition continues without it.
	Hung func(HungEvent)

	// Halted is called when a partition halts, and each time it is found still halted.
	Halted func(*HaltError)

	// Paused is called when a partition stops because an operator paused it.
	Paused func(PausedEvent)

	// WindowFull is called when a partition with Config.Concurrency waits for one message because
	// it has read Config.Window messages above it. It is called once for each such message.
	WindowFull func(WindowFullEvent)

	// Owned is called when this process has taken over a partition, with the position from which it
	// starts.
	Owned func(OwnedEvent)

	// Released is called when this process has given up a partition.
	Released func(ReleasedEvent)

	// OffsetIgnored is called if another program committed the offset in Kafka, for example
	// kafka-consumer-groups. Such an offset has no effect.
	OffsetIgnored func(OffsetIgnoredEvent)

	// Repartitioned is called if a topic has more partitions than when this scope began to read it.
	// Messages with the same ordering key may then be in two partitions: order holds before the
	// change and after it, but not across it.
	Repartitioned func(RepartitionedEvent)
}
