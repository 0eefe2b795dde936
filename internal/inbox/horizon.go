package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/pace"
)

// ErrHorizon means that keys are remembered for a shorter time than copies may come.
var ErrHorizon = errors.New("the inbox's horizon is too short")

// horizonSQL reads how many seconds a ring remembers keys at least. In: the ring, and a scope whose
// class may name another one. Out: a row with the ring; null: for ever.
const horizonSQL = `
select name, extract(epoch from horizon)::float8
  from onlyonce.rings
 where name = coalesce(
   (select onlyonce.class_ring(h.class, 'standard') from onlyonce.horizons h where h.scope = $2),
   $1
 )`

// DB is what Holds queries: a pool, a connection or a transaction.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Need is how long after the first message its copies may come, as a configuration declares it.
type Need struct {
	Ring   string // the ring whose keys recognise the copies
	Scope  string // in which they are claimed, if no consumer claims them: its class may name another ring
	Copies time.Duration
	Whose  string // the field that declares it, for watch
}

// CheckHorizon returns an error that wraps ErrHorizon unless the ring remembers keys for as long as
// copies may come.
func CheckHorizon(ctx context.Context, db DB, n Need) error {
	var ring string
	var seconds *float64
	if err := db.QueryRow(ctx, horizonSQL, n.Ring, n.Scope).Scan(&ring, &seconds); err != nil {
		return fmt.Errorf("reading the horizon of ring %s: %w", n.Ring, err)
	}
	if seconds == nil {
		return nil
	}
	if horizon := time.Duration(*seconds * float64(time.Second)); horizon < n.Copies {
		return fmt.Errorf("%w: copies are declared to come for %v, and keys of ring %s may be forgotten "+
			"after %v: a later copy would be applied again. Set it longer: onlyonce inbox horizon -ring %s -horizon D",
			ErrHorizon, n.Copies, ring, horizon, ring)
	}
	return nil
}

// watchHorizons compares needs with horizons at intervals until ctx ends, because an operator may
// shorten a horizon while processes run. It reports each need once when it is no longer met. If a
// server does not answer within bound, watch asks again. When a process starts, it compares its own
// needs with Holds.
func watchHorizons(ctx context.Context, db DB, log *slog.Logger, every, bound time.Duration, needs []Need) {
	reported := make([]bool, len(needs))
	for pace.Sleep(ctx, every) {
		for i, n := range needs {
			asking, cancel := context.WithTimeout(ctx, bound)
			err := CheckHorizon(asking, db, n)
			cancel()
			short := errors.Is(err, ErrHorizon)
			if short && !reported[i] {
				log.Error("onlyonce: keys may be forgotten while copies still come", "declared", n.Whose, "error", err)
			}
			if short || err == nil {
				reported[i] = short
			}
		}
	}
}
