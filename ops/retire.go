package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/show"
)

// RetireInput is the input of [RetireCursor]: a partition, the whole topic, or the whole scope.
type RetireInput struct {
	CursorName

	// Shown is the result of a dry run that a person agreed to. If the cursor has another owner or
	// run by now, the error is of kind ErrChanged.
	Shown *CursorChange
}

// RetireCursor takes a cursor out of use, or those of a topic or scope that are in use, in one
// transaction: it fences out the owner, and consumers no longer work on
// it. If a consumer gets its partition, the partition halts, and its parked messages are not tried
// again. The cursor holds back the retention of keys for one more horizon. The row stays;
// [AdoptCursor] with At brings it back.
//
// It waits for the owner's batch to end. Errors are of kind ErrNotFound if there is no such cursor,
// ErrNothing if it is retired already, and ErrChanged.
func RetireCursor(ctx context.Context, db DB, by By, in RetireInput) (*CursorChange, error) {
	k := kind{action: "cursor retire", subject: "the cursor", look: "onlyonce cursor show"}
	if _, partition := in.key(); partition < 0 {
		k.subject = "one of the cursors"
		pick := func(_ context.Context, _ pgx.Tx, inUse []Cursor) (each []decision[CursorChange], err error) {
			for _, c := range inUse {
				each = append(each, &retirement{CursorName{Scope: c.Scope, Topic: c.Topic, Partition: c.Partition}})
			}
			return each, nil
		}
		return decide(ctx, db, k, by, &cursors{at: in.CursorName, valid: in.check, pick: pick}, in.Shown)
	}
	return decide(ctx, db, k, by, &retirement{in.CursorName}, in.Shown)
}

type retirement struct{ CursorName }

func (q *retirement) check() error { return q.checkOne() }

func (q *retirement) lock(ctx context.Context, tx pgx.Tx) error { return q.lockLease(ctx, tx) }

func (q *retirement) read(ctx context.Context, tx pgx.Tx) (*CursorChange, error) {
	before, err := q.readThere(ctx, tx)
	if err != nil {
		return nil, err
	}
	if before.RetiredAt != nil {
		return nil, failf(ErrNothing, "The cursor (%s) was retired at %s already: nothing was changed.",
			q.CursorName, show.Instant(*before.RetiredAt))
	}
	// the database's clock writes it
	after := *before
	soon := time.Now()
	after.Epoch = before.Epoch + 1
	after.RetiredAt = &soon
	left, err := q.left(ctx, tx, nil, nil)
	return &CursorChange{
		Scope:     q.Scope,
		Topic:     q.Topic,
		Partition: &q.Partition,
		Before:    before,
		After:     &after,
		Parked:    &left,
	}, err
}

func (q *retirement) differs(shown, now *CursorChange) bool { return shown.Before.changed(now.Before) }

func (q *retirement) do(ctx context.Context, tx pgx.Tx, _ By, now *CursorChange) (*CursorChange, error) {
	if err := now.Before.fence(ctx, tx); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, cursor.RetireSQL, now.Before.ID); err != nil {
		return nil, err
	}
	var err error
	now.After, err = q.readBack(ctx, tx)
	return now, err
}
