package fleet

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
)

// Kinds of events that a worker writes for its parent.
const (
	Owned    = "owned"    // a partition was taken over
	Begin    = "begin"    // the handler was entered for the first message of a batch
	Done     = "done"     // that batch has committed
	Undone   = "undone"   // that batch was rolled back, and will be tried again
	Parked   = "parked"   // a message was parked
	Resolved = "resolved" // a message that was parked has been applied
	Halted   = "halted"   // a partition has halted
	Lease    = "lease"    // this worker's relay has taken the lease, or released it
	Rejected = "rejected" // a call was rejected
	Trouble  = "trouble"  // a fault that will pass
	Breach   = "breach"   // a broken invariant
	Serving  = "serving"  // the worker serves at this address
	Ended    = "ended"    // the worker ends with an error
)

// Event is one line from a worker.
type Event struct {
	Kind      string `json:"k"`
	Partition int32  `json:"p"`
	Offset    int64  `json:"o"`           // first offset, or position
	Alone     bool   `json:"a,omitempty"` // begin: one message by itself
	// begin, undone: a parked message is tried again from the database.
	Retried    bool   `json:"r,omitempty"`
	Handled    int    `json:"h,omitempty"` // done
	Duplicates int    `json:"d,omitempty"` // done
	Micros     int64  `json:"u,omitempty"` // done: how long the batch took
	Text       string `json:"t,omitempty"`
}

// eventWriter writes each event at once: after a SIGKILL the parent still reads what was written.
type eventWriter struct {
	mu       sync.Mutex
	out      io.Writer
	open     map[int32]bool  // partitions with a batch that has begun
	position map[int32]int64 // of those that were taken over
}

func (w *eventWriter) write(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeLocked(e)
}

func (w *eventWriter) writeLocked(e Event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // cannot happen: strings and numbers
	}
	_, _ = w.out.Write(append(line, '\n')) // if the parent is gone, standard input has ended too
}

// begin writes an event for the first message of a batch, and for no other. A message that is
// handled alone below the position does not come from the log.
func (w *eventWriter) begin(m *consumer.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.Attempt > 0 && m.Offset < w.position[m.Partition] {
		w.writeLocked(Event{Kind: Begin, Partition: m.Partition, Offset: m.Offset, Alone: true, Retried: true})
		return
	}
	if w.open[m.Partition] {
		return
	}
	w.open[m.Partition] = true
	w.writeLocked(Event{Kind: Begin, Partition: m.Partition, Offset: m.Offset, Alone: m.Attempt > 0})
}

// end writes an event for the end of a partition's running batch.
func (w *eventWriter) end(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[e.Partition] = false
	if e.Kind != Undone {
		w.position[e.Partition] = e.Offset
	}
	w.writeLocked(e)
}

// Hooks report to the parent what the consumer does. After is called after each batch that has
// committed; nil: not called.
func (c *Child) Hooks(after func(consumer.BatchResult)) consumer.Hooks {
	return consumer.Hooks{
		Owned: func(o consumer.OwnedEvent) {
			c.events.end(Event{Kind: Owned, Partition: o.Partition, Offset: o.Position})
		},
		Batch: func(b consumer.BatchResult) {
			c.events.end(Event{Kind: Done, Partition: b.Partition, Offset: b.Next, Handled: b.Handled, Duplicates: b.Duplicates,
				Micros: b.Duration.Microseconds()})
			if after != nil {
				after(b)
			}
		},
		Retry: func(r consumer.RetryEvent) {
			e := Event{Kind: Undone, Partition: r.Partition, Offset: r.Offset, Retried: r.Parked, Text: r.Err.Error()}
			if r.Parked {
				c.events.write(e)
				return
			}
			c.events.end(e)
		},
		Resolved: func(r consumer.ResolvedEvent) {
			c.events.write(Event{Kind: Resolved, Partition: r.Partition, Offset: r.Offset})
		},
		Parked: func(p consumer.ParkedEvent) {
			c.events.write(Event{Kind: Parked, Partition: p.Partition, Offset: p.Offset, Text: string(p.Reason) + ": " + p.Err.Error()})
		},
		Halted: func(h *consumer.HaltError) {
			c.events.write(Event{Kind: Halted, Partition: h.Partition, Offset: h.Position, Text: h.Error()})
		},
	}
}
