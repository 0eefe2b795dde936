package consumer

import (
	"context"
	"time"
)

// Hooks are called by the goroutines that work on a partition: one that blocks holds up its partition. Nil hooks are skipped. The
// structs may grow.
//
// A pair of Start and End encloses a step, so that it can be timed and traced: what Start returns is the context of the step and
// of End. Start must return a context that derives from the one it is given. The other hooks are called once, after the
// event and outside any transaction.
type Hooks struct {
	// FetchStart and FetchEnd enclose one fetch, which may wait for records.
	FetchStart func(ctx context.Context, f FetchStart) context.Context
	FetchEnd   func(ctx context.Context, f FetchEnd)
	// AttemptStart and AttemptEnd enclose one transaction, with its immediate runs after serialization failures. The handlers'
	// contexts derive from Start's. In AttemptEnd err is nil if it committed.
	AttemptStart func(ctx context.Context, a BatchDone) context.Context
	AttemptEnd   func(ctx context.Context, a BatchDone, err error)
	// HandleStart and HandleEnd enclose one call of a message handler; for a [BatchHandler] use Config.Middleware.
	HandleStart func(ctx context.Context, m *Message) context.Context
	HandleEnd   func(ctx context.Context, m *Message, err error)
	// OffsetStart and OffsetEnd enclose the commit of an offset to Kafka, which follows the database some time later.
	OffsetStart func(ctx context.Context, o OffsetCommit) context.Context
	OffsetEnd   func(ctx context.Context, o OffsetCommit, err error)

	// Batch is called after each transaction of the log that committed.
	Batch func(BatchDone)
	// Retry is called when something failed and will be tried again.
	Retry func(Retry)
	// Parked is called for each message that was parked, after the commit; and again when one that was tried again from the
	// database is left to an operator.
	Parked func(Parked)
	// Resolved is called for each parked message that was applied after all, after the commit.
	Resolved func(Resolved)
	// Hung is called when a handler does not return although its context has ended: its connection is cut, and the
	// partition goes on without it.
	Hung func(Hung)
	// Halted is called when a partition halts, and again each time it is found still halted.
	Halted func(*HaltError)
	// Paused is called when a partition stops because somebody paused it.
	Paused func(Paused)
	// Owned is called when this process has taken a partition over, with the position that it starts from.
	Owned func(Owned)
	// Released is called when this process has let a partition go.
	Released func(Released)
	// OffsetIgnored is called when the offset in Kafka was committed by somebody else: it changes nothing.
	OffsetIgnored func(OffsetIgnored)
	// Repartitioned is called when a topic is found to have more partitions than when this scope began to read it: messages
	// of one ordering key may lie in two partitions now, and order holds for each number of partitions by itself.
	Repartitioned func(Repartitioned)
}

// FetchStart tells where a fetch begins.
type FetchStart struct {
	Topic     string
	Partition int32
	From      int64
}

// FetchEnd tells what a fetch found.
type FetchEnd struct {
	FetchStart
	Messages      int
	Bytes         int // what the messages take of Config.PrefetchBytes
	Next          int64
	HighWatermark int64
	LastStable    int64 // last stable offset: see Fetched
	Err           error
}

// OffsetCommit tells which offset is committed.
type OffsetCommit struct {
	Topic     string
	Partition int32
	Offset    int64
}

// BatchDone tells what one transaction did. Where COMMIT's answer was lost and the commit found out later, Handled,
// Duplicates and Parked are 0, and Hooks.Parked is not called: what the transaction did is in the database alone.
type BatchDone struct {
	Topic      string
	Partition  int32
	From, Next int64 // position before and after; both 0 for a parked message that was tried again
	Messages   int   // records in the batch
	Handled    int   // handler ran and its effects committed
	Duplicates int   // claimed before: skipped
	Parked     int
	Alone      bool // one message by itself, after a failure or an unclean take-over
	Fallback   bool // the optimistic attempt met a duplicate and the batch ran again
	Duration   time.Duration
}

// Retry tells what failed.
type Retry struct {
	Topic     string
	Partition int32
	Offset    int64 // first offset of what is tried again, -1 where it is about none
	Messages  int
	Attempt   int  // counted attempts of a message that stands alone, 0 in a batch or for faults that are nobody's
	Parked    bool // it is tried again from the database, and nothing but its ordering key waits
	Wait      time.Duration
	Err       error
}

// Parked tells which message was set aside.
type Parked struct {
	Topic     string
	Partition int32
	Offset    int64
	Reason    string // failed, permanent, exhausted, crashed, behind, conflict or no-key
	State     string // retrying, blocked or waiting (for an operator)
	Err       error
}

// Resolved tells which parked message was applied.
type Resolved struct {
	Topic     string
	Partition int32
	Offset    int64
	Attempts  int
	Duplicate bool // it turned out to be a copy of a message that was applied: its handler did not run
}

// Hung tells which handler does not return.
type Hung struct {
	Topic     string
	Partition int32
	Offset    int64  // of the message, or of the batch's first
	Stack     string // of its goroutine, as runtime.Stack formats it
}

// Paused tells which partition stands still.
type Paused struct {
	Topic     string
	Partition int32
	Position  int64
}

// Owned tells who owns a partition from now on.
type Owned struct {
	Topic     string
	Partition int32
	Position  int64
	Epoch     int64
	Clean     bool // the owner before let go in order
}

// Released tells that this process owns a partition no more.
type Released struct {
	Topic     string
	Partition int32
	Position  int64
	Err       error // ErrOwnershipLost where it was taken away
}

// OffsetIgnored tells what somebody else wrote to Kafka. To handle messages again use `onlyonce replay`.
type OffsetIgnored struct {
	Topic     string
	Partition int32
	Offset    int64 // in Kafka
	Metadata  string
	Position  int64 // in the database, which counts
}

// Repartitioned tells how many partitions a topic has, and had.
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

// told reports a transaction of the log that committed.
func (c *Consumer) told(a *attempt) {
	for _, p := range a.parked {
		c.tellParked(p)
	}
	if c.cfg.Hooks.Batch != nil && len(a.msgs) > 0 {
		c.cfg.Hooks.Batch(a.done)
	}
}

func (c *Consumer) tellParked(p Parked) {
	c.cfg.Logger.Warn("onlyonce: message parked", "scope", c.cfg.Scope, "topic", p.Topic, "partition", p.Partition,
		"offset", p.Offset, "reason", p.Reason, "state", p.State, "error", p.Err)
	if c.cfg.Hooks.Parked != nil {
		c.cfg.Hooks.Parked(p)
	}
}

// resolved reports a parked message that was applied.
func (c *Consumer) resolved(a *attempt, row *parkedRow) {
	m := row.m
	c.cfg.Logger.Info("onlyonce: parked message resolved", "scope", c.cfg.Scope, "topic", m.Topic, "partition", m.Partition,
		"offset", m.Offset, "attempts", row.n)
	if c.cfg.Hooks.Resolved != nil {
		c.cfg.Hooks.Resolved(Resolved{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Attempts: row.n, Duplicate: a.done.Duplicates > 0})
	}
}
