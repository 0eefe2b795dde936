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
	for _, q := range s.queues {
		n += len(q.waiting)
	}
	return n
}

// SendBatch sends one batch to partition 0 and returns how each call ended. A call with an error in
// refused may not start.
func SendBatch(ctx context.Context, s *Sink, topic string, refused []error) []error {
	all := make([]error, len(refused))
	g := &sendGroup{ctx: ctx, done: make(chan struct{}), report: func(i int, err error) { all[i] = err }}
	g.unreported.Store(int64(len(refused)))
	var batch []*queuedCall
	for i, err := range refused {
		r, bad := s.newRecord(
			&outbox.Attempt{Key: fmt.Sprint(i), Method: "POST", Target: "/" + topic, Body: []byte(fmt.Sprint(i))},
			new(targetRoute),
		)
		if bad != nil {
			panic(bad)
		}
		batch = append(batch, &queuedCall{callRecord: r, group: g, index: i, mayStart: func() error { return err }})
	}
	q := &partitionQueue{waiting: batch, sending: true}
	s.sendQueue(topicPartition{topic, 0}, q)
	<-g.done
	return all
}
