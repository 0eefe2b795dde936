package pgtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Refuse has functions of the server refused in a database of the test, with the SQLSTATE and the
// text of a managed server: 55000 as Amazon Aurora does below wal_level = logical, 42501 as a
// server on which PUBLIC may not execute them. Others of the same names take their places in
// pg_catalog, where every session finds them whatever its search_path is: the server calls its own
// by their OIDs, so replacing their bodies has no effect. The pool's login has to be a superuser.
func Refuse(t testing.TB, pool *pgxpool.Pool, code string, functions ...string) {
	t.Helper()
	for _, f := range functions {
		name, _, _ := strings.Cut(f, "(")
		var text string
		switch code {
		case "55000":
			text = "wal_level must be set to ''logical''"
		case "42501":
			text = "permission denied for function " + name
		}
		var arguments, result string
		if err := pool.QueryRow(
			t.Context(),
			`select pg_get_function_arguments(f), pg_get_function_result(f) from (select $1::text::regprocedure) x(f)`,
			f,
		).Scan(
			&arguments,
			&result,
		); err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			fmt.Sprintf(`alter function pg_catalog.%s rename to refused_%s`, f, name),
			fmt.Sprintf(
				`
create function pg_catalog.%s(%s) returns %s
  language plpgsql as $$ begin raise exception '%s' using errcode = '%s'; end $$`,
				name,
				arguments,
				result,
				text,
				code,
			),
		} {
			if _, err := pool.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
}
