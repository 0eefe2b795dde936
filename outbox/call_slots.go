package outbox

import (
	"math"
	"sync"
	"sync/atomic"
)

// callSlots bounds how many calls of a sink are under way at once, in all of its lanes: by
// RelayConfig.Concurrency, by what the sink takes (Readier), and to no new ones while an operator
// has paused the sink.
type callSlots struct {
	capacity int
	readier  Readier     // the sink, if it is one; nil otherwise
	rates    *relayRates // of the sink; a slot needs a permit of the sink's rate
	paused   atomic.Bool // by an operator

	mu    sync.Mutex
	taken int
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While taken is below capacity, there is a token, or a
	// goroutine that has received it is about to take.
	freed chan struct{}
}

func newCallSlots(capacity int, sink Sink, rates *relayRates) *callSlots {
	r, _ := sink.(Readier)
	s := &callSlots{capacity: capacity, readier: r, rates: rates, freed: make(chan struct{}, 1)}
	s.signalFree()
	return s
}

// ready is how many calls the sink takes at once now.
func (s *callSlots) ready() int {
	if s.readier == nil {
		return math.MaxInt
	}
	return s.readier.Ready()
}

// open reports whether calls may be started now: the sink is not paused, and takes more calls than
// are under way. It does not say whether there is a free slot.
func (s *callSlots) open() bool {
	if s.paused.Load() || s.rates.held(allCalls) {
		return false
	}
	return s.readier == nil || s.inUse() < s.ready()
}

// acquire takes up to n slots for calls that are about to begin, and returns how many it has got.
func (s *callSlots) acquire(n int) int {
	if s.paused.Load() {
		return 0
	}
	limit := s.ready()
	s.mu.Lock()
	wanted := max(min(n, s.capacity-s.taken, limit-s.taken), 0)
	n = s.rates.take(allCalls, wanted)
	s.taken += n
	left := s.capacity > s.taken && s.rates.available(allCalls) > 0
	s.mu.Unlock()
	if n < wanted {
		s.rates.want(allCalls)
	}
	if left {
		s.signalFree()
	}
	return n
}

// keep reports whether a call may follow another one in its slot, while free other slots are about
// to be released.
func (s *callSlots) keep(free int) bool {
	if s.paused.Load() || s.readier != nil && s.inUse()-free > s.ready() {
		return false
	}
	return s.rates.follow(free)
}

// release gives back n slots.
func (s *callSlots) release(n int) {
	if n == 0 {
		return
	}
	s.rates.returned(allCalls, n)
	s.free(n)
}

// unused gives back n slots that no call was begun in, with their permits.
func (s *callSlots) unused(n int) {
	if n == 0 {
		return
	}
	s.rates.giveBack(allCalls, n)
	s.free(n)
}

func (s *callSlots) free(n int) {
	s.mu.Lock()
	s.taken -= n
	s.mu.Unlock()
	s.signalFree()
}

// inUse is how many slots are taken.
func (s *callSlots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func (s *callSlots) signalFree() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}
