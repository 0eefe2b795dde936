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
		l.partitions = append(l.partitions, &partitionLog{})
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

// AppendMessage adds a record; topic, partition, offset and (where it is zero) time are filled in.
func (l *Log) AppendMessage(partition int32, m *consumer.Message) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	m.Topic, m.Partition, m.Offset = l.topic, partition, p.end
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

// Truncate is a lossy change of leader: offsets from there on were never written.
func (l *Log) Truncate(partition int32, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.partitions[partition]
	p.end = offset
	for len(p.records) > 0 && p.records[len(p.records)-1].Offset >= offset {
		p.records = p.records[:len(p.records)-1]
	}
	l.notify()
}

// Recreate deletes the topic and creates it again, empty and with another id.
func (l *Log) Recreate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.incarnation++
	l.identify()
	for i := range l.partitions {
		l.partitions[i] = &partitionLog{}
	}
	l.notify()
}

// AddPartitions gives the topic n more partitions. A Source owns them from its next generation on.
func (l *Log) AddPartitions(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.partitions = append(l.partitions, &partitionLog{})
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

// fetch returns up to limit records of up to most bytes from an offset, waiting for the first until ctx is done or wait is over.
func (l *Log) fetch(ctx context.Context, partition int32, topicID [16]byte, from int64, limit, most int, wait time.Duration) (consumer.Fetched, error) {
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
		got := p.from(from, limit, most)
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

// from returns up to limit records of up to most bytes from an offset, as values of their own, as from a network. They are made in one piece,
// and the first is searched for, so that a benchmark on a long log measures the consumer and not the log.
func (p *partitionLog) from(offset int64, limit, most int) consumer.Fetched {
	first := sort.Search(len(p.records), func(i int) bool { return p.records[i].Offset >= offset })
	found, next := p.records[first:], p.end
	if limit > 0 && len(found) > limit {
		found, next = found[:limit], found[limit].Offset
	}
	for i, m := range found {
		if most -= m.Size(); most < 0 && i > 0 {
			found, next = found[:i], m.Offset
			break
		}
	}
	got := consumer.Fetched{Next: next, HighWatermark: p.end}
	if len(found) == 0 {
		return got
	}
	values := make([]consumer.Message, len(found))
	got.Messages = make([]*consumer.Message, len(found))
	for i, m := range found {
		values[i] = *m
		got.Messages[i] = &values[i]
	}
	return got
}
