// Package secrets looks up the keys with which a tenant's webhooks are verified, and keeps them for
// a while.
package secrets

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

const (
	// pause is the least time from the beginning of a tenant's look-up to that of its next one.
	pause = time.Second
	// maxOthers is how many tenants are kept of which no request was right yet.
	maxOthers = 1024
	// maxWaiting is how many requests of a lane wait for look-ups at once.
	maxWaiting = 1024
)

// ErrWrong means that the request is not right with the keys that its tenant has now, or that there
// is no such tenant.
var ErrWrong = errors.New("no key of the tenant fits")

// Config describes a Store. Each field is required.
type Config struct {
	// Find looks up a tenant's keys. None means that there is no such tenant. It may fail, panic
	// and hang.
	Find func(ctx context.Context, tenant string) ([]scheme.Key, error)
	// MaxAge is how long a result counts, from the beginning of its look-up.
	MaxAge time.Duration
	// Timeout bounds one call of Find, and before it the wait for a place.
	Timeout time.Duration
	// MaxTenants is how many tenants are kept of which a request was right.
	MaxTenants int
	// AtOnce is how many calls of Find run at once in each lane.
	AtOnce int
	// MaxBytes is how many bytes the requests of a lane hold together while they wait.
	MaxBytes int
	// Failed gets the error of each look-up that failed. Nobody may wait for it.
	Failed func(error)
}

// Store looks up the keys of tenants and keeps them (W24). It is safe for concurrent use.
//
// A request names its tenant before anything of it is verified. So the look-ups have two lanes,
// with places of their own: one for requests that are right with the tenant's last keys, and one
// for all others. Strangers can fill the second alone. In the same way the tenants of which a
// request was right are kept apart from those of which none was.
//
// A look-up is one for all requests that wait for it, and does not end with the request that began
// it.
type Store struct {
	Config

	lock   sync.Mutex
	begun  uint64 // calls of Find so far
	lanes  [2]lane
	byName map[string]*tenant
	proved *list.List // of *tenant: a request was right; the last one in front
	others *list.List // of *tenant; the last one that was named in front
}

// The lanes.
const (
	known = iota
	strangers
)

// lane is what one kind of requests has of the look-ups. Store.lock guards the counters.
type lane struct {
	places  chan struct{} // one token for each call of Find
	waiting int           // requests
	bytes   int           // that these hold
	lookUps int           // that have begun, or wait for a place
}

// New returns a Store that knows no tenant.
func New(cfg Config) *Store {
	s := &Store{Config: cfg, byName: map[string]*tenant{}, proved: list.New(), others: list.New()}
	for i := range s.lanes {
		s.lanes[i].places = make(chan struct{}, cfg.AtOnce)
	}
	return s
}

// Check reports whether a request of a tenant is right: nil, [ErrWrong], or a Refusal if the keys
// cannot be looked up now. right must not keep its argument; Check calls it with no key at all if
// there is no such tenant. size is how many bytes the request holds while it waits.
//
// A request that is right with keys that are kept does not wait. A request is wrong only if a
// look-up says so that began after Check was called: otherwise a key that was added a moment ago
// would not count yet.
func (s *Store) Check(ctx context.Context, name string, size int, right func([]scheme.Key) bool) error {
	t, last, came := s.lastOf(name)
	in := strangers
	for {
		if last.number > 0 && right(last.keys) {
			if s.prove(ctx, t, last) {
				return nil
			}
			in = known // its keys are too old to count, and prove that this is no stranger
		} else if last.number > came {
			return ErrWrong
		}
		var err error
		last, err = s.await(ctx, t, in, last.number, size)
		if err != nil {
			return err
		}
	}
}

// lastOf returns a tenant, its last result, and how many look-ups have begun so far.
func (s *Store) lastOf(name string) (t *tenant, last result, came uint64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	t = s.tenant(name)
	return t, t.last, s.begun
}

// prove reports whether a result under which a request is right still counts, and if so records
// that the tenant is a real one. In the second half of the result's time it begins another look-up,
// and no request waits for that.
func (s *Store) prove(ctx context.Context, t *tenant, with result) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	age := time.Since(with.at)
	if age >= s.MaxAge {
		return false
	}
	s.keepProved(t)
	if t.last.number == with.number && age >= s.MaxAge/2 {
		_, _ = s.lookUp(ctx, t, known) // if it fails, the result counts until its end
	}
	return true
}

// await returns a later result of a tenant than one, and waits for it. The look-up that is under
// way may have begun before the caller's request came: then the caller comes again.
func (s *Store) await(ctx context.Context, t *tenant, in int, after uint64, size int) (result, error) {
	l := &s.lanes[in]
	s.lock.Lock()
	if t.last.number > after {
		defer s.lock.Unlock()
		return t.last, nil
	}
	if l.waiting >= maxWaiting || l.waiting > 0 && l.bytes+size > s.MaxBytes {
		defer s.lock.Unlock()
		return result{}, received.Unavailable("too many requests wait for their tenants' secrets", nil)
	}
	running, err := s.lookUp(ctx, t, in)
	if err != nil {
		defer s.lock.Unlock()
		return result{}, err
	}
	l.waiting++
	l.bytes += size
	s.lock.Unlock()

	var left error
	select {
	case <-running.done:
	case <-ctx.Done():
		left = received.Unavailable("the tenant's secrets did not come in time", context.Cause(ctx))
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	l.waiting--
	l.bytes -= size
	switch {
	case left != nil:
		return result{}, left
	case running.err != nil:
		return result{}, running.err
	}
	return t.last, nil
}
