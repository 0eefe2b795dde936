package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/onlyonce/onlyonce/outbox"
)

const (
	// dialTimeout bounds making a connection, including the TLS handshake and authentication.
	dialTimeout = 5 * time.Second
	// layoutAge bounds the age of kafka-go's view of the cluster.
	layoutAge = 2 * time.Second
	// unknownPatience is how long a topic may be unknown before a call to it is rejected. A topic
	// just created is not known to all brokers at once, and the Transport may ask for it only after
	// layoutAge. The call is not sent meanwhile.
	unknownPatience = 3 * time.Second
	// unknownEvery is how often the Transport is asked again; it answers from its own view.
	unknownEvery = 100 * time.Millisecond
)

// Sink writes calls to Kafka. Make one with [New]. It is safe for concurrent use.
type Sink struct {
	cfg       Config
	addr      net.Addr
	transport *kafka.Transport

	mu    sync.Mutex
	lanes map[place]*lane
	known map[string]layout // topics, at most layoutAge old
}

// layout is what the sink knows of a topic.
type layout struct {
	partitions []int
	at         time.Time
}

var _ outbox.Batcher = (*Sink)(nil)

// place is a partition of a topic.
type place struct {
	topic     string
	partition int
}

// New returns a sink for one cluster. It does not connect. If the configuration is wrong, the error
// lists every fault, each with its field, and wraps [ErrConfig].
func New(cfg Config) (*Sink, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sink{
		cfg: cfg, addr: kafka.TCP(cfg.Brokers...), lanes: map[place]*lane{}, known: map[string]layout{},
		transport: &kafka.Transport{
			DialTimeout: dialTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
			Dial: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			// Without names the Transport would ask for all topics of the cluster, repeatedly.
			MetadataTTL: layoutAge, MetadataTopics: cfg.Topics,
		},
	}, nil
}

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
func (s *Sink) Send(ctx context.Context, d *outbox.Delivery) (r outbox.Result) {
	s.SendBatch(ctx, []*outbox.Delivery{d}, func(_ int, got outbox.Result) { r = got })
	return r
}

// SendBatch makes an attempt at each of several calls. Those for one partition travel together. It
// calls ended once for each call, with the call's index, from any goroutine.
func (s *Sink) SendBatch(ctx context.Context, calls []*outbox.Delivery, ended func(int, outbox.Result)) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	p := &party{ctx: ctx, all: make(chan struct{}), notify: func(i int, err error) { ended(i, s.judge(ctx, err)) }}
	entries := make([]*entry, 0, len(calls))
	var topics []string
	byTopic := map[string][]*entry{}
	var last route
	for i, d := range calls {
		r, err := s.record(d, &last)
		if err != nil {
			// The row cannot be sent as it is, now or later, so no call is made.
			ended(i, outbox.Reject(err.Error(), err))
			continue
		}
		e := &entry{record: r, party: p, index: i, mayStart: d.MayStart}
		entries = append(entries, e)
		if byTopic[r.topic] == nil {
			topics = append(topics, r.topic)
		}
		byTopic[r.topic] = append(byTopic[r.topic], e)
	}
	if len(entries) == 0 {
		return
	}
	p.left.Store(int64(len(entries)))
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, topic := range topics[1:] { // an unknown topic delays no other
		asking.Go(func() { s.sendTo(topic, byTopic[topic]) })
	}
	s.sendTo(topics[0], byTopic[topics[0]])
	select {
	case <-p.all:
	case <-ctx.Done():
		// The lane's sender sees that this context has ended. If the request was sent, its outcome
		// is unknown.
		for _, e := range entries {
			p.end(e, ctx.Err())
		}
		<-p.all
	}
}

// sendTo enqueues the calls of one party that go to one topic.
func (s *Sink) sendTo(topic string, entries []*entry) {
	p := entries[0].party
	all, err := s.partitions(p.ctx, topic)
	if err == nil {
		s.enqueue(topic, all, entries)
		return
	}
	for _, e := range entries {
		p.end(e, err)
	}
}

// partitions returns a topic's partitions, as they were at most layoutAge ago. Asking the Transport
// costs more than everything else about a record.
func (s *Sink) partitions(ctx context.Context, topic string) ([]int, error) {
	s.mu.Lock()
	l, there := s.known[topic]
	s.mu.Unlock()
	if there && time.Since(l.at) < layoutAge {
		return l.partitions, nil
	}
	all, err := s.ask(ctx, topic)
	if err == nil {
		s.mu.Lock()
		s.known[topic] = layout{all, time.Now()}
		s.mu.Unlock()
	}
	return all, err
}

// ask returns a topic's partitions from the Transport's view of the cluster.
func (s *Sink) ask(ctx context.Context, topic string) ([]int, error) {
	patience := time.NewTimer(unknownPatience)
	defer patience.Stop()
	for patient := true; ; {
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
		case code == kafka.UnknownTopicOrPartition && !patient:
			return nil, fmt.Errorf("%w: topic %s does not exist: create it", errRefused, topic)
		case code == kafka.TopicAuthorizationFailed:
			return nil, fmt.Errorf("%w: %w", errRefused, code)
		case code == 0:
			return nil, errors.New("the topic has no partitions yet")
		case code != kafka.UnknownTopicOrPartition:
			return nil, code
		}
		again := time.NewTimer(unknownEvery)
		select {
		case <-again.C:
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		again.Stop()
	}
}
