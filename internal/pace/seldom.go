package pace

import (
	"maps"
	"sync"
	"time"
)

// Refusals is how often a refusal of one kind is logged. Anyone can send requests that are refused,
// so their log lines must not be as many.
const Refusals = time.Minute

// Seldom lets one event of a kind through in each interval, and counts the others. The zero value
// is ready. It is safe for concurrent use. With more than mostKinds at once it counts no further
// ones, and lets them through.
type Seldom struct {
	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	next time.Time
	held int
}

// mostKinds is how many kinds are remembered.
const mostKinds = 1000

// Let reports whether an event of a kind goes through now, and how many were held back since the
// last one that did.
func (s *Seldom) Let(name string, now time.Time, every time.Duration) (held int, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds[name]
	if k == nil {
		if len(s.kinds) >= mostKinds {
			maps.DeleteFunc(s.kinds, func(_ string, k *kind) bool { return !now.Before(k.next) })
		}
		if len(s.kinds) >= mostKinds {
			return 0, true
		}
		if s.kinds == nil {
			s.kinds = make(map[string]*kind)
		}
		k = &kind{}
		s.kinds[name] = k
	}
	if now.Before(k.next) {
		k.held++
		return 0, false
	}
	held = k.held
	k.held = 0
	k.next = now.Add(every)
	return held, true
}
