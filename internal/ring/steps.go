package ring

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

type pendingWait struct {
	version int64
	xid     string
}

// ringState is a ring's row, and what the database knows about it.
type ringState struct {
	slots, cur                 int16
	draining, retired          *int16
	closed                     []int16 // youngest first
	version, sequence          int64
	due, expired, clockIsWrong bool
}

// freeSlot returns a slot that is neither current, draining, closed nor retired: the next one in
// the ring.
func (s *ringState) freeSlot() (int16, bool) {
	for i := int16(1); i < s.slots; i++ {
		slot := (s.cur + i) % s.slots
		retired := s.retired != nil && *s.retired == slot
		draining := s.draining != nil && *s.draining == slot
		if !slices.Contains(s.closed, slot) && !retired && !draining {
			return slot, true
		}
	}
	return 0, false
}

func (r *Rotator) takeStep(ctx context.Context) (StepResult, error) {
	if err := r.checkRights(ctx); err != nil {
		return StepResult{}, err
	}
	// Before any step that a wrong clock forbids, and without the lease: this process may be the
	// only one left.
	if r.ring.Repair != "" {
		if err := r.runRepair(ctx); err != nil {
			return StepResult{}, err
		}
	}
	if err := r.watch(ctx); err != nil {
		return StepResult{}, err
	}
	if owner, err := r.holdLease(ctx); !owner || err != nil {
		return StepResult{Action: Standby}, err
	}
	st, err := r.readState(ctx)
	if err != nil {
		return StepResult{}, err
	}
	if st.sequence != st.version {
		return StepResult{Action: Repaired}, r.moveRow(ctx, st, repairSQL)
	}
	passed := false
	if st.draining != nil || st.retired != nil {
		if passed, err = r.transactionsPassed(ctx, st); err != nil {
			return StepResult{}, err
		}
	}
	// While a segment drains nothing else is done: announcing another one would forget it.
	if st.draining != nil {
		if !passed {
			return StepResult{Action: Waiting, Slot: *st.draining}, nil
		}
		return StepResult{
			Action: Closed,
			Slot:   *st.draining,
		}, r.moveRow(ctx, st, closeSQL, *st.draining, r.wait.xid, newUse())
	}
	out := StepResult{Action: Idle}
	if st.retired != nil {
		// If another session keeps this segment locked, the next one must still be opened.
		if out, err = r.truncateSegment(ctx, st, passed); err != nil || out.Changed() {
			return out, err
		}
	}
	if slot, ok := st.freeSlot(); st.due && ok {
		return StepResult{Action: Announced, Slot: slot}, r.moveRow(ctx, st, announceSQL, slot)
	}
	if st.retired == nil && len(st.closed) > 0 {
		if out, err = r.retireOldest(ctx, st); err != nil || out.Changed() {
			return out, err
		}
	}
	if st.due {
		if out.Action == Idle || out.Action == Waiting {
			out.Why = "no slot is free: the oldest segment is still kept"
		}
		out.Action = Full
		out.Slot = st.cur
	}
	return out, nil
}

// readState reads the row. The next step follows from it alone.
func (r *Rotator) readState(ctx context.Context) (*ringState, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	var st ringState
	err := r.pool.QueryRow(
		bounded,
		substitute(stateSQL, r.ring.Sequence, "", 0),
		r.ring.Name,
		r.ring.Tables,
		r.cfg.MaxBytes,
		r.cfg.MaxAge,
		r.cfg.Retention,
		r.ring.Horizon,
	).Scan(
		&st.slots, &st.cur, &st.draining, &st.closed, &st.retired, &st.version, &st.sequence,
		&st.due, &st.expired, &st.clockIsWrong,
	)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("%w: there is no ring %s", ErrSchema, r.ring.Name)
	case err != nil:
		return nil, fmt.Errorf("reading ring %s: %w", r.ring.Name, err)
	case int(st.slots) != len(r.ring.Tables):
		return nil, fmt.Errorf("%w: ring %s has %d slots and not %d",
			ErrSchema, r.ring.Name, st.slots, len(r.ring.Tables))
	case st.clockIsWrong:
		return nil, ErrClock
	}
	r.reportedClock = false
	return &st, nil
}

func (r *Rotator) runRepair(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if _, err := r.pool.Exec(bounded, r.ring.Repair); err != nil {
		return fmt.Errorf("repairing rows written while the clock was ahead: %w", err)
	}
	return nil
}

// transactionsPassed reports whether every transaction that may have read the row before this
// version has ended. The id that decides is taken after the row was read, and only once for each
// version.
func (r *Rotator) transactionsPassed(ctx context.Context, st *ringState) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if r.wait == nil || r.wait.version != st.version {
		xid, err := OwnXid(bounded, r.pool)
		if err != nil {
			return false, err
		}
		r.wait = &pendingWait{version: st.version, xid: xid}
	}
	return XidPassed(bounded, r.pool, r.wait.xid)
}

// retireOldest retires the oldest closed segment, if its retention has passed and it is not needed.
func (r *Rotator) retireOldest(ctx context.Context, st *ringState) (StepResult, error) {
	slot := st.closed[len(st.closed)-1]
	if !st.expired {
		return StepResult{Action: Idle}, nil
	}
	why, err := r.whyNeeded(ctx, slot)
	if err != nil {
		return StepResult{}, err
	}
	if why != "" {
		return StepResult{Action: Needed, Slot: slot, Why: why}, nil
	}
	if done, err := r.carryOver(ctx, st, slot); !done || err != nil {
		return StepResult{Action: Carried, Slot: slot}, err
	}
	return StepResult{Action: Retired, Slot: slot}, r.moveRow(ctx, st, retireSQL, r.ring.Horizon)
}

// whyNeeded returns why a segment must be kept. It takes no lock, so the answer may be out of date
// when it arrives.
func (r *Rotator) whyNeeded(ctx context.Context, slot int16) (string, error) {
	var why *string
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	err := r.pool.InTx(
		bounded,
		pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			if _, err := tx.Exec(
				bounded,
				settingsSQL,
				guard.Millis(r.cfg.LockTimeout),
				guard.Millis(r.cfg.Timeout),
			); err != nil {
				return err
			}
			return tx.QueryRow(bounded, r.segmentSQL(r.ring.Needed, slot)).Scan(&why)
		},
	)
	if err != nil {
		return "", fmt.Errorf("checking who needs segment %s: %w", r.ring.Tables[slot], err)
	}
	if why == nil {
		return "", nil
	}
	return *why, nil
}

// moveRow is a step that only changes the row.
func (r *Rotator) moveRow(ctx context.Context, st *ringState, sql string, more ...any) error {
	return r.inTransaction(ctx, r.cfg.Timeout, func(ctx context.Context, tx pgx.Tx) error {
		return r.advanceRow(ctx, tx, st, sql, more...)
	})
}

// advanceRow advances the sequence, and then the row. The order matters: a writer that reads the
// sequence before it is advanced got its transaction id before this step commits.
func (r *Rotator) advanceRow(ctx context.Context, tx pgx.Tx, st *ringState, sql string, more ...any) error {
	var next int64
	if err := tx.QueryRow(ctx, substitute(advanceSQL, r.ring.Sequence, "", 0), st.version).Scan(&next); err != nil {
		return fmt.Errorf("advancing %s: %w", r.ring.Sequence, err)
	}
	tag, err := tx.Exec(ctx, sql, append([]any{r.ring.Name, st.version, next}, more...)...)
	if err != nil {
		return fmt.Errorf("moving ring %s: %w", r.ring.Name, err)
	}
	if tag.RowsAffected() != 1 {
		return ErrMoved
	}
	return nil
}

// newUse returns a number that identifies one use of a segment, for example for filters that are
// built from its keys. It is random, and new with each close: a failover may lose a close together
// with the segment's last rows, and the segment is then closed again with other keys in it. Its
// slot, its version and what it was opened by are the same then.
func newUse() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand since Go 1.24)
	return int64(binary.BigEndian.Uint64(b[:]))
}

var errNeeded = errors.New("needed")

// truncateSegment empties the retired segment.
func (r *Rotator) truncateSegment(ctx context.Context, st *ringState, passed bool) (StepResult, error) {
	slot := *st.retired
	if !passed {
		return StepResult{Action: Waiting, Slot: slot}, nil
	}
	out := StepResult{Action: Busy, Slot: slot, Why: "it could not be locked a moment ago"}
	if time.Now().Before(r.pausedTo) {
		return out, nil
	}
	err := r.inTransaction(ctx, r.cfg.Timeout/5, func(ctx context.Context, tx pgx.Tx) error {
		var version int64
		var retired *int16
		if err := tx.QueryRow(ctx, lockRowSQL, r.ring.Name).Scan(&version, &retired); err != nil {
			return fmt.Errorf("locking ring %s: %w", r.ring.Name, err)
		}
		if version != st.version || retired == nil || *retired != slot {
			return ErrMoved
		}
		if _, err := tx.Exec(ctx, r.segmentSQL(lockSQL, slot)); err != nil {
			return fmt.Errorf("locking segment %s: %w", r.ring.Tables[slot], err)
		}
		var why *string
		if err := tx.QueryRow(ctx, r.segmentSQL(r.ring.Needed, slot)).Scan(&why); err != nil {
			return fmt.Errorf("checking who needs segment %s: %w", r.ring.Tables[slot], err)
		}
		if why != nil {
			out = StepResult{Action: Needed, Slot: slot, Why: *why}
			return errNeeded
		}
		if r.ring.Keep != "" {
			if _, err := tx.Exec(ctx, r.segmentSQL(r.ring.Keep, slot)); err != nil {
				return fmt.Errorf("noting what outlasts segment %s: %w", r.ring.Tables[slot], err)
			}
		}
		if _, err := tx.Exec(ctx, r.segmentSQL(truncateSQL, slot)); err != nil {
			return fmt.Errorf("emptying segment %s: %w", r.ring.Tables[slot], err)
		}
		// The sequence last, because writers above READ COMMITTED are refused from here to the end.
		return r.advanceRow(ctx, tx, st, truncatedSQL, slot)
	})
	var pg *pgconn.PgError
	switch {
	case err == nil:
		r.busy = 0
		return StepResult{Action: Truncated, Slot: slot}, nil
	case errors.As(err, &pg) && pg.Code == "55P03":
		out.Why = "another session reads it: " + pg.Message
	case !errors.Is(err, errNeeded):
		return StepResult{}, err
	}
	// All sessions that want the segment have queued while this attempt waited: leave them alone
	// for longer each time.
	r.pausedTo = time.Now().Add(r.cfg.LockPause << min(r.busy, 6))
	r.busy++
	return out, nil
}

// inTransaction runs a step's transaction under the lease. It is detached from ctx, because a
// COMMIT that is cancelled while it waits for a standby has committed on this server only.
func (r *Rotator) inTransaction(ctx context.Context, idle time.Duration, do func(context.Context, pgx.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	return r.pool.InTx(bounded, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(bounded, settingsSQL, guard.Millis(r.cfg.LockTimeout), guard.Millis(idle)); err != nil {
			return err
		}
		if _, err := tx.Exec(bounded, holdSQL, r.lease.ID, r.lease.Epoch, r.lease.Nonce); err != nil {
			return err
		}
		return do(bounded, tx)
	})
}

func (r *Rotator) segmentSQL(sql string, slot int16) string {
	emptied := r.ring.Tables[slot]
	if r.ring.With != nil {
		emptied += ", " + r.ring.With[slot]
	}
	return strings.ReplaceAll(substitute(sql, r.ring.Sequence, r.ring.Tables[slot], slot), "EMPTIED", emptied)
}
