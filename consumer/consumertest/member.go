package consumertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// held is a partition that a member holds.
type held struct {
	consumer.Partition
	ctx   context.Context
	id    consumer.Identity
	ended chan error // what own is to return
}

// giveUp makes own return err.
func (x *held) giveUp(err error) { x.ended <- err }

// member is a Source that runs, and holds what it is given until the context ends.
type member struct {
	t    testing.TB
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run, once done is closed

	drain func(*held)      // what own does when its context has ended; may be nil
	taken func(key string) // called when own is; may be nil

	mu   sync.Mutex
	has  map[string]*held
	seen int // how often own was called
	news chan struct{}
}

func key(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

func newMember(t testing.TB) *member {
	return &member{t: t, has: make(map[string]*held), news: make(chan struct{}), done: make(chan struct{})}
}

// join runs a Source; the test's end stops it and fails if that takes too long or Run returns an error.
func join(t testing.TB, s consumer.Source) *member {
	t.Helper()
	m := newMember(t)
	m.run(s)
	m.stopAtEnd()
	return m
}

func (m *member) stopAtEnd() {
	m.t.Cleanup(func() {
		if err := m.leave(); err != nil {
			m.t.Errorf("Run: %v", err)
		}
	})
}

func (m *member) run(s consumer.Source) {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	go func() {
		m.err = s.Run(ctx, m.own)
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
	k := key(id.Topic, id.Partition)
	if m.taken != nil {
		m.taken(k)
	}
	x := &held{Partition: p, ctx: ctx, id: id, ended: make(chan error, 1)}
	m.change(func() {
		m.has[k] = x
		m.seen++
	})
	defer m.change(func() { delete(m.has, k) })
	select {
	case err = <-x.ended:
		return err
	case <-ctx.Done():
		if m.drain != nil {
			m.drain(x)
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
	var x *held
	m.until("partition "+key(topic, partition), func(has map[string]*held, _ int) bool {
		x = has[key(topic, partition)]
		return x != nil
	})
	return x
}

// holdsExactly waits until the member holds n partitions.
func (m *member) holdsExactly(n int) {
	m.t.Helper()
	m.until(fmt.Sprintf("%d partitions", n), func(has map[string]*held, _ int) bool { return len(has) == n })
}

func (m *member) holdsNow(k string) bool { return slices.Contains(m.keys(), k) }

func (m *member) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.has))
}

func (m *member) all() []*held {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.has))
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

// fetch is Fetch, and fails the test on an error.
func (x *held) fetch(t testing.TB, from int64) consumer.Fetched {
	t.Helper()
	f, err := x.Fetch(x.ctx, from)
	if err != nil {
		t.Fatalf("fetch at %d: %v", from, err)
	}
	return f
}

func (x *held) bounds(t testing.TB) (start, end int64) {
	t.Helper()
	start, end, err := x.Bounds(x.ctx)
	if err != nil {
		t.Fatalf("bounds: %v", err)
	}
	return start, end
}

// readTo fetches from offset from until the position has reached end.
func (x *held) readTo(t testing.TB, from, end int64) []*consumer.Message {
	t.Helper()
	var msgs []*consumer.Message
	deadline := time.Now().Add(patience)
	for from < end {
		f := x.fetch(t, from)
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

// eventually polls a condition that nothing announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}
