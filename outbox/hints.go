package outbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// hints says which lanes this process has written calls to since a relay in it last looked: one bit
// for each lane, for each sink that a relay here has listed. A relay that is woken begins with
// those lanes, a round trip before it could learn of them from the database. They are only hints:
// the transaction may not have committed yet or may never do so, and other processes write too. So
// the relay asks the database as well.
var hints sync.Map // sink's name -> *atomic.Uint32

// hintsFor returns the hints for one sink, and starts to record them.
func hintsFor(sink string) *atomic.Uint32 {
	h, _ := hints.LoadOrStore(sink, new(atomic.Uint32))
	return h.(*atomic.Uint32)
}

// hint records that a call is being written.
func (r *row) hint() {
	if h, listed := hints.Load(r.sink); listed {
		h.(*atomic.Uint32).Or(1 << r.lane())
	}
}

// lane returns the row's lane, as the SQL function onlyonce.lane does.
func (r *row) lane() int16 {
	key := r.key
	if r.order != nil {
		key = *r.order
	}
	return int16(key[15] & (lanes - 1))
}

// behindHints is how long the poll of all lanes waits after hinted lanes were notified, so that it
// does not delay those.
const behindHints = 2 * time.Millisecond

// woken notifies the lanes that this process has written to, and then polls all lanes.
func (s *sender) woken() {
	written := s.hints.Swap(0)
	at := time.Time{}
	for lane, t := range s.held {
		if written&(1<<lane) != 0 {
			t.notify(news{Lane: lane, Fresh: true})
			at = time.Now().Add(behindHints)
		}
	}
	if at.Before(s.scoutAt) {
		s.scoutAt = at
	}
}
