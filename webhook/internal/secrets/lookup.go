package secrets

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/webhook/internal/received"
	"github.com/onlyonce/onlyonce/webhook/scheme"
)

// lookUp is one look-up of a tenant, for all requests that wait for it.
type lookUp struct {
	done chan struct{} // closed at its end
	err  error         // a Refusal; it is written before done is closed
}

// lookUp returns the tenant's look-up of a lane that is under way, or begins one. The caller has
// s.lock.
func (s *Store) lookUp(ctx context.Context, t *tenant, in int) (*lookUp, error) {
	if running := t.running[in]; running != nil {
		return running, nil
	}
	l := &s.lanes[in]
	if l.lookUps >= maxWaiting {
		return nil, received.Unavailable("too many tenants' secrets are looked up", nil)
	}
	l.lookUps++
	one := &lookUp{done: make(chan struct{})}
	t.running[in] = one
	go s.run(context.WithoutCancel(ctx), t, in, one)
	return one, nil
}

// run waits until the look-up is due and has a place, calls Find, and ends the look-up.
func (s *Store) run(ctx context.Context, t *tenant, in int, one *lookUp) {
	found, err := s.find(ctx, t, in)
	if err != nil {
		s.Failed(err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.lanes[in].lookUps--
	t.running[in] = nil
	one.err = err
	if err == nil && found.number > t.last.number { // the other lane's may have begun later
		t.last = found
	}
	close(one.done)
}

// find calls Find in a place of the lane. If Find does not return in time, it keeps its place until
// it does, and its result is dropped.
func (s *Store) find(ctx context.Context, t *tenant, in int) (result, error) {
	s.lock.Lock()
	early := time.Until(t.due[in])
	s.lock.Unlock()
	time.Sleep(early) // a second at most
	bounded, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	places := s.lanes[in].places
	select {
	case places <- struct{}{}:
	case <-bounded.Done():
		return result{}, received.Unavailable("too many tenants' secrets are looked up", nil)
	}
	began := s.begin(t, in)
	bounded, cancel = context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	type answer struct {
		keys []scheme.Key
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		defer func() { <-places }()
		keys, err := s.call(bounded, t.name)
		answered <- answer{keys, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return result{}, received.Unavailable("the tenant's secrets could not be looked up", a.err)
		}
		began.keys = a.keys
		return began, nil
	case <-bounded.Done():
		return result{}, received.Unavailable("the tenant's secrets were not looked up in time", bounded.Err())
	}
}

// begin numbers a look-up whose Find is called next.
func (s *Store) begin(t *tenant, in int) result {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.begun++
	now := time.Now()
	t.due[in] = now.Add(pause)
	return result{number: s.begun, at: now}
}

// call calls Find. A panic is an error.
func (s *Store) call(ctx context.Context, name string) (keys []scheme.Key, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked: %v", p)
		}
	}()
	return s.Find(ctx, name)
}
