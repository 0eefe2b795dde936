package inbox

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/retention"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// interval is how often a process looks at the rings. Segments are open for hours.
const interval = 10 * time.Second

// rareInterval is how often a process looks at the rings of the classes short and long, which most
// databases do not use: a look at a ring whose current segment is empty finds nothing due. Their
// rotators and builders keep their leases for rareTTL.
const (
	rareInterval = time.Minute
	rareTTL      = 3 * time.Minute
)

// intervalOf returns how often a process looks at a ring, and for how long a lease lasts in
// between.
func intervalOf(r ring.Ring) (every, ttl time.Duration) {
	if r.Rare {
		return rareInterval, rareTTL
	}
	return interval, 0
}

// answerTimeout bounds a statement, because its server may be gone without closing the connection.
const answerTimeout = 30 * time.Second

// rightsRecheck is how long a process waits if its role lacks rights: they may be granted while it
// runs.
const rightsRecheck = 5 * time.Minute

// anySize means that a segment is followed by another one when it is a seventh of the horizon old,
// whatever its size. A ring has the slots that a horizon needs at that pace. A ring that closed
// segments earlier would run out of slots, and one segment would then hold most of the keys.
const anySize = math.MaxInt64

// Rotate rotates the rings of keys, builds the filters of the consumers' rings, deletes rows whose
// retention has passed, and checks that horizons still meet the needs, until ctx ends. It returns
// after all of that has stopped. Faults are logged, and never fail the caller. The first look is
// after one interval, because a process that starts has more urgent work.
func Rotate(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, needs ...Need) {
	var all sync.WaitGroup
	for _, which := range ring.Keys() {
		every, ttl := intervalOf(which)
		x, err := ring.New(pool, which, ring.Config{MaxBytes: anySize, Interval: every, LeaseTTL: ttl, Hooks: ring.Hooks{
			Stepped: func(o ring.StepResult) { logStep(log, which.Name, o) },
			Failed:  func(err error) { log.Warn("onlyonce: rotating the inbox failed", "ring", which.Name, "error", err) },
		}})
		if err != nil {
			log.Error("onlyonce: the inbox does not rotate", "ring", which.Name, "error", err)
			continue
		}
		all.Go(func() {
			for wait := interval; pace.Sleep(ctx, wait); wait = rightsRecheck {
				if err := x.Run(ctx); errors.Is(err, ring.ErrRights) {
					ring.LogNotRotating(ctx, log)
				} else if err != nil && ctx.Err() == nil {
					log.Warn("onlyonce: rotating the inbox failed", "ring", which.Name, "error", err)
				}
			}
		})
	}
	all.Go(func() { retention.New(pool, log).Run(ctx, func() { ring.LogNotRotating(ctx, log) }) })
	for _, which := range ring.Consumer() {
		all.Go(func() { NewBuilder(pool, which, log).Run(ctx) })
	}
	if len(needs) > 0 {
		all.Go(func() { watchHorizons(ctx, pool, log, interval, answerTimeout, needs) })
	}
	all.Wait()
}

// logStep logs what became of a segment.
func logStep(log *slog.Logger, name string, o ring.StepResult) {
	switch o.Action {
	case ring.Announced:
		log.Info("onlyonce: the inbox continues in another segment", "ring", name, "slot", o.Slot)
	case ring.Truncated:
		log.Info("onlyonce: a segment of the inbox whose horizon has passed was emptied", "ring", name, "slot", o.Slot)
	case ring.Needed:
		log.Warn("onlyonce: the inbox grows: a segment is kept beyond its horizon", "ring", name, "slot", o.Slot, "why", o.Why)
	case ring.Full:
		log.Warn("onlyonce: the inbox has no free segment: the current one grows; see onlyonce inbox status", "ring", name, "slot", o.Slot, "why", o.Why)
	}
}
