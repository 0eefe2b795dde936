package kafkasink

import (
	"context"
	"sync/atomic"
)

// partitionQueue holds the calls that wait for one partition. It sends one request at a time: of
// two concurrent ones, the later could be written first.
type partitionQueue struct {
	waiting []*queuedCall
	sending bool // a goroutine sends
}

// queuedCall is a call that waits in a partition's queue.
type queuedCall struct {
	*callRecord
	group    *sendGroup
	index    int // in the group
	mayStart func() error
	// skip is the reason why the last request left the call out. It is written before that request
	// and read after its answer.
	skip     error
	reported atomic.Bool // its end was reported
}

// reportEnd reports how the last request ended, for a call that was part of it.
func (c *queuedCall) reportEnd(err error) {
	if err == nil && c.skip != nil {
		err = c.skip
	}
	c.group.reportEnd(c, err)
}

// sendGroup is the calls of one Send or SendBatch. They share a context.
type sendGroup struct {
	ctx        context.Context
	report     func(index int, err error)
	unreported atomic.Int64
	done       chan struct{} // closed once the end of each call was reported
}

// reportEnd reports how a call ended, unless that was reported before.
func (g *sendGroup) reportEnd(c *queuedCall, err error) {
	if c.reported.Swap(true) {
		return
	}
	g.report(c.index, err)
	if g.unreported.Add(-1) == 0 {
		close(g.done)
	}
}

// enqueue adds calls to the queues of their partitions, and starts a goroutine that sends for each
// queue that has none.
func (s *Sink) enqueue(topic string, partitions []int, calls []*queuedCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		p := topicPartition{topic, c.choosePartition(partitions)}
		q := s.queues[p]
		if q == nil {
			q = &partitionQueue{}
			s.queues[p] = q
		}
		q.waiting = append(q.waiting, c)
		if !q.sending {
			q.sending = true
			go s.sendQueue(p, q)
		}
	}
}

// sendQueue sends what waits in a queue, one batch at a time, until the queue is empty.
func (s *Sink) sendQueue(p topicPartition, q *partitionQueue) {
	for batch := s.nextBatch(q); len(batch) > 0; batch = s.nextBatch(q) {
		err := s.produce(p, batch)
		if len(batch) > 1 && isContentError(err) {
			// The broker wrote nothing of the batch. Each record is sent alone, to find the faulty
			// one; the fault may also be the batch's size.
			for _, c := range batch {
				c.reportEnd(s.produce(p, []*queuedCall{c}))
			}
			continue
		}
		for _, c := range batch {
			c.reportEnd(err)
		}
	}
}

// nextBatch returns the next batch, or lets the queue's goroutine end if nothing waits.
func (s *Sink) nextBatch(q *partitionQueue) []*queuedCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	for n < len(q.waiting) {
		if size += q.waiting[n].size(); n > 0 && size > s.cfg.BatchBytes {
			break
		}
		n++
	}
	batch := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; n == 0 {
		q.waiting, q.sending = nil, false
	}
	return batch
}
