package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// function is one of the server's own that a kind of work calls. By default PUBLIC may execute each
// of them. Some managed servers take that away, and Amazon Aurora refuses those of the WAL below
// wal_level = logical.
type function struct {
	name    string // with the types of its arguments
	sql     string // calls it
	needs   string // what does not work without it; empty: all does
	without string // how that works without it
}

// unknownHistory is how relays work without the functions of the WAL, see onlyonce.history.
const unknownHistory = "relays take each restart of the server for a failover, so more calls may need " +
	"reconciliation, and RelayConfig.WaitFor and the cache of HTTP answers are refused"

func systemFunction(needs, without string) function {
	return function{"pg_control_system()", "select system_identifier is null from pg_control_system()", needs, without}
}

func walFunctions(needs, without string, more ...function) []function {
	return append(
		more,
		function{"pg_current_wal_insert_lsn()", "select pg_current_wal_insert_lsn() is null", needs, without},
		function{"pg_walfile_name(pg_lsn)", "select pg_walfile_name('0/1') is null", needs, without},
	)
}

// functionsOf returns the functions of all roles, each once, and first those that are needed.
func functionsOf(roles []Role) (all []function) {
	for _, r := range roles {
		all = append(all, r.functions...)
	}
	slices.SortStableFunc(all, func(a, b function) int { return cmp.Compare(len(b.needs), len(a.needs)) })
	known := map[string]bool{}
	return slices.DeleteFunc(all, func(f function) bool {
		again := known[f.name]
		known[f.name] = true
		return again
	})
}

// call runs a query of one row. In a transaction it does that in a savepoint, so that an error does
// not end the transaction.
func call(ctx context.Context, conn Conn, sql string) error {
	var ignored bool
	tx, is := conn.(pgx.Tx)
	if !is {
		return unnamedQuerier{conn}.QueryRow(ctx, sql).Scan(&ignored)
	}
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	err = unnamedQuerier{savepoint}.QueryRow(ctx, sql).Scan(&ignored)
	return cmp.Or(err, savepoint.Rollback(ctx))
}

// missingFunctions returns a finding for each function that cannot be called: what is wrong, and
// what to change. It calls each, because a right on it does not mean that the server executes it.
func missingFunctions(ctx context.Context, conn Conn, functions []function, user string) (notes []Note, err error) {
	for _, f := range functions {
		err := call(ctx, conn, f.sql)
		var refused *pgconn.PgError
		switch {
		case err == nil:
			continue
		case !errors.As(err, &refused):
			return nil, err
		}
		text := fmt.Sprintf("%s cannot be called: %s (%s): ", f.name, refused.Message, refused.Code)
		if f.needs != "" {
			text = f.needs + " cannot work: " + text
		}
		switch refused.Code {
		case "42501":
			text += fmt.Sprintf("as a superuser run: grant execute on function pg_catalog.%s to %s", f.name, user)
		case "55000":
			text += "set wal_level = logical (on Amazon Aurora: rds.logical_replication = 1) and restart the server"
		default:
			text += "the server does not offer it (docs/guide/servers.md)"
		}
		if f.needs == "" {
			text += "; without it " + f.without
		}
		notes = append(notes, Note{Name: "functions", Fault: f.needs != "", Text: text})
	}
	return notes, nil
}
