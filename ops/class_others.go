package ops

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// otherScopesSQL reads the classes of scopes in which no consumer claims, and the class before if
// its ring has to be asked too. In: scope; null: all. A row for each that has one; by the primary
// key, in its order.
const otherScopesSQL = `
select scope,
       class,
       case when onlyonce.still_asked(onlyonce.class_ring(class_before, 'standard'), changed_at)
              then class_before end as class_before
  from onlyonce.horizons where $1::text is null or scope = $1 order by scope`

// otherScope is a row of onlyonce.horizons.
type otherScope struct {
	Scope string
	scopeClass
}

// lockOthersSQL keeps the rings of others from announcing a segment until the transaction ends: the
// lock on their rows excludes a rotator's step. See onlyonce.claim (K10).
const lockOthersSQL = `select name from onlyonce.rings where name = any ($1::text[]) order by name for update`

// otherClassSQL changes the class of such a scope. In: scope, class, the class until now. The time
// of the change is never before that of a segment of the earlier ring: see cursor.ClassSQL. When a
// class changes again, the ring from before the last change has forgotten its keys.
const otherClassSQL = `
insert into onlyonce.horizons as h (scope, class, class_before, changed_at)
values (
  $1,
  $2,
  $3::text,
  greatest(
    clock_timestamp(),
    (select max(g.opened_at) from onlyonce.segments g where g.ring = onlyonce.class_ring($3::text, 'standard'))
  )
)
on conflict (scope) do update
  set class = excluded.class, class_before = excluded.class_before, changed_at = excluded.changed_at,
  forgotten = h.changed_at + interval '1 minute'`

// readOtherClass returns the class of a scope; one without a row is of the class standard.
func readOtherClass(ctx context.Context, tx pgx.Tx, scope string) (*scopeClass, error) {
	var row *otherScope
	err := reports.First(ctx, tx, &row, otherScopesSQL, scope)
	if row == nil {
		return &scopeClass{Class: ring.Standard}, err
	}
	return &row.scopeClass, err
}

// otherClass changes the class of a scope in which no consumer claims.
type otherClass struct{ ClassInput }

func (q *otherClass) lock(ctx context.Context, tx pgx.Tx) error {
	var names []string
	for _, r := range ring.Others() {
		names = append(names, r.Name)
	}
	_, err := tx.Exec(ctx, lockOthersSQL, names)
	return err
}

func (q *otherClass) read(ctx context.Context, tx pgx.Tx) (*ClassChange, error) {
	row, err := readOtherClass(ctx, tx, q.Scope)
	switch {
	case err != nil:
		return nil, err
	case row.Class == q.Class:
		return nil, failf(ErrNothing, "Scope %s is of class %s already: nothing was changed.", q.Scope, q.Class)
	case row.ClassBefore != nil:
		return nil, row.changing(ring.StandardClass(*row.ClassBefore))
	}
	d := &ClassChange{
		Scope:  q.Scope,
		Class:  q.Class,
		Was:    row.Class,
		Ring:   ring.StandardClass(q.Class).Name,
		Before: ring.StandardClass(row.Class).Name,
	}
	return d, tx.QueryRow(ctx, lastsSQL, d.Before).Scan(&d.Lasts)
}

func (q *otherClass) do(ctx context.Context, tx pgx.Tx, _ By, now *ClassChange) (*ClassChange, error) {
	_, err := tx.Exec(ctx, otherClassSQL, q.Scope, q.Class, now.Was)
	return now, err
}

// bringClasses gives scopes here the classes that they have in the other database. A scope that has
// none here claims in both rings for a time: what came along is in that of its class, and what was
// claimed here in standard_keys (K10).
func bringClasses(ctx context.Context, there, tx pgx.Tx, from string) error {
	scopes, err := reports.Collect[otherScope](ctx, there, otherScopesSQL, nil)
	if err != nil {
		return err
	}
	for i := range scopes {
		o := &scopes[i]
		here, err := readOtherClass(ctx, tx, o.Scope)
		asked := func(class string) bool { return slices.Contains(here.classes(), class) }
		standardBefore := o.ClassBefore == nil || *o.ClassBefore == ring.Standard
		switch {
		case err != nil:
			return err
		case asked(o.Class) && (o.ClassBefore == nil || asked(*o.ClassBefore)):
			continue
		case here.Class != ring.Standard || here.ClassBefore != nil || !standardBefore:
			return failf(ErrRefused, "keys of scope %s are of class %s here and of class %s in %s, and "+
				"nothing was done: keys that came along would not be found",
				o.Scope, here.text(), o.text(), from).
				but("give it the same class in both (onlyonce inbox class), and wait until the change is over in both")
		}
		if _, err := tx.Exec(ctx, otherClassSQL, o.Scope, o.Class, ring.Standard); err != nil {
			return err
		}
	}
	return nil
}
