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
update onlyonce.audit set detail = $2::jsonb || jsonb_build_object('ids', coalesce(detail->'ids', '[]') || to_jsonb($3::bigint[])) where id = $1`

// BulkInput is the input of [RedriveAll] and [DiscardAll].
type BulkInput struct {
	// ParkedFilter picks the rows. Kind is required, and ID and Limit must be 0. States are those
	// that Redrive and Discard pick without an ID.
	ParkedFilter

	// VerifiedApplied and VerifiedNotApplied are those of [RedriveInput], for every call that the
	// filter picks: a person must have verified each. DiscardAll refuses them. Both default to
	// false.
	VerifiedApplied, VerifiedNotApplied bool

	// Shown is the result of a dry run with the same filter that a person agreed to. Rows parked
	// after it are left out, and those that have changed since are skipped and counted. Required,
	// unless this is a dry run. Only its Count and UpTo are used.
	Shown *Bulk

	// Progress is called after each transaction with the result so far. If it returns false, the
	// act ends there. Defaults to none.
	Progress func(Bulk) bool
}

// Bulk is the result of [RedriveAll] or [DiscardAll].
type Bulk struct {
	Audited

	Filter  map[string]any `json:"filter"`
	Count   int            `json:"count" doc:"rows that match, or matched when they were shown"`
	UpTo    int64          `json:"up_to" doc:"the greatest id of those"`
	Changed int            `json:"changed" doc:"rows that were changed"`
	Skipped int            `json:"skipped" doc:"rows that had changed since they were shown"`
	Stopped bool           `json:"stopped,omitempty" doc:"Progress or an error ended it before all were changed"`
	More    bool           `json:"-"` // more than 100,000 match

	Examples []ParkedRow `json:"-"` // of a dry run: the first 5
}

// RedriveAll is [Redrive] for all rows that a filter picks, up to 100,000. It works in transactions
// of 500 rows, oldest first. One audit row counts the committed rows of all of them: the first
// transaction writes it, and each further one updates it. So an error, or the end of the process,
// leaves whole transactions, and an audit row that counts them.
//
// It skips and counts rows that no longer match the filter, for example because another operator
// has discarded them. With an error, the result has the changes committed before it, nil if there
// are none. Errors are those of Redrive; ErrNothing if every row has changed since.
func RedriveAll(ctx context.Context, db DB, by By, in BulkInput) (*Bulk, error) {
	q := selection{ParkedFilter: in.ParkedFilter, applied: in.VerifiedApplied, notApplied: in.VerifiedNotApplied}
	return all(ctx, db, redriving, by, in, q)
}

// DiscardAll is [Discard] for all rows that a filter picks; see [RedriveAll].
func DiscardAll(ctx context.Context, db DB, by By, in BulkInput) (*Bulk, error) {
	if in.VerifiedApplied || in.VerifiedNotApplied {
		return nil, failf(ErrInvalid, "`VerifiedApplied` and `VerifiedNotApplied` do not go with a discard")
	}
	q := selection{ParkedFilter: in.ParkedFilter, discard: true}
	return all(ctx, db, discarding, by, in, q)
}

func all(ctx context.Context, db DB, k kind, by By, in BulkInput, q selection) (*Bulk, error) {
	if in.ID != 0 || in.Limit != 0 || in.Kind == "" {
		return nil, failf(ErrInvalid, "a bulk act needs `Kind`, and goes with neither `ID` nor `Limit`")
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	b := &Bulk{Filter: q.filter()}
	switch {
	case by.DryRun:
	case in.Shown == nil:
		return nil, failf(ErrInvalid, "a bulk act needs what a dry run has shown")
	default:
		if err := checkText("the reason", by.Reason); err != nil {
			return nil, err
		}
		q.upTo = &in.Shown.UpTo
	}
	ids, err := q.pickAll(ctx, db, b)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, failf(ErrRefused, "nothing is parked that this asks for and that could be changed")
	}
	if by.DryRun {
		b.Count, b.UpTo = len(ids), ids[len(ids)-1]
		return b, nil
	}
	b.Count, b.UpTo = in.Shown.Count, in.Shown.UpTo
	// What was shown and is not picked any more has changed since.
	b.Skipped = max(0, in.Shown.Count-len(ids))
	return b, b.work(ctx, db, k, by, q, ids, in.Progress)
}

// pickAll reads the ids of the rows, and examples of them.
func (q *selection) pickAll(ctx context.Context, db DB, b *Bulk) (ids []int64, err error) {
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
			if b.Examples == nil {
				b.Examples = slices.Clone(rows[:min(examples, len(rows))])
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
func (b *Bulk) work(ctx context.Context, db DB, k kind, by By, q selection, ids []int64, progress func(Bulk) bool) error {
	for chunk := range slices.Chunk(ids, bulkChunk) {
		if err := ctx.Err(); err != nil {
			b.Stopped = true
			return err
		}
		one := q
		one.ids, one.skip, one.Limit = chunk, true, int64(len(chunk))
		one.shown = &ParkedChange{IDs: chunk}
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
		if progress != nil && !progress(*b) && b.Changed+b.Skipped < b.Count {
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
	bulk *Bulk
}

// audit adds the chunk to the audit row of the act.
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
