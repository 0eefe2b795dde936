package kafkasink

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/outbox"
)

// Waiting is how many calls wait for a request to be made.
func Waiting(s *Sink) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lanes {
		n += len(l.waiting)
	}
	return n
}

// SendBatch sends one batch to partition 0, of calls that may be made unless there is an error in their place, and returns how each ended.
func SendBatch(ctx context.Context, s *Sink, topic string, refused []error) []error {
	var batch []*entry
	for i, err := range refused {
		r, bad := s.record(&outbox.Delivery{Key: fmt.Sprint(i), Method: "POST", Target: "/" + topic, Body: []byte(fmt.Sprint(i))})
		if bad != nil {
			panic(bad)
		}
		batch = append(batch, &entry{record: r, ctx: ctx, mayStart: func() error { return err }, ended: make(chan error, 1)})
	}
	l := &lane{waiting: batch, busy: true}
	s.send(place{topic, 0}, l)
	var all []error
	for _, e := range batch {
		all = append(all, <-e.ended)
	}
	return all
}
