package idempotency

import (
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// T13: an operation is ended by its id, even in a session that planned the statement while there
// was none.
func TestT13PlansOfAnEmptyTable(t *testing.T) {
	t.Parallel()
	if plan := pgtest.GenericPlan(t, pgtest.DB(t), endOperationSQL, `gen_random_uuid(), 'done', '', false, '', ''`); pgtest.ReadsAll(
		plan,
		"operations",
	) {
		t.Errorf("%s\n%s", endOperationSQL, plan)
	}
}
