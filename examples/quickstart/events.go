package main

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
)

// Kinds of events, which a worker tells its parent.
const (
	eventOwned    = "owned"    // a partition was taken over
	eventBegin    = "begin"    // the handler was entered for the first message of a batch
	eventDone     = "done"     // that batch has committed
	eventUndone   = "undone"   // that batch was rolled back, and will be tried again
	eventParked   = "parked"   // a message was set aside
	eventHalted   = "halted"   // a partition stands still
	eventLease    = "lease"    // this worker's relay has taken the lease, or given it up
	eventRejected = "rejected" // a call was given up
	eventTrouble  = "trouble"  // a fault that is waited out
	eventEnded    = "ended"    // the worker ends with an error
)

// event is one line from a worker.
type event struct {
	Kind       string `json:"k"`
	Partition  int32  `json:"p"`
	Offset     int64  `json:"o"`           // first offset, or position
	Alone      bool   `json:"a,omitempty"` // begin: one message by itself
	Handled    int    `json:"h,omitempty"` // done
	Duplicates int    `json:"d,omitempty"` // done
	Micros     int64  `json:"u,omitempty"` // done: how long the batch took
	Text       string `json:"t,omitempty"`
}

// eventWriter writes events, each at once: after a SIGKILL the parent still reads what was written.
type eventWriter struct {
	mu   sync.Mutex
	out  io.Writer
	open map[int32]bool // partitions with a batch that has begun
}

func newEventWriter(out io.Writer) *eventWriter {
	return &eventWriter{out: out, open: map[int32]bool{}}
}

func (w *eventWriter) write(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeLocked(e)
}

func (w *eventWriter) writeLocked(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // cannot be: strings and numbers
	}
	_, _ = w.out.Write(append(line, '\n')) // if the parent is gone, standard input has ended too
}

// begin tells of the first message of a batch, and of no other.
func (w *eventWriter) begin(m *consumer.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open[m.Partition] {
		return
	}
	w.open[m.Partition] = true
	w.writeLocked(event{Kind: eventBegin, Partition: m.Partition, Offset: m.Offset, Alone: m.Attempt > 0})
}

// end tells what became of the batch in hand of a partition.
func (w *eventWriter) end(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[e.Partition] = false
	w.writeLocked(e)
}

func (w *worker) consumerHooks(relay *outbox.Relay) consumer.Hooks {
	return consumer.Hooks{
		Owned: func(o consumer.Owned) {
			w.events.end(event{Kind: eventOwned, Partition: o.Partition, Offset: o.Position})
		},
		Batch: func(b consumer.BatchDone) {
			w.events.end(event{Kind: eventDone, Partition: b.Partition, Offset: b.Next, Handled: b.Handled, Duplicates: b.Duplicates,
				Micros: b.Duration.Microseconds()})
			if b.Handled > 0 {
				relay.Wake()
			}
		},
		Retry: func(r consumer.Retry) {
			w.events.end(event{Kind: eventUndone, Partition: r.Partition, Offset: r.Offset, Text: r.Err.Error()})
		},
		Parked: func(p consumer.Parked) {
			w.events.write(event{Kind: eventParked, Partition: p.Partition, Offset: p.Offset, Text: p.Reason + ": " + p.Err.Error()})
		},
		Halted: func(h *consumer.HaltError) {
			w.events.write(event{Kind: eventHalted, Partition: h.Partition, Offset: h.Position, Text: h.Error()})
		},
	}
}

func (w *worker) relayHooks() outbox.Hooks {
	return outbox.Hooks{
		Settled: func(s outbox.Settled) {
			if s.As == outbox.SettledRejected || s.As == outbox.SettledReconcile {
				w.events.write(event{Kind: eventRejected, Text: string(s.As) + ": " + s.Reason})
			}
		},
		Lease: func(c outbox.LeaseChange) {
			switch {
			case c.Held:
				w.events.write(event{Kind: eventLease, Text: "the relay of this worker sends the calls from now on"})
			case c.Err != nil:
				w.events.write(event{Kind: eventLease, Text: "the relay has lost its lease: " + c.Err.Error()})
			}
		},
		Failed: func(f outbox.Failed) {
			w.events.write(event{Kind: eventTrouble, Text: "relay: " + f.Err.Error()})
		},
	}
}
