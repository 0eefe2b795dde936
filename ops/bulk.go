package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

const (
	// mostBulk is how many rows a bulk act changes at most. Their ids are kept in the audit row.
	mostBulk = 100_000
	// bulkChunk is how many rows of a bulk act are changed in one transaction. Longer ones would
	// hold up the consumer, whose attempts wait for the rows' locks.
	bulkChunk = 500
	// examples is how many rows a dry run of a bulk act shows.
	examples = 5
	// bulkReadTimeout bounds the picking of a bulk act's rows.
	bulkReadTimeout = 30 * time.Second
)

// bulkAuditSQL adds the counts and ids of one more transaction to the audit row of a bulk act. In:
// the row's id, the detail without ids, the ids of that transaction. By the primary key.
const bulkAuditSQL = `
update onlyonce.audit
   set detail = $2::jsonb || jsonb_build_object('ids', coalesce(detail->'ids', '[]') || to_jsonb($3::bigint[]))
 where id = $1`

// all changes all rows that match (U3).
func (q *selection) all(ctx context.Context, db DB, k kind, by By) (*ParkedChange, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if !by.DryRun {
		if err := checkText("the reason", by.Reason); err != nil {
			return nil, err
		}
	}
	b := &ParkedChange{Filter: q.filter()}
	if q.Shown != nil {
		q.upTo = &q.Shown.UpTo
	}
	ids, err := q.pickAll(ctx, db, b)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, q.none(ctx, nil)
	}
	b.Count = len(ids)
	b.UpTo = ids[len(ids)-1]
	if by.DryRun {
		return b, nil
	}
	if q.Shown != nil {
		b.Count = q.Shown.Count
		b.UpTo = q.Shown.UpTo
		// What was shown and is not picked any more has changed since.
		b.Skipped = max(0, q.Shown.Count-len(ids))
	}
	return b, b.work(ctx, db, k, by, q, ids)
}

// pickAll reads the ids of the rows, and examples of them.
func (q *selection) pickAll(ctx context.Context, db DB, b *ParkedChange) (ids []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, bulkReadTimeout)
	defer cancel()
	err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		for !b.More {
			if n := len(ids); n > 0 {
				q.from = &ids[n-1]
			}
			rows, err := q.pick(ctx, tx, nil, q.states(), reports.MostLimit)
			if err != nil {
				return err
			}
			for _, r := range rows {
				ids = append(ids, r.ID)
			}
			if b.Rows == nil {
				b.Rows = slices.Clone(rows[:min(examples, len(rows))])
			}
			if b.More = len(ids) > mostBulk; b.More {
				ids = ids[:mostBulk]
			}
			if len(rows) < reports.MostLimit {
				break
			}
		}
		return nil
	})
	q.from = nil
	return ids, err
}

// work changes the rows, a chunk in a transaction.
func (b *ParkedChange) work(ctx context.Context, db DB, k kind, by By, q *selection, ids []int64) error {
	for chunk := range slices.Chunk(ids, bulkChunk) {
		if err := ctx.Err(); err != nil {
			b.Stopped = true
			return err
		}
		one := *q
		one.ids = chunk
		one.Shown = &ParkedChange{IDs: chunk}
		c, err := settle(ctx, db, k, by, &bulkSelection{selection: &one, bulk: b})
		switch {
		case errors.Is(err, ErrNothing): // all of them had changed
			b.Skipped += len(chunk)
		case err != nil:
			b.Stopped = true
			return err
		default:
			b.AuditID = c.AuditID
			b.Changed += c.Count
			b.Skipped += c.Skipped
		}
		if q.Progress != nil && !q.Progress(*b) && b.Changed+b.Skipped < b.Count {
			b.Stopped = true
			return nil
		}
	}
	if b.Changed == 0 {
		return failf(ErrNothing, "All %d rows changed since they were shown: nothing was changed.", b.Count)
	}
	return nil
}

// bulkSelection is one chunk of a bulk act.
type bulkSelection struct {
	*selection
	bulk *ParkedChange
}

// audit adds the chunk to the audit row of the act (U3).
func (q *bulkSelection) audit(ctx context.Context, tx pgx.Tx, k kind, by By, c *ParkedChange) (id int64, err error) {
	total := *q.bulk
	total.Changed += c.Count
	total.Skipped += c.Skipped
	detail, err := json.Marshal(total)
	if err != nil {
		return 0, err
	}
	if id = total.AuditID; id == 0 {
		if err := tx.QueryRow(ctx, auditSQL, k.action, by.Reason, string(detail), by.actor()).Scan(&id); err != nil {
			return 0, err
		}
	}
	tag, err := tx.Exec(ctx, bulkAuditSQL, id, string(detail), c.IDs)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d audit rows have the id %d", tag.RowsAffected(), id)
	}
	return id, err
}
