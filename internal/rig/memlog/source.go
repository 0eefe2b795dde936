package memlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
)

// Source reads a Log as a member of a group. The member that joined last owns all partitions, in a
// new generation. The previous member is not notified: it finds out when it commits, like a process
// that was paused during a rebalance.
type Source struct {
	// Log is the topic to read. Required.
	Log *Log
	// GroupID is the consumer group. Required.
	GroupID string
	// FetchLimit is how many records a fetch returns at most. Defaults to 0: no limit.
	FetchLimit int
	// Believes makes Commit succeed although another member has joined since, like a member whose
	// broker has not noticed either. Defaults to false.
	Believes bool
	// OnCommit is called before an offset is committed. If it returns an error, Commit returns it.
	// Tests kill their process here. Defaults to no call.
	OnCommit func(partition int32, offset int64) error
	// OnFetch is called before each fetch. If it returns an error, Fetch returns it. Defaults to no
	// call.
	OnFetch func(partition int32, from int64) error

	mu  sync.Mutex
	end context.CancelFunc // of the present generation
}

var _ consumer.Source = (*Source)(nil)

// Group returns the group's id.
func (s *Source) Group() string { return s.GroupID }

// Topics returns the log's topic.
func (s *Source) Topics() []string { return []string{s.Log.Identity().Topic} }

// GroupMetadata returns the metadata of the offsets that the group has committed.
func (s *Source) GroupMetadata(context.Context) (map[source.TopicPartition]string, error) {
	s.Log.mu.Lock()
	defer s.Log.mu.Unlock()
	found := map[source.TopicPartition]string{}
	for partition, c := range s.Log.group(s.GroupID).committed {
		found[source.TopicPartition{Topic: s.Log.topic, Partition: partition}] = c.metadata
	}
	return found, nil
}

// Rebalance ends the present generation: every partition is given up and handed over again.
func (s *Source) Rebalance() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		s.end()
	}
}

// Run joins the group until ctx is done.
func (s *Source) Run(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	for ctx.Err() == nil {
		if err := s.runGeneration(ctx, own); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) runGeneration(ctx context.Context, own func(context.Context, source.Partition[*consumer.Message]) error) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	s.Log.mu.Lock()
	g := s.Log.group(s.GroupID)
	g.generation++
	generation := g.generation
	partitions := len(s.Log.partitions)
	s.Log.mu.Unlock()
	s.mu.Lock()
	s.end = end
	s.mu.Unlock()

	errs := make([]error, partitions)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = own(ctx, &partition{s: s, generation: generation, id: int32(i), epoch: -1})
			if errs[i] != nil {
				end() // the generation ends for all partitions, as with kafka-go
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, source.ErrOwnershipLost) {
			return err
		}
	}
	return nil
}

type partition struct {
	s          *Source
	generation int
	id         int32
	topicID    [16]byte // of the last Identity

	next  int64 // the position after the last record read
	epoch int32 // its leader epoch; -1 if nothing was read
}

func (p *partition) Identity(context.Context) (source.Identity, error) {
	id := p.s.Log.Identity()
	id.Partition = p.id
	p.topicID = id.TopicID
	return id, nil
}

func (p *partition) Committed(context.Context) (int64, string, error) {
	offset, metadata := p.s.Log.Committed(p.s.GroupID, p.id)
	return offset, metadata, nil
}

func (p *partition) Commit(_ context.Context, offset int64, metadata string) error {
	if p.s.OnCommit != nil {
		if err := p.s.OnCommit(p.id, offset); err != nil {
			return err
		}
	}
	l := p.s.Log
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.group(p.s.GroupID)
	if g.generation != p.generation && !p.s.Believes {
		return fmt.Errorf("%w: generation %d is over, this is %d", source.ErrOwnershipLost, p.generation, g.generation)
	}
	g.committed[p.id] = committedOffset{offset, metadata}
	return nil
}

func (p *partition) Bounds(context.Context) (source.Bounds, error) {
	l := p.s.Log
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.partitions[p.id]
	return source.Bounds{Start: log.start, End: log.stable(), LeaderEpoch: l.known(log.leader())}, nil
}

func (p *partition) OffsetAt(_ context.Context, t time.Time) (int64, error) {
	l := p.s.Log
	l.mu.Lock()
	defer l.mu.Unlock()
	log := l.partitions[p.id]
	for _, m := range log.records {
		if m.Offset < log.stable() && m.Time.UnixMilli() >= t.UnixMilli() {
			return m.Offset, nil
		}
	}
	return log.stable(), nil
}

func (p *partition) Verify(ctx context.Context, at int64, epoch int32) error {
	if epoch < 0 {
		b, err := p.Bounds(ctx)
		if err != nil {
			return err
		}
		epoch = b.LeaderEpoch
	}
	p.next = at
	p.epoch = epoch
	return p.s.Log.verify(p.id, at, epoch)
}

func (p *partition) Fetch(ctx context.Context, from int64, most int) (source.Fetched[*consumer.Message], error) {
	if p.s.OnFetch != nil {
		if err := p.s.OnFetch(p.id, from); err != nil {
			return source.Fetched[*consumer.Message]{}, err
		}
	}
	epoch := int32(-1)
	if from == p.next {
		epoch = p.epoch
	}
	got, err := p.s.Log.fetch(ctx, p.id, p.topicID, from, epoch, p.s.FetchLimit, most, 500*time.Millisecond)
	if err == nil && got.Next > from {
		p.next = got.Next
		p.epoch = got.LeaderEpoch
	}
	return got, err
}

func (p *partition) Retained(_ context.Context, offset int64) (time.Time, error) {
	return p.s.Log.retained(p.id, offset)
}
