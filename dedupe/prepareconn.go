package dedupe

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/primary"
)

// PrepareConn keeps a pool that your own code uses off standbys. Set it as
// pgxpool.Config.PrepareConn: a connection whose server has become a standby is then closed instead
// of being lent, and the statement fails with an error that says so. PrepareConn sends no
// statement: PostgreSQL 14 and later tell each session.
//
// Onlyonce itself closes such connections of the pools that it gets, also behind a pooler that does
// not forward the server's report. Do not set PrepareConn for a pool that reads from standbys.
func PrepareConn(_ context.Context, conn *pgx.Conn) (ok bool, err error) {
	if err := primary.Check(conn); err != nil {
		return false, fmt.Errorf("dedupe: %w: the connection is closed", err)
	}
	return true, nil
}
