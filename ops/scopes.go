package ops

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// scopeSQL reads what ids mean in a scope, until when its keys were forgotten and ids are too old,
// its class of horizon, and the class before if its ring has to be asked too. In: scope. At most
// one row; by the primary key.
const scopeSQL = `
select topics,
       copies,
       first_topic,
       onlyonce.forgotten(scope) as forgotten,
       onlyonce.too_old(scope) as too_old,
       class,
       onlyonce.class_before(scope) as class_before
  from onlyonce.scopes where scope = $1`

// scopeRow is a row of onlyonce.scopes.
type scopeRow struct {
	Topics     []string
	Copies     *string
	FirstTopic string
	// Forgotten is the time until which keys may have been forgotten; nil: none were.
	Forgotten *time.Time
	// TooOld is the time until which an id may be one of those keys; nil: none is.
	TooOld *time.Time
	scopeClass
}

// scopeClass is the class of horizon of a scope.
type scopeClass struct {
	Class string
	// ClassBefore is the class before, while its ring has to be asked too; else nil.
	ClassBefore *string
}

// classes returns the classes in whose rings the scope's keys are claimed. A scope without a row
// has those of a scope that chooses nothing.
func (r *scopeRow) classes() []string {
	if r == nil {
		return []string{ring.Standard}
	}
	return r.scopeClass.classes()
}

func (c scopeClass) classes() []string {
	if c.ClassBefore != nil {
		return []string{c.Class, *c.ClassBefore}
	}
	return []string{c.Class}
}

// within reports whether ids count within their topic. Those of the topic FirstTopic have no topic
// in their keys all the same.
func (r *scopeRow) within() bool { return r.Copies != nil && *r.Copies == "within" }

// readScope returns nil if the scope has no row: it claims no ids.
func readScope(ctx context.Context, tx pgx.Tx, scope string) (row *scopeRow, err error) {
	err = reports.First(ctx, tx, &row, scopeSQL, scope)
	return row, err
}

func (r *scopeRow) text() string {
	choice := "no choice"
	if r.Copies != nil {
		choice = *r.Copies
	}
	if r.FirstTopic == "" {
		return choice + ", begun with several topics"
	}
	return choice + ", begun with " + r.FirstTopic
}

func (c scopeClass) text() string {
	if c.ClassBefore != nil {
		return c.Class + " (" + *c.ClassBefore + " before)"
	}
	return c.Class
}

// agrees refuses to bring keys to a scope in which they would not be found, because ids have
// another meaning there (K8), or are looked for in another ring (K10).
func (r *scopeRow) agrees(ctx context.Context, tx pgx.Tx, scope, from string) error {
	here, err := readScope(ctx, tx, scope)
	if err != nil || here == nil || r == nil {
		return err
	}
	otherCopies := here.Copies != nil && r.Copies != nil && *here.Copies != *r.Copies
	if otherCopies || here.FirstTopic != r.FirstTopic {
		return failf(
			ErrRefused,
			"ids of the scope do not mean here what they mean in %s (here: %s; there: %s), and nothing was "+
				"done: keys that came along would not be found. "+
				"See onlyonce.scopes in both",
			from,
			here.text(),
			r.text(),
		)
	}
	if !slices.Equal(here.classes(), r.classes()) {
		return failf(ErrRefused, "keys of the scope are of class %s here and of class %s in %s, and nothing "+
			"was done: keys that came along would not be found", here.scopeClass.text(), r.scopeClass.text(), from).
			but("give it the same class in both (onlyonce inbox class), and wait until the change is over in both")
	}
	return nil
}
