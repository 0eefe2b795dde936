// Package brokerfaults is the part of the fault matrix that needs a broker, for any source that
// reads Kafka. Most rows run against a real broker. Rows that make a broker answer what it seldom
// does use kfake. The mix and the checker are those of package scenario.
package brokerfaults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
	"github.com/onlyonce/onlyonce/test/scenario"
)

// patience bounds the waits of rows; no result depends on how long it took.
var patience = pgtest.Patience(60 * time.Second)

const (
	scope = "stock"
	group = "stock"
	// rebalance is how long members may take to give partitions up.
	rebalance = 5 * time.Second
)

// row is one fault at one step. After a colon follows a variant of the row that docs/faults.md
// lists.
type row struct {
	step, fault string
	run         func(f *faults)
}

// Test plays the rows that are to be played, by their names, with a source.
func Test(t *testing.T, source kafkatest.NewSource, played func(name string) bool) {
	doc, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range rows {
		t.Run(x.step+"/"+x.fault, func(t *testing.T) {
			if !played(x.step + "/" + x.fault) {
				t.Skip("make test plays a part of the rows")
			}
			t.Parallel()
			listed, _, _ := strings.Cut(x.fault, ":")
			if !strings.Contains(string(doc), "| "+x.step+" | "+listed+" |") {
				t.Errorf("docs/faults.md does not list it")
			}
			x.run(&faults{t: t, row: x, source: source, group: group + "-" + kafkatest.TopicName(t)})
		})
	}
}

// faults is one running row.
type faults struct {
	t      *testing.T
	row    row
	source kafkatest.NewSource

	brokers []string
	fake    *kfake.Cluster // nil: a real broker
	group   string
	topic   string
	log     *topicLog
	pool    *pgxpool.Pool
	mix     *scenario.Mix
	cfg     consumer.Config
	calls   atomic.Int64
	quit    func()

	mu      sync.Mutex
	halts   []*consumer.HaltError
	retries []error
	owned   int // partitions that were taken over

	broken []string // what done's check last found
}

// topicLog writes a mix to a topic. Skip writes an aborted transaction with its marker.
type topicLog struct {
	t     *testing.T
	topic string
	plain *kgo.Client
	abort *kgo.Client
	id    string // of the transactions
}

func newTopicLog(t *testing.T, brokers []string, topic string) *topicLog {
	id := kafkatest.TopicName(t)
	return &topicLog{t: t, topic: topic, plain: kafkatest.Client(t, brokers), id: id,
		abort: kafkatest.Client(t, brokers, kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute))}
}

func (l *topicLog) AppendMessage(partition int32, m *consumer.Message) int64 {
	l.t.Helper()
	rec := &kgo.Record{Topic: l.topic, Partition: partition, Key: m.Key, Value: m.Value}
	for _, h := range m.Headers {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	if err := l.plain.ProduceSync(context.Background(), rec).FirstErr(); err != nil {
		l.t.Fatalf("producing: %v", err)
	}
	return rec.Offset
}

func (l *topicLog) Skip(partition int32, n int64) {
	l.t.Helper()
	err := l.abort.BeginTransaction()
	for range n {
		rec := &kgo.Record{Topic: l.topic, Partition: partition, Value: []byte("aborted"),
			Headers: []kgo.RecordHeader{{Key: scenario.HeaderID, Value: []byte("aborted")}}}
		err = errors.Join(err, l.abort.ProduceSync(context.Background(), rec).FirstErr())
	}
	if err = errors.Join(err, l.abort.EndTransaction(context.Background(), kgo.TryAbort)); err != nil {
		l.t.Fatalf("aborting a transaction: %v", err)
	}
}

// begin makes a database, and a topic with the mix on a real broker.
func (f *faults) begin(partitions int) { f.beginOn(kafkatest.Brokers(f.t), partitions) }

// beginFake is begin on kfake.
func (f *faults) beginFake(partitions int) {
	f.fake = kafkatest.FakeCluster(f.t)
	f.beginOn(f.fake.ListenAddrs(), partitions)
}

func (f *faults) beginOn(brokers []string, partitions int) {
	f.t.Helper()
	f.beginWith(brokers, kafkatest.Topic(f.t, brokers, partitions, nil), partitions)
}

// beginWith is begin with a topic that is there.
func (f *faults) beginWith(brokers []string, topic string, partitions int) {
	f.t.Helper()
	f.brokers = brokers
	f.topic = topic
	f.pool = pgtest.DB(f.t)
	if _, err := f.pool.Exec(f.t.Context(), scenario.EffectsSQL); err != nil {
		f.t.Fatal(err)
	}
	f.cfg = config()
	f.log = newTopicLog(f.t, brokers, f.topic)
	f.mix = scenario.New(f.log, scope, f.topic)
	f.mix.Fill(partitions, true)
}

func config() consumer.Config {
	return consumer.Config{
		Scope:        scope,
		Key:          consumer.HeaderKey(scenario.HeaderID),
		BatchSize:    10,
		Linger:       time.Millisecond,
		MaxAttempts:  10,
		Backoff:      dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		Timeouts:     dedupe.Timeouts{Lock: 2 * time.Second, Idle: 2 * time.Second},
		DrainTimeout: 2 * time.Second,
	}
}

func (f *faults) handle(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	f.calls.Add(1)
	return scenario.Handle(ctx, tx, m)
}

// start consumes as one more member of the group, and checks the invariants meanwhile.
func (f *faults) start(h consumer.HandlerFunc) (stop func()) {
	f.t.Helper()
	cfg := f.cfg
	cfg.Hooks = consumer.Hooks{
		Halted: func(e *consumer.HaltError) { f.mu.Lock(); defer f.mu.Unlock(); f.halts = append(f.halts, e) },
		Retry:  func(e consumer.RetryEvent) { f.mu.Lock(); defer f.mu.Unlock(); f.retries = append(f.retries, e.Err) },
		Owned:  func(consumer.OwnedEvent) { f.mu.Lock(); defer f.mu.Unlock(); f.owned++ },
	}
	c, err := consumer.New(f.pool, f.source(f.brokers, f.group, rebalance, f.topic), h, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				f.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			f.t.Error("Run did not return after its context ended")
		}
	})
	f.t.Cleanup(stop)
	if f.quit == nil {
		f.watch()
	}
	return stop
}

func (f *faults) watch() {
	quit := make(chan struct{})
	var watching sync.WaitGroup
	f.quit = sync.OnceFunc(func() { close(quit); watching.Wait() })
	watching.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if broken, err := f.mix.Check(f.t.Context(), f.pool, false); err == nil && len(broken) > 0 {
					f.t.Errorf("meanwhile: %v", broken)
					return
				}
			}
		}
	})
	f.t.Cleanup(f.quit)
}

// until polls a condition.
func (f *faults) until(what string, cond func() bool) {
	f.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			f.mu.Lock()
			state := fmt.Sprintf("%d handler calls; halts %v; errors %v; not as it is to be: %v",
				f.calls.Load(), f.halts, f.retries, f.broken)
			f.mu.Unlock()
			pgtest.GaveUp(f.t, patience, what+"; "+state)
		}
	}
}

// done waits until no work of the mix is left.
func (f *faults) done() {
	f.t.Helper()
	f.until("everything applied or parked", func() bool {
		var err error
		f.broken, err = f.mix.Check(f.t.Context(), f.pool, true)
		return err == nil && !slices.ContainsFunc(f.broken, func(b string) bool { return strings.HasPrefix(b, "I13 ") })
	})
}

// finish waits until no work is left, stops, and judges.
func (f *faults) finish(stop func()) {
	f.t.Helper()
	f.done()
	stop()
	f.decide()
}

// decide checks the invariants at the end, and logs the counts.
func (f *faults) decide() {
	f.t.Helper()
	if f.quit != nil {
		f.quit()
	}
	broken, err := f.mix.Check(f.t.Context(), f.pool, true)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, b := range broken {
		f.t.Error(b)
	}
	offsets, err := kafkatest.Admin(f.t, f.brokers).FetchOffsets(f.t.Context(), f.group)
	if err != nil {
		f.t.Fatal(err)
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		if at := f.position(o.Partition); o.At > at {
			f.t.Errorf("I7 Kafka's offset of partition %d is %d, above the position, %d", o.Partition, o.At, at)
		}
	})
	if n := f.count(`select count(*) from onlyonce.parked where settled_at is null and reason <> 'permanent'`); n != 0 {
		f.t.Errorf("%d messages were parked that nothing was wrong with", n)
	}
	counts, err := f.mix.Count(f.t.Context(), f.pool)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.t.Logf("%s: %s: %d handler calls, %d retries, %d take-overs, %v",
		f.row.step, f.row.fault, f.calls.Load(), len(f.retries), f.owned, counts)
}

func (f *faults) count(sql string, args ...any) (n int) {
	f.t.Helper()
	if err := f.pool.QueryRow(f.t.Context(), sql, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (f *faults) position(partition int32) int64 {
	f.t.Helper()
	return int64(f.count(`select coalesce(max(next_offset), 0) from onlyonce.positions where topic = $1 and partition = $2`,
		f.topic, partition))
}

// halted waits for a halt.
func (f *faults) halted(reason consumer.HaltReason) *consumer.HaltError {
	f.t.Helper()
	var h *consumer.HaltError
	f.until("a halt", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.halts) > 0 {
			h = f.halts[0]
		}
		return h != nil
	})
	if h.Reason != reason || !strings.Contains(h.Error(), "onlyonce cursor adopt") {
		f.t.Errorf("halt: %v, want %s", h, reason)
	}
	return h
}

// retried counts the retries because of an error with the given text.
func (f *faults) retried(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, err := range f.retries {
		if strings.Contains(fmt.Sprint(err), text) {
			n++
		}
	}
	return n
}
