package reports_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// A bound holds for what may take long only: what follows in the transaction is not cut off by it,
// whether the bounded query came to its end or not.
func TestBoundEndsWithItsQuery(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for name, sql := range map[string]string{"ends": `select 1 as n`, "is cut off": `select 1 as n from pg_sleep(3600)`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type row struct{ N int }
			after, err := reports.Look(t.Context(), pool, func(tx pgx.Tx) (limit string, err error) {
				if _, err := reports.CollectWithin[row](t.Context(), tx, time.Second, sql); err != nil {
					return "", err
				}
				err = tx.QueryRow(t.Context(), `show statement_timeout`).Scan(&limit)
				return limit, err
			})
			if err != nil || after == "1s" {
				t.Errorf("the bound of what follows is %s (%v)", after, err)
			}
		})
	}
}
