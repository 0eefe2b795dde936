package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// The statements of docs/sql.md run as printed, and do what the page says; each function that it
// names exists with that signature.
func TestDocumentedStatements(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, pgtest.URL(t))
	run := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	count := func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}
	run(`create table orders (id text primary key, cents integer)`)
	blocks := strings.Split(string(page), "```sql\n")[1:]
	for _, b := range blocks {
		sql, _, _ := strings.Cut(b, "```")
		run(sql)
	}
	if len(blocks) != 2 {
		t.Errorf("%d blocks of SQL", len(blocks))
	}
	keys := count(`select count(*) from onlyonce.inbox`)
	calls := count(`select count(*) from onlyonce.outbox_log`)
	if keys != 4 ||
		calls != 3 {
		t.Errorf("%d keys and %d calls", keys, calls)
	}
	for _, signature := range []string{
		"key(tenant text, scope text, id text) returns uuid",
		"claim(keys uuid[], fingerprints bigint[], scopes text[]) returns smallint[]",
		"enqueue(key uuid, tenant text, scope text, sink text, name text, method text, target text, " +
			"header_names text[], header_values text[], body bytea) returns void",
	} {
		if !strings.Contains(string(page), "`onlyonce."+signature+"`") {
			t.Errorf("not on the page: %s", signature)
		}
		head, result, _ := strings.Cut(signature, " returns ")
		name, args, _ := strings.Cut(strings.TrimSuffix(head, ")"), "(")
		n := 0
		err := conn.QueryRow(t.Context(), `select count(*) from pg_proc where pronamespace = 'onlyonce'::regnamespace and proname = $1
			and pg_get_function_identity_arguments(oid) = $2 and pg_get_function_result(oid) = $3`, name, args, result).Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("%s: %d functions, %v", signature, n, err)
		}
	}
}
