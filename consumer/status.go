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
	// LastStable is the last stable offset as of the last fetch: what lies between it and HighWatermark is held back by a Kafka transaction that is
	// still open.
	LastStable int64
	// WaitingSince is when this process first found that everything below LastStable is read, and records above it are held back. It waits there until the
	// transaction ends (docs/operations.md, "When a partition waits for a transaction"). Zero: it does not wait for one.
	WaitingSince time.Time
	// LastBatch is when this process last committed a transaction that moved Position. Zero: it has not since it took over.
	LastBatch   time.Time
	InFlight    int  // messages in the transaction in hand
	Retrying    bool // a parked message is being tried at this moment
	Paused      bool
	Halted      *HaltError // why it stands still, nil if it does not
	HaltedSince time.Time  // when this process found that first; zero while Halted is nil
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

	epoch, position, highWatermark, lastStable, inFlight, inRetry atomic.Int64
	paused                                                        atomic.Bool
	seen                                                          atomic.Pointer[seen]
	waiting                                                       atomic.Pointer[waiting]
	halted                                                        atomic.Pointer[HaltError]
	haltedSince, lastBatch                                        atomic.Pointer[time.Time]

	mu       sync.Mutex
	reaching trouble // of the cursor or the log
	working  trouble // on a batch
	tending  trouble // of the retrier
}

// stop takes note of a halt.
func (s *partitionState) stop(h *HaltError) {
	now := time.Now()
	if before := s.halted.Swap(h); before == nil || before.Reason != h.Reason {
		s.haltedSince.Store(&now)
	}
}

// worked takes note of a batch that has committed.
func (s *partitionState) worked() {
	now := time.Now()
	s.lastBatch.Store(&now)
	s.moved()
	s.fine(&s.working)
}

// moved takes back that the partition is halted where it does not stand at that position any more.
func (s *partitionState) moved() {
	if h := s.halted.Load(); h != nil && s.position.Load() != h.Position {
		s.halted.CompareAndSwap(h, nil)
	}
}

// fetched takes note of what was found in the log. Whoever reads it again is not halted, but for one that waits for a message: that one is
// still to come.
func (s *partitionState) fetched(found seen, stable int64) {
	s.highWatermark.Store(found.end)
	s.lastStable.Store(stable)
	s.seen.Store(&found)
	s.fine(&s.reaching)
	if h := s.halted.Load(); h != nil && h.Reason != HaltBlocked && h.Reason != HaltEverythingFails {
		s.halted.CompareAndSwap(h, nil)
	}
}

// now is how the partition stands, but for what is parked.
func (s *partitionState) now() PartitionStatus {
	p := PartitionStatus{Topic: s.topic, Partition: s.partition, Shard: s.shard, Epoch: s.epoch.Load(), Position: s.position.Load(),
		HighWatermark: s.highWatermark.Load(), LastStable: s.lastStable.Load(), InFlight: int(s.inFlight.Load()), Retrying: s.inRetry.Load() > 0,
		Paused: s.paused.Load(), Halted: s.halted.Load()}
	p.Lag = max(p.HighWatermark-p.Position, 0)
	if w := s.waiting.Load(); w != nil {
		p.WaitingSince = w.since
	}
	if at := s.lastBatch.Load(); at != nil {
		p.LastBatch = *at
	}
	if since := s.haltedSince.Load(); since != nil && p.Halted != nil {
		p.HaltedSince = *since
	}
	t := s.troubled()
	p.Failing, p.FailingSince = t.err, t.since
	return p
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
	all := c.parts.status()
	for i := range all {
		n := counts[place{all[i].Shard, all[i].Topic, all[i].Partition}]
		all[i].Waiting, all[i].ToRetry, all[i].Blocked = n[0], n[1], n[2]
	}
	return all, nil
}

// status is what this process knows by itself.
func (p *partitions) status() (all []PartitionStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.all {
		if s.topic != "" {
			all = append(all, s.now())
		}
	}
	slices.SortFunc(all, func(a, b PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all
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
