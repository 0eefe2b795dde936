// Package memlog has a topic in memory and a source that reads it, for tests.
//
// A [Log] is a topic in which a test causes faults directly instead of waiting for them. A [Source]
// reads it. To the consumer it is a [consumer.Source] like the one for Kafka: offsets with holes,
// committed offsets with metadata, generations, a log that is truncated, cut by retention or
// created again. Neither needs a network.
package memlog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// Log is one topic of an imaginary cluster. Its methods are safe for concurrent use.
type Log struct {
	// Retention is the topic's retention by time, which Partition.Retained reports. It does not
	// delete records: see DeleteBefore. Set it before the log is read. Defaults to 0: no retention.
	Retention time.Duration
	// NoEpochs makes a log without leader epochs, like brokers before Kafka 2.1. Set it before
	// anything is appended. Defaults to false.
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

// leaderEpoch is an epoch and the first offset written in it.
type leaderEpoch struct {
	epoch int32
	start int64
}

func newPartitionLog() *partitionLog {
	return &partitionLog{epochs: []leaderEpoch{{}}, open: map[int64]int{}}
}

// leader returns the epoch of the present leader.
func (p *partitionLog) leader() int32 { return p.epochs[len(p.epochs)-1].epoch }

// elect makes another leader, whose log continues at the end.
func (p *partitionLog) elect() {
	next := leaderEpoch{p.leader() + 1, p.end}
	p.epochs = slices.DeleteFunc(p.epochs, func(e leaderEpoch) bool { return e.start >= p.end })
	p.epochs = append(p.epochs, next)
}

// epochOf returns the leader epoch in which the offset was written.
func (p *partitionLog) epochOf(offset int64) int32 {
	epoch := p.epochs[0].epoch
	for _, e := range p.epochs {
		if e.start <= offset {
			epoch = e.epoch
		}
	}
	return epoch
}

// verify returns an OutOfRangeError if the log was cut off below an offset since it was read up to
// there in an epoch.
func (p *partitionLog) verify(at int64, epoch int32) error {
	end := p.end
	if i := slices.IndexFunc(p.epochs, func(e leaderEpoch) bool { return e.epoch > epoch }); i >= 0 {
		end = p.epochs[i].start
	}
	if epoch < 0 || end >= at || p.start >= at {
		return nil
	}
	return &source.OutOfRangeError{Offset: at, Start: p.start, End: end}
}

// stable returns the last stable offset.
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

// NewLog makes an empty topic with the given number of partitions.
func NewLog(topic string, partitions int) *Log {
	l := &Log{topic: topic, clusterID: "cluster-1", groups: map[string]*group{}, changed: make(chan struct{})}
	l.identify()
	for range partitions {
		l.partitions = append(l.partitions, newPartitionLog())
	}
	return l
}

// identify derives the topic's id from its name and the number of times it was created, so that
// another process that builds the same log has the same topic.
func (l *Log) identify() {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", l.topic, l.incarnation))
	copy(l.topicID[:], sum[:])
}

// Append adds a record and returns its offset.
func (l *Log) Append(partition int32, value string, headers ...consumer.Header) int64 {
	return l.AppendMessage(partition, &consumer.Message{Value: []byte(value), Headers: headers})
}

// AppendMessage adds a record and returns its offset. It fills in topic, partition, offset and
// leader epoch, and the time if it is zero.
func (l *Log) AppendMessage(partition int32, m *consumer.Message) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	m.Topic = l.topic
	m.Partition = partition
	m.Offset = p.end
	m.LeaderEpoch = l.known(p.leader())
	if m.Time.IsZero() {
		m.Time = time.UnixMilli(1_700_000_000_000 + p.end)
	}
	p.records = append(p.records, m)
	p.end++
	l.notify()
	return m.Offset
}

// End returns the offset that the next record of a partition gets.
func (l *Log) End(partition int32) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitions[partition].end
}

// Skip leaves n offsets without a record, like control records, aborted and removed records.
func (l *Log) Skip(partition int32, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitions[partition].end += n
	l.notify()
}

// DeleteBefore deletes the records below an offset, like retention.
func (l *Log) DeleteBefore(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	p.start = offset
	p.records = slices.DeleteFunc(p.records, func(m *consumer.Message) bool { return m.Offset < offset })
	l.notify()
}

// Compact removes the record at an offset, like the cleaner of a compacted topic, and marks the
// topic as compacted.
func (l *Log) Compact(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compacted = true
	p := l.partitions[partition]
	p.records = slices.DeleteFunc(p.records, func(m *consumer.Message) bool { return m.Offset == offset })
	l.notify()
}

// Begin begins a transaction: until end is called, no fetch returns records after the log's present
// end. Everything appended meanwhile is then committed; use Skip for aborted records.
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

// Elect changes the leader without losing records.
func (l *Log) Elect(partition int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partitions[partition].elect()
	l.notify()
}

// Truncate changes the leader and loses the records from an offset on. Records written there
// afterwards have another leader epoch.
func (l *Log) Truncate(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	p.end = offset
	p.records = slices.DeleteFunc(p.records, func(m *consumer.Message) bool { return m.Offset >= offset })
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

// Identity returns the topic's identity and number of partitions.
func (l *Log) Identity() source.Identity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return source.Identity{
		ClusterID:      l.clusterID,
		TopicID:        l.topicID,
		TopicPartition: source.TopicPartition{Topic: l.topic},
		Partitions:     int32(len(l.partitions)),
		Compacted:      l.compacted,
	}
}

// Committed returns a group's committed offset and its metadata, or -1 if there is none.
func (l *Log) Committed(groupID string, partition int32) (offset int64, metadata string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.group(groupID).committed[partition]
	if !ok {
		return -1, ""
	}
	return c.offset, c.metadata
}

// SetCommitted writes a group's committed offset, like an operator with Kafka's tools.
func (l *Log) SetCommitted(groupID string, partition int32, offset int64, metadata string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.group(groupID).committed[partition] = committedOffset{offset, metadata}
}

// ClearCommitted removes a group's committed offsets, like their expiry.
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

// fetch returns up to limit records of up to most bytes from an offset. It waits for the first
// until ctx is done or wait is over. epoch is the epoch of what was read below, or -1 if the fetch
// does not continue an earlier one.
func (l *Log) fetch(
	ctx context.Context,
	partition int32,
	topicID [16]byte,
	from int64,
	epoch int32,
	limit, most int,
	wait time.Duration,
) (source.Fetched[*consumer.Message], error) {
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		p := l.partitions[partition]
		changed := l.changed
		switch {
		case topicID != l.topicID:
			l.mu.Unlock()
			return source.Fetched[*consumer.Message]{}, fmt.Errorf("%w: %s", source.ErrIncarnation, l.topic)
		case from < p.start || from > p.end:
			err := &source.OutOfRangeError{Offset: from, Start: p.start, End: p.end}
			l.mu.Unlock()
			return source.Fetched[*consumer.Message]{}, err
		}
		if err := p.verify(from, epoch); err != nil {
			l.mu.Unlock()
			return source.Fetched[*consumer.Message]{}, err
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
			return source.Fetched[*consumer.Message]{}, ctx.Err()
		}
	}
}

// retained returns the time at which retention may delete the first record at or above an offset.
func (l *Log) retained(partition int32, offset int64) (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	if offset < p.start || offset > p.end {
		return time.Time{}, &source.OutOfRangeError{Offset: offset, Start: p.start, End: p.end}
	}
	found := p.from(offset, 1, 1).Messages
	if l.Retention == 0 || len(found) == 0 {
		return time.Time{}, nil
	}
	return found[0].Time.Add(l.Retention), nil
}

// known returns an epoch as the log reports it.
func (l *Log) known(epoch int32) int32 {
	if l.NoEpochs {
		return -1
	}
	return epoch
}

// verify implements Partition.Verify.
func (l *Log) verify(partition int32, at int64, epoch int32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partitions[partition].verify(at, epoch)
}

// from returns up to limit records of up to most bytes from an offset, as copies, like from a
// network. It allocates them in one piece and searches for the first, so that a benchmark on a long
// log measures the consumer and not the log.
func (p *partitionLog) from(offset int64, limit, most int) source.Fetched[*consumer.Message] {
	next := max(p.stable(), offset) // a position after an open transaction is not set back
	found := p.stableFrom(offset)
	if limit > 0 && len(found) > limit {
		found, next = found[:limit], found[limit].Offset
	}
	for i, m := range found {
		if most -= m.Size(); most < 0 && i > 0 {
			found = found[:i]
			next = m.Offset
			break
		}
	}
	got := source.Fetched[*consumer.Message]{Next: next, LeaderEpoch: p.epochOf(next - 1), HighWatermark: p.end, LastStable: p.stable()}
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

// stableFrom returns the records from an offset up to the last stable one.
func (p *partitionLog) stableFrom(offset int64) []*consumer.Message {
	stable := p.stable()
	first := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= offset })
	last := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= stable })
	return p.records[min(first, last):last]
}

// copyBytes gives messages their own bytes, as each fetch from a broker does, so that a handler
// that changes them does not change the log.
func copyBytes(msgs []*consumer.Message) {
	size := 0
	headers := 0
	for _, m := range msgs {
		size += len(m.Key) + len(m.Value)
		headers += len(m.Headers)
		for _, h := range m.Headers {
			size += len(h.Value)
		}
	}
	all := make([]byte, 0, size)
	of := make([]consumer.Header, 0, headers)
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
