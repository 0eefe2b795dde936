package outbox

import "sync"

// slots bounds how many calls of a sink are under way at once, in all of its lanes.
type slots struct {
	mu    sync.Mutex
	most  int
	taken int
	// freed holds a token while a slot may be free. A goroutine that wants a slot waits for the
	// token, and takes what is free. While taken is below most, there is a token, or a goroutine
	// that has received it is about to take.
	freed chan struct{}
}

func newSlots(most int) *slots {
	s := &slots{most: most, freed: make(chan struct{}, 1)}
	s.poke()
	return s
}

func (s *slots) poke() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// take takes up to n slots, as long as no more than limit are taken, and returns how many it has
// got.
func (s *slots) take(n, limit int) int {
	s.mu.Lock()
	n = max(min(n, s.most-s.taken, limit-s.taken), 0)
	s.taken += n
	left := s.most > s.taken
	s.mu.Unlock()
	if left {
		s.poke()
	}
	return n
}

// give gives back n slots.
func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	s.taken -= n
	s.mu.Unlock()
	s.poke()
}

// busy is how many slots are taken.
func (s *slots) busy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}
