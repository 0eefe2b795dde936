package kafkasink

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/outbox"
)

// Waiting returns how many calls wait for a request.
func Waiting(s *Sink) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		n += len(l.waiting)
	}
	return n
}

// SendBatch sends one batch to partition 0 and returns how each call ended. A call with an error in
// refused may not start.
func SendBatch(ctx context.Context, s *Sink, topic string, refused []error) []error {
	all := make([]error, len(refused))
	p := &party{ctx: ctx, all: make(chan struct{}), notify: func(i int, err error) { all[i] = err }}
	p.left.Store(int64(len(refused)))
	var batch []*entry
	for i, err := range refused {
		r, bad := s.record(&outbox.Delivery{Key: fmt.Sprint(i), Method: "POST", Target: "/" + topic, Body: []byte(fmt.Sprint(i))}, new(route))
		if bad != nil {
			panic(bad)
		}
		batch = append(batch, &entry{record: r, party: p, index: i, mayStart: func() error { return err }})
	}
	l := &lane{waiting: batch, busy: true}
	s.send(place{topic, 0}, l)
	<-p.all
	return all
}
