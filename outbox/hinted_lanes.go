package outbox

import (
	"slices"
	"sync"
	"sync/atomic"
)

// laneHints says which lanes of a sink this process has written calls to since the sink's sender
// last looked: one bit for each lane. A relay that is woken begins with those lanes, a round trip
// before it could learn of them from the database. They are only hints: the transaction may not
// have committed yet or may never do so, it may be one of another database, and other processes
// write too. So the relay asks the database as well.
type laneHints struct{ bits atomic.Uint32 }

// hintedLanes are the hints of the senders that run in this process, by the names of their sinks.
// The process shares them, because Enqueue is a function and gets no relay.
type hintedLanes struct {
	mu     sync.RWMutex
	bySink map[string][]*laneHints
}

// add has hints about a sink go to h as well, until remove is called.
func (r *hintedLanes) add(sink string, h *laneHints) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bySink == nil {
		r.bySink = map[string][]*laneHints{}
	}
	r.bySink[sink] = append(r.bySink[sink], h)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		others := slices.DeleteFunc(r.bySink[sink], func(other *laneHints) bool { return other == h })
		r.bySink[sink] = others
		if len(others) == 0 {
			delete(r.bySink, sink)
		}
	}
}

// hint records that calls are being written to a lane of a sink.
func (r *hintedLanes) hint(sink string, lane int16) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, h := range r.bySink[sink] {
		h.bits.Or(1 << lane)
	}
}
