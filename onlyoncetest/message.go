package onlyoncetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/claimed"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
)

// Message is a record that a test puts into a topic in memory.
type Message struct {
	// Topic defaults to "messages".
	Topic string
	// Partition is the record's partition. A topic has as many partitions as its messages need.
	// Defaults to 0.
	Partition int32
	// ID is the value of the header message-id, which is the message's id unless the consumer's
	// Config has another Key. Defaults to no header.
	ID string
	// Key is the record key. Defaults to none.
	Key string
	// Value is the record's value.
	Value string
	// Headers are further headers of the record. Defaults to none.
	Headers map[string]string

	from *consumer.Message // of FromMessage
}

// FromMessage returns a message with the id, topic, partition, key, value and headers of another
// one, for example of a webhook endpoint's stored event: see webhook.Event.Message.
func FromMessage(m *consumer.Message) Message {
	return Message{
		Topic:     m.Topic,
		Partition: m.Partition,
		ID:        m.ID(),
		Key:       string(m.Key),
		Value:     string(m.Value),
		from:      m,
	}
}

// idHeader is the header for Message.ID, and what ids are read from if a Config does not say.
const idHeader = "message-id"

func (m Message) topic() string { return cmp.Or(m.Topic, "messages") }

// record returns the message as the log keeps it.
func (m Message) record() *consumer.Message {
	r := &consumer.Message{Value: []byte(m.Value)}
	if m.Key != "" {
		r.Key = []byte(m.Key)
	}
	if m.from != nil { // its id is in no header
		r.Headers = slices.Clone(m.from.Headers)
		claimed.Set(r, "", m.ID)
	} else if m.ID != "" {
		r.Headers = append(r.Headers, consumer.Header{Name: idHeader, Value: []byte(m.ID)})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		r.Headers = append(r.Headers, consumer.Header{Name: name, Value: []byte(m.Headers[name])})
	}
	return r
}

// place is where a message is in its log.
type place struct {
	topic     string
	partition int32
	offset    int64
}

func (p place) String() string { return fmt.Sprintf("%s/%d at %d", p.topic, p.partition, p.offset) }

func placeOf(m *consumer.Message) place { return place{m.Topic, m.Partition, m.Offset} }

// logs are the topics of one imaginary cluster.
type logs struct {
	mu    sync.Mutex
	byTo  map[string]*memlog.Log
	parts map[string]int32
	order []string
	sent  time.Time // of the first record of each partition
}

func newLogs(sent time.Time) *logs {
	return &logs{byTo: map[string]*memlog.Log{}, parts: map[string]int32{}, sent: sent}
}

// add appends messages, and returns where each of them is.
func (l *logs) add(msgs ...Message) []place {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range msgs { // all partitions first: a topic that grows is another thing
		l.parts[m.topic()] = max(l.parts[m.topic()], m.Partition+1)
	}
	places := make([]place, len(msgs))
	for i, m := range msgs {
		log := l.byTo[m.topic()]
		if log == nil {
			log = memlog.NewLog(m.topic(), int(l.parts[m.topic()]))
			l.byTo[m.topic()] = log
			l.order = append(l.order, m.topic())
		} else if has := log.Identity().Partitions; has < l.parts[m.topic()] {
			log.AddPartitions(int(l.parts[m.topic()] - has))
		}
		r := m.record()
		r.Time = l.sent.Add(time.Duration(log.End(m.Partition)) * time.Millisecond)
		places[i] = place{m.topic(), m.Partition, log.AppendMessage(m.Partition, r)}
	}
	return places
}

// remove removes a topic.
func (l *logs) remove(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byTo, topic)
	l.order = slices.DeleteFunc(l.order, func(t string) bool { return t == topic })
}

// empty reports whether there is no topic.
func (l *logs) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order) == 0
}

// widen gives the topics of messages one partition more than they need.
func (l *logs) widen(msgs []Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range msgs {
		l.parts[m.topic()] = max(l.parts[m.topic()], m.Partition+2)
	}
}

// ends returns the offset after the last record of each partition.
func (l *logs) ends() map[place]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := map[place]bool{}
	for topic, log := range l.byTo {
		for p := range log.Identity().Partitions {
			ends[place{topic, p, log.End(p)}] = true
		}
	}
	return ends
}

// feed is a consumer.Source over several topics.
type feed struct {
	group string
	logs  *logs
	all   []*memlog.Source
}

func (l *logs) source(group string) *feed {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &feed{group: group, logs: l}
	for _, topic := range l.order {
		s.all = append(s.all, &memlog.Source{Log: l.byTo[topic], GroupID: group})
	}
	return s
}

// parts returns the sources of topics that have no broker (Process.Broker).
func (s *feed) parts() (parts []*memlog.Source) {
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	for _, p := range s.all {
		if s.logs.byTo[p.Topics()[0]] == p.Log {
			parts = append(parts, p)
		}
	}
	return parts
}

// Group implements consumer.Source.
func (s *feed) Group() string { return s.group }

// Topics implements consumer.Source.
func (s *feed) Topics() (topics []string) {
	for _, p := range s.parts() {
		topics = append(topics, p.Topics()...)
	}
	return topics
}

// Run implements consumer.Source.
func (s *feed) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	parts := s.parts()
	errs := make([]error, len(parts))
	for i, p := range parts {
		wg.Go(func() {
			if errs[i] = p.Run(ctx, own); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// logsOf are the topics that Apply has made, by pool: a second Apply goes on in the same log.
var logsOf = struct {
	sync.Mutex
	m map[*pgxpool.Pool]*logs
}{m: map[*pgxpool.Pool]*logs{}}

func logsFor(pool *pgxpool.Pool) *logs {
	logsOf.Lock()
	defer logsOf.Unlock()
	if logsOf.m[pool] == nil {
		logsOf.m[pool] = newLogs(time.Now())
	}
	return logsOf.m[pool]
}

func forget(pool *pgxpool.Pool) {
	logsOf.Lock()
	defer logsOf.Unlock()
	delete(logsOf.m, pool)
}

// Rehearses marks the feed as one that plays any source's messages.
func (s *feed) Rehearses(claimed.Mark) {}
