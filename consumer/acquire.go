package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/names"
)

// takeCursorSQL raises the epoch and records the new owner of the cursor. Out: one row with the new
// epoch, or null if another owner was faster. It waits for the old owner's transactions, as long as
// one may last by what that owner has declared (T14).
const takeCursorSQL = `
select onlyonce.take_cursor(
  cursor_id => $1,
  seen_epoch => $2,
  new_nonce => $3,
  group_id => $4,
  cluster_id => $5,
  topic_id => $6,
  longest => $7,
  lock_timeout => $8
)`

// acquire makes this process the owner of the partition's cursor, in the order that the protocol
// requires: it reads the row, proves membership after that read, and raises the epoch that it read.
// If a member of an older generation is delayed between proof and raise, its raise fails on the
// epoch. If its proof comes later, it fails on the proof (F1, F2, F12, C7).
func (w *worker) acquire(ctx context.Context) error {
	if err := w.findPartition(ctx); err != nil {
		return err
	}
	id := w.id
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
			if elsewhere > 0 && (first == 0 || elsewhere < first) {
				first = elsewhere
			}
			if err := w.decideStart(ctx, first); err != nil {
				return err
			}
			continue
		}
		sameRun := w.cur != nil && cur.run == w.cur.run && !cur.retired
		if sameRun && cur.nonce != w.cur.nonce {
			// This process has raised the epoch in this generation, and another process has raised
			// it since; it was not an operator. A process raises at most once in a generation.
			// Otherwise two processes that both believe they own the partition would take turns for
			// ever.
			return fmt.Errorf("%w: cursor %d has epoch %d", source.ErrOwnershipLost, cur.id, cur.epoch)
		}
		mine := w.cur != nil && cur.nonce == w.cur.nonce
		if mine && w.slotted != w.c.needsSlots(cur) {
			w.releaseCursor() // for another epoch: see worker.slotted
			w.cur = nil
			continue
		}
		if was := w.pos; mine && was > cur.position { // the database has lost confirmed commits
			// in memory first: the write may fail, and the next look finds the position set back
			w.redoUntil = max(w.redoUntil, was)
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
			if err := w.readDone(ctx); err != nil {
				return err
			}
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
	return fmt.Errorf("%w: another process keeps raising the epoch of %s/%d",
		source.ErrOwnershipLost, id.Topic, id.Partition)
}

// findPartition finds out which topic the partition belongs to now, and which shard has it.
func (w *worker) findPartition(ctx context.Context) error {
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
	return nil
}

// checkCursor refuses a cursor that belongs to another group or cluster, or to another topic of the
// same name (F2, F4).
func (w *worker) checkCursor(cur *cursor) error {
	id := w.id
	group := w.c.source.Group()
	switch {
	case cur.retired:
		return w.haltError(HaltRetired, "an operator retired the cursor")
	case cur.groupID != nil && *cur.groupID != group:
		return w.haltError(HaltForeignGroup, "the cursor belongs to group %q, and this is group %q",
			*cur.groupID, group)
	case cur.clusterID != nil && *cur.clusterID != id.ClusterID:
		return w.haltError(HaltForeignCluster, "the cursor belongs to cluster %q, and this is cluster %q",
			*cur.clusterID, id.ClusterID)
	case cur.topicID.Valid && id.TopicID != [16]byte{} && cur.topicID.Bytes != id.TopicID:
		return w.haltError(HaltNewTopic, "the topic was deleted and created again: its id was %x and is %x",
			cur.topicID.Bytes, id.TopicID)
	}
	return nil
}

// takeOver proves membership and takes over the cursor. It returns false if another process was
// faster (F2, F9, F15, C3).
func (w *worker) takeOver(ctx context.Context, seen *cursor) (bool, error) {
	if err := fault.Point(fault.CursorRead); err != nil {
		return false, err
	}
	if err := w.p.Commit(ctx, w.pos, names.Mark(w.c.cfg.Scope, w.pos)); err != nil {
		return false, fmt.Errorf("proving membership: %w", err)
	}
	if err := w.checkMarks(ctx, seen); err != nil {
		return false, err
	}
	nonce := newNonce()
	var epoch *int64
	err := w.c.queryRowWithin(
		ctx,
		seen.longest+w.c.answerPatience(),
		takeCursorSQL,
		seen.id,
		seen.epoch,
		nonce,
		w.c.source.Group(),
		w.id.ClusterID,
		uuidOrNull(w.id.TopicID),
		w.c.cfg.longest(),
		guard.Millis(w.c.cfg.Timeouts.Lock),
	).Scan(&epoch)
	if err != nil {
		return false, fmt.Errorf("taking over cursor %d: %w", seen.id, err)
	}
	if epoch == nil {
		return false, nil
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
	w.state.takenAt.Store(w.pos)
	w.state.epoch.Store(*epoch)
	w.slotted = w.c.needsSlots(cur)
	w.acknowledged = nil
	if err := w.readDone(ctx); err != nil {
		return false, err
	}
	w.aloneUntil = 0
	w.aloneLeft = 0
	w.unclean = !seen.clean
	switch { // how many messages the old owner may have worked on
	case w.unclean && w.slotted:
		w.aloneLeft = w.c.cfg.Window
	case w.unclean:
		w.aloneLeft = w.c.cfg.BatchSize
	}
	emit(w.c.cfg.Hooks.Owned, OwnedEvent{
		TopicPartition: w.id.TopicPartition,
		Position:       w.pos,
		Epoch:          *epoch,
		Clean:          seen.clean,
	})
	return true, nil
}

// verifyLog compares the log with what was read from it last time (F5). It must still hold the next
// offset, the last record that was seen below it must be the same, and nothing below it may have
// been cut off. The last record alone does not prove that. Between it and the position there may be
// records that were looked at and passed to no handler, for example transaction markers or aborted
// records. The leader epoch covers those. If the log begins too late, the first fetch finds that
// (C8).
func (w *worker) verifyLog(ctx context.Context) error {
	log, err := w.p.Bounds(ctx)
	if err != nil {
		return fmt.Errorf("bounds of %s/%d: %w", w.id.Topic, w.id.Partition, err)
	}
	w.state.bounds(log)
	w.state.lastStable.Store(log.End)
	if w.pos > log.End {
		return w.haltError(HaltTruncated, "the log ends at offset %d", log.End)
	}
	if until := w.provenUntil(); until > log.End {
		return w.haltError(HaltTruncated, "the log ends at offset %d, and messages up to %d were handled",
			log.End, until-1)
	}
	w.logHeldPos = w.logHeldPos || log.Start <= w.pos
	// Otherwise there is no record left to compare.
	if w.anchor != nil && w.anchor.offset >= log.Start {
		if err := w.verifyAnchor(ctx); err != nil {
			return err
		}
	}
	// Last, because fetches that continue from here repeat the check if the leader changes.
	var cut *source.OutOfRangeError
	if err := w.p.Verify(ctx, w.pos, w.leaderEpoch); errors.As(err, &cut) {
		return w.haltError(HaltTruncated, "the log was cut off at offset %d and written anew: leader epoch "+
			"%d, up to which it was read, ends there", cut.End, w.leaderEpoch)
	} else if err != nil {
		return fmt.Errorf("comparing the log with what was read below the position: %w", err)
	}
	return nil
}

// provenUntil returns the end of what is done above the position in the log that the cursor proves.
func (w *worker) provenUntil() (until int64) {
	for offset := range w.doneBefore {
		if _, unproven := w.unproven[offset]; !unproven {
			until = max(until, offset+1)
		}
	}
	return until
}

// verifyAnchor compares the last record that was seen with the one at its offset now.
func (w *worker) verifyAnchor(ctx context.Context) error {
	if err := fault.Point(fault.LogVerified); err != nil {
		return err
	}
	f, err := w.p.Fetch(ctx, w.anchor.offset, 1)
	var out *source.OutOfRangeError
	switch {
	case errors.As(err, &out) && out.Offset < out.Start:
		return nil // deleted by retention since the log's start was read: no sign of another log
	case errors.As(err, &out):
		return w.haltError(HaltTruncated, "the log ends at offset %d", out.End)
	case err != nil:
		return fmt.Errorf("reading the record before the position: %w", err)
	case w.id.Compacted && w.id.TopicID != [16]byte{} && behindAnchor(f, w.anchor.offset):
		// Compaction has removed it, as far as can be known: the topic's id has to suffice.
		return nil
	case len(f.Messages) == 0 || f.Messages[0].Offset != w.anchor.offset || !w.anchor.matches(f.Messages[0]):
		return w.haltError(HaltTruncated, "the record at offset %d is not the one that was read there: the "+
			"log was truncated and written anew", w.anchor.offset)
	}
	return nil
}

// readDone reads the messages that are done above the position, if slots work on the partition. It
// runs after the raise, which has waited for each slot's transaction (C3).
func (w *worker) readDone(ctx context.Context) error {
	w.doneBefore = nil
	w.unproven = nil
	if !w.slotted {
		return nil
	}
	var err error
	if w.doneBefore, w.unproven, err = w.c.doneAbove(ctx, w.cur, w.pos); err != nil {
		return fmt.Errorf("reading what is done above the position: %w", err)
	}
	// What this process knew to be done, and the database does not have, a failover has lost.
	redo := w.redoUntil
	for _, o := range w.acknowledged {
		if _, done := w.doneBefore[o]; !done && o >= w.pos {
			redo = max(redo, o+1)
		}
	}
	w.acknowledged = nil
	return w.recordRedo(ctx, w.cur, redo)
}

// behindAnchor reports whether a fetch begins behind the anchor, or found nothing.
func behindAnchor(f source.Fetched[*Message], anchor int64) bool {
	return len(f.Messages) == 0 || f.Messages[0].Offset > anchor
}
