package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// lockRetentionSQL, retentionSQL and setRetentionSQL lock, read and set a retention. In: kind;
// seconds, null for ever. By the primary key.
const (
	lockRetentionSQL = `select kind from onlyonce.retentions where kind = $1 for no key update`
	retentionSQL     = `
select r.kind,
       extract(epoch from r.keep)::float8 as was,
       extract(epoch from onlyonce.webhook_horizon())::float8 as horizon
  from onlyonce.retentions r where r.kind = $1`
	setRetentionSQL = `update onlyonce.retentions set keep = make_interval(secs => $2::float8) where kind = $1`
)

// bodies is the RetentionInput.Of of what settled parked rows hold.
const bodies = "bodies"

// RetentionInput is the input of [SetRetention].
type RetentionInput struct {
	// Of is the kind of rows: parked, for settled messages and events; audit; webhook_objects; or
	// bodies, for what settled parked rows hold: body, headers, error and answer.
	Of string

	// Keep is how long rows are kept, unless Forever is set. At least a day; of webhook_objects at
	// least 30 days and twice the horizon of ring standard_keys. Of bodies it must be 0: they are
	// erased when their row is settled.
	Keep time.Duration

	// Forever keeps the rows, and bodies for as long as their rows. Keep must then be 0. Defaults
	// to false.
	Forever bool

	// Shown is the result of a dry run with the same input that a person agreed to. If the
	// retention is another one by now, the error is of kind ErrChanged.
	Shown *RetentionChange
}

// RetentionChange is the result of [SetRetention].
type RetentionChange struct {
	Audited

	Kind string   `json:"kind"`
	Was  *float64 `json:"was_seconds" doc:"nil: for ever"`

	Horizon *float64 `json:"-"` // the longest of webhook endpoints, in seconds; nil: for ever
}

// SetRetention sets for how long rows are kept that nothing needs. The processes whose role has the
// rights of onlyonce_rotator delete them, within minutes, in portions. Bodies that are to be erased
// with the settlement stay in rows that are settled already: see [EraseParked].
//
// Errors are of kind ErrInvalid, ErrNothing if that is the retention already, and ErrChanged.
func SetRetention(ctx context.Context, db DB, by By, in RetentionInput) (*RetentionChange, error) {
	k := kind{action: "retention", subject: "the retention", look: "onlyonce retention -dry-run"}
	return decide(ctx, db, k, by, &retention{in}, in.Shown)
}

// leastObjects is the least retention of webhook_objects.
const leastObjects = 30 * 24 * time.Hour

type retention struct{ RetentionInput }

func (q *retention) check() error {
	switch {
	case q.Of == "":
		return failf(ErrInvalid, "`Of`: must not be empty")
	case q.Forever && q.Keep != 0:
		return failf(ErrInvalid, "`Keep`: goes with no `Forever`")
	case q.Forever:
	case q.Of == bodies && q.Keep != 0:
		return failf(ErrInvalid, "`Keep`: of bodies must be 0 or forever")
	case q.Of == "webhook_objects" && q.Keep < leastObjects:
		return failf(ErrInvalid, "`Keep`: of webhook_objects must be at least 30 days")
	case q.Of != bodies && q.Keep < 24*time.Hour:
		return failf(ErrInvalid, "`Keep`: must be at least a day, or forever")
	}
	return checkText("`Of`", q.Of)
}

func (q *retention) lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, lockRetentionSQL, q.Of)
	return err
}

func (q *retention) read(ctx context.Context, tx pgx.Tx) (*RetentionChange, error) {
	var r *RetentionChange
	if err := reports.First(ctx, tx, &r, retentionSQL, q.Of); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, failf(ErrInvalid, "`Of`: %q is none of parked, bodies, audit and webhook_objects", q.Of)
	}
	if equal(r.Was, secondsOf(q.Keep, q.Forever)) {
		return nil, failf(ErrNothing, "That is the retention of %s already: nothing was changed.", q.Of)
	}
	ofObjects := q.Of == "webhook_objects" && !q.Forever
	if ofObjects && r.Horizon != nil && q.Keep.Seconds() < 2**r.Horizon {
		return nil, failf(ErrRefused, "the ids of webhooks are remembered for longer than half of that, and "+
			"an event that comes so late would be taken for the newest of its object: keep webhook_objects "+
			"for longer, or shorten the horizon with `onlyonce inbox horizon`")
	}
	return r, nil
}

func (q *retention) differs(shown, now *RetentionChange) bool {
	return !equal(shown.Was, now.Was)
}

func (q *retention) do(ctx context.Context, tx pgx.Tx, _ By, now *RetentionChange) (*RetentionChange, error) {
	_, err := tx.Exec(ctx, setRetentionSQL, q.Of, secondsOf(q.Keep, q.Forever))
	return now, err
}
