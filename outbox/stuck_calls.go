package outbox

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// errGaveUp is what a call gets that asks whether it may start after the relay has given it up.
var errGaveUp = fmt.Errorf("%w: the relay has given the attempt up", ErrNotStarted)

// stuckCalls are the calls of a sink that the relay has given up: they had not returned long after
// their contexts had ended (O18). It is safe for concurrent use.
type stuckCalls struct {
	mu    sync.Mutex
	since map[*callAttempt]time.Time
}

// giveUp notes a call that has not returned. It reports false if it has returned after all.
func (s *stuckCalls) giveUp(a *callAttempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.returned {
		return false
	}
	if s.since == nil {
		s.since = map[*callAttempt]time.Time{}
	}
	s.since[a] = time.Now()
	a.gaveUp.Store(true)
	return true
}

// noteReturned notes that a call has returned. Its lane may be given back by then.
func (s *stuckCalls) noteReturned(a *callAttempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.returned = true
	delete(s.since, a)
}

// namedCalls is how many calls an error names.
const namedCalls = 3

// first returns how many calls have not returned, and since when the first has not.
func (s *stuckCalls) first() (since time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.since {
		if since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since, len(s.since)
}

// err names the calls that have not returned, or is nil.
func (s *stuckCalls) err(sink string) error {
	since, n := s.first()
	if n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var named []string
	for a := range s.since {
		if len(named) < namedCalls {
			named = append(named, fmt.Sprintf("%s, row %d", a.Key, a.ID))
		}
	}
	if more := len(s.since) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("sink %s: calls do not return although their contexts have ended, since %s: %s",
		sink, since.UTC().Format(time.RFC3339), strings.Join(named, "; "))
}
