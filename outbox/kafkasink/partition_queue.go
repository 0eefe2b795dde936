package kafkasink

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
	n := 0
	size := 0
	for n < len(q.waiting) {
		if size += q.waiting[n].size(); n > 0 && size > s.cfg.BatchBytes {
			break
		}
		n++
	}
	batch := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	if n == 0 {
		q.waiting = nil
		q.sending = false
	}
	return batch
}
