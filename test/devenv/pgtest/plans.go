package pgtest

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// GenericPlan returns the plan of a statement that a session keeps for all values of its
// parameters, as it makes it now. args are SQL, and settings for example "enable_seqscan = off".
func GenericPlan(t testing.TB, pool *pgxpool.Pool, sql, args string, settings ...string) (plan string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, s := range append(settings, "plan_cache_mode = force_generic_plan") {
			if _, err := tx.Exec(t.Context(), `set local `+s); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(t.Context(), `prepare planned as `+sql); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), fmt.Sprintf(`explain execute planned(%s)`, args), pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		plan = strings.Join(lines, "\n")
		_, err = tx.Exec(t.Context(), `deallocate planned`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// scanned is a line of a plan that reads a table, and whether the next line is the condition by
// which it reads an index. PostgreSQL 18 may have a line between the two.
var scanned = regexp.MustCompile(`(?:Seq Scan on|Index (?:Only )?Scan(?: Backward)? using \w+ on|Bitmap Index Scan on) ` +
	`(\w+)[^\n]*(?:\n\s*Index Searches[^\n]*)?(?:\n\s*(Index Cond))?`)

// ReadsAll reports whether a plan reads all rows of a table, or of an index of it, of those whose
// names begin so.
func ReadsAll(plan string, tables ...string) bool {
	for _, m := range scanned.FindAllStringSubmatch(plan, -1) {
		for _, table := range tables {
			if strings.HasPrefix(m[1], table) && m[2] == "" {
				return true
			}
		}
	}
	return false
}

// Pages returns how many pages a statement reads from the server's memory and from disk, those that
// functions read for it included. It runs the statement and keeps its effects.
func Pages(t testing.TB, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) (pages int) {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := conn.QueryRow(t.Context(), `explain (analyze, buffers, format json) `+sql, args...).Scan(&plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}
