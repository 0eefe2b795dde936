package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// tooOldSQL reads until when ids of a scope are too old. In: scope. At most one row; by the primary
// key. See the function's comment in the migration.
const tooOldSQL = `select onlyonce.too_old(scope) as too_old from onlyonce.scopes where scope = $1`

// FirstSeen is when a key was claimed first. A row of a ring has no time of its own; its segment
// bounds it.
type FirstSeen struct {
	After  *time.Time `json:"after" doc:"nil: not known"`
	Before *time.Time `json:"before" doc:"nil: the segment is open"`
	At     *time.Time `json:"at" doc:"the claim's COMMIT; nil: not tracked by Postgres (track_commit_timestamp), or forgotten"`
}

// firstSeen returns the earliest of the claims. A key that was claimed while a segment drained is
// in two, and one that came with a partition from another database may be too.
func firstSeen(claims []Claim) *FirstSeen {
	var first *FirstSeen
	for i := range claims {
		c := &claims[i]
		if first != nil && (c.ClaimedAfter == nil || first.After != nil && !c.ClaimedAfter.Before(*first.After)) {
			continue
		}
		first = &FirstSeen{After: c.ClaimedAfter, Before: c.ClaimedBefore}
		if c.Transaction != nil {
			first.At = c.Transaction.CommittedAt
		}
	}
	return first
}

// readAge reads what the id's time means in its scope.
func (r *KeyReport) readAge(ctx context.Context, tx pgx.Tx) error {
	made, ok := codec.IDTime(r.Of.ID)
	if !ok {
		return nil
	}
	type row struct{ TooOld *time.Time }
	rows, err := reports.Collect[row](ctx, tx, tooOldSQL, r.Of.Scope)
	if err != nil || len(rows) == 0 {
		return err
	}
	age := fresh(&r.Age)
	age.MadeAt, age.TooOldUntil, age.TooOld = made, rows[0].TooOld, rows[0].TooOld != nil && !made.After(*rows[0].TooOld)
	return nil
}

// fresh makes a value for a pointer.
func fresh[T any](p **T) *T {
	*p = new(T)
	return *p
}
