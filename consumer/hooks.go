package consumer

import "time"

// Hooks are called by the goroutine that works on the partition, after the event and outside any transaction; a hook that
// blocks holds up its partition. Nil hooks are skipped. The structs may grow.
type Hooks struct {
	// Batch is called after each transaction that committed.
	Batch func(BatchDone)
	// Retry is called when something failed and will be tried again.
	Retry func(Retry)
	// Parked is called for each message that was parked, after the commit.
	Parked func(Parked)
	// Halted is called when a partition halts, and again each time it is found still halted.
	Halted func(*HaltError)
	// Owned is called when this process has taken a partition over, with the position that it starts from.
	Owned func(Owned)
}

// BatchDone tells what one committed transaction did. Where COMMIT's answer was lost and the commit found out later, Handled,
// Duplicates and Parked are 0, and Hooks.Parked is not called: what the transaction did is in the database alone.
type BatchDone struct {
	Topic      string
	Partition  int32
	From, Next int64 // position before and after
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
	Offset    int64 // first offset of what is tried again
	Messages  int
	Attempt   int // counted attempts of a message that stands alone, 0 in a batch or for faults that are nobody's
	Wait      time.Duration
	Err       error
}

// Parked tells which message was set aside.
type Parked struct {
	Topic     string
	Partition int32
	Offset    int64
	Reason    string // permanent, exhausted, crashed, conflict or no-key
	Err       error
}

// Owned tells who owns a partition from now on.
type Owned struct {
	Topic     string
	Partition int32
	Position  int64
	Epoch     int64
	Clean     bool // the owner before let go in order
}
