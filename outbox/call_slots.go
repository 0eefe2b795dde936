package outbox

import (
	"sync"
	"sync/atomic"
)

// callSlots bounds how many calls of a sink are under way at once, in all of its lanes: by
// RelayConfig.Concurrency, to one while the remote may be down, and to no new ones while an
// operator has paused the sink.
type callSlots struct {
	capacity int
	rates    *relayRates // of the sink; a slot needs a permit of the sink's rate
	paused   atomic.Bool // by an operator

	mu    sync.Mutex
	taken int
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While taken is below capacity, there is a token, or a
	// goroutine that has received it is about to take.
	freed chan struct{}
}

func newCallSlots(capacity int, rates *relayRates) *callSlots {
	s := &callSlots{capacity: capacity, rates: rates, freed: make(chan struct{}, 1)}
	s.signalFree()
	return s
}

// limit is how many calls may be under way now.
func (s *callSlots) limit() int {
	if s.rates.probing() {
		return 1
	}
	return s.capacity
}

// open reports whether calls may be started now: neither an operator nor the remote holds them, and
// none is under way that finds out whether the remote is back. It does not say whether there is a
// free slot.
func (s *callSlots) open() bool {
	return !s.paused.Load() && !s.rates.held(allCalls) && (!s.rates.probing() || s.inUse() == 0)
}

// acquire takes up to n slots for calls that are about to begin, and returns how many it has got.
func (s *callSlots) acquire(n int) int {
	if s.paused.Load() {
		return 0
	}
	limit := s.limit()
	s.mu.Lock()
	wanted := max(min(n, limit-s.taken), 0)
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
	return !s.paused.Load() && s.inUse()-free <= s.limit() && s.rates.follow(free)
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
