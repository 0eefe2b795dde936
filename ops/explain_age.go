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

// findFirst finds the earliest of the claims. A key that was claimed while a segment drained is in
// two, and one that came with a partition from another database may be too.
func (r *KeyReport) findFirst() {
	for i := range r.Claims {
		c := &r.Claims[i]
		f := r.FirstSeen
		notEarlier := c.ClaimedAfter == nil || f != nil && f.After != nil && !c.ClaimedAfter.Before(*f.After)
		if f != nil && notEarlier {
			continue
		}
		first := fresh(&r.FirstSeen)
		first.After = c.ClaimedAfter
		first.Before = c.ClaimedBefore
		if c.Transaction != nil {
			first.At = c.Transaction.CommittedAt
		}
	}
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
	until := rows[0].TooOld
	age.MadeAt = made
	age.TooOldUntil = until
	age.TooOld = until != nil && !made.After(*until)
	return nil
}

// fresh makes a value for a pointer.
func fresh[T any](p **T) *T {
	*p = new(T)
	return *p
}
