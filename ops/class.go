package ops

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/cursor"
	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// scopeCursorsSQL lists the cursors of a scope. In: scope. Out: a row for each, in the order of
// their leases: id and epoch of the lease; whether its topic is a stream of events.
const scopeCursorsSQL = `
select c.id, l.epoch, coalesce(c.cluster_id = 'postgres', false) as events
  from onlyonce.cursors c join onlyonce.leases l on l.id = c.id where c.scope = $1 order by c.id`

// classTimeout bounds ChangeClass, which waits for the owner of one partition after another.
const classTimeout = 10 * time.Minute

// ClassInput is the input of [ChangeClass].
type ClassInput struct {
	// Scope is the scope of a consumer that claims ids, "webhook/ENDPOINT" of an endpoint,
	// "queue/NAME" of a queue, or with Others the scope of dedupe.Claim or of calls. Required.
	Scope string

	// Class is the scope's new class of horizon: short, standard or long. Required.
	Class string

	// Others is set for a scope of dedupe.Claim, of dedupe.Do, of the SQL function onlyonce.claim,
	// or of calls that are enqueued outside of consumers. It is not needed for an endpoint
	// or a queue. Defaults to false: a consumer's.
	Others bool

	// Shown is the result of a dry run with the same input that a person agreed to. If the scope
	// has another class by now, the error is of kind ErrChanged.
	Shown *ClassChange
}

// ClassChange is the result of [ChangeClass].
type ClassChange struct {
	Audited

	Scope  string   `json:"scope"`
	Class  string   `json:"class"`
	Was    string   `json:"was"`
	Ring   string   `json:"ring" doc:"the ring in which keys are claimed from now on"`
	Before string   `json:"was_ring" doc:"the ring in which they are claimed too, until it has forgotten its keys"`
	Lasts  *float64 `json:"lasts_seconds"`
	// how many cursors the scope has. Their owners are fenced out, and go on with both rings
	Cursors int `json:"cursors" doc:"above"`
}

// ChangeClass changes a scope's class of horizon, and with it the ring of its keys and how long
// they are remembered.
//
// A scope of other claims has the class standard until it is given another one. Its claims read
// the class when they run, so nothing halts.
//
// Earlier keys stay in the old ring, which remembers them for its own horizon: a longer class does
// not extend that. Until the old ring has forgotten them, consumers claim the scope's keys in both
// rings, and may have either class as their Config.Horizon. Afterwards they must have the new one,
// or halt. Only then can the class change again.
//
// It waits for the batches of all owners to end, partition after partition, and those for which it
// has waited stand still until it is done. If batches take long, pause the scope first. Errors are
// of kind ErrInvalid, ErrNotFound if no consumer of the scope has claimed ids, ErrNothing if it has
// that class already, ErrRefused if an earlier change is not over, and ErrChanged (K10).
func ChangeClass(ctx context.Context, db DB, by By, in ClassInput) (*ClassChange, error) {
	k := kind{action: "inbox class", subject: "the scope", look: "onlyonce inbox status", within: classTimeout}
	if in.Others || names.IsReceiver(in.Scope) {
		return decide(ctx, db, k, by, &otherClass{in}, in.Shown)
	}
	return decide(ctx, db, k, by, &classing{ClassInput: in}, in.Shown)
}

func (in *ClassInput) check() error {
	if !slices.Contains(ring.Classes(), in.Class) {
		return failf(ErrInvalid, "`Class`: must be short, standard or long")
	}
	return checkText("the scope", in.Scope)
}

func (in *ClassInput) differs(shown, now *ClassChange) bool {
	return shown.Was != now.Was || shown.Class != now.Class
}

type classing struct {
	ClassInput
	cursors []scopeCursor // under the locks on their leases
}

type scopeCursor struct {
	ID, Epoch int64
	Events    bool
}

// lock excludes the owners of all cursors, and then locks the scope's row against new cursors
// (K10): the owner of a cursor that is made later reads the class later.
func (q *classing) lock(ctx context.Context, tx pgx.Tx) error {
	locked, err := tx.Exec(ctx, cursor.LockScopeOwnersSQL, q.Scope)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, cursor.LockScopeRowSQL, q.Scope); err != nil {
		return err
	}
	if q.cursors, err = reports.Collect[scopeCursor](ctx, tx, scopeCursorsSQL, q.Scope); err != nil {
		return err
	}
	if int64(len(q.cursors)) != locked.RowsAffected() {
		return failf(ErrChanged, "a consumer made a cursor of the scope at this moment, and nothing was done").
			but("run the command again")
	}
	return nil
}

func (q *classing) read(ctx context.Context, tx pgx.Tx) (*ClassChange, error) {
	row, err := readScope(ctx, tx, q.Scope)
	switch {
	case err != nil:
		return nil, err
	case row == nil:
		return nil, failf(ErrNotFound, "no consumer of scope %q has claimed an id here: choose the class in "+
			"its Config.Horizon, or give `Others` if the scope is not a consumer's", q.Scope)
	}
	cursors, err := reports.Collect[scopeCursor](ctx, tx, scopeCursorsSQL, q.Scope)
	if err != nil {
		return nil, err
	}
	switch {
	case slices.ContainsFunc(cursors, func(c scopeCursor) bool { return c.Events }):
		return nil, failf(ErrRefused, "scope %q reads stored events, whose ids were claimed when they were "+
			"appended, and nothing was done: give the scope of those claims", q.Scope)
	case row.Class == q.Class:
		return nil, failf(ErrNothing, "Scope %s is of class %s already: nothing was changed.", q.Scope, q.Class)
	case row.ClassBefore != nil:
		return nil, row.changing(ring.ConsumerClass(*row.ClassBefore))
	}
	d := &ClassChange{
		Scope:   q.Scope,
		Class:   q.Class,
		Was:     row.Class,
		Ring:    ring.ConsumerClass(q.Class).Name,
		Before:  ring.ConsumerClass(row.Class).Name,
		Cursors: len(cursors),
	}
	return d, tx.QueryRow(ctx, lastsSQL, d.Before).Scan(&d.Lasts)
}

// changing refuses a second change.
func (c scopeClass) changing(before ring.Ring) error {
	return failf(ErrRefused, "the scope changed from %s to %s, and ring %s still remembers keys of it from "+
		"before: nothing was done. Until then its keys are claimed in both rings",
		*c.ClassBefore, c.Class, before.Name).but("wait; onlyonce inbox status shows the ring")
}

// lastsSQL reads how long a ring remembers at most what is claimed in it now, if no cursor and no
// transaction holds it up: a segment is open for a seventh of the horizon. In: ring. One row:
// seconds, null: for ever.
const lastsSQL = `select extract(epoch from horizon * 8 / 7)::float8 from onlyonce.rings where name = $1`

func (q *classing) do(ctx context.Context, tx pgx.Tx, _ By, now *ClassChange) (*ClassChange, error) {
	for _, c := range q.cursors {
		if err := (&Cursor{ID: c.ID, Epoch: c.Epoch}).fence(ctx, tx); err != nil {
			return nil, err
		}
	}
	_, err := tx.Exec(ctx, cursor.ClassSQL, q.Scope, q.Class)
	return now, err
}
