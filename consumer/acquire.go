package consumer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	cursors "github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// metadataPrefix begins the metadata of every offset that a consumer commits to Kafka, so that a
// consumer can recognize its own offsets.
const metadataPrefix = "onlyonce/1 "

// haltRecheck is how often a halted partition checks whether an operator has resolved the halt.
const haltRecheck = 3 * time.Second

// ownPartition works on a partition, from the time the source hands it over until it is given up.
func (c *Consumer) ownPartition(ctx context.Context, p Partition) (err error) {
	w := &worker{engine: engine{c: c, state: c.partitions.add(), brake: &brake{cfg: c.cfg.Brake}}, p: p}
	defer func() {
		w.stopHandlers()
		w.releaseCursor()
		c.partitions.remove(w.state)
		if c.cfg.Hooks.Released != nil && w.cur != nil {
			c.cfg.Hooks.Released(Released{Topic: w.id.Topic, Partition: w.id.Partition, Position: w.pos, Err: err})
		}
	}()
	retry := newBackoff(c.cfg)
	for {
		from := w.pos
		err := fault.Point(fault.Joined)
		if err == nil {
			err = w.acquire(ctx)
		}
		if err == nil {
			w.state.clearPassedHalt()
			err = w.workOnLog(ctx)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the partition is given up, whatever the work ended with
		}
		if w.pos != from {
			retry.Reset()
		}
		var halt *HaltError
		wait := haltRecheck
		switch {
		case err == nil || errors.Is(err, errMoved):
			continue
		case errors.Is(err, errPaused):
			if !w.waitForResume(ctx) {
				return nil
			}
			w.brake.release()
			continue
		case errors.Is(err, ErrOwnershipLost):
			return err
		case errors.As(err, &halt):
			w.reportHalt(ctx, halt)
			if halt.Reason == HaltEverythingFails {
				if err := w.waitForProbe(ctx); errors.Is(err, errMoved) {
					w.brake.release() // an operator has set the position
				}
				wait = 0 // the next run finds a pause
			}
		default:
			w.state.setTrouble(&w.state.reachTrouble, err)
			wait = w.reportRetry(Retry{Offset: w.pos, Err: err}, retry)
		}
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// logHaltEvery is how often an unchanged halt is logged. Hooks.Halted is called each time.
const logHaltEvery = 5 * time.Minute

// loggedHalt identifies a halt that was logged.
type loggedHalt struct {
	reason   HaltReason
	detail   string
	position int64
}

// reportHalt logs that a partition is halted, and for how long it can stay so without loss.
func (w *worker) reportHalt(ctx context.Context, halt *HaltError) {
	if until, err := w.p.Retained(ctx, halt.Position); err == nil {
		halt.RetainedUntil = until
	}
	w.state.setHalted(halt)
	w.c.poller.pollSoon()
	cfg := &w.c.cfg
	if now := (loggedHalt{halt.Reason, halt.Detail, halt.Position}); now != w.lastHalt || time.Since(w.lastHaltAt) >= logHaltEvery {
		w.lastHalt, w.lastHaltAt = now, time.Now()
		cfg.Logger.Error("onlyonce: partition halted", halt.attributes()...)
	}
	if cfg.Hooks.Halted != nil {
		// A copy, because the hook may keep and change it while others read the partition's state.
		own := *halt
		cfg.Hooks.Halted(&own)
	}
}

// acquire makes this process the owner of the partition's cursor, in the order that the protocol
// requires: it reads the row, proves membership after that read, and raises the epoch that it read.
// If a member of an older generation is delayed between proof and raise, its raise fails on the
// epoch. If its proof comes later, it fails on the proof.
func (w *worker) acquire(ctx context.Context) error {
	id, err := w.p.Identity(ctx)
	if err != nil {
		return fmt.Errorf("identity of the topic: %w", err)
	}
	if w.id.TopicID != id.TopicID {
		w.redoUntil = 0 // it holds offsets of another topic
	}
	w.id = id
	// The first time: a partition stays in its shard until it is given up.
	if w.c.shard == "" {
		shard, err := w.c.shardOf(id.Topic, id.Partition)
		if err != nil {
			w.c.partitions.setName(w.state, id, "")
			return w.haltError(HaltNoShard, "%v", err)
		}
		if shard != w.c { // before the worker is visible to anything else of this process
			w.c = shard
		}
	}
	w.c.partitions.setName(w.state, id, w.c.shard)
	if err := w.joinScope(ctx); err != nil {
		return err
	}
	first, err := w.c.firstPartitions(ctx, id)
	if err != nil {
		return err
	}
	for range 10 {
		cur, err := w.c.readCursor(ctx, id.Topic, id.Partition)
		if err != nil {
			return err
		}
		if cur == nil {
			elsewhere, err := w.checkOtherShards(ctx, nil)
			if err != nil {
				return err
			}
			if elsewhere > 0 {
				first = min(first, elsewhere)
			}
			if err := w.decideStart(ctx, first); err != nil {
				return err
			}
			if err := fault.Point(fault.StartDecided); err != nil {
				return err
			}
			continue
		}
		if w.cur != nil && cur.nonce != w.cur.nonce && cur.run == w.cur.run && !cur.retired {
			// This process has raised the epoch in this generation, and another process has raised
			// it since; it was not an operator. A process raises at most once in a generation.
			// Otherwise two processes that both believe they own the partition would take turns for
			// ever.
			return fmt.Errorf("%w: cursor %d has epoch %d", ErrOwnershipLost, cur.id, cur.epoch)
		}
		mine := w.cur != nil && cur.nonce == w.cur.nonce
		if was := w.pos; mine && was > cur.position { // the database has lost confirmed commits
			w.redoUntil = max(w.redoUntil, was) // in memory first: the write may fail, and the next look finds the position set back
		}
		w.setPosition(cur.position, cur.anchor, cur.leaderEpoch)
		if err := w.checkCursor(cur); err != nil {
			return err
		}
		if _, err := w.checkOtherShards(ctx, cur); err != nil {
			return err
		}
		w.redoUntil = max(w.redoUntil, cur.redoOffset(w.id.TopicID))
		if mine {
			if err := w.recordRedo(ctx, cur, w.redoUntil); err != nil {
				return err
			}
			w.cur = cur
		} else {
			if err := w.compareGroupOffset(ctx, cur); err != nil {
				return err
			}
			if raised, err := w.takeOver(ctx, cur); err != nil {
				return err
			} else if !raised {
				continue
			}
		}
		return w.verifyLog(ctx)
	}
	return fmt.Errorf("%w: somebody else raises the epoch of %s/%d again and again", ErrOwnershipLost, id.Topic, id.Partition)
}

// firstPartitionsSQL records how many partitions a topic has when a scope reads it for the first
// time. In: scope, topic, partitions. Out: one row with the number that was recorded first.
const firstPartitionsSQL = `
with noted as (
  insert into onlyonce.topics (scope, topic, partitions) values ($1, $2, $3) on conflict do nothing returning partitions)
select partitions from noted union all select partitions from onlyonce.topics where scope = $1 and topic = $2 limit 1`

// firstPartitions returns how many partitions the topic had when this scope began to read it, or 0
// if that is not known. Partitions above that number were added later.
func (c *Consumer) firstPartitions(ctx context.Context, id Identity) (int32, error) {
	if id.Partitions <= 0 {
		return 0, nil
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	var was int32
	err := c.pool.QueryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	// Another process has inserted it after this statement's snapshot.
	if errors.Is(err, pgx.ErrNoRows) {
		err = c.pool.QueryRow(ctx, firstPartitionsSQL, c.cfg.Scope, id.Topic, id.Partitions).Scan(&was)
	}
	if err != nil {
		return 0, fmt.Errorf("noting the partitions of %s: %w", id.Topic, err)
	}
	if id.Partitions <= was {
		return was, nil
	}
	// Once for each number.
	if told, _ := c.reportedPartitions.Swap(id.Topic, id.Partitions); told != id.Partitions {
		c.cfg.Logger.Warn("onlyonce: topic has more partitions than when this scope began to read it: order by key holds for each number of partitions by itself",
			"scope", c.cfg.Scope, "topic", id.Topic, "was", was, "is", id.Partitions)
		if c.cfg.Hooks.Repartitioned != nil {
			c.cfg.Hooks.Repartitioned(Repartitioned{Topic: id.Topic, Was: was, Is: id.Partitions})
		}
	}
	return was, nil
}

// recordRedo records that messages between the position and an offset ahead of it were handled
// before: in a history that the database has lost, or before an operator set the position back.
// Calls of these messages may have been made (O6). The record is in the database, because the next
// owner must know it too, and the raise that follows overwrites the group's offset in Kafka, which
// shows it.
func (w *worker) recordRedo(ctx context.Context, cur *cursor, offset int64) error {
	if offset <= w.pos {
		return nil
	}
	w.redoUntil = max(w.redoUntil, offset)
	if cur.redoOffset(w.id.TopicID) >= offset {
		return nil
	}
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	if _, err := w.c.pool.Exec(ctx, cursors.RedoSQL, cur.id, offset, uuidOrNull(w.id.TopicID)); err != nil {
		return fmt.Errorf("noting which messages are handled again: %w", err)
	}
	return nil
}

// compareGroupOffset compares the group's offset with the position. If it is the consumer's own and
// ahead, it shows what the database has lost. If another program has written it, compareGroupOffset
// reports that. It moves nothing: the database counts.
func (w *worker) compareGroupOffset(ctx context.Context, cur *cursor) error {
	offset, metadata, err := w.p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", w.id.Topic, w.id.Partition, err)
	}
	if offset < 0 || offset == w.pos {
		return nil
	}
	if strings.HasPrefix(metadata, metadataPrefix) {
		return w.recordRedo(ctx, cur, offset)
	}
	w.c.cfg.Logger.Warn("onlyonce: an offset that somebody else committed to Kafka is ignored; to handle messages again use `onlyonce replay`",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "offset", offset, "position", w.pos)
	if w.c.cfg.Hooks.OffsetIgnored != nil {
		w.c.cfg.Hooks.OffsetIgnored(OffsetIgnored{Topic: w.id.Topic, Partition: w.id.Partition, Offset: offset, Metadata: metadata, Position: w.pos})
	}
	return nil
}

// decideStart writes where a partition starts, and only then commits to Kafka. first is how many
// partitions the topic had when this scope began to read it. A partition that was added later
// starts at its beginning, because nothing in it is older than the decision to read from the end.
//
// If Kafka has an offset of this consumer's, but the database has no row, the database has lost its
// history: for example by a failover or a restore, or because it is another database. To continue
// from that offset would skip what was lost.
func (w *worker) decideStart(ctx context.Context, first int32) error {
	c, p, id := w.c, w.p, w.id
	offset, metadata, err := p.Committed(ctx)
	if err != nil {
		return fmt.Errorf("committed offset of %s/%d: %w", id.Topic, id.Partition, err)
	}
	if strings.HasPrefix(metadata, metadataPrefix) {
		return &HaltError{Scope: c.cfg.Scope, Group: c.source.Group(), Topic: id.Topic, Partition: id.Partition, Position: offset, Reason: HaltHistoryLost, Shard: c.shard,
			Detail: fmt.Sprintf("group %q has committed offset %d with metadata %q, but this database has no cursor: is it another database, an older copy, or was the scope renamed?",
				c.source.Group(), offset, metadata)}
	}
	log, err := p.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of %s/%d: %w", id.Topic, id.Partition, err)
	}
	policy := "committed"
	if offset < 0 {
		policy, offset = "earliest", log.Start
		if c.cfg.Start == StartLatest && id.Partition < first {
			policy, offset = "latest", log.End
		}
	}
	bounded, cancel := c.bounded(ctx)
	defer cancel()
	_, err = c.pool.Exec(bounded, cursors.CreateSQL, c.cfg.Scope, id.Topic, id.Partition, c.source.Group(), id.ClusterID,
		uuidOrNull(id.TopicID), offset, policy, epochOrNull(log.LeaderEpoch))
	if err != nil {
		return fmt.Errorf("deciding the start of %s/%d: %w", id.Topic, id.Partition, err)
	}
	return nil
}

// checkCursor refuses a cursor that belongs to another group or cluster, or to another topic of the
// same name.
func (w *worker) checkCursor(cur *cursor) error {
	id, group := w.id, w.c.source.Group()
	switch {
	case cur.retired:
		return w.haltError(HaltRetired, "an operator retired the cursor")
	case cur.groupID != nil && *cur.groupID != group:
		return w.haltError(HaltForeignGroup, "the cursor belongs to group %q, and this is group %q", *cur.groupID, group)
	case cur.clusterID != nil && *cur.clusterID != id.ClusterID:
		return w.haltError(HaltForeignCluster, "the cursor belongs to cluster %q, and this is cluster %q", *cur.clusterID, id.ClusterID)
	case cur.topicID.Valid && id.TopicID != [16]byte{} && cur.topicID.Bytes != id.TopicID:
		return w.haltError(HaltNewTopic, "the topic was deleted and created again: its id was %x and is %x", cur.topicID.Bytes, id.TopicID)
	}
	return nil
}

// takeOver proves membership and takes over the cursor. It returns false if another process was
// faster.
func (w *worker) takeOver(ctx context.Context, seen *cursor) (bool, error) {
	if err := fault.Point(fault.CursorRead); err != nil {
		return false, err
	}
	if err := w.p.Commit(ctx, w.pos, w.offsetMetadata(w.pos)); err != nil {
		return false, fmt.Errorf("proving membership: %w", err)
	}
	if err := fault.Point(fault.Proved); err != nil {
		return false, err
	}
	nonce := newNonce()
	var epoch *int64
	bounded, cancel := w.c.bounded(ctx)
	defer cancel()
	err := w.c.pool.QueryRow(bounded, takeCursorSQL, seen.id, seen.epoch, nonce, w.c.source.Group(), w.id.ClusterID,
		uuidOrNull(w.id.TopicID), guard.Millis(w.c.cfg.LockTimeout)).Scan(&epoch)
	if err != nil {
		return false, fmt.Errorf("taking over cursor %d: %w", seen.id, err)
	}
	if epoch == nil {
		return false, nil
	}
	if err := fault.Point(fault.Raised); err != nil {
		return false, err
	}
	// The raise has waited for the old owner's last batch. Only a read after it returns the right
	// position.
	cur, err := w.c.readCursor(ctx, w.id.Topic, w.id.Partition)
	if err != nil {
		return false, err
	}
	if cur == nil || cur.nonce != nonce {
		return false, nil
	}
	w.cur = cur
	w.setPosition(cur.position, cur.anchor, cur.leaderEpoch)
	w.state.epoch.Store(*epoch)
	w.aloneUntil, w.unclean = 0, !seen.clean
	if !seen.clean {
		w.aloneUntil = w.pos + int64(w.c.cfg.BatchSize)
	} else if s := cur.suspectOffset; s != nil && *s >= w.pos && *s < w.pos+int64(w.c.cfg.BatchSize) {
		// It may have killed a process, and then halted the next owner, which released it cleanly.
		w.aloneUntil = *s + 1
	}
	if w.c.cfg.Hooks.Owned != nil {
		w.c.cfg.Hooks.Owned(Owned{Topic: w.id.Topic, Partition: w.id.Partition, Position: w.pos, Epoch: *epoch, Clean: seen.clean})
	}
	return true, nil
}

// verifyLog compares the log with what was read from it last time (F5). It must still hold the next
// offset, the last record that was seen below it must be the same, and nothing below it may have
// been cut off. The last record alone does not prove that. Between it and the position there may be
// records that were looked at and passed to no handler, for example transaction markers or aborted
// records. The leader epoch covers those. If the log begins too late, the first fetch finds that.
func (w *worker) verifyLog(ctx context.Context) error {
	log, err := w.p.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of %s/%d: %w", w.id.Topic, w.id.Partition, err)
	}
	w.state.highWatermark.Store(log.End)
	w.state.lastStable.Store(log.End)
	if w.pos > log.End {
		return w.haltError(HaltTruncated, "the log ends at offset %d", log.End)
	}
	w.logHeldPos = w.logHeldPos || log.Start <= w.pos
	// Otherwise there is no record left to compare.
	if w.anchor != nil && w.anchor.offset >= log.Start {
		if err := w.verifyAnchor(ctx); err != nil {
			return err
		}
	}
	// Last, because fetches that continue from here repeat the check if the leader changes.
	var cut *OutOfRangeError
	if err := w.p.Verify(ctx, w.pos, w.leaderEpoch); errors.As(err, &cut) {
		return w.haltError(HaltTruncated, "the log was cut off at offset %d and written anew: leader epoch %d, up to which it was read, ends there", cut.End, w.leaderEpoch)
	} else if err != nil {
		return fmt.Errorf("comparing the log with what was read below the position: %w", err)
	}
	return nil
}

// verifyAnchor compares the last record that was seen with the one at its offset now.
func (w *worker) verifyAnchor(ctx context.Context) error {
	if err := fault.Point(fault.LogVerified); err != nil {
		return err
	}
	f, err := w.p.Fetch(ctx, w.anchor.offset, 1)
	var out *OutOfRangeError
	switch {
	case errors.As(err, &out) && out.Offset < out.Start:
		return nil // deleted by retention since the log's start was read: no sign of another log
	case errors.As(err, &out):
		return w.haltError(HaltTruncated, "the log ends at offset %d", out.End)
	case err != nil:
		return fmt.Errorf("reading the record before the position: %w", err)
	case w.id.Compacted && w.id.TopicID != [16]byte{} && (len(f.Messages) == 0 || f.Messages[0].Offset > w.anchor.offset):
		// Compaction has removed it, as far as can be known: the topic's id has to suffice.
		return nil
	case len(f.Messages) == 0 || f.Messages[0].Offset != w.anchor.offset || !w.anchor.matches(f.Messages[0]):
		return w.haltError(HaltTruncated, "the record at offset %d is not the one that was read there: the log was truncated and written anew", w.anchor.offset)
	}
	return nil
}

func (w *worker) haltError(reason HaltReason, detail string, args ...any) *HaltError {
	return w.haltErrorAt(w.pos, reason, detail, args...)
}

func (e *engine) haltErrorAt(pos int64, reason HaltReason, detail string, args ...any) *HaltError {
	if e.cur != nil && e.cur.replayUntil != nil {
		detail += "; a replay is under way up to offset %d, which interrupted the work at offset %d"
		args = append(args, *e.cur.replayUntil, e.cur.replayResume)
	}
	return &HaltError{Scope: e.c.cfg.Scope, Group: e.c.source.Group(), Topic: e.id.Topic, Partition: e.id.Partition, Position: pos,
		Reason: reason, Detail: fmt.Sprintf(detail, args...), Shard: e.c.shard}
}

// offsetMetadata returns the text that goes with an offset committed to Kafka.
func (w *worker) offsetMetadata(offset int64) string {
	return fmt.Sprintf("%s%s %d", metadataPrefix, url.PathEscape(w.c.cfg.Scope), offset)
}
