package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrHorizon says that keys are not remembered for as long as somebody needs them.
var ErrHorizon = errors.New("the inbox's horizon is too short")

// horizonSQL reads for how many seconds a ring remembers keys at least. In: ring. Out: a row; null: for ever.
const horizonSQL = `select extract(epoch from horizon)::float8 from onlyonce.rings where name = $1`

// DB is what Holds asks: a pool, a connection or a transaction.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Holds returns an error that wraps ErrHorizon unless a ring remembers keys for as long as a copy may come behind the first.
func Holds(ctx context.Context, db DB, name string, copies time.Duration) error {
	var seconds *float64
	if err := db.QueryRow(ctx, horizonSQL, name).Scan(&seconds); err != nil {
		return fmt.Errorf("reading the horizon of ring %s: %w", name, err)
	}
	if seconds == nil {
		return nil
	}
	if horizon := time.Duration(*seconds * float64(time.Second)); horizon < copies {
		return fmt.Errorf("%w: copies are declared to come for %v, and keys of ring %s may be forgotten after %v: a later copy would be applied again. Set it longer: onlyonce inbox horizon -ring %s -horizon D",
			ErrHorizon, copies, name, horizon, name)
	}
	return nil
}
