package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// parkedCountSQL counts what is parked and not settled. In: scope. One row for each topic, partition and state. By the partial index
// parked_position.
const parkedCountSQL = `
select topic, partition, count(*) filter (where state = 'waiting'), count(*) filter (where state = 'retrying'),
       count(*) filter (where state = 'blocked')
  from onlyonce.parked where scope = $1 and settled_at is null and kind <> 'call' group by topic, partition`

// PartitionStatus is how a partition stands that this process owns.
type PartitionStatus struct {
	Topic     string
	Partition int32
	Shard     string // by Shards.Of; empty where there is one database
	Epoch     int64  // of this process's ownership; 0 while there is none
	Position  int64  // next offset to be handled
	// HighWatermark is the offset behind the last record of the log as of the last fetch, Lag how far Position is behind it.
	HighWatermark, Lag int64
	InFlight           int  // messages in the transaction in hand
	Retrying           bool // a parked message is being tried at this moment
	Paused             bool
	Halted             *HaltError // why it stands still, nil if it does not
	// Failing is what an attempt, or a look at the database, has failed with that is being made again, and FailingSince when that began; nil: nothing
	// is. A parked message that is tried again is no such failure.
	Failing      error
	FailingSince time.Time

	Waiting, ToRetry, Blocked int // parked messages in the states waiting, retrying and blocked
}

// partitionState is what Status reads while the partition's goroutines write.
type partitionState struct {
	topic     string
	partition int32
	shard     string

	epoch, position, highWatermark, inFlight, inRetry atomic.Int64
	paused                                            atomic.Bool
	seen                                              atomic.Pointer[seen]
	halted                                            atomic.Pointer[HaltError]

	mu       sync.Mutex
	reaching trouble // of the cursor or the log
	working  trouble // on a batch
	tending  trouble // of the retrier
}

// moved takes back that the partition is halted where it does not stand at that position any more.
func (s *partitionState) moved() {
	if h := s.halted.Load(); h != nil && s.position.Load() != h.Position {
		s.halted.CompareAndSwap(h, nil)
	}
}

// fetched takes note of what was found in the log. Whoever reads it again is not halted, but for one that waits for a message: that one is
// still to come.
func (s *partitionState) fetched(found seen) {
	s.highWatermark.Store(found.end)
	s.seen.Store(&found)
	s.fine(&s.reaching)
	if h := s.halted.Load(); h != nil && h.Reason != HaltBlocked && h.Reason != HaltEverythingFails {
		s.halted.CompareAndSwap(h, nil)
	}
}

// partitions are those that this process owns.
type partitions struct {
	mu  sync.Mutex
	all map[*partitionState]struct{}
}

func (p *partitions) add() *partitionState {
	s := &partitionState{}
	s.position.Store(-1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[*partitionState]struct{}{}
	}
	p.all[s] = struct{}{}
	return s
}

func (p *partitions) remove(s *partitionState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, s)
}

// name says which partition it is, and of which shard, as soon as that is known.
func (p *partitions) name(s *partitionState, id Identity, shard string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.topic, s.partition, s.shard = id.Topic, id.Partition, shard
}

// place is a partition in a database.
type place struct {
	shard, topic string
	partition    int32
}

// countParked adds to counts what is parked in this database, by state.
func (c *Consumer) countParked(ctx context.Context, counts map[place][3]int) error {
	rows, err := c.pool.Query(ctx, parkedCountSQL, c.cfg.Scope)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		at, n := place{shard: c.shard}, [3]int{}
		if err := rows.Scan(&at.topic, &at.partition, &n[0], &n[1], &n[2]); err != nil {
			return err
		}
		counts[at] = n
	}
	return rows.Err()
}

// Status tells how the partitions stand that this process owns, by topic and partition. It asks the database for what is
// parked, and nobody else: positions and lag are as of the last batch and the last fetch. It may be called at any time. With [Shards]
// it asks each, and fails if one does not answer.
func (c *Consumer) Status(ctx context.Context) ([]PartitionStatus, error) {
	counts := map[place][3]int{}
	for _, d := range c.databases() {
		if err := d.countParked(ctx, counts); err != nil {
			return nil, fmt.Errorf("consumer: %s: counting parked messages: %w", d.server(), err)
		}
	}
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	var all []PartitionStatus
	for s := range c.parts.all {
		if s.topic == "" {
			continue
		}
		n := counts[place{s.shard, s.topic, s.partition}]
		p := PartitionStatus{Topic: s.topic, Partition: s.partition, Shard: s.shard, Epoch: s.epoch.Load(), Position: s.position.Load(),
			HighWatermark: s.highWatermark.Load(), InFlight: int(s.inFlight.Load()), Retrying: s.inRetry.Load() > 0,
			Paused: s.paused.Load(), Halted: s.halted.Load(), Waiting: n[0], ToRetry: n[1], Blocked: n[2]}
		t := s.troubled()
		p.Failing, p.FailingSince = t.err, t.since
		p.Lag = max(p.HighWatermark-p.Position, 0)
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all, nil
}

// Healthy returns an error if something keeps messages from being handled, each cause in it: a partition that is halted (a *[HaltError]), one that has failed
// at the same work for longer than LockTimeout and StatementTimeout together (a server that does not answer, a message that is tried again), or a handler that
// is stuck. It is for people and alerts. A restart mends only what [Consumer.Live] returns.
func (c *Consumer) Healthy() error {
	return errors.Join(append(c.unwell(), c.Live())...)
}

// Live is for a liveness probe. It returns an error that wraps [ErrHandlerStuck] while a handler runs that was given up: its goroutine is lost, and only a
// restart gets it back.
func (c *Consumer) Live() error {
	if n := c.stuck.Load(); n > 0 {
		return fmt.Errorf("consumer: %w: %d of them did not return within %v of the end of their context", ErrHandlerStuck, n, c.cfg.HangTimeout)
	}
	return nil
}
