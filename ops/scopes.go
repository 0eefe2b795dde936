package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// scopeSQL reads what ids mean in a scope, until when its keys were forgotten, its class of
// horizon, and the class before if its ring has to be asked too. In: scope. At most one row; by the
// primary key.
const scopeSQL = `select topics, copies, home, onlyonce.forgotten(scope) as forgotten, class, onlyonce.class_before(scope) as class_before from onlyonce.scopes where scope = $1`

// scopeRow is a row of onlyonce.scopes.
type scopeRow struct {
	Topics []string
	Copies *string
	Home   string
	// Forgotten is the time until which keys may have been forgotten; nil: none were.
	Forgotten *time.Time
	Class     string
	// ClassBefore is the class before, while its ring has to be asked too; else nil.
	ClassBefore *string
}

// classes returns the classes in whose rings the scope's keys are claimed. A scope without a row
// has those of a scope that chooses nothing.
func (r *scopeRow) classes() []string {
	switch {
	case r == nil:
		return []string{ring.Standard}
	case r.ClassBefore != nil:
		return []string{r.Class, *r.ClassBefore}
	}
	return []string{r.Class}
}

// within reports whether ids count within their topic. Those of the topic Home have no topic in
// their keys all the same.
func (r *scopeRow) within() bool { return r.Copies != nil && *r.Copies == "within" }

// readScope returns nil if the scope has no row: it claims no ids.
func readScope(ctx context.Context, tx pgx.Tx, scope string) (*scopeRow, error) {
	rows, err := collect[scopeRow](ctx, tx, scopeSQL, scope)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}
