package memlog

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// SharedSource reads a Log as a member of a share group (KIP-932), and as its keeper. Sources with
// one GroupID are members of one group, like those of several processes: each record is delivered
// to one of them at a time. The group delivers the records below the last stable offset, from the
// log's start.
type SharedSource struct {
	// Source is the keeper's, and has the log and the name of the group. Required.
	*Source
	// Lock is how long a delivered record is this member's. After that another one may get it.
	// Defaults to 30 s.
	Lock time.Duration
	// Deliveries is how often a record is delivered at most, as the broker's setting
	// group.share.delivery.count.limit. After that the group gives it up, and the keeper handles
	// it. Defaults to 5.
	Deliveries int

	mu      sync.Mutex
	resting map[int32]time.Time // partitions that take no messages now, and when they are asked again
}

var _ source.Shared[*consumer.Message] = (*SharedSource)(nil)

// shareName names what a share group knows of a partition. A topic that was created again is new to
// the group.
type shareName struct {
	group     string
	topicID   [16]byte
	partition int32
}

// share is what a share group knows of a partition.
type share struct {
	settled int64 // below it nothing is delivered any more
	records map[int64]*sharedRecord
}

// sharedRecord is a record that was delivered, at or above settled.
type sharedRecord struct {
	deliveries int
	until      time.Time // when its lock ends
	over       bool      // acknowledged, or given up
}

// taken is a record of a delivery that was not answered yet.
type taken struct {
	*sharedRecord
	offset int64
	turn   int // the number of the delivery: a later one is another member's
}

// Deliver hands over records until ctx is done.
func (s *SharedSource) Deliver(ctx context.Context, atOnce, most int, apply func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied) error {
	var members sync.WaitGroup
	for range atOnce {
		members.Go(func() { s.deliver(ctx, most, apply) })
	}
	members.Wait()
	return nil
}

func (s *SharedSource) deliver(ctx context.Context, most int, apply func(ctx context.Context, d source.Delivery[*consumer.Message]) source.Applied) {
	for ctx.Err() == nil {
		d, all, changed := s.next(most)
		if d == nil {
			select {
			case <-changed:
			case <-time.After(5 * time.Millisecond): // a lock or a rest may have ended
			case <-ctx.Done():
			}
			continue
		}
		out := apply(ctx, *d)
		s.Log.answer(all, out.Done)
		if out.Rest > 0 {
			s.rest(d.Partition, out.Rest)
		}
	}
}

// next returns a delivery, or nil and what is closed at the log's next change.
func (s *SharedSource) next(most int) (d *source.Delivery[*consumer.Message], all []taken, changed <-chan struct{}) {
	l := s.Log
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.partitions {
		p := int32(i)
		rests, ask := s.rests(p)
		if rests {
			continue
		}
		d = &source.Delivery[*consumer.Message]{ClusterID: l.clusterID, TopicPartition: source.TopicPartition{Topic: l.topic, Partition: p}, TopicID: l.topicID, Until: time.Now().Add(cmp.Or(s.Lock, 30*time.Second))}
		if ask {
			return d, nil, nil
		}
		if all = l.take(s.GroupID, d, most, cmp.Or(s.Deliveries, 5)); len(all) > 0 {
			return d, all, nil
		}
	}
	return nil, nil, l.changed
}

// rests reports whether a partition rests, or else whether it is to be asked because its rest is
// over.
func (s *SharedSource) rests(partition int32) (rests, ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.resting[partition]
	if ok && time.Now().Before(until) {
		return true, false
	}
	delete(s.resting, partition)
	return false, ok
}

func (s *SharedSource) rest(partition int32, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resting == nil {
		s.resting = map[int32]time.Time{}
	}
	s.resting[partition] = time.Now().Add(wait)
}

// Settled returns the offset below which the group delivers no record any more.
func (s *SharedSource) Settled(_ context.Context, _ string, partition int32) (int64, error) {
	s.Log.mu.Lock()
	defer s.Log.mu.Unlock()
	return s.Log.share(s.GroupID, partition).settled, nil
}

// share returns what a group knows of a partition, with settled moved as far as it goes. The caller
// has the lock.
func (l *Log) share(group string, partition int32) *share {
	name := shareName{group, l.topicID, partition}
	s := l.shares[name]
	if s == nil {
		s = &share{records: map[int64]*sharedRecord{}}
		l.shares[name] = s
	}
	p, before := l.partitions[partition], s.settled
	s.settled = max(p.stable(), p.start, before)
	for _, m := range p.stableFrom(before) {
		if r := s.records[m.Offset]; r == nil || !r.over {
			s.settled = m.Offset
			break
		}
	}
	for o := range s.records {
		if o < s.settled {
			delete(s.records, o)
		}
	}
	return s
}

// take puts up to most records into a delivery: either records that were delivered before, or
// others. The caller has the lock.
func (l *Log) take(group string, d *source.Delivery[*consumer.Message], most, deliveries int) (all []taken) {
	s := l.share(group, d.Partition)
	for _, m := range l.partitions[d.Partition].stableFrom(s.settled) {
		r := s.records[m.Offset]
		if r == nil {
			r = &sharedRecord{}
			s.records[m.Offset] = r
		}
		if r.over || time.Now().Before(r.until) {
			continue
		}
		if r.deliveries >= deliveries {
			r.over = true
			continue
		}
		again := r.deliveries > 0
		if len(d.Messages) == most || len(d.Messages) > 0 && again != d.Again {
			break
		}
		d.Again = again
		r.deliveries, r.until = r.deliveries+1, d.Until
		own := *m
		d.Messages = append(d.Messages, &own)
		all = append(all, taken{r, m.Offset, r.deliveries})
	}
	copyBytes(d.Messages)
	return all
}

// answer acknowledges the records of a delivery that are done, and gives back the others, unless
// their locks have ended and another member has them.
func (l *Log) answer(all []taken, done []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range all {
		if r.deliveries == r.turn {
			r.until, r.over = time.Time{}, r.over || slices.Contains(done, r.offset)
		}
	}
	l.notify()
}
