package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// readDoneSQL reads what is done above the position. In: cursor, run, position. Out: one row for
// each message. By the primary key.
const readDoneSQL = `select "offset", hash from onlyonce.done where cursor_id = $1 and run = $2 and "offset" >= $3`

// needsSlots reports whether transactions of the partition run side by side under its next owner,
// or what an owner that let them do so has left open is to be finished.
func (w *worker) needsSlots(cur *cursor) bool {
	return w.c.cfg.Concurrency > 1 || cur.doneUntil != nil || w.c.shares != nil
}

// readDone reads what is done above the position, if slots work on the partition. It runs after the
// raise, which has waited for each slot's transaction.
func (w *worker) readDone(ctx context.Context) error {
	w.doneBefore = map[int64]int64{}
	if !w.slotted {
		return nil
	}
	var err error
	if w.doneBefore, err = w.c.doneAbove(ctx, w.cur, w.pos); err != nil {
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

// doneAbove returns the offsets that are done at a position or above it, and the hashes of their
// records.
func (c *Consumer) doneAbove(ctx context.Context, cur *cursor, pos int64) (map[int64]int64, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	done := map[int64]int64{}
	var offset, hash int64
	rows, _ := c.pool.Query(ctx, readDoneSQL, cur.id, cur.run, pos)
	_, err := pgx.ForEachRow(rows, []any{&offset, &hash}, func() error {
		done[offset] = hash
		return nil
	})
	return done, err
}
