package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/show"
)

// Retired is the result of [RetireCursor].
type Retired struct {
	Audited

	Scope     string  `json:"scope"`
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Before    *Cursor `json:"before"`
	After     *Cursor `json:"after"`
	Parked    int64   `json:"parked" doc:"rows of it that are not settled"`
}

// RetireInput is the input of [RetireCursor].
type RetireInput struct {
	CursorName

	// Shown is the result of a dry run that a person agreed to. If the cursor has another owner or
	// run by now, the error is of kind ErrChanged.
	Shown *Retired
}

// RetireCursor takes a cursor out of use: it fences out the owner, and consumers no longer work on
// it. If a consumer gets its partition, the partition halts, and its parked messages are not tried
// again. The cursor holds back the retention of keys for one more horizon. The row stays;
// [AdoptCursor] with At brings it back.
//
// It waits for the owner's batch to end. Errors are of kind ErrNotFound if there is no such cursor,
// ErrNothing if it is retired already, and ErrChanged.
func RetireCursor(ctx context.Context, db DB, by By, in RetireInput) (*Retired, error) {
	k := kind{action: "cursor retire", subject: "the cursor", look: "onlyonce cursor show"}
	return decide(ctx, db, k, by, &retirement{in.CursorName}, in.Shown)
}

type retirement struct{ CursorName }

func (q *retirement) check() error { return q.checkOne() }

func (q *retirement) lock(ctx context.Context, tx pgx.Tx) error { return q.lockLease(ctx, tx) }

func (q *retirement) read(ctx context.Context, tx pgx.Tx) (*Retired, error) {
	before, err := q.readThere(ctx, tx)
	if err != nil {
		return nil, err
	}
	if before.RetiredAt != nil {
		return nil, failf(ErrNothing, "The cursor (%s) was retired at %s already: nothing was changed.", q.CursorName, show.Instant(*before.RetiredAt))
	}
	after, soon := *before, time.Now() // the database's clock writes it
	after.Epoch, after.RetiredAt = before.Epoch+1, &soon
	d := &Retired{Scope: q.Scope, Topic: q.Topic, Partition: q.Partition, Before: before, After: &after}
	var waiting int64
	return d, tx.QueryRow(ctx, leftSQL, q.Scope, q.Topic, q.Partition, (*int64)(nil), (*int64)(nil)).Scan(&d.Parked, &waiting)
}

func (q *retirement) differs(shown, now *Retired) bool { return shown.Before.changed(now.Before) }

func (q *retirement) do(ctx context.Context, tx pgx.Tx, _ By, now *Retired) (*Retired, error) {
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
