package ring

import (
	"context"
	"fmt"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// OwnXid takes a transaction id and ends its transaction. Every id that was given out before is
// lower, and every snapshot taken from now on covers them. (xmax of a snapshot would not do: ids
// above the last one that has ended are not below it.)
func OwnXid(ctx context.Context, pool *primary.Pool) (xid string, err error) {
	if err := pool.QueryRow(ctx, `select pg_current_xact_id()::text`).Scan(&xid); err != nil {
		return "", fmt.Errorf("taking a transaction id: %w", err)
	}
	return xid, nil
}

// XidPassed reports whether every transaction below an id from OwnXid has ended. Prepared
// transactions count as open.
func XidPassed(ctx context.Context, pool *primary.Pool, xid string) (passed bool, err error) {
	if err := pool.QueryRow(ctx, `select pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8`,
		xid).Scan(&passed); err != nil {
		return false, fmt.Errorf("listing open transactions: %w", err)
	}
	return passed, nil
}
