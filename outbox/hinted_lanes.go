package outbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// hintedSinks says which lanes this process has written calls to since a relay in it last looked:
// one bit for each lane, for each sink that a relay here has listed. A relay that is woken begins
// with those lanes, a round trip before it could learn of them from the database. They are only
// hints: the transaction may not have committed yet or may never do so, and other processes write
// too. So the relay asks the database as well.
var hintedSinks sync.Map // sink's name -> *atomic.Uint32

// hintsForSink returns the hints for one sink, and starts to record them.
func hintsForSink(sink string) *atomic.Uint32 {
	h, _ := hintedSinks.LoadOrStore(sink, new(atomic.Uint32))
	return h.(*atomic.Uint32)
}

// recordHint records that a call is being written.
func (r *callRow) recordHint() {
	if h, listed := hintedSinks.Load(r.sink); listed {
		h.(*atomic.Uint32).Or(1 << r.lane())
	}
}

// lane returns the row's lane, as the SQL function onlyonce.lane does.
func (r *callRow) lane() int16 {
	key := r.key
	if r.order != nil {
		key = *r.order
	}
	return int16(key[15] & (lanes - 1))
}

// hintedLead is how long the poll of all lanes waits after hinted lanes were notified, so that it
// does not delay those.
const hintedLead = 2 * time.Millisecond

// handleWake notifies the lanes that this process has written to, and then polls all lanes.
func (s *sender) handleWake() {
	written := s.hints.Swap(0)
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
