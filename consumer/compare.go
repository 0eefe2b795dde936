package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/onlyonce/onlyonce/internal/codec"
)

// dropDoneSQL deletes rows of messages that are done above the position, because they are not of
// the records that the log has there. In: cursor, epoch, nonce, run, offsets. It deletes only rows
// that an operator's adoption has left unproven, and none if the cursor has another owner. By the
// primary key. No transaction needs them: the adoption has waited for those of the owner before it,
// and this owner gives none of these messages to a slot before that (C5).
const dropDoneSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
delete from onlyonce.done d using held
 where d.cursor_id = held.id and d.run = $4 and d."offset" = any($5::bigint[]) and d.unproven`

// compare compares the messages that are done above the position with the records that were
// fetched. One that the log does not have halts the partition (C8). If an operator has set the
// position since it was done, its row says nothing of this log: it is deleted, and the record is
// handled. They may be millions; it looks only at the offsets that the fetch spans.
func (s *slots) compare(ctx context.Context, got fetchResult) error {
	before := s.window.Before
	next := got.Next
	if len(before) == 0 {
		return nil
	}
	found := map[int64]bool{}
	var others []int64
	for _, m := range got.Messages {
		hash, done := before[m.Offset]
		found[m.Offset] = true
		if done && m.Offset < next && hash != storedHash(anchorOf(m).hash) {
			others = append(others, m.Offset)
		}
	}
	for _, offset := range s.doneIn(s.window.Next, next) {
		_, done := before[offset]
		switch {
		case !done || found[offset]:
		case s.w.id.Compacted:
			delete(before, offset)
		default:
			others = append(others, offset)
		}
	}
	slices.Sort(others)
	for _, offset := range others {
		switch _, unproven := s.w.unproven[offset]; {
		case unproven:
		case found[offset]:
			return s.w.haltError(HaltTruncated, "the record at offset %d is not the one that was handled "+
				"there: the log was truncated and written anew", offset)
		default:
			return s.w.haltError(HaltTruncated, "the record at offset %d, which was handled, is not there "+
				"any more: the log was truncated and written anew", offset)
		}
	}
	return s.dropDone(ctx, others)
}

// doneIn returns the offsets from one to before another, in order, that were done when the window
// began. Those that the window has read since are not in window.Before any more.
func (s *slots) doneIn(from, to int64) []int64 {
	if s.doneOffsets == nil {
		s.doneOffsets = slices.Sorted(maps.Keys(s.window.Before))
	}
	first, _ := slices.BinarySearch(s.doneOffsets, from)
	end, _ := slices.BinarySearch(s.doneOffsets, max(from, to))
	return s.doneOffsets[first:end]
}

// dropDone deletes what is done at offsets of another log.
func (s *slots) dropDone(ctx context.Context, offsets []int64) error {
	if len(offsets) == 0 {
		return nil
	}
	w := s.w
	bounded, cancel := w.c.bounded(ctx)
	defer cancel()
	tag, err := w.c.pool.Exec(
		bounded,
		dropDoneSQL,
		w.cur.id,
		w.cur.epoch,
		w.cur.nonce,
		w.cur.run,
		codec.Bigints(offsets),
	)
	switch {
	case err != nil:
		return fmt.Errorf("deleting what was done in another log: %w", err)
	case tag.RowsAffected() != int64(len(offsets)):
		return errMoved
	}
	for _, offset := range offsets {
		delete(s.window.Before, offset)
	}
	w.c.cfg.Logger.Warn("onlyonce: the log has other records where messages were done before the position "+
		"was set: they are handled",
		"scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "first", offsets[0],
		"messages", len(offsets))
	return nil
}
