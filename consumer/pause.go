package consumer

import (
	"context"
	"errors"
	"fmt"
)

// errPaused says that somebody paused the partition.
var errPaused = errors.New("paused")

// pauseSQL and resumeSQL write and remove a pause. In: scope, topic (empty for the whole scope), partition (-1), and a reason. A
// pause that is there already keeps its reason.
const (
	pauseSQL  = `insert into onlyonce.pauses (scope, topic, partition, reason) values ($1, $2, $3, $4) on conflict do nothing`
	resumeSQL = `delete from onlyonce.pauses where scope = $1 and topic = $2 and partition = $3`
	pausedSQL = `select exists (select 1 from onlyonce.pauses where scope = $1 and (topic = '' or topic = $2 and partition = $3))`
)

// Pause stops the work on one partition, in whichever process it is, until somebody resumes it; it outlasts restarts. The
// owner notices within a second or two, finishes its batch, and keeps the partition. An empty topic means everything in this
// consumer's scope; partition is then ignored. `onlyonce cursor pause` does the same.
func (c *Consumer) Pause(ctx context.Context, topic string, partition int32, reason string) error {
	if reason == "" {
		return fmt.Errorf("%w: Pause: reason must not be empty: whoever finds the consumer standing still will want to know", ErrConfig)
	}
	if topic == "" {
		partition = -1
	}
	if _, err := c.pool.Exec(ctx, pauseSQL, c.cfg.Scope, topic, partition, reason); err != nil {
		return fmt.Errorf("consumer: pausing: %w", err)
	}
	return nil
}

// Resume ends a pause with the same topic and partition. A pause of the whole scope holds until it is ended itself.
func (c *Consumer) Resume(ctx context.Context, topic string, partition int32) error {
	if topic == "" {
		partition = -1
	}
	if _, err := c.pool.Exec(ctx, resumeSQL, c.cfg.Scope, topic, partition); err != nil {
		return fmt.Errorf("consumer: resuming: %w", err)
	}
	return nil
}

// untilResumed waits, and reports false when ctx ended first. A database that does not answer counts as still paused.
func (w *worker) untilResumed(ctx context.Context) bool {
	w.state.paused.Store(true)
	defer w.state.paused.Store(false)
	w.c.cfg.Logger.Info("onlyonce: partition paused", "scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "position", w.pos)
	if w.c.cfg.Hooks.Paused != nil {
		w.c.cfg.Hooks.Paused(Paused{Topic: w.id.Topic, Partition: w.id.Partition, Position: w.pos})
	}
	for sleep(ctx, tendEvery) {
		var paused bool
		err := w.c.pool.QueryRow(ctx, pausedSQL, w.c.cfg.Scope, w.id.Topic, w.id.Partition).Scan(&paused)
		if err == nil && !paused {
			return true
		}
	}
	return false
}
