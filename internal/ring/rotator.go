package ring

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/internal/watch"
)

// Rotator takes a ring's steps while it holds the ring's lease. It must be used by one goroutine.
type Rotator struct {
	pool *primary.Pool
	ring Ring
	cfg  Config

	lease *lease.Lease // nil: not ours
	// wait is the current wait and the row's version that it is for. It is nil until an id was
	// taken after the row was read.
	wait *pendingWait
	// carry is how far the carry-over of the oldest segment has come. It is nil if none is under
	// way.
	carry   *carryWalk
	carried *pace.Portion
	// busy is how often in a row the segment could not be locked; pausedTo is when the next try is
	// due.
	busy     int
	pausedTo time.Time
	// What was reported already and is not reported again.
	reportedRights, reportedClock bool
	lastReported                  StepResult

	watched *watch.Clock
}

// New returns a rotator, or every fault of its configuration at once.
func New(pool *pgxpool.Pool, ring Ring, cfg Config) (*Rotator, error) {
	cfg, err := cfg.withDefaults(pool, ring)
	if err != nil {
		return nil, err
	}
	db := primary.Of(pool, nil).Pinned()
	watched := cfg.Watched
	if watched == nil {
		watched = watch.New(db, watch.Often)
	}
	return &Rotator{
		pool:    db,
		ring:    ring,
		cfg:     cfg,
		carried: pace.NewPortion(carriedAtOnce),
		watched: watched,
	}, nil
}

// Run rotates until its context ends, and then returns nil. It returns ErrRights if the role may
// not rotate, because waiting does not repair that. It reports other errors to Hooks.Failed and
// waits them out.
func (r *Rotator) Run(ctx context.Context) error {
	defer func() {
		if err := r.Release(ctx); err != nil {
			r.reportError(err)
		}
	}()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		out, err := r.Step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrRights):
			return err
		case err != nil:
			r.reportError(err)
		}
		if out.Changed() {
			pause.Reset(0)
		} else {
			pause.Reset(r.cfg.Interval)
		}
	}
}

func (r *Rotator) reportError(err error) {
	if r.cfg.Hooks.Failed != nil {
		r.cfg.Hooks.Failed(err)
	}
}

// Release gives the lease back if this rotator has it, so that another one goes on at once.
func (r *Rotator) Release(ctx context.Context) error {
	if r.lease == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	l := r.lease
	r.dropLease(nil)
	return l.Release(bounded, r.pool)
}

// dropLease forgets the lease, and any wait and carry-over under it.
func (r *Rotator) dropLease(why error) {
	epoch := r.lease.Epoch
	r.lease = nil
	r.wait = nil
	r.carry = nil
	r.busy = 0
	if r.cfg.Hooks.Lease != nil {
		r.cfg.Hooks.Lease(LeaseEvent{Epoch: epoch, Err: why})
	}
}

// Step takes at most one step. It waits only for the lease's and the row's locks (LockTimeout). If
// ctx ends, a step that has begun is finished, within Timeout.
func (r *Rotator) Step(ctx context.Context) (StepResult, error) {
	out, err := r.takeStep(ctx)
	if err != nil {
		out, err = r.resultOf(ctx, err)
	}
	if out.Changed() {
		r.wait = nil
		r.lastReported = StepResult{}
	}
	tell := out.Changed()
	waits := out.Action == Needed || out.Action == Full
	if waits && (out.Action != r.lastReported.Action || out.Slot != r.lastReported.Slot) {
		// not again for another lane of the same segment
		r.lastReported = out
		tell = true
	}
	if tell && r.cfg.Hooks.Stepped != nil {
		r.cfg.Hooks.Stepped(out)
	}
	return out, err
}

// resultOf maps an error to an outcome. It drops the wait, because the session may have gone, and
// the server with it.
func (r *Rotator) resultOf(ctx context.Context, err error) (StepResult, error) {
	r.wait = nil
	if pg, is := errors.AsType[*pgconn.PgError](err); is {
		switch pg.Code {
		case "OO001":
			r.dropLease(err)
			return StepResult{Action: Standby}, nil
		case "55P03": // lock_not_available: another session takes over the lease, or reads the row
			return StepResult{Action: Busy, Why: pg.Message}, nil
		case "42501":
			err = fmt.Errorf("%w: %w", ErrRights, err)
		}
	}
	reported := (*bool)(nil)
	switch {
	case errors.Is(err, ErrMoved):
		return StepResult{Action: Standby}, errors.Join(err, r.Release(ctx))
	case errors.Is(err, ErrRights):
		reported = &r.reportedRights
	case errors.Is(err, ErrClock):
		reported = &r.reportedClock
	}
	if reported != nil && *reported {
		return StepResult{Action: Standby}, nil
	}
	if reported != nil {
		*reported = true
	}
	return StepResult{Action: Standby}, err
}

// watch keeps watched time. It does so without the lease too, as any process may.
func (r *Rotator) watch(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	return r.watched.Look(bounded)
}

// checkRights returns ErrRights, with all that the role lacks, unless this rotator may rotate. A
// rotator that has the lease was checked already.
func (r *Rotator) checkRights(ctx context.Context) error {
	if r.lease != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	rows, err := r.pool.Query(bounded, strings.ReplaceAll(rightsSQL, "WHO", "current_user"), r.ring.rights()...)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: it lacks %s", ErrRights, strings.Join(missing, ", "))
	}
	r.reportedRights = false
	return nil
}

// holdLease takes the lease, or renews it.
func (r *Rotator) holdLease(ctx context.Context) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if r.lease != nil {
		if time.Since(r.lease.Sent) < r.cfg.LeaseTTL/3 {
			return true, nil
		}
		ours, err := r.lease.Renew(bounded, r.pool, r.cfg.LeaseTTL)
		if err == nil && !ours {
			r.dropLease(errors.New("another process has taken the lease over"))
		}
		return ours, err
	}
	l, err := lease.Acquire(bounded, r.pool, r.ring.Lease(), r.cfg.LeaseTTL)
	if l == nil || err != nil {
		return false, err
	}
	r.lease = l
	if r.cfg.Hooks.Lease != nil {
		r.cfg.Hooks.Lease(LeaseEvent{Epoch: l.Epoch, Held: true})
	}
	return true, nil
}
