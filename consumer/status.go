package consumer

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onlyonce/onlyonce/consumer/source"
)

// PartitionStatus describes a partition that this process owns.
type PartitionStatus struct {
	source.TopicPartition
	Shard    string // by shard.Config.OfPartition; empty if there is one database
	Epoch    int64  // of this process's ownership; 0 before it has one
	Position int64  // next offset to be handled

	// HighWatermark is the offset after the last record of the log, as of the last fetch. Lag is
	// how far Position is below it.
	HighWatermark, Lag int64

	// LogStart is the first offset of the log, as of the take-over or of the halt.
	LogStart int64

	// LastStable is the last stable offset as of the last fetch. If it is below HighWatermark, a
	// Kafka transaction that is still open holds back the records between them.
	LastStable int64

	// WaitingSince is when this process first found that it had read everything below LastStable
	// while an open Kafka transaction holds back the records above it; see
	// docs/operations/partitions.md, "When a partition waits for a transaction". Zero if the
	// partition does not wait for one.
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

	takenAt int64 // Position when this process took it over
	ignored *ignoredOffset
}

// ignoredOffset is an offset of the group that another program committed to Kafka: found at a
// position, at a time.
type ignoredOffset struct {
	offset, position int64
	at               time.Time
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

	epoch, position, takenAt, logStart, highWatermark, lastStable, inFlight, inRetry atomic.Int64
	paused                                                                           atomic.Bool
	lastLogEnd                                                                       atomic.Pointer[logEnd]
	stall                                                                            atomic.Pointer[stall]
	halted                                                                           atomic.Pointer[HaltError]
	haltedSince, lastBatch                                                           atomic.Pointer[time.Time]
	blockedBy                                                                        atomic.Pointer[BlockedBy]

	ignored atomic.Pointer[ignoredOffset]

	mu            sync.Mutex
	reachTrouble  trouble // reading the cursor or the log
	logTrouble    trouble // applying a batch
	parkedTrouble trouble // of the retrier
}

// logEnd is what a completed fetch shows of the log's end.
type logEnd struct {
	began time.Time // before it was sent
	end   int64     // high watermark
}

// trouble is the error because of which a goroutine of a partition tries again, and since when.
type trouble struct {
	err   error
	since time.Time
}

func older(a, b trouble) trouble {
	if a.err == nil || b.err != nil && b.since.Before(a.since) {
		return b
	}
	return a
}

// stall describes a partition whose next offset is the last stable one, while there are records
// above it. They belong to a transaction that is still open, or were written after it began, and no
// fetch returns them before it ends. A transaction that no producer and no coordinator knows any
// more (a hanging one) ends only when an operator aborts it.
type stall struct {
	offset int64     // the last stable offset
	since  time.Time // when this process first found it there
	logged bool      // it was logged
}

// stallAfter is how long a partition waits for an open Kafka transaction before that is logged.
// Producers end theirs within seconds. If a producer has died, brokers end its transaction after
// its transaction.timeout.ms, a minute by default.
const stallAfter = time.Minute

// after returns the state after a fetch from an offset, which returned at a time. It is nil if the
// partition does not wait, or no longer.
func (s *stall) after(from int64, got fetched, at time.Time) *stall {
	switch {
	case got.Next > from || from != got.LastStable || got.HighWatermark <= from:
		return nil
	case s == nil || s.offset != from:
		return &stall{offset: from, since: at}
	case !s.logged && at.Sub(s.since) >= stallAfter:
		return &stall{s.offset, s.since, true}
	}
	return s
}

// setTrouble records a failure that keeps the partition from continuing.
func (s *partitionState) setTrouble(of *trouble, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.err == nil {
		of.since = time.Now()
	}
	of.err = err
}

// clearTrouble clears what setTrouble has recorded.
func (s *partitionState) clearTrouble(of *trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of = trouble{}
}

// readTroubles returns the trouble of reading, and the older one of applying.
func (s *partitionState) readTroubles() (read, apply trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reachTrouble, older(s.logTrouble, s.parkedTrouble)
}

// oldestTrouble returns the oldest trouble.
func (s *partitionState) oldestTrouble() trouble { return older(s.readTroubles()) }

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

// bounds records where the log begins and ends.
func (s *partitionState) bounds(log source.Bounds) {
	s.logStart.Store(log.Start)
	s.highWatermark.Store(log.End)
}

// snapshot returns the partition's status, without the counts of parked messages.
func (s *partitionState) snapshot() PartitionStatus {
	p := PartitionStatus{TopicPartition: source.TopicPartition{Topic: s.topic, Partition: s.partition}, Shard: s.shard, Epoch: s.epoch.Load(), Position: s.position.Load(),
		LogStart: s.logStart.Load(), HighWatermark: s.highWatermark.Load(), LastStable: s.lastStable.Load(), InFlight: int(s.inFlight.Load()), Retrying: s.inRetry.Load() > 0,
		Paused: s.paused.Load(), Halted: s.halted.Load(), BlockedBy: s.blockedBy.Load(), takenAt: s.takenAt.Load(), ignored: s.ignored.Load()}
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

// ownedPartitions are the partitions that this process owns.
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
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}
