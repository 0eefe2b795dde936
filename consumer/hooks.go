package consumer

import (
	"context"
	"time"
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
// A hook observes, and cannot change what the consumer does. If it panics, that is logged, at most
// once a minute for each hook, and the work goes on. If it was a Start, or one that returned nil,
// the step's context is the one that Start got. A hook must not call runtime.Goexit, nor use the
// messages that it gets after it has returned.
type Hooks struct {
	// FetchStart and FetchEnd enclose one fetch, which may wait for records.
	FetchStart func(ctx context.Context, f FetchStart) context.Context
	FetchEnd   func(ctx context.Context, f FetchEnd)
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

	// OffsetStart and OffsetEnd enclose the commit of an offset to Kafka, some time after the
	// commit in the database.
	OffsetStart func(ctx context.Context, o OffsetCommit) context.Context
	OffsetEnd   func(ctx context.Context, o OffsetCommit, err error)

	// Batch is called after each committed transaction of messages from the log.
	Batch func(BatchDone)

	// Retry is called when something has failed and will be tried again.
	Retry func(Retry)

	// Parked is called for each parked message, after the commit. It is called again if a message
	// was retried from the database and is then left to an operator.
	Parked func(Parked)

	// Resolved is called for each parked message that was applied later, after the commit.
	Resolved func(Resolved)

	// Hung is called if a handler does not return although its context has ended. Its connection is
	// cut, and the partition continues without it.
	Hung func(Hung)

	// Halted is called when a partition halts, and each time it is found still halted.
	Halted func(*HaltError)

	// Paused is called when a partition stops because an operator paused it.
	Paused func(Paused)

	// WindowFull is called when a partition whose transactions run side by side
	// (Config.Concurrency) waits for one message, because it has read Config.Window messages above
	// it. It is called once for each such message.
	WindowFull func(WindowFull)

	// Owned is called when this process has taken over a partition, with the position from which it
	// starts.
	Owned func(Owned)

	// Released is called when this process has given up a partition.
	Released func(Released)

	// OffsetIgnored is called if another program committed the offset in Kafka, for example
	// kafka-consumer-groups. Such an offset changes nothing.
	OffsetIgnored func(OffsetIgnored)

	// Repartitioned is called if a topic has more partitions than when this scope began to read it.
	// Messages with the same ordering key may then be in two partitions: order holds before the
	// change and after it, but not across it.
	Repartitioned func(Repartitioned)
}

// FetchStart describes a fetch that begins.
type FetchStart struct {
	Topic     string
	Partition int32
	From      int64
}

// FetchEnd describes the result of a fetch.
type FetchEnd struct {
	FetchStart
	Messages      int
	Bytes         int // what the messages count against Config.PrefetchBytes
	Next          int64
	HighWatermark int64
	LastStable    int64 // last stable offset: see Fetched
	Err           error
}

// OffsetCommit describes an offset that is committed to Kafka.
type OffsetCommit struct {
	Topic     string
	Partition int32
	Offset    int64
}

// BatchDone describes one transaction. If COMMIT's answer was lost and the consumer found out later
// that it had committed, Handled, Duplicates and Parked are 0, and Hooks.Parked is not called: only
// the database knows what the transaction did.
type BatchDone struct {
	Topic     string
	Partition int32
	// From and Next are the position before and after. With Config.Concurrency they are the first
	// offset of the transaction and the one after its last. Both are 0 for a parked message that is
	// retried.
	From, Next int64
	Messages   int // records in the batch
	Handled    int // messages whose handler ran and whose effects committed
	Duplicates int // messages that were skipped because they had been claimed before
	Parked     int
	Alone      bool // one message only, after a failure or an unclean take-over
	Fallback   bool // the optimistic attempt met a duplicate and the batch ran again
	Duration   time.Duration
}

// Retry describes a failure.
type Retry struct {
	Topic     string
	Partition int32
	Offset    int64 // first offset of what is tried again, -1 if the failure concerns none
	Messages  int
	// Attempt counts attempts of a message that is alone. It is 0 in a batch, or if the fault is
	// not the message's.
	Attempt int
	Parked  bool // it is retried from the database, and only its ordering key waits
	Wait    time.Duration
	Err     error
}

// Parked describes a message that was set aside.
type Parked struct {
	Topic     string
	Partition int32
	Offset    int64
	Reason    string // failed, permanent, exhausted, crashed, behind, conflict, no-key or too-old
	State     string // retrying, blocked or waiting (for an operator)
	Err       error
}

// Resolved describes a parked message that was applied.
type Resolved struct {
	Topic     string
	Partition int32
	Offset    int64
	Attempts  int
	Duplicate bool // it was a copy of an applied message: its handler did not run
}

// Hung describes a handler that does not return.
type Hung struct {
	Topic     string
	Partition int32
	Offset    int64  // of the message, or of the first one in the batch
	Stack     string // of the handler's goroutine, in the format of runtime.Stack
}

// Paused describes a partition that an operator paused.
type Paused struct {
	Topic     string
	Partition int32
	Position  int64
}

// WindowFull describes a message that a partition waits for.
type WindowFull struct {
	Topic     string
	Partition int32
	BlockedBy // the message
}

// Owned describes a partition that this process has taken over.
type Owned struct {
	Topic     string
	Partition int32
	Position  int64
	Epoch     int64
	Clean     bool // the previous owner released it cleanly
}

// Released describes a partition that this process no longer owns.
type Released struct {
	Topic     string
	Partition int32
	Position  int64
	Err       error // ErrOwnershipLost if it was taken away
}

// OffsetIgnored describes an offset that another program wrote to Kafka. To handle messages again
// use `onlyonce replay`.
type OffsetIgnored struct {
	Topic     string
	Partition int32
	Offset    int64 // in Kafka
	Metadata  string
	Position  int64 // in the database, which counts
}

// Repartitioned describes a topic whose number of partitions has grown, from Was to Is.
type Repartitioned struct {
	Topic   string
	Was, Is int32
}

// traceAttempt and traceAttemptEnd call the pair of hooks around a transaction.
func (c *Consumer) traceAttempt(ctx context.Context, d BatchDone) context.Context {
	if c.cfg.Hooks.AttemptStart == nil {
		return ctx
	}
	return c.cfg.Hooks.AttemptStart(ctx, d)
}

func (c *Consumer) traceAttemptEnd(ctx context.Context, d BatchDone, err error) {
	if c.cfg.Hooks.AttemptEnd != nil {
		c.cfg.Hooks.AttemptEnd(ctx, d, err)
	}
}

// emitCommitted reports a committed transaction of messages from the log.
func (c *Consumer) emitCommitted(a *attempt) {
	for _, p := range a.parked {
		c.emitParked(p)
	}
	if c.cfg.Hooks.Batch != nil && len(a.msgs) > 0 {
		c.cfg.Hooks.Batch(a.done)
	}
}

func (c *Consumer) emitParked(p Parked) {
	c.cfg.Logger.Warn("onlyonce: message parked", "scope", c.cfg.Scope, "topic", p.Topic, "partition", p.Partition,
		"offset", p.Offset, "reason", p.Reason, "state", p.State, "error", p.Err)
	if c.cfg.Hooks.Parked != nil {
		c.cfg.Hooks.Parked(p)
	}
}

// emitResolved reports a parked message that was applied.
func (c *Consumer) emitResolved(a *attempt, row *parkedRow) {
	m := row.m
	c.cfg.Logger.Info("onlyonce: parked message resolved", "scope", c.cfg.Scope, "topic", m.Topic, "partition", m.Partition,
		"offset", m.Offset, "attempts", row.attempt)
	if c.cfg.Hooks.Resolved != nil {
		c.cfg.Hooks.Resolved(Resolved{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Attempts: row.attempt, Duplicate: a.done.Duplicates > 0})
	}
}
