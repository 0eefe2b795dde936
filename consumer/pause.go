package consumer

import (
	"context"
	"errors"
	"fmt"

	cursors "github.com/onlyonce/onlyonce/internal/cursor"
)

// Pause pauses one partition, in any process that owns it and across restarts, until
// [Consumer.Resume]. The owner notices within two seconds, finishes its current batch, and keeps
// the partition. Partition -1 is the whole topic, and an empty topic the whole scope, in each
// shard. `onlyonce cursor pause` does the same.
func (c *Consumer) Pause(ctx context.Context, topic string, partition int32, reason string) error {
	if reason == "" {
		return fmt.Errorf("%w: Pause: reason must not be empty: operators read it", ErrConfig)
	}
	if err := c.execInShards(ctx, topic, partition, cursors.PauseSQL, reason, nil); err != nil {
		return fmt.Errorf("consumer: pausing: %w", err)
	}
	return nil
}

// execInShards runs a statement in the shard that has a partition, or in every shard if a whole
// topic or scope is meant.
func (c *Consumer) execInShards(ctx context.Context, topic string, partition int32, sql string, args ...any) error {
	databases := c.databases()
	if topic == "" {
		partition = -1
	}
	if partition != -1 {
		one, err := c.shardOf(topic, partition)
		if err != nil {
			return err
		}
		databases = []*Consumer{one}
	}
	var faults []error
	for _, d := range databases {
		if _, err := d.pool.Exec(ctx, sql, append([]any{c.cfg.Scope, topic, partition}, args...)...); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", d.describeDatabase(), err))
		}
	}
	return errors.Join(faults...)
}

// Resume ends a pause with the same topic and partition. A pause of a whole topic or scope ends
// only as a whole.
func (c *Consumer) Resume(ctx context.Context, topic string, partition int32) error {
	if err := c.execInShards(ctx, topic, partition, cursors.ResumeSQL); err != nil {
		return fmt.Errorf("consumer: resuming: %w", err)
	}
	return nil
}
