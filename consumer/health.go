package consumer

import (
	"errors"
	"fmt"
	"time"
)

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

func older(a, b trouble) trouble {
	if a.err == nil || b.err != nil && b.since.Before(a.since) {
		return b
	}
	return a
}

// answerPatience is how long a server may take to answer before that is a fault.
func (c *Consumer) answerPatience() time.Duration {
	return c.cfg.Timeouts.Lock + c.cfg.Timeouts.Statement
}

// unhealthy returns the reason for each partition that is halted, for each that has retried the
// same work for longer than a server needs to answer, and for a group that is not joined.
func (c *Consumer) unhealthy() (faults []error) {
	c.partitions.mu.Lock()
	defer c.partitions.mu.Unlock()
	for s := range c.partitions.all {
		if h := s.halted.Load(); h != nil {
			faults = append(faults, fmt.Errorf("consumer: %w", h))
		} else if t := s.oldestTrouble(); t.err != nil && time.Since(t.since) > c.answerPatience() {
			faults = append(faults, fmt.Errorf("consumer: partition %s/%d has failed since %s: %w", s.topic, s.partition, t.since.UTC().Format(time.RFC3339), t.err))
		}
	}
	if p := c.databases()[0].poller; c.begun.Err() == nil {
		if err := p.group.Failing(c.answerPatience()); err != nil {
			faults = append(faults, fmt.Errorf("consumer: %w", err))
		}
	}
	return faults
}

// Healthy returns an error that joins all reasons why messages are not being handled:
//
//   - a partition that is halted (a *[HaltError]);
//   - a partition that has failed at the same work for longer than Timeouts.Lock plus
//     Timeouts.Statement, for example because the server does not answer or a message is being
//     retried;
//   - a process that has not been a member of its group for that long;
//   - a handler that does not return.
//
// Use it for alerts and status pages. Do not use it as a liveness probe: a restart repairs only the
// fault that [Consumer.Live] returns.
func (c *Consumer) Healthy() error {
	return errors.Join(append(c.unhealthy(), c.Live())...)
}

// Ready is for a readiness probe. It returns nil while Run works: it has checked the database, and
// the source has joined its group. Halted partitions do not matter, and a process without
// partitions is ready too. Before that, and once Run's context has ended, it returns an error.
//
// A source of your own takes part if it has a method Ready() error; see [Source].
func (c *Consumer) Ready() error {
	err := c.begun.Err()
	if s, ok := c.source.(interface{ Ready() error }); ok && err == nil {
		err = s.Ready()
	}
	if err != nil {
		return fmt.Errorf("consumer: not ready: %w", err)
	}
	return nil
}

// Live is for a liveness probe. It returns an error that wraps [ErrHandlerHung] while an abandoned
// handler is still running. The handler's goroutine is lost, and only a restart frees it.
func (c *Consumer) Live() error {
	if n := c.stuck.Load(); n > 0 {
		return fmt.Errorf("consumer: %w: %d of them did not return within %v of the end of their context", ErrHandlerHung, n, c.cfg.HangTimeout)
	}
	return nil
}
