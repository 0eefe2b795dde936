package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// parkedCountSQL counts parked messages that are not settled. In: scope. Out: one row for each
// topic and partition, with the number in each state. It uses the partial index parked_position.
const parkedCountSQL = `
select topic,
       partition,
       count(*) filter (where state = 'waiting'),
       count(*) filter (where state = 'retrying'),
       count(*) filter (where state = 'blocked')
  from onlyonce.parked where scope = $1 and settled_at is null and kind <> 'call' group by topic, partition`

// unhealthy returns the reason for each partition that is halted, for each that has retried the
// same work for longer than a server needs to answer, and for a group that is not joined.
func (c *Consumer) unhealthy() (faults []error) {
	c.partitions.mu.Lock()
	defer c.partitions.mu.Unlock()
	for s := range c.partitions.all {
		if h := s.halted.Load(); h != nil {
			faults = append(faults, fmt.Errorf("consumer: %w", h))
		} else if t := s.oldestTrouble(); t.err != nil && time.Since(t.since) > c.answerPatience() {
			faults = append(
				faults,
				fmt.Errorf("consumer: partition %s/%d has failed since %s: %w",
					s.topic, s.partition, t.since.UTC().Format(time.RFC3339), t.err),
			)
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
// A source of your own takes part if it implements [SourceReady].
func (c *Consumer) Ready() error {
	err := c.begun.Err()
	if s, ok := c.source.(SourceReady); ok && err == nil {
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
		return fmt.Errorf("consumer: %w: %d of them did not return within %v of the end of their context",
			ErrHandlerHung, n, c.cfg.HangTimeout)
	}
	return nil
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
		at := partitionPlace{shard: c.shard}
		n := [3]int{}
		if err := rows.Scan(&at.topic, &at.partition, &n[0], &n[1], &n[2]); err != nil {
			return err
		}
		counts[at] = n
	}
	return rows.Err()
}

// Status returns the status of each partition that this process owns, ordered by topic and
// partition. It may be called at any time. It counts parked messages with one query; positions and
// lag are as of the last batch and the last fetch. With a [shard.Set] it queries each database, and
// fails if one does not answer.
func (c *Consumer) Status(ctx context.Context) ([]PartitionStatus, error) {
	counts := map[partitionPlace][3]int{}
	for _, d := range c.databases() {
		if err := d.countParked(ctx, counts); err != nil {
			return nil, fmt.Errorf("consumer: %s: counting parked messages: %w", d.describeDatabase(), err)
		}
	}
	all := c.partitions.snapshot()
	for i := range all {
		n := counts[partitionPlace{all[i].Shard, all[i].Topic, all[i].Partition}]
		all[i].Waiting = n[0]
		all[i].ToRetry = n[1]
		all[i].Blocked = n[2]
	}
	return all, nil
}
