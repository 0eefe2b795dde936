package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// F3: where a partition starts is decided once: a crash before its first batch does not move it.
func TestF3StartLatestIsDecidedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	cfg := testConfig()
	cfg.Start = consumer.Latest()
	var tried atomic.Int32
	// Decided, and then nothing.
	r.src.OnCommit = func(int32, int64) error { tried.Add(1); return errBoom }
	stop := r.start(queued, cfg)
	until(t, "a decision", func() bool { return tried.Load() > 0 })
	stop()
	if n := r.position(0); n != 5 {
		t.Fatalf("decided on %d", n)
	}
	r.log.Append(0, "first", id("first"))
	r.log.Append(0, "second", id("second"))
	r.src.OnCommit = nil
	stop = r.start(queued, cfg)
	r.reaches(0, 7)
	stop()
	r.once("first", "second")
}

// F3: a partition starts at a time as it starts at its end. Only then does the time matter.
func TestF3StartAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	at := time.UnixMilli(1_700_000_000_000)
	for i := range 4 {
		v := fmt.Sprint("v", i)
		r.log.AppendMessage(0, &consumer.Message{
			Value:   []byte(v),
			Headers: []consumer.Header{id(v)},
			Time:    at.Add(time.Duration(i) * time.Second),
		})
	}
	cfg := testConfig()
	cfg.Start = consumer.At(at.Add(2 * time.Second))
	stop := r.start(queued, cfg)
	r.reaches(0, 4)
	r.reaches(1, 0) // which has none as young
	want := append(r.numbered(1, 2), "v2", "v3")
	r.reaches(1, 2)
	stop()
	cfg.Start = consumer.At(at)
	stop = r.start(queued, cfg) // it has a position
	want = append(want, "v4")
	r.log.Append(0, "v4", id("v4"))
	r.reaches(0, 5)
	stop()
	r.once(want...)
	n := r.count(`
select count(*)
  from onlyonce.cursors where start_policy = 'time' and start_offset = case partition when 0 then 2 else 0 end`)
	if n != 2 {
		t.Error("the cursors do not say where they began")
		r.dump(`select partition, start_offset, start_policy from onlyonce.cursors`)
	}
}

// uncounted is a source that does not know how many partitions a topic has.
type uncounted struct{ consumer.Source }

func (s uncounted) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	return s.Source.Run(ctx, func(ctx context.Context, p source.Partition[*consumer.Message]) error {
		return own(ctx, uncountedPartition{p})
	})
}

type uncountedPartition struct {
	source.Partition[*consumer.Message]
}

func (p uncountedPartition) Identity(ctx context.Context) (source.Identity, error) {
	id, err := p.Partition.Identity(ctx)
	id.Partitions = 0
	return id, err
}

// F3: where it is not known which partitions came later, a start is refused; it is not the
// beginning without a word.
func TestF3StartOfATopicThatIsNotCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.numbered(0, 5)
	cfg := testConfig()
	cfg.Start = consumer.Latest()
	cfg.Timeouts.Statement = time.Second
	c, err := consumer.New(r.pool, uncounted{r.src}, consumer.HandlerFunc(effect), cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := r.run(c)
	until(t, "it is refused", func() bool { err := c.Healthy(); return err != nil && strings.Contains(err.Error(), "Config.Start") })
	stop()
	if n := r.count(`select count(*) from effects`); n != 0 {
		t.Errorf("%d messages from before the start were applied", n)
	}
}

// F3, F11: a partition that comes later starts at its beginning, and the hook is called once each
// time the topic has grown.
func TestF3LaterPartitionStartsAtItsBeginning(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.numbered(0, 5)
	cfg := testConfig()
	cfg.Start = consumer.Latest()
	var mu sync.Mutex
	var told []string
	cfg.Hooks.Repartitioned = func(e consumer.RepartitionedEvent) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintf("%s %d %d", e.Topic, e.Was, e.Is))
	}
	stop := r.start(queued, cfg)
	r.reaches(0, 5)
	r.reaches(1, 0)
	var want []string
	for i := range int32(2) {
		r.log.AddPartitions(1)
		want = append(want, r.numbered(2+i, 4)...) // before any consumer owns it
		r.src.Rebalance()
		r.reaches(2+i, 4)
	}
	r.src.Rebalance() // nothing new
	want = append(want, "later")
	r.log.Append(0, "later", id("later"))
	r.reaches(0, 6)
	stop()
	r.once(want...)
	mu.Lock()
	if got := fmt.Sprint(told); got != "[orders 2 3 orders 2 4]" {
		t.Errorf("told: %s", got)
	}
	told = nil
	mu.Unlock()
	stop = r.start(queued, cfg)
	until(t, "the next process tells it too", func() bool { mu.Lock(); defer mu.Unlock(); return len(told) == 1 })
	stop()
}

// F10: an offset that another program wrote to Kafka changes nothing, and is reported.
func TestF10ForeignOffsetIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	values := r.numbered(0, 5)
	stop := r.start(queued, testConfig())
	r.reaches(0, 5)
	stop()
	r.log.SetCommitted("stock", 0, 2, "by hand")
	got := make(chan consumer.OffsetIgnoredEvent, 10)
	cfg := testConfig()
	cfg.Hooks.OffsetIgnored = func(o consumer.OffsetIgnoredEvent) { got <- o }
	stop = r.start(queued, cfg)
	o := pgtest.Receive(t, patience, "got", got)
	good := o.Offset == 2 &&
		o.Position == 5 &&
		o.Metadata == "by hand" &&
		o.Topic == "orders"
	if !good {
		t.Errorf("%+v", o)
	}
	stop()
	r.once(values...)
	stop = r.start(queued, cfg) // it is our own again
	r.log.Append(0, "new", id("new"))
	r.reaches(0, 6)
	stop()
	if len(got) > 0 {
		t.Errorf("told again: %+v", <-got)
	}
}

// F14: what all partitions of a process hold unpacked stays within the budget and one message a
// partition, whatever they are handed over by their fetches, and everything goes through.
func TestF14PrefetchStaysWithinItsBudget(t *testing.T) {
	t.Parallel()
	const partitions, each = 50, 40
	message := func(p int32, i int) *consumer.Message {
		m := &consumer.Message{Value: fmt.Appendf(nil, "%0*d", 1000, i)}
		m.Headers = []consumer.Header{{Name: "message-id", Value: fmt.Appendf(nil, "%02d-%03d", p, i)}}
		return m
	}
	size := message(0, 0).Size()
	for _, limit := range []int{1, 20 * size, 200 * size, 1000 * size} {
		r := newRig(t, partitions)
		for p := range int32(partitions) {
			for i := range each {
				m := message(p, i)
				r.log.Append(p, string(m.Value), m.Headers...)
			}
		}
		var held, most atomic.Int64
		cfg := testConfig()
		cfg.PrefetchBytes = limit
		cfg.BatchSize = 7
		src := fetching{r.src, func(f *source.Fetched[*consumer.Message], _ error) {
			n := held.Add(int64(len(f.Messages) * size))
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				continue
			}
		}}
		cfg.Hooks.AttemptEnd = func(_ context.Context, d consumer.BatchResult, err error) {
			if err == nil {
				held.Add(-int64(d.Messages * size))
			}
		}
		stop := r.startOn(src, r.pool, queued, cfg)
		for p := range int32(partitions) {
			r.reaches(p, each)
		}
		stop()
		if n := r.count(`select count(*) from effects`); n != partitions*each {
			t.Errorf("%d effects, want %d", n, partitions*each)
		}
		if n := most.Load(); n > int64(limit+partitions*size) || n < int64(size) {
			t.Errorf("%d bytes were held, with a budget of %d and %d messages of %d", n, limit, partitions, size)
		}
	}
}

// begunSource says that its consumer has checked the database, and hands over nothing.
type begunSource struct {
	consumer.Source
	begun chan struct{}
}

func (s begunSource) Run(ctx context.Context, _ func(context.Context, source.Partition[*consumer.Message]) error) error {
	close(s.begun)
	<-ctx.Done()
	return nil
}

// S1: timeouts that the questions of the start do not fit in, as on a busy machine, do not end Run.
func TestS1StartHasABoundOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cfg := testConfig()
	cfg.Timeouts.Lock = time.Millisecond
	cfg.Timeouts.Statement = time.Millisecond
	src := begunSource{r.src, make(chan struct{})}
	stop := r.startOn(src, r.pool, effect, cfg)
	pgtest.Receive(t, patience, "the database was checked", src.begun)
	stop()
}
