package kafkasource_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/kafkasource"
	"github.com/onlyonce/onlyonce/internal/devenv/kafkatest"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// onBoth runs a test against a real broker and against kfake.
func onBoth(t *testing.T, f func(t *testing.T, brokers []string)) {
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		f(t, kafkatest.Brokers(t))
	})
	t.Run("kfake", func(t *testing.T) {
		t.Parallel()
		f(t, kafkatest.Fake(t))
	})
}

// quick is a configuration in which a lost member is noticed within a second.
func quick(brokers []string, topics ...string) kafkasource.Config {
	return kafkasource.Config{
		Brokers: brokers, GroupID: "group-" + topics[0], Topics: topics,
		SessionTimeout: time.Second, RebalanceTimeout: 5 * time.Second, HeartbeatInterval: 100 * time.Millisecond,
	}
}

// held is a partition that a member holds.
type held struct {
	consumer.Partition
	ctx   context.Context
	id    consumer.Identity
	ended chan error // what own is to return
}

// giveUp makes own return err.
func (h *held) giveUp(err error) { h.ended <- err }

// member is a Source that runs, and holds what it is given until the context ends.
type member struct {
	t    *testing.T
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run, once done is closed

	// drain, where set, is what own does when its context has ended.
	drain func(*held)

	mu   sync.Mutex
	has  map[string]*held
	seen int // how often own was called
	news chan struct{}
}

func key(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

func newMember(t *testing.T) *member {
	return &member{t: t, has: make(map[string]*held), news: make(chan struct{}), done: make(chan struct{})}
}

// join runs a Source; the test's end stops it and fails if that takes too long or Run returns an error.
func join(t *testing.T, cfg kafkasource.Config) *member {
	t.Helper()
	m := newMember(t)
	m.run(cfg)
	t.Cleanup(func() {
		if err := m.leave(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

func (m *member) run(cfg kafkasource.Config) {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	source := kafkasource.New(cfg)
	go func() {
		m.err = source.Run(ctx, m.own)
		close(m.done)
	}()
}

func (m *member) own(ctx context.Context, p consumer.Partition) error {
	id, err := p.Identity(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	h := &held{Partition: p, ctx: ctx, id: id, ended: make(chan error, 1)}
	m.change(func() {
		m.has[key(id.Topic, id.Partition)] = h
		m.seen++
	})
	defer m.change(func() { delete(m.has, key(id.Topic, id.Partition)) })
	select {
	case err = <-h.ended:
		return err
	case <-ctx.Done():
		if m.drain != nil {
			m.drain(h)
		}
		return nil
	}
}

func (m *member) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.news)
	m.news = make(chan struct{})
}

// until waits for a condition on what the member holds.
func (m *member) until(what string, cond func(has map[string]*held, seen int) bool) {
	m.t.Helper()
	deadline := time.After(patience)
	for {
		m.mu.Lock()
		ok, news := cond(m.has, m.seen), m.news
		m.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-m.done:
			m.t.Fatalf("waiting for %s: Run has returned: %v", what, m.err)
		case <-deadline:
			m.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// holds waits until the member holds a partition.
func (m *member) holds(topic string, partition int32) *held {
	m.t.Helper()
	var h *held
	m.until("partition "+key(topic, partition), func(has map[string]*held, _ int) bool {
		h = has[key(topic, partition)]
		return h != nil
	})
	return h
}

// holdsExactly waits until the member holds n partitions.
func (m *member) holdsExactly(n int) {
	m.t.Helper()
	m.until(fmt.Sprintf("%d partitions", n), func(has map[string]*held, _ int) bool { return len(has) == n })
}

// leave ends Run and returns its error.
func (m *member) leave() error {
	m.stop()
	return m.wait()
}

// wait returns Run's error.
func (m *member) wait() error {
	m.t.Helper()
	select {
	case <-m.done:
		return m.err
	case <-time.After(patience):
		m.t.Fatalf("Run did not return within %v", patience)
		return nil
	}
}

// fetch is Fetch with patience for nothing new, and fails the test on an error.
func (h *held) fetch(t *testing.T, from int64) consumer.Fetched {
	t.Helper()
	f, err := h.Fetch(h.ctx, from)
	if err != nil {
		t.Fatalf("fetch at %d: %v", from, err)
	}
	return f
}

// readTo fetches from offset from until the position has reached end.
func (h *held) readTo(t *testing.T, from, end int64) []*consumer.Message {
	t.Helper()
	var msgs []*consumer.Message
	deadline := time.Now().Add(patience)
	for from < end {
		f := h.fetch(t, from)
		for _, m := range f.Messages {
			if m.Offset < from || m.Offset >= f.Next {
				t.Fatalf("fetch at %d returned offset %d and position %d", from, m.Offset, f.Next)
			}
			from = m.Offset + 1
		}
		if f.Next < from {
			t.Fatalf("position went back from %d to %d", from, f.Next)
		}
		msgs, from = append(msgs, f.Messages...), f.Next
		if time.Now().After(deadline) {
			t.Fatalf("position %d after %v, and it should be %d", from, patience, end)
		}
	}
	if from != end {
		t.Fatalf("position is %d, want %d", from, end)
	}
	return msgs
}

// admin returns a client for what tests do around the Source.
func admin(t *testing.T, brokers []string) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50*time.Millisecond)) // or it tells of the topic that was
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// producer returns a client that writes where a record says.
func producer(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// write writes records to partition 0 and waits for them.
func write(t *testing.T, cl *kgo.Client, topic string, values ...string) {
	t.Helper()
	recs := make([]*kgo.Record, len(values))
	for i, v := range values {
		recs[i] = &kgo.Record{Topic: topic, Value: []byte(v)}
	}
	if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatalf("produce: %v", err)
	}
}

func values(msgs []*consumer.Message) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = string(m.Value)
	}
	return out
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

// eventually polls a condition that nothing announces.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
