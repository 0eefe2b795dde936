package memlog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/process"
)

// Patience bounds each wait of a Member.
const Patience = time.Minute

// Held is a partition that a Member holds. It has the partition's methods, and some that fail the
// test on an error.
type Held struct {
	source.Partition[*consumer.Message]
	// Ctx is own's context.
	Ctx context.Context
	// ID is the partition's identity when it was handed over.
	ID source.Identity

	ended chan error // what own returns
}

// GiveUp makes own return err.
func (x *Held) GiveUp(err error) { x.ended <- err }

// Member runs a Source and holds the partitions that it gets until their contexts end. It is for
// tests of sources.
type Member struct {
	t    testing.TB
	stop context.CancelFunc
	done chan struct{}
	err  error // of Run, once done is closed

	// Drain is called by own when its context has ended. Set it before Start. Defaults to no call.
	Drain func(*Held)
	// Taken is called when own is called, with the partition's name, for example "orders/3".
	// Set it before Start. Defaults to no call.
	Taken func(key string)

	mu     sync.Mutex
	has    map[string]*Held
	seen   int // number of calls of own
	wakeup chan struct{}
}

// KeyOf returns the name of a partition in a Member.
func KeyOf(topic string, partition int32) string { return fmt.Sprintf("%s/%d", topic, partition) }

// NewMember returns a member that does not run yet.
func NewMember(t testing.TB) *Member {
	return &Member{t: t, has: make(map[string]*Held), wakeup: make(chan struct{}), done: make(chan struct{})}
}

// Join runs a Source until the test ends. It fails the test if stopping takes too long or Run
// returns an error.
func Join(t testing.TB, s consumer.Source) *Member {
	t.Helper()
	m := NewMember(t)
	m.Start(s)
	m.StopAtEnd()
	return m
}

// StopAtEnd stops a member when the test ends, and fails the test if that takes too long or Run
// returns an error.
func (m *Member) StopAtEnd() {
	m.t.Cleanup(func() {
		if err := m.Leave(); err != nil {
			m.t.Errorf("Run: %v", err)
		}
	})
}

// Start runs a Source.
func (m *Member) Start(s consumer.Source) {
	ctx, stop := context.WithCancel(process.With(context.Background(), &process.Process{Pace: process.Pace{Watch: 100 * time.Millisecond}}))
	m.stop = stop
	go func() {
		m.err = s.Run(ctx, m.own)
		close(m.done)
	}()
}

// own is the function that Run calls.
func (m *Member) own(ctx context.Context, p source.Partition[*consumer.Message]) error {
	id, err := p.Identity(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	k := KeyOf(id.Topic, id.Partition)
	if m.Taken != nil {
		m.Taken(k)
	}
	x := &Held{Partition: p, Ctx: ctx, ID: id, ended: make(chan error, 1)}
	m.change(func() {
		m.has[k] = x
		m.seen++
	})
	defer m.change(func() { delete(m.has, k) })
	select {
	case err = <-x.ended:
		return err
	case <-ctx.Done():
		if m.Drain != nil {
			m.Drain(x)
		}
		return nil
	}
}

func (m *Member) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.wakeup)
	m.wakeup = make(chan struct{})
}

// Until waits for a condition on the partitions that the member holds, by key, and on the number of
// calls of own.
func (m *Member) Until(what string, cond func(has map[string]*Held, seen int) bool) {
	m.t.Helper()
	deadline := time.After(Patience)
	for {
		m.mu.Lock()
		ok := cond(m.has, m.seen)
		wakeup := m.wakeup
		m.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-wakeup:
		case <-m.done:
			m.t.Fatalf("waiting for %s: Run has returned: %v", what, m.err)
		case <-deadline:
			gaveUp(m.t, what)
		}
	}
}

// Holds waits until the member holds a partition.
func (m *Member) Holds(topic string, partition int32) *Held {
	m.t.Helper()
	var x *Held
	m.Until("partition "+KeyOf(topic, partition), func(has map[string]*Held, _ int) bool {
		x = has[KeyOf(topic, partition)]
		return x != nil
	})
	return x
}

// HoldsExactly waits until the member holds n partitions.
func (m *Member) HoldsExactly(n int) {
	m.t.Helper()
	m.Until(fmt.Sprintf("%d partitions", n), func(has map[string]*Held, _ int) bool { return len(has) == n })
}

// HoldsNow reports whether the member holds a partition at this moment.
func (m *Member) HoldsNow(k string) bool { return slices.Contains(m.Keys(), k) }

// Keys returns the keys of the partitions that the member holds.
func (m *Member) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.has))
}

// All returns the partitions that the member holds.
func (m *Member) All() []*Held {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.has))
}

// Leave ends Run and returns its error.
func (m *Member) Leave() error {
	m.stop()
	return m.Wait()
}

// Wait returns Run's error.
func (m *Member) Wait() error {
	m.t.Helper()
	select {
	case <-m.done:
		return m.err
	case <-time.After(Patience):
		gaveUp(m.t, "the end of Run")
		return nil
	}
}

// FetchBytes is more than any fetch in a test returns.
const FetchBytes = 64 << 20

// MustFetch is Fetch, but fails the test on an error.
func (x *Held) MustFetch(t testing.TB, from int64) source.Fetched[*consumer.Message] {
	t.Helper()
	f, err := x.Fetch(x.Ctx, from, FetchBytes)
	if err != nil {
		t.Fatalf("fetch at %d: %v", from, err)
	}
	return f
}

// MustBounds is Bounds, but fails the test on an error.
func (x *Held) MustBounds(t testing.TB) (start, end int64) {
	t.Helper()
	b, err := x.Bounds(x.Ctx)
	if err != nil {
		t.Fatalf("bounds: %v", err)
	}
	return b.Start, b.End
}

// ReadTo fetches from offset from until the position has reached end, and returns the messages.
func (x *Held) ReadTo(t testing.TB, from, end int64) []*consumer.Message {
	t.Helper()
	var msgs []*consumer.Message
	deadline := time.Now().Add(Patience)
	for from < end {
		f := x.MustFetch(t, from)
		for _, m := range f.Messages {
			if m.Offset < from || m.Offset >= f.Next {
				t.Fatalf("fetch at %d returned offset %d and position %d", from, m.Offset, f.Next)
			}
			from = m.Offset + 1
		}
		if f.Next < from {
			t.Fatalf("position went back from %d to %d", from, f.Next)
		}
		msgs = append(msgs, f.Messages...)
		from = f.Next
		if time.Now().After(deadline) {
			gaveUp(t, fmt.Sprintf("position %d is not %d yet", from, end))
		}
	}
	if from != end {
		t.Fatalf("position is %d, want %d", from, end)
	}
	return msgs
}

// Eventually polls a condition that has no notification.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Patience); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			gaveUp(t, what)
		}
	}
}

// gaveUp ends a test whose Patience is over. Our test runners look for its first words and repeat
// such a test, unless it had failed before.
func gaveUp(t testing.TB, what string) {
	t.Helper()
	if t.Failed() {
		t.Fatalf("after the failure above, not within %v: %s", Patience, what)
	}
	t.Fatalf("gave up waiting after %v: %s", Patience, what)
}
