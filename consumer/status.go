package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// parkedCountSQL counts parked messages that are not settled. In: scope. Out: one row for each
// topic and partition, with the number in each state. It uses the partial index parked_position.
const parkedCountSQL = `
select topic, partition, count(*) filter (where state = 'waiting'), count(*) filter (where state = 'retrying'),
       count(*) filter (where state = 'blocked')
  from onlyonce.parked where scope = $1 and settled_at is null and kind <> 'call' group by topic, partition`

// PartitionStatus describes a partition that this process owns or, in a share group, gets messages
// of.
type PartitionStatus struct {
	Topic     string
	Partition int32
	Shard     string // by shard.Config.OfPartition; empty if there is one database
	Epoch     int64  // of this process's ownership; 0 before it has one
	Position  int64  // next offset to be handled

	// HighWatermark is the offset after the last record of the log, as of the last fetch. Lag is
	// how far Position is below it.
	HighWatermark, Lag int64

	// LastStable is the last stable offset as of the last fetch. If it is below HighWatermark, a
	// Kafka transaction that is still open holds back the records between them.
	LastStable int64

	// WaitingSince is when this process first found that it had read everything below LastStable
	// while an open Kafka transaction holds back the records above it; see docs/operations.md,
	// "When a partition waits for a transaction". Zero if the partition does not wait for one.
	WaitingSince time.Time

	// BlockedBy is the message that holds up Position although later ones are done. Nil if no
	// message does; always nil if Config.Concurrency is 1.
	BlockedBy *BlockedBy

	// LastBatch is when this process last committed a transaction of messages from the log. Zero if
	// it has committed none since it took over.
	LastBatch   time.Time
	InFlight    int  // messages in current transactions
	Retrying    bool // a parked message is being retried right now
	Paused      bool
	Halted      *HaltError // why the partition is halted, nil if it is not
	HaltedSince time.Time  // when this process first found the halt; zero if Halted is nil
	// Failing is the error of an attempt or a query that is being retried, or nil, and FailingSince
	// is when that began. A parked message that is retried does not count.
	Failing      error
	FailingSince time.Time

	Waiting, ToRetry, Blocked int // parked messages in the states waiting, retrying and blocked

	// Delivered means that a share group delivers messages of the partition to this process, which
	// does not own it. The owner has a status of its own. Epoch, HighWatermark, Lag, LastStable and
	// the counts of parked messages are 0 here.
	Delivered bool
}

// BlockedBy is a message that holds up the position of its partition although later messages are
// done: it is slow, is retried, or waits for such a message of its ordering key.
type BlockedBy struct {
	Offset int64
	Key    string    // hash of its ordering key, in hexadecimal; empty if it has none
	Since  time.Time // when this process first found it there
	Done   int       // messages that are done above it
}

// partitionState is what Status reads while the partition's goroutines write.
type partitionState struct {
	topic     string
	partition int32
	shard     string
	delivered bool // PartitionStatus.Delivered

	epoch, position, highWatermark, lastStable, inFlight, inRetry atomic.Int64
	paused                                                        atomic.Bool
	lastLogEnd                                                    atomic.Pointer[logEnd]
	stall                                                         atomic.Pointer[stall]
	halted                                                        atomic.Pointer[HaltError]
	haltedSince, lastBatch                                        atomic.Pointer[time.Time]
	blockedBy                                                     atomic.Pointer[BlockedBy]

	mu            sync.Mutex
	reachTrouble  trouble // reading the cursor or the log
	logTrouble    trouble // applying a batch
	parkedTrouble trouble // of the retrier
}

// setHalted records a halt.
func (s *partitionState) setHalted(h *HaltError) {
	now := time.Now()
	if before := s.halted.Swap(h); before == nil || before.Reason != h.Reason {
		s.haltedSince.Store(&now)
	}
}

// batchCommitted records a batch that has committed.
func (s *partitionState) batchCommitted() {
	now := time.Now()
	s.lastBatch.Store(&now)
	s.clearPassedHalt()
	s.clearTrouble(&s.logTrouble)
}

// slotCommitted records a transaction that has committed beside others. It clears the trouble of
// the slot that has had some, and of no other.
func (s *partitionState) slotCommitted(troubled bool) {
	now := time.Now()
	s.lastBatch.Store(&now)
	if troubled {
		s.clearTrouble(&s.logTrouble)
	}
}

// clearPassedHalt clears the halt if the position has changed since.
func (s *partitionState) clearPassedHalt() {
	if h := s.halted.Load(); h != nil && s.position.Load() != h.Position {
		s.halted.CompareAndSwap(h, nil)
	}
}

// fetchReturned records the result of a fetch. A partition that reads its log again is no longer
// halted, except if it halted because of a message, which it has yet to read.
func (s *partitionState) fetchReturned(found logEnd, stable int64) {
	s.highWatermark.Store(found.end)
	s.lastStable.Store(stable)
	s.lastLogEnd.Store(&found)
	s.clearTrouble(&s.reachTrouble)
	if h := s.halted.Load(); h != nil && h.Reason != HaltBlocked && h.Reason != HaltEverythingFails {
		s.halted.CompareAndSwap(h, nil)
	}
}

// snapshot returns the partition's status, without the counts of parked messages.
func (s *partitionState) snapshot() PartitionStatus {
	p := PartitionStatus{Topic: s.topic, Partition: s.partition, Shard: s.shard, Epoch: s.epoch.Load(), Position: s.position.Load(),
		HighWatermark: s.highWatermark.Load(), LastStable: s.lastStable.Load(), InFlight: int(s.inFlight.Load()), Retrying: s.inRetry.Load() > 0,
		Paused: s.paused.Load(), Halted: s.halted.Load(), BlockedBy: s.blockedBy.Load(), Delivered: s.delivered}
	p.Lag = max(p.HighWatermark-p.Position, 0)
	if w := s.stall.Load(); w != nil {
		p.WaitingSince = w.since
	}
	if at := s.lastBatch.Load(); at != nil {
		p.LastBatch = *at
	}
	if since := s.haltedSince.Load(); since != nil && p.Halted != nil {
		p.HaltedSince = *since
	}
	t := s.oldestTrouble()
	p.Failing, p.FailingSince = t.err, t.since
	return p
}

// ownedPartitions are the partitions that this process owns, and those from which messages are
// delivered to it.
type ownedPartitions struct {
	mu  sync.Mutex
	all map[*partitionState]struct{}
}

func (p *ownedPartitions) add() *partitionState {
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

func (p *ownedPartitions) remove(s *partitionState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, s)
}

// setName sets the partition and its shard, once they are known.
func (p *ownedPartitions) setName(s *partitionState, id source.Identity, shard string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.topic, s.partition, s.shard = id.Topic, id.Partition, shard
}

// setDelivered marks a partition from which a share group delivers messages to this process.
func (p *ownedPartitions) setDelivered(s *partitionState, topic string, partition int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.topic, s.partition, s.delivered = topic, partition, true
}

// partitionPlace is a partition in a database.
type partitionPlace struct {
	shard, topic string
	partition    int32
}

// countParked adds the numbers of parked messages in this database to counts, by state.
func (c *Consumer) countParked(ctx context.Context, counts map[partitionPlace][3]int) error {
	rows, err := c.pool.Query(ctx, parkedCountSQL, c.cfg.Scope)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		at, n := partitionPlace{shard: c.shard}, [3]int{}
		if err := rows.Scan(&at.topic, &at.partition, &n[0], &n[1], &n[2]); err != nil {
			return err
		}
		counts[at] = n
	}
	return rows.Err()
}

// Status returns the status of each partition that this process owns, ordered by topic and
// partition, and of each from which a share group has delivered messages to it. It may be called at
// any time. It counts parked messages with one query; positions and lag are as of the last batch
// and the last fetch. With a [shard.Set] it queries each database, and fails if one does not
// answer.
func (c *Consumer) Status(ctx context.Context) ([]PartitionStatus, error) {
	counts := map[partitionPlace][3]int{}
	for _, d := range c.databases() {
		if err := d.countParked(ctx, counts); err != nil {
			return nil, fmt.Errorf("consumer: %s: counting parked messages: %w", d.describeDatabase(), err)
		}
	}
	all := c.partitions.snapshot()
	for i := range all {
		if all[i].Delivered {
			continue
		}
		n := counts[partitionPlace{all[i].Shard, all[i].Topic, all[i].Partition}]
		all[i].Waiting, all[i].ToRetry, all[i].Blocked = n[0], n[1], n[2]
	}
	return all, nil
}

// snapshot returns what this process knows without a query.
func (p *ownedPartitions) snapshot() (all []PartitionStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.all {
		if s.topic != "" {
			all = append(all, s.snapshot())
		}
	}
	slices.SortFunc(all, func(a, b PartitionStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), compareBool(a.Delivered, b.Delivered))
	})
	return all
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
