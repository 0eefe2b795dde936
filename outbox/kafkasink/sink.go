package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/outbox"
)

const (
	// unknownTopicPatience is how long a topic may be unknown before a call to it is rejected. A
	// topic just created is not known to all brokers at once, and the Transport may ask for it only
	// after metadataAge. The call is not sent meanwhile.
	unknownTopicPatience = 3 * time.Second
	// unknownTopicRetry is how often the Transport is asked again; it answers from its own view.
	unknownTopicRetry = 100 * time.Millisecond
)

var _ outbox.Batcher = (*Sink)(nil)

// Name returns Config.Name.
func (s *Sink) Name() string { return s.cfg.Name }

// Limits returns Config.KeyWindow and Config.Timeout.
func (s *Sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: s.cfg.KeyWindow, Timeout: s.cfg.Timeout}
}

// Close closes idle connections and stops watching the cluster. The sink can still be used.
func (s *Sink) Close() { s.transport.CloseIdleConnections() }

// Send makes one attempt. It returns when the attempt has ended, at the latest after
// Config.Timeout.
func (s *Sink) Send(ctx context.Context, a *outbox.Attempt) (r outbox.Result) {
	s.SendBatch(ctx, []*outbox.Attempt{a}, func(_ int, got outbox.Result) { r = got })
	return r
}

// SendBatch makes an attempt at each of several calls. Those for one partition travel together. It
// calls ended once for each call, with the call's index, from any goroutine.
func (s *Sink) SendBatch(ctx context.Context, calls []*outbox.Attempt, ended func(int, outbox.Result)) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	g := &sendGroup{
		ctx:    ctx,
		done:   make(chan struct{}),
		report: func(i int, err error) { ended(i, s.classify(ctx, err)) },
	}
	queued := make([]*queuedCall, 0, len(calls))
	var topics []string
	byTopic := map[string][]*queuedCall{}
	var last targetRoute
	for i, a := range calls {
		r, err := s.newRecord(a, &last)
		if err != nil {
			// The row cannot be sent as it is, now or later, so no call is made.
			ended(i, outbox.BrokerFailure(err.Error(), outbox.Permanent(err), true))
			continue
		}
		c := &queuedCall{callRecord: r, group: g, index: i, mayStart: a.MayStart}
		queued = append(queued, c)
		if byTopic[r.topic] == nil {
			topics = append(topics, r.topic)
		}
		byTopic[r.topic] = append(byTopic[r.topic], c)
	}
	if len(queued) == 0 {
		return
	}
	g.unreported.Store(int64(len(queued)))
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, topic := range topics[1:] { // an unknown topic delays no other
		asking.Go(func() { s.sendTo(topic, byTopic[topic]) })
	}
	s.sendTo(topics[0], byTopic[topics[0]])
	select {
	case <-g.done:
	case <-ctx.Done():
		// The queue's goroutine sees that this context has ended. If the request was sent, its
		// outcome is unknown.
		for _, c := range queued {
			g.reportEnd(c, ctx.Err())
		}
		<-g.done
	}
}

// sendTo enqueues the calls of one group that go to one topic.
func (s *Sink) sendTo(topic string, calls []*queuedCall) {
	g := calls[0].group
	all, err := s.partitions(g.ctx, topic)
	if err == nil {
		s.enqueue(topic, all, calls)
		return
	}
	for _, c := range calls {
		g.reportEnd(c, fmt.Errorf("%w: %w", errUnsent, err))
	}
}

// partitions returns a topic's partitions, as they were at most metadataAge ago. Asking the
// Transport costs more than everything else about a record.
func (s *Sink) partitions(ctx context.Context, topic string) ([]int, error) {
	s.mu.Lock()
	l, there := s.layouts[topic]
	s.mu.Unlock()
	if there && time.Since(l.at) < metadataAge {
		return l.partitions, nil
	}
	all, err := s.askPartitions(ctx, topic)
	if err == nil {
		s.mu.Lock()
		s.layouts[topic] = topicLayout{all, time.Now()}
		s.mu.Unlock()
	}
	return all, err
}

// askPartitions returns a topic's partitions from the Transport's view of the cluster.
func (s *Sink) askPartitions(ctx context.Context, topic string) ([]int, error) {
	for patience := time.Now().Add(unknownTopicPatience); ; {
		resp, err := s.transport.RoundTrip(ctx, s.addr, &metadata.Request{TopicNames: []string{topic}})
		if err != nil {
			return nil, fmt.Errorf("asking for the topic's partitions: %w", err)
		}
		t := resp.(*metadata.Response).Topics[0] // one for each name
		code := kafka.Error(t.ErrorCode)
		if code == 0 && len(t.Partitions) > 0 {
			all := make([]int, len(t.Partitions))
			for i, p := range t.Partitions { // sorted
				all[i] = int(p.PartitionIndex)
			}
			return all, nil
		}
		switch {
		case code == kafka.UnknownTopicOrPartition && time.Now().After(patience):
			return nil, fmt.Errorf("%w: topic %s does not exist: create it", errRefused, topic)
		case code == kafka.TopicAuthorizationFailed:
			return nil, fmt.Errorf("%w: %w", errRefused, code)
		case code == 0:
			return nil, errors.New("the topic has no partitions yet")
		case code != kafka.UnknownTopicOrPartition:
			return nil, code
		}
		if !pace.Sleep(ctx, unknownTopicRetry) {
			return nil, ctx.Err()
		}
	}
}
