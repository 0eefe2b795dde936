package servers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tablesLockSQL lets two demonstrations on one database make tables one after the other.
const tablesLockSQL = `select pg_advisory_xact_lock(1869505381, 2)`

// CreateTables runs a demonstration's own statements, which make what is not there yet.
func CreateTables(ctx context.Context, pool *pgxpool.Pool, sql string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, tablesLockSQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol) // several statements, without parameters
		return err
	})
}

// pendingSQL returns one row: how many calls of a sink are not delivered, and an error that one of
// them had.
const pendingSQL = `select count(*), coalesce(max(error), '') from onlyonce.calls where sink = $1 and state <> 'delivered'`

// Pending returns how many calls of a sink are not delivered, and an error that one of them had.
func Pending(ctx context.Context, pool *pgxpool.Pool, sink string) (n int, lastError string, err error) {
	err = pool.QueryRow(ctx, pendingSQL, sink).Scan(&n, &lastError)
	return n, lastError, err
}

// OpenPool returns a pool of so many connections at the most.
func OpenPool(ctx context.Context, url string, connections int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, cfg)
}
