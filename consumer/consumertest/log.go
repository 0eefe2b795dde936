// Package consumertest has a scripted source for tests: a log in memory, whose every fault is written down instead of waited for.
//
// It is a [consumer.Source] like the one for Kafka, as far as the consumer can tell: offsets with holes, committed
// offsets with metadata, generations, a log that is truncated, cut by retention or created again. It needs no network.
package consumertest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
)

// Log is one topic of an imaginary cluster. Methods may be called at any time from any goroutine.
type Log struct {
	// Retention is the topic's retention by time, as Partition.Retained tells it; 0: there is none. It deletes nothing: see
	// DeleteBefore. Set it before the log is read.
	Retention time.Duration
	// NoEpochs makes it a log without leader epochs, as brokers before Kafka 2.1 have it for consumers. Set it before anything is appended.
	NoEpochs bool

	topic     string
	clusterID string

	mu          sync.Mutex
	incarnation int
	topicID     [16]byte
	compacted   bool
	partitions  []*partitionLog
	groups      map[string]*group
	changed     chan struct{} // closed and replaced at each change
}

type partitionLog struct {
	start, end int64
	records    []*consumer.Message // in order of offset; offsets without a record are holes
	epochs     []leaderEpoch       // never empty; the last one is the present leader's
	open       map[int64]int       // first offsets of open transactions, and how many begin there
}

// leaderEpoch says from which offset on a log was written under it.
type leaderEpoch struct {
	epoch int32
	start int64
}

func newPartitionLog() *partitionLog {
	return &partitionLog{epochs: []leaderEpoch{{}}, open: map[int64]int{}}
}

// leader is the epoch of the present leader.
func (p *partitionLog) leader() int32 { return p.epochs[len(p.epochs)-1].epoch }

// elect makes another one the leader, whose log goes on at the end.
func (p *partitionLog) elect() {
	next := leaderEpoch{p.leader() + 1, p.end}
	p.epochs = slices.DeleteFunc(p.epochs, func(e leaderEpoch) bool { return e.start >= p.end })
	p.epochs = append(p.epochs, next)
}

// epochOf is the leader epoch under which the offset was written.
func (p *partitionLog) epochOf(offset int64) int32 {
	epoch := p.epochs[0].epoch
	for _, e := range p.epochs {
		if e.start <= offset {
			epoch = e.epoch
		}
	}
	return epoch
}

// verify returns an OutOfRangeError if the log was cut off below an offset since it was read up to there under an epoch.
func (p *partitionLog) verify(at int64, epoch int32) error {
	end := p.end
	if i := slices.IndexFunc(p.epochs, func(e leaderEpoch) bool { return e.epoch > epoch }); i >= 0 {
		end = p.epochs[i].start
	}
	if epoch < 0 || end >= at || p.start >= at {
		return nil
	}
	return &consumer.OutOfRangeError{Offset: at, Start: p.start, End: end}
}

// stable is the last stable offset.
func (p *partitionLog) stable() int64 {
	stable := p.end
	for first := range p.open {
		stable = min(stable, first)
	}
	return stable
}

type group struct {
	generation int
	committed  map[int32]committedOffset
}

type committedOffset struct {
	offset   int64
	metadata string
}

// NewLog makes an empty topic.
func NewLog(topic string, partitions int) *Log {
	l := &Log{topic: topic, clusterID: "cluster-1", groups: map[string]*group{}, changed: make(chan struct{})}
	l.identify()
	for range partitions {
		l.partitions = append(l.partitions, newPartitionLog())
	}
	return l
}

// identify makes the topic's id from its name and the count of its lives, so that a test's other process that builds the
// same log means the same topic.
func (l *Log) identify() {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", l.topic, l.incarnation))
	copy(l.topicID[:], sum[:])
}

// Append adds a record and returns its offset.
func (l *Log) Append(partition int32, value string, headers ...consumer.Header) int64 {
	return l.AppendMessage(partition, &consumer.Message{Value: []byte(value), Headers: headers})
}

// AppendMessage adds a record; topic, partition, offset, leader epoch and (where it is zero) time are filled in.
func (l *Log) AppendMessage(partition int32, m *consumer.Message) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	m.Topic, m.Partition, m.Offset, m.LeaderEpoch = l.topic, partition, p.end, l.known(p.leader())
	if m.Time.IsZero() {
		m.Time = time.UnixMilli(1_700_000_000_000 + p.end)
	}
	p.records = append(p.records, m)
	p.end++
	l.notify()
	return m.Offset
}

// Skip leaves n offsets without a record, as control records, aborted ones and removed ones do.
func (l *Log) Skip(partition int32, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitions[partition].end += n
	l.notify()
}

// DeleteBefore is retention: offsets below are gone.
func (l *Log) DeleteBefore(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	p.start = offset
	for len(p.records) > 0 && p.records[0].Offset < offset {
		p.records = p.records[1:]
	}
	l.notify()
}

// Compact removes the record at an offset, as the cleaner of a compacted topic does, and makes the topic one.
func (l *Log) Compact(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compacted = true
	p := l.partitions[partition]
	p.records = slices.DeleteFunc(p.records, func(m *consumer.Message) bool { return m.Offset == offset })
	l.notify()
}

// Begin begins a transaction: no fetch returns what lies behind the log's present end until end is called. (What is appended meanwhile is
// all of it committed then; use Skip for what is not.)
func (l *Log) Begin(partition int32) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	first := p.end
	p.open[first]++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if p.open[first]--; p.open[first] == 0 {
			delete(p.open, first)
		}
		l.notify()
	})
}

// Elect is a change of leader that loses nothing.
func (l *Log) Elect(partition int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitions[partition].elect()
	l.notify()
}

// Truncate is a lossy change of leader: offsets from there on were never written. What is written there afterwards has another leader epoch.
func (l *Log) Truncate(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	p.end = offset
	for len(p.records) > 0 && p.records[len(p.records)-1].Offset >= offset {
		p.records = p.records[:len(p.records)-1]
	}
	p.elect()
	l.notify()
}

// Recreate deletes the topic and creates it again, empty and with another id.
func (l *Log) Recreate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.incarnation++
	l.identify()
	for i := range l.partitions {
		l.partitions[i] = newPartitionLog()
	}
	l.notify()
}

// AddPartitions gives the topic n more partitions. A Source owns them from its next generation on.
func (l *Log) AddPartitions(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.partitions = append(l.partitions, newPartitionLog())
	}
	l.notify()
}

// Identity says which topic this is, of how many partitions.
func (l *Log) Identity() consumer.Identity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return consumer.Identity{ClusterID: l.clusterID, TopicID: l.topicID, Topic: l.topic, Partitions: int32(len(l.partitions)), Compacted: l.compacted}
}

// Committed returns a group's committed offset and its metadata, -1 where there is none.
func (l *Log) Committed(groupID string, partition int32) (offset int64, metadata string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.group(groupID).committed[partition]
	if !ok {
		return -1, ""
	}
	return c.offset, c.metadata
}

// SetCommitted writes a group's committed offset, as somebody else with Kafka's tools would.
func (l *Log) SetCommitted(groupID string, partition int32, offset int64, metadata string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group(groupID).committed[partition] = committedOffset{offset, metadata}
}

// ClearCommitted forgets a group's committed offsets, as their expiry does.
func (l *Log) ClearCommitted(groupID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.group(groupID).committed)
}

func (l *Log) group(id string) *group {
	g := l.groups[id]
	if g == nil {
		g = &group{committed: map[int32]committedOffset{}}
		l.groups[id] = g
	}
	return g
}

func (l *Log) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// fetch returns up to limit records of up to most bytes from an offset, waiting for the first until ctx is done or wait is over. epoch is that of
// what was read below; -1: it does not go on where something was read.
func (l *Log) fetch(ctx context.Context, partition int32, topicID [16]byte, from int64, epoch int32, limit, most int, wait time.Duration) (consumer.Fetched, error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		p, changed := l.partitions[partition], l.changed
		switch {
		case topicID != l.topicID:
			l.mu.Unlock()
			return consumer.Fetched{}, fmt.Errorf("%w: %s", consumer.ErrIncarnation, l.topic)
		case from < p.start || from > p.end:
			err := &consumer.OutOfRangeError{Offset: from, Start: p.start, End: p.end}
			l.mu.Unlock()
			return consumer.Fetched{}, err
		}
		if err := p.verify(from, epoch); err != nil {
			l.mu.Unlock()
			return consumer.Fetched{}, err
		}
		got := p.from(from, limit, most)
		got.LeaderEpoch = l.known(got.LeaderEpoch)
		l.mu.Unlock()
		if got.Next > from {
			return got, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return got, nil
		case <-ctx.Done():
			return consumer.Fetched{}, ctx.Err()
		}
	}
}

// retained returns when retention by time may delete the first record at or above an offset.
func (l *Log) retained(partition int32, offset int64) (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	if offset < p.start || offset > p.end {
		return time.Time{}, &consumer.OutOfRangeError{Offset: offset, Start: p.start, End: p.end}
	}
	found := p.from(offset, 1, 1).Messages
	if l.Retention == 0 || len(found) == 0 {
		return time.Time{}, nil
	}
	return found[0].Time.Add(l.Retention), nil
}

// known is an epoch as the log tells it.
func (l *Log) known(epoch int32) int32 {
	if l.NoEpochs {
		return -1
	}
	return epoch
}

// verify is Partition.Verify.
func (l *Log) verify(partition int32, at int64, epoch int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitions[partition].verify(at, epoch)
}

// from returns up to limit records of up to most bytes from an offset, as values of their own, as from a network. They are made in one piece,
// and the first is searched for, so that a benchmark on a long log measures the consumer and not the log.
func (p *partitionLog) from(offset int64, limit, most int) consumer.Fetched {
	next := max(p.stable(), offset) // a position behind an open transaction is not set back
	first := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= offset })
	last := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= next })
	found := p.records[first:last]
	if limit > 0 && len(found) > limit {
		found, next = found[:limit], found[limit].Offset
	}
	for i, m := range found {
		if most -= m.Size(); most < 0 && i > 0 {
			found, next = found[:i], m.Offset
			break
		}
	}
	got := consumer.Fetched{Next: next, LeaderEpoch: p.epochOf(next - 1), HighWatermark: p.end, LastStable: p.stable()}
	if len(found) == 0 {
		return got
	}
	values := make([]consumer.Message, len(found))
	got.Messages = make([]*consumer.Message, len(found))
	for i, m := range found {
		values[i] = *m
		got.Messages[i] = &values[i]
	}
	copyBytes(got.Messages)
	return got
}

// copyBytes gives messages bytes of their own, as each fetch from a broker does: a handler that changes them does not change the log.
func copyBytes(msgs []*consumer.Message) {
	size, headers := 0, 0
	for _, m := range msgs {
		size += len(m.Key) + len(m.Value)
		headers += len(m.Headers)
		for _, h := range m.Headers {
			size += len(h.Value)
		}
	}
	all, of := make([]byte, 0, size), make([]consumer.Header, 0, headers)
	own := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		at := len(all)
		all = append(all, b...)
		return all[at:len(all):len(all)]
	}
	for _, m := range msgs {
		m.Key, m.Value = own(m.Key), own(m.Value)
		if m.Headers == nil {
			continue
		}
		at := len(of)
		for _, h := range m.Headers {
			of = append(of, consumer.Header{Name: h.Name, Value: own(h.Value)})
		}
		m.Headers = of[at:len(of):len(of)]
	}
}
