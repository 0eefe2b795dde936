package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// horizonSQL reads a ring's horizon, and setHorizonSQL sets it. In: ring; seconds, null for
// forever. By the primary key.
const (
	horizonSQL = `
select name as ring, extract(epoch from horizon)::float8 as was
  from onlyonce.rings
 where name = $1`
	lockHorizonSQL = `select name from onlyonce.rings where name = $1 for no key update`
	setHorizonSQL  = `update onlyonce.rings set horizon = make_interval(secs => $2::float8) where name = $1`
)

// keepTooOldSQL keeps the bound of too old ids in the scopes of a ring, before its horizon is
// changed: keys that are forgotten by now were forgotten under the old one (K9). In: ring. Reads
// and locks the rows of its scopes.
const keepTooOldSQL = `
update onlyonce.scopes s set too_old = greatest(s.too_old, onlyonce.too_old(s.scope))
 where $1 in (onlyonce.class_ring(s.class), onlyonce.class_ring(s.class_before))`

// HorizonInput is the input of [SetHorizon].
type HorizonInput struct {
	// Ring is the ring of keys: consumer_keys or standard_keys, or that of another class, for
	// example consumer_short_keys.
	Ring string

	// Horizon is how long a claimed key is remembered at least, counted from the closing of its
	// segment. At least a minute, unless Forever is set.
	Horizon time.Duration

	// Forever keeps all keys: the ring never rotates. Horizon must then be 0. Defaults to false.
	Forever bool

	// Shown is the result of a dry run with the same input that a person agreed to. If the ring has
	// another horizon by now, the error is of kind ErrChanged.
	Shown *HorizonChange
}

// HorizonChange is the result of [SetHorizon].
type HorizonChange struct {
	Audited

	Ring string   `json:"ring"`
	Was  *float64 `json:"was_seconds" doc:"nil: for ever"`
}

// SetHorizon sets how long a ring of claimed keys remembers them at least. A copy that arrives
// later is a new message, and is applied again. A shorter horizon takes effect when a rotator next
// checks. A longer one does not bring back forgotten keys.
//
// Errors are of kind ErrInvalid, ErrNotFound if there is no such ring, ErrNothing if it has that
// horizon already, and ErrChanged (K9).
func SetHorizon(ctx context.Context, db DB, by By, in HorizonInput) (*HorizonChange, error) {
	k := kind{action: "inbox horizon", subject: "the ring", look: "onlyonce inbox status"}
	return decide(ctx, db, k, by, &horizon{in}, in.Shown)
}

type horizon struct{ HorizonInput }

func (q *horizon) check() error {
	switch {
	case q.Ring == "":
		return failf(ErrInvalid, "`Ring`: must not be empty")
	case q.Forever && q.Horizon != 0, !q.Forever && q.Horizon < time.Minute:
		return failf(ErrInvalid, "`Horizon`: must be at least a minute, or forever")
	}
	return checkText("`Ring`", q.Ring)
}

func (q *horizon) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockHorizonSQL, q.Ring)
	return err
}

// secondsOf returns a duration as the database has it; nil: forever.
func secondsOf(d time.Duration, forever bool) *float64 {
	if forever {
		return nil
	}
	return new(d.Seconds())
}

func (q *horizon) read(ctx context.Context, tx pgx.Tx) (*HorizonChange, error) {
	var now *HorizonChange
	if err := reports.First(ctx, tx, &now, horizonSQL, q.Ring); err != nil {
		return nil, err
	}
	if now == nil {
		return nil, failf(ErrNotFound, "there is no ring %s in this database", q.Ring)
	}
	if is := secondsOf(q.Horizon, q.Forever); equal(now.Was, is) {
		return nil, failf(ErrNothing, "Ring %s remembers %s already: nothing was changed.", q.Ring, show.Remembered(is))
	}
	return now, nil
}

func (q *horizon) differs(shown, now *HorizonChange) bool {
	return !equal(shown.Was, now.Was)
}

func (q *horizon) do(ctx context.Context, tx pgx.Tx, _ By, now *HorizonChange) (*HorizonChange, error) {
	if _, err := tx.Exec(ctx, keepTooOldSQL, q.Ring); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, setHorizonSQL, q.Ring, secondsOf(q.Horizon, q.Forever))
	return now, err
}
