package migrations

import (
	"context"
	"fmt"
	"strings"
)

// serverKindSQL returns one row: what the server calls itself, and whether it has the view by which
// Aurora DSQL is known, whose version is PostgreSQL's. It uses only what each of them has.
const serverKindSQL = `
select version(), (select count(*) from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                    where n.nspname = 'sys' and c.relname = 'iam_pg_role_mappings') > 0`

// refusedServers are databases that speak PostgreSQL's protocol, and on which messages would be
// lost or applied twice.
var refusedServers = []struct {
	name    string
	is      func(version string, dsql bool) bool
	because string
}{
	{"CockroachDB", func(v string, _ bool) bool { return strings.HasPrefix(v, "CockroachDB") },
		"advisory locks do nothing in most of its versions, and it has no snapshots with PostgreSQL's " +
			"transaction ids, by which relays and streams read"},
	{"YugabyteDB", func(v string, _ bool) bool { return strings.Contains(v, "-YB-") },
		"its snapshots are times and not PostgreSQL's transaction ids, by which relays and streams read, " +
			"and many of its versions have no advisory locks"},
	{"Aurora DSQL", func(_ string, dsql bool) bool { return dsql },
		"it has no triggers, no PL/pgSQL and no advisory locks, and its snapshots are times and not " +
			"PostgreSQL's transaction ids, by which relays and streams read"},
}

// CheckServer returns an error if the server is known to be another database than PostgreSQL, with
// its name and the reason. Engines, operators' commands and [Apply] call it first (S1).
func CheckServer(ctx context.Context, db DB) error {
	var version string
	var dsql bool
	if err := db.QueryRow(ctx, serverKindSQL).Scan(&version, &dsql); err != nil {
		return fmt.Errorf("migrations: reading which server it is: %w", err)
	}
	for _, s := range refusedServers {
		if s.is(version, dsql) {
			return fmt.Errorf("the server is %s (%s), which onlyonce does not support: %s; use PostgreSQL "+
				"(docs/guide/servers.md)", s.name, version, s.because)
		}
	}
	return nil
}
