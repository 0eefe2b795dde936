package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// queryTimeout bounds queries to other shards and those at the start, so that a server that does
// not answer is reported, and asked again.
const queryTimeout = 10 * time.Second

// These are the bounds of all that the consumer asks of a database. A server may be gone without
// notice: for example, its host has lost power, or a firewall has dropped the connection. TCP finds
// out after minutes or hours. Without a bound the partition would wait for as long, while
// heartbeats to Kafka continue, so that no other process takes over. A handler's statements are
// bounded by the handler's context, see (*engine).run. All bounds follow from Config, so that a
// test with a silent server takes no longer than it configures.

// bounded is for the engine's own statements: those outside of a transaction, and those in a
// transaction before the handler. If the server is alive, it ends them earlier, by LockTimeout and
// StatementTimeout.
func (c *Consumer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.LockTimeout+c.cfg.StatementTimeout)
}

// detached is for writes that are needed although the work has ended.
func (c *Consumer) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.cfg.LockTimeout)
}

// boundedQuery is for queries to other shards.
func (c *Consumer) boundedQuery(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(queryTimeout, c.cfg.LockTimeout+c.cfg.StatementTimeout))
}

// commit and rollback end a transaction, detached from any request (T5).
func (c *Consumer) commit(tx *guard.Tx) error { return tx.Commit(c.cfg.CommitTimeout) }
func (c *Consumer) rollback(tx *guard.Tx)     { tx.Rollback(c.cfg.CommitTimeout) }

// trouble is the error because of which a goroutine of a partition tries again, and since when.
type trouble struct {
	err   error
	since time.Time
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

// clearTrouble clears what failing has recorded.
func (s *partitionState) clearTrouble(of *trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of = trouble{}
}

// oldestTrouble returns the oldest trouble.
func (s *partitionState) oldestTrouble() trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first trouble
	for _, t := range []trouble{s.reachTrouble, s.logTrouble, s.parkedTrouble} {
		if t.err != nil && (first.err == nil || t.since.Before(first.since)) {
			first = t
		}
	}
	return first
}

// unhealthyPartitions returns the reason for each partition that is halted, and for each that has
// retried the same work for longer than a server needs to answer.
func (c *Consumer) unhealthyPartitions() (faults []error) {
	c.partitions.mu.Lock()
	defer c.partitions.mu.Unlock()
	for s := range c.partitions.all {
		if h := s.halted.Load(); h != nil {
			faults = append(faults, fmt.Errorf("consumer: %w", h))
		} else if t := s.oldestTrouble(); t.err != nil && time.Since(t.since) > c.cfg.LockTimeout+c.cfg.StatementTimeout {
			faults = append(faults, fmt.Errorf("consumer: partition %s/%d has failed since %s: %w", s.topic, s.partition, t.since.UTC().Format(time.RFC3339), t.err))
		}
	}
	return faults
}
