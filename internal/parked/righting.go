package parked

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/pace"
)

const (
	rightsEvery   = 10 * time.Second
	rightedAtOnce = 1000
)

// rightSQL has rows wait anew whose due time was written while the database's clock was ahead: each
// as long as it was to wait, from now on. Calls that the program has scheduled stay as they are.
// In: how many rows it changes at most. By the index parked_timed; it reads one entry if the clock
// was right. It skips rows that another session has locked.
const rightSQL = `
update onlyonce.parked p set next_attempt_at = clock_timestamp() + (p.next_attempt_at - p.timed_at)
 where p.id = any (array(
         select a.id from onlyonce.parked a where a.timed_at > (select clock_timestamp() + interval '1 second')
          order by a.timed_at limit $1 for no key update skip locked))
   and p.timed_at > (select clock_timestamp() + interval '1 second')`

// Righting sets due times right that were written while the database's clock was ahead. Without it
// a row whose wait is seconds waits for as long as the clock was ahead, with its ordering key (T9).
// Each process that tries parked rows again has one.
type Righting struct {
	log     *slog.Logger
	portion *pace.Portion
	at      time.Time
}

// NewRighting returns a Righting that is due at once. It logs how many rows wait anew.
func NewRighting(log *slog.Logger) *Righting {
	return &Righting{log: log, portion: pace.NewPortion(rightedAtOnce)}
}

// Due returns when it is to run. It stays due after a failure, and while there may be more rows.
func (r *Righting) Due() time.Time { return r.at }

// Run sets one portion of due times right, for rows of whatever scope or sink.
func (r *Righting) Run(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
},
) error {
	more, err := r.portion.Run(func(most int) (int, error) {
		tag, err := db.Exec(ctx, rightSQL, most)
		if n := tag.RowsAffected(); n > 0 {
			r.log.WarnContext(ctx, "onlyonce: the database's clock was ahead: parked rows that got their due time "+
				"then wait anew", "rows", n)
		}
		return int(tag.RowsAffected()), err
	})
	if err != nil {
		return fmt.Errorf("setting due times right: %w", err)
	}
	if !more {
		r.at = time.Now().Add(rightsEvery)
	}
	return nil
}
