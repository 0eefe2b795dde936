package outbox

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// errGaveUp is the answer to a call that asks whether it may start after the relay has given it up.
var errGaveUp = fmt.Errorf("%w: the relay has given the attempt up", ErrNotStarted)

// stuckCalls are the calls of a sink that the relay has given up: they had not returned long after
// their contexts had ended (O18). It is safe for concurrent use.
type stuckCalls struct {
	mu    sync.Mutex
	calls map[*callAttempt]stuckCall
}

// stuckCall says when a call was given up, and who had it then.
type stuckCall struct {
	since time.Time
	where string
}

// whereIs says who has a call that has not come back. The sink is not blamed for one that it never
// got, for example because RelayConfig.Sealer has it.
func (s *relaySink) whereIs(a *callAttempt) string {
	switch {
	case a.completing():
		return "in its completion"
	case a.reconciling:
		return "in RelayConfig.Reconcile"
	case s.remote.has(a):
		return "in the sink"
	}
	return "the sink has not got it"
}

// giveUp notes a call that has not returned, and where it is. It reports false if it has returned
// after all.
func (s *stuckCalls) giveUp(a *callAttempt, where string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.returned {
		return false
	}
	if s.calls == nil {
		s.calls = map[*callAttempt]stuckCall{}
	}
	s.calls[a] = stuckCall{time.Now(), where}
	a.gaveUp.Store(true)
	return true
}

// noteReturned notes that a call has returned. Its lane may be given back by then.
func (s *stuckCalls) noteReturned(a *callAttempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.returned = true
	delete(s.calls, a)
}

// namedCalls is how many calls an error names.
const namedCalls = 3

// first returns how many calls have not returned, and since when the first has not.
func (s *stuckCalls) first() (since time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if since.IsZero() || c.since.Before(since) {
			since = c.since
		}
	}
	return since, len(s.calls)
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
	for a, c := range s.calls {
		if len(named) < namedCalls {
			named = append(named, fmt.Sprintf("%s, row %d, %s", a.Key, a.ID, c.where))
		}
	}
	if more := len(s.calls) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("sink %s: calls have not come back although their contexts have ended, since %s: %s",
		sink, since.UTC().Format(time.RFC3339), strings.Join(named, "; "))
}
