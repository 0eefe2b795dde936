package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// askTimeout bounds what is asked of other shards and at the start, so that a server that does not answer is told of, and asked again.
const askTimeout = 10 * time.Second

// The bounds of everything that the consumer asks of a database lie here: a server may be gone without a word (its host has lost power, a firewall
// has forgotten the connection), and TCP finds out after minutes or hours. Without a bound the partition waits for as long, while heartbeats
// to Kafka go on, so that no other process takes over. What a handler sends is bounded by the handler's context, see (*engine).run. All of
// them follow from Config, so that a test in which a server falls silent takes as long as it says.

// bounded is for the engine's own statements: those outside of a transaction, and those of a transaction that come before the handler.
// The server ends them earlier, if it is there: LockTimeout and StatementTimeout are set there too.
func (c *Consumer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.LockTimeout+c.cfg.StatementTimeout)
}

// detached is for what is written although the work has ended.
func (c *Consumer) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), c.cfg.LockTimeout)
}

// asking is for questions to other shards.
func (c *Consumer) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(askTimeout, c.cfg.LockTimeout+c.cfg.StatementTimeout))
}

// commit and rollback end a transaction, detached from any request (T5).
func (c *Consumer) commit(tx *guard.Tx) error { return tx.Commit(c.cfg.CommitTimeout) }
func (c *Consumer) rollback(tx *guard.Tx)     { tx.Rollback(c.cfg.CommitTimeout) }

// trouble is what a goroutine of a partition tries again for, and since when.
type trouble struct {
	err   error
	since time.Time
}

// failing takes note of a failure that keeps the partition from going on.
func (s *partitionState) failing(of *trouble, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.err == nil {
		of.since = time.Now()
	}
	of.err = err
}

// fine takes back what failing has noted.
func (s *partitionState) fine(of *trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*of = trouble{}
}

// troubled returns what has failed for longest.
func (s *partitionState) troubled() trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first trouble
	for _, t := range []trouble{s.reaching, s.working, s.tending} {
		if t.err != nil && (first.err == nil || t.since.Before(first.since)) {
			first = t
		}
	}
	return first
}

// unwell says of each partition that stands still, and of each that has tried the same again for longer than a server needs for an answer, why.
func (c *Consumer) unwell() (faults []error) {
	c.parts.mu.Lock()
	defer c.parts.mu.Unlock()
	for s := range c.parts.all {
		if h := s.halted.Load(); h != nil {
			faults = append(faults, fmt.Errorf("consumer: %w", h))
		} else if t := s.troubled(); t.err != nil && time.Since(t.since) > c.cfg.LockTimeout+c.cfg.StatementTimeout {
			faults = append(faults, fmt.Errorf("consumer: partition %s/%d has failed since %s: %w", s.topic, s.partition, t.since.UTC().Format(time.RFC3339), t.err))
		}
	}
	return faults
}
