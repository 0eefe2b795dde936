package inbox

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/retention"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// interval is how often a process looks at the rings. Segments are open for hours.
const interval = 30 * time.Second

// rareInterval is how often a process looks at the rings of the classes short and long, which most
// databases do not use: a look at a ring whose current segment is empty finds nothing due.
const rareInterval = time.Minute

// intervalOf returns how often a process looks at a ring, and for how long a lease lasts: it must
// not end between two looks.
func intervalOf(r ring.Ring) (every, ttl time.Duration) {
	every = interval
	if r.Rare {
		every = rareInterval
	}
	return every, 3 * every
}

// answerTimeout bounds a statement, because its server may be gone without closing the connection.
const answerTimeout = 30 * time.Second

// rightsRecheck is how long a process waits if its role lacks rights: they may be granted while it
// runs.
const rightsRecheck = 5 * time.Minute

// insufficientPrivilege is insufficient_privilege.
const insufficientPrivilege = "42501"

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
	watched := watch.New(primary.Of(pool, log).Pinned(), watch.Often) // one for all: each look is a round trip
	all.Go(func() { keepWatching(ctx, watched, log) })
	for _, which := range ring.Keys() {
		every, ttl := intervalOf(which)
		x, err := ring.New(pool, which, ring.Config{
			MaxBytes: anySize,
			Interval: every,
			LeaseTTL: ttl,
			Watched:  watched,
			Hooks: ring.Hooks{
				Stepped: func(o ring.StepResult) { logStep(log, which.Name, o) },
				Failed: func(err error) {
					log.Warn("onlyonce: rotating the inbox failed", "ring", which.Name, "error", err)
				},
			},
		})
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
	all.Go(func() { retention.New(pool, watched, log).Run(ctx, func() { ring.LogNotRotating(ctx, log) }) })
	for _, which := range ring.Consumer() {
		all.Go(func() { NewBuilder(pool, which, log).Run(ctx) })
	}
	if len(needs) > 0 {
		all.Go(func() { watchHorizons(ctx, pool, log, interval, answerTimeout, needs) })
	}
	all.Wait()
}

// keepWatching moves watched time on until ctx ends, because its stamps are as old as its last move
// (T11).
func keepWatching(ctx context.Context, watched *watch.Clock, log *slog.Logger) {
	for wait := watch.Often; pace.Sleep(ctx, wait); {
		wait = watch.Often
		bounded, cancel := context.WithTimeout(ctx, answerTimeout)
		err := watched.Look(bounded)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
		case guard.SQLState(err) == insufficientPrivilege:
			ring.LogNotRotating(ctx, log)
			wait = rightsRecheck
		default:
			log.Warn("onlyonce: moving watched time on failed", "error", err)
		}
	}
}

// logStep logs what became of a segment.
func logStep(log *slog.Logger, name string, o ring.StepResult) {
	switch o.Action {
	case ring.Announced:
		log.Info("onlyonce: the inbox continues in another segment", "ring", name, "slot", o.Slot)
	case ring.Truncated:
		log.Info("onlyonce: a segment of the inbox whose horizon has passed was emptied", "ring", name, "slot", o.Slot)
	case ring.Needed:
		log.Warn("onlyonce: the inbox grows: a segment is kept beyond its horizon",
			"ring", name, "slot", o.Slot, "why", o.Why)
	case ring.Full:
		log.Warn("onlyonce: the inbox has no free segment: the current one grows; see onlyonce inbox status",
			"ring", name, "slot", o.Slot, "why", o.Why)
	}
}
