package outbox

import "sync"

// callSlots bounds how many calls of a sink are under way at once, in all of its lanes.
type callSlots struct {
	mu       sync.Mutex
	capacity int
	taken    int
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While taken is below most, there is a token, or a goroutine
	// that has received it is about to take.
	freed chan struct{}
}

func newCallSlots(most int) *callSlots {
	s := &callSlots{capacity: most, freed: make(chan struct{}, 1)}
	s.signalFree()
	return s
}

func (s *callSlots) signalFree() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// acquire takes up to n slots, as long as no more than limit are taken, and returns how many it has
// got.
func (s *callSlots) acquire(n, limit int) int {
	s.mu.Lock()
	n = max(min(n, s.capacity-s.taken, limit-s.taken), 0)
	s.taken += n
	left := s.capacity > s.taken
	s.mu.Unlock()
	if left {
		s.signalFree()
	}
	return n
}

// release gives back n slots.
func (s *callSlots) release(n int) {
	if n == 0 {
		return
	}
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
