package outbox

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// laneHints says which lanes of a sink this process has written calls to since the sink's sender
// last looked: one bit for each lane. A relay that is woken begins with those lanes, a round trip
// before it could learn of them from the database. They are only hints: the transaction may not
// have committed yet or may never do so, it may be one of another database, and other processes
// write too. So the relay asks the database as well.
type laneHints struct{ bits atomic.Uint32 }

// runningSenders are senders by the names of their sinks.
type runningSenders struct {
	mu     sync.RWMutex
	bySink map[string][]*sender
}

// hintedSenders are the senders that run in this process. They are known to the whole process,
// because Enqueue is a function and gets no relay.
var hintedSenders = runningSenders{bySink: map[string][]*sender{}}

func (r *runningSenders) add(s *sender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bySink[s.name] = append(r.bySink[s.name], s)
}

func (r *runningSenders) remove(s *sender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	others := slices.DeleteFunc(r.bySink[s.name], func(other *sender) bool { return other == s })
	if r.bySink[s.name] = others; len(others) == 0 {
		delete(r.bySink, s.name)
	}
}

// hint records that calls are being written to a lane of a sink.
func (r *runningSenders) hint(sink string, lane int16) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.bySink[sink] {
		s.hints.bits.Or(1 << lane)
	}
}

// hintedLead is how long the poll of all lanes waits after hinted lanes were notified, so that it
// does not delay those.
const hintedLead = 2 * time.Millisecond

// handleWake notifies the lanes that this process has written to, and then polls all lanes.
func (s *sender) handleWake() {
	written := s.hints.bits.Swap(0)
	at := time.Time{}
	for lane, o := range s.held {
		if written&(1<<lane) != 0 {
			o.wake(wakeup{Lane: lane, Fresh: true})
			at = time.Now().Add(hintedLead)
		}
	}
	if at.Before(s.pollWorkAt) {
		s.pollWorkAt = at
	}
}
