package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onlyonce/onlyonce/test/workload"
)

// idHeader is the record header that carries the message id.
const idHeader = "message-id"

// message is what is produced.
type message struct {
	ID  string `json:"id"`
	Key string `json:"key"` // ordering key, and record key
	Seq int    `json:"seq"` // among those of its key
}

// A faulty message can only be parked: at once, or after its attempts are used up.
func (m message) permanent() bool { return workload.Hash(m.ID)%500 == 250 }
func (m message) exhausted() bool { return workload.Hash(m.ID)%2000 == 1750 }
func (m message) faulty() bool    { return m.permanent() || m.exhausted() }

// sick messages fail only at their first runs: if they are tried again from the database, they
// succeed.
func (m message) sick() bool { return workload.Hash(m.ID)%50 == 17 }

// sickRuns is how many runs of a sick message alone fail.
func (m message) sickRuns() int { return 1 + int(workload.Hash(m.ID)/50%2) }

// withCall messages make the handler ask for a call.
func (m message) withCall() bool { return workload.Hash(m.ID)%4 == 0 }

// stream is all that is produced.
type stream struct {
	messages []message
	byID     map[string]message
	records  []workload.Record
	aborted  []string // ids that are produced in transactions that abort
}

const (
	perKey       = 50 // messages of an ordering key, about
	mostKeys     = 1000
	abortedTimes = 10 // transactions that abort, in the course of the stream
	// Each leaves a hole in one partition that is larger than a batch, and than the window of short
	// storms (F9).
	abortedEach = 1200
)

func makeStream(n int, duplicates float64, random *rand.Rand) *stream {
	s := &stream{messages: make([]message, n), byID: make(map[string]message, n)}
	keys := min(max(n/perKey, 1), mostKeys)
	last := make([]int, keys)
	order := make([]int, n)
	for i := range n {
		k := random.IntN(keys)
		last[k]++
		m := message{ID: fmt.Sprintf("m-%07d", i+1), Key: fmt.Sprintf("key-%03d", k), Seq: last[k]}
		s.messages[i] = m
		s.byID[m.ID] = m
		order[i] = i
	}
	s.records = workload.Arrange(order, duplicates, random)
	for i := range abortedTimes * abortedEach {
		s.aborted = append(s.aborted, fmt.Sprintf("x-%05d", i+1))
	}
	return s
}

// record is what is written: the same bytes for every copy.
func record(m message, strayed bool, partitions int) *kgo.Record {
	value, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and a number
	}
	return &kgo.Record{Key: []byte(m.Key), Value: value, Partition: int32(workload.Partition(m.Key, strayed, partitions)),
		Headers: []kgo.RecordHeader{{Key: idHeader, Value: []byte(m.ID)}}}
}

// producer writes the stream. It is idempotent (kgo's default): if a broker was killed during a
// write, the record is in the log once, and the records of an ordering key are in order.
type producer struct {
	s       *storm
	written atomic.Int64 // records acknowledged
	gate    atomic.Int64 // how many records may be written for now

	mu    sync.Mutex
	acked map[string]bool
	err   error
}

// ahead is how far the log may be ahead of the next event. Workers then find work until the event
// has come. The producer works as long as they do, so that brokers die under it too, and the stream
// is not used up before the plan is.
func (s *storm) ahead() int64 {
	return max(2*s.toLose(), 500)
}

// let lets the producer go on up to some record.
func (p *producer) let(record int64) { p.gate.Store(record) }

func (p *producer) options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(p.s.kafka.Brokers...), kgo.DefaultProduceTopic(p.s.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// A killed broker does not answer: ask again soon.
		kgo.ProduceRequestTimeout(5 * time.Second), kgo.RequestTimeoutOverhead(2 * time.Second), kgo.MetadataMinAge(200 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}, more...)
}

// run writes all records and returns when each is acknowledged.
func (p *producer) run(ctx context.Context) error {
	cl, err := kgo.NewClient(p.options()...)
	if err != nil {
		return err
	}
	defer cl.Close()
	records := p.s.stream.records
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i, r := range records {
		for int64(i) >= p.gate.Load() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if part := len(records)/(abortedTimes+1) + 1; i > 0 && i%part == 0 {
			p.abort(ctx, i/part-1)
		}
		m := p.s.stream.messages[r.Message]
		cl.Produce(ctx, record(m, r.Strayed, p.s.opts.partitions), func(_ *kgo.Record, err error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			if err != nil {
				p.err = fmt.Errorf("producing %s: %w", m.ID, err)
				return
			}
			p.acked[m.ID] = true
			p.written.Add(1)
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// abort writes some messages in a transaction that is aborted: by the program, or, if the broker is
// away, by its timeout. A consumer that gets one of them has read what was never committed.
func (p *producer) abort(ctx context.Context, turn int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(p.options(kgo.TransactionalID(p.s.topic), kgo.TransactionTimeout(5*time.Second))...)
	if err != nil {
		return
	}
	defer cl.Close()
	if cl.BeginTransaction() != nil {
		return
	}
	for i := range abortedEach {
		id := p.s.stream.aborted[turn*abortedEach+i]
		cl.Produce(ctx, record(message{ID: id, Key: fmt.Sprint("aborted-", turn)}, false, p.s.opts.partitions), nil)
	}
	_ = cl.Flush(ctx) // what does not reach the log is aborted all the more
	_ = cl.EndTransaction(ctx, kgo.TryAbort)
}
