package outbox

import (
	"sync"
	"sync/atomic"
	"time"
)

// hints are where this process has written calls since a relay in it last looked: a bit for each lane, for each sink that a relay here has listed. A
// relay that is woken begins with those lanes, a round trip sooner than it could learn of them. They are no more than that: the transaction may not
// have committed yet, or never will, and others write too, so the relay asks the database as well.
var hints sync.Map // sink's name -> *atomic.Uint32

// hintsFor are the hints for one sink, which are taken down from now on.
func hintsFor(sink string) *atomic.Uint32 {
	h, _ := hints.LoadOrStore(sink, new(atomic.Uint32))
	return h.(*atomic.Uint32)
}

// hint says that a call is being written.
func (r *row) hint() {
	if h, listed := hints.Load(r.sink); listed {
		h.(*atomic.Uint32).Or(1 << r.lane())
	}
}

// lane is what onlyonce.lane says of the row.
func (r *row) lane() int16 {
	key := r.key
	if r.order != nil {
		key = *r.order
	}
	return int16(key[15] & (lanes - 1))
}

// behindHints is how much later than the lanes that are hinted at the database is asked for others, so that it does not keep those waiting.
const behindHints = 2 * time.Millisecond

// woken looks at the lanes to which this process has written, and then at all.
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
