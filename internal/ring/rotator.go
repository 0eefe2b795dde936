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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/lease"
)

// Rotator takes a ring's steps while it holds the ring's lease. It belongs to one goroutine.
type Rotator struct {
	pool *pgxpool.Pool
	ring Ring
	cfg  Config

	lease *lease.Lease // nil: not ours
	// wait is what is waited for, by the row's version: nil until an id was taken after the row was read.
	wait *wait
	// busy is how often in a row the segment could not be locked, and pausedTo when that is tried again.
	busy     int
	pausedTo time.Time
	// What was told and need not be told again.
	toldRights, toldClock bool
	told                  Outcome

	// The database's clock at the last look, by this process's.
	clock, looked time.Time
	jumped        bool
}

type wait struct {
	version int64
	xid     string
}

// state is a ring's row, and what the database says of it.
type state struct {
	slots, cur                 int16
	draining, retired          *int16
	closed                     []int16 // youngest first
	version, sequence          int64
	due, expired, clockIsWrong bool
}

// free returns a slot that is neither current, draining, closed nor retired: the next one round the ring.
func (s *state) free() (int16, bool) {
	for i := int16(1); i < s.slots; i++ {
		slot := (s.cur + i) % s.slots
		if !slices.Contains(s.closed, slot) && (s.retired == nil || *s.retired != slot) && (s.draining == nil || *s.draining != slot) {
			return slot, true
		}
	}
	return 0, false
}

// New returns a rotator, or every fault of its configuration at once.
func New(pool *pgxpool.Pool, ring Ring, cfg Config) (*Rotator, error) {
	cfg, err := cfg.withDefaults(pool, ring)
	if err != nil {
		return nil, err
	}
	return &Rotator{pool: pool, ring: ring, cfg: cfg}, nil
}

// Run rotates until its context ends, and then returns nil. It returns ErrRights where the role may not rotate, because that does not mend
// itself; other errors are told to Hooks.Failed and waited out.
func (r *Rotator) Run(ctx context.Context) error {
	defer func() {
		if err := r.Release(ctx); err != nil {
			r.failed(err)
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
			r.failed(err)
		}
		if out.Changed() {
			pause.Reset(0)
		} else {
			pause.Reset(r.cfg.Interval)
		}
	}
}

func (r *Rotator) failed(err error) {
	if r.cfg.Hooks.Failed != nil {
		r.cfg.Hooks.Failed(err)
	}
}

// Release gives the lease back, if this rotator has it, so that another one goes on at once.
func (r *Rotator) Release(ctx context.Context) error {
	if r.lease == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	l := r.lease
	r.drop(nil)
	return l.Release(bounded, r.pool)
}

// drop forgets the lease and all that was waited for under it.
func (r *Rotator) drop(why error) {
	epoch := r.lease.Epoch
	r.lease, r.wait, r.busy = nil, nil, 0
	if r.cfg.Hooks.Lease != nil {
		r.cfg.Hooks.Lease(LeaseChange{Epoch: epoch, Err: why})
	}
}

// Step takes at most one step. It does not wait, but for the lease's and the row's locks (LockTimeout). A step that has begun is finished
// when ctx ends, within Timeout.
func (r *Rotator) Step(ctx context.Context) (Outcome, error) {
	out, err := r.step(ctx)
	if err != nil {
		out, err = r.judge(ctx, err)
	}
	if out.Changed() {
		r.wait, r.told = nil, Outcome{}
	}
	tell := out.Changed()
	if (out.Action == Needed || out.Action == Full) && (out.Action != r.told.Action || out.Slot != r.told.Slot) {
		r.told, tell = out, true // not again for another lane of the same segment
	}
	if tell && r.cfg.Hooks.Stepped != nil {
		r.cfg.Hooks.Stepped(out)
	}
	return out, err
}

// judge says what an error means. Nothing that was waited for outlives one: the session may have gone, and the server with it.
func (r *Rotator) judge(ctx context.Context, err error) (Outcome, error) {
	r.wait = nil
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "OO001":
			r.drop(err)
			return Outcome{Action: Standby}, nil
		case "55P03": // lock_not_available: somebody takes over the lease, or looks at the row
			return Outcome{Action: Busy, Why: pg.Message}, nil
		case "42501":
			err = fmt.Errorf("%w: %w", ErrRights, err)
		}
	}
	told := (*bool)(nil)
	switch {
	case errors.Is(err, ErrMoved):
		return Outcome{Action: Standby}, errors.Join(err, r.Release(ctx))
	case errors.Is(err, ErrRights):
		told = &r.toldRights
	case errors.Is(err, ErrClock), errors.Is(err, ErrJump):
		told = &r.toldClock
	}
	if told != nil && *told {
		return Outcome{Action: Standby}, nil
	}
	if told != nil {
		*told = true
	}
	return Outcome{Action: Standby}, err
}

func (r *Rotator) step(ctx context.Context) (Outcome, error) {
	if err := r.look(ctx); err != nil {
		return Outcome{}, err
	}
	if owner, err := r.own(ctx); !owner || err != nil {
		return Outcome{Action: Standby}, err
	}
	st, err := r.read(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if st.sequence != st.version {
		return Outcome{Action: Repaired}, r.move(ctx, st, repairSQL)
	}
	passed := false
	if st.draining != nil || st.retired != nil {
		if passed, err = r.passed(ctx, st); err != nil {
			return Outcome{}, err
		}
	}
	// While a segment drains nothing else is done: announcing another one would forget it.
	if st.draining != nil {
		if !passed {
			return Outcome{Action: Waiting, Slot: *st.draining}, nil
		}
		return Outcome{Action: Closed, Slot: *st.draining}, r.move(ctx, st, closeSQL, *st.draining, r.wait.xid, newUse())
	}
	out := Outcome{Action: Idle}
	if st.retired != nil {
		// A segment that somebody keeps from us must not keep the next one from being opened.
		if out, err = r.empty(ctx, st, passed); err != nil || out.Changed() {
			return out, err
		}
	}
	if slot, ok := st.free(); st.due && ok {
		return Outcome{Action: Announced, Slot: slot}, r.move(ctx, st, announceSQL, slot)
	}
	if st.retired == nil && len(st.closed) > 0 {
		if out, err = r.retire(ctx, st); err != nil || out.Changed() {
			return out, err
		}
	}
	if st.due {
		if out.Action == Idle || out.Action == Waiting {
			out.Why = "no slot is free: the oldest segment is still kept"
		}
		out.Action, out.Slot = Full, st.cur
	}
	return out, nil
}

// look compares the database's clock with the time that has passed for this process since the last look. Also without the lease: a jump ends leases.
func (r *Rotator) look(ctx context.Context) error {
	if !r.ring.Horizon {
		return nil
	}
	if r.jumped {
		return ErrJump
	}
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	var clock time.Time
	var seventh *float64
	err := r.pool.QueryRow(bounded, clockSQL, r.ring.Name).Scan(&clock, &seventh)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("reading the database's clock: %w", err)
	}
	now := time.Now()
	if seventh != nil && !r.looked.IsZero() {
		most := max(time.Duration(*seventh*float64(time.Second)), r.cfg.Timeout) // what the answer took is no jump
		r.jumped = clock.Sub(r.clock) > now.Sub(r.looked)+most
	}
	r.clock, r.looked = clock, now
	if r.jumped {
		return ErrJump
	}
	return nil
}

// own takes the lease, or renews it.
func (r *Rotator) own(ctx context.Context) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if r.lease != nil {
		if time.Since(r.lease.Sent) < r.cfg.LeaseTTL/3 {
			return true, nil
		}
		ours, err := r.lease.Renew(bounded, r.pool, r.cfg.LeaseTTL)
		if err == nil && !ours {
			r.drop(errors.New("somebody else has taken the lease over"))
		}
		return ours, err
	}
	rows, err := r.pool.Query(bounded, strings.ReplaceAll(rightsSQL, "WHO", "current_user"), r.ring.rights()...)
	if err != nil {
		return false, err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return false, err
	}
	if len(missing) > 0 {
		return false, fmt.Errorf("%w: it lacks %s", ErrRights, strings.Join(missing, ", "))
	}
	r.toldRights = false
	l, err := lease.Acquire(bounded, r.pool, r.ring.Lease(), r.cfg.LeaseTTL)
	if l == nil || err != nil {
		return false, err
	}
	r.lease = l
	if r.cfg.Hooks.Lease != nil {
		r.cfg.Hooks.Lease(LeaseChange{Epoch: l.Epoch, Held: true})
	}
	return true, nil
}

// read reads the row, from which alone the next step follows.
func (r *Rotator) read(ctx context.Context) (*state, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	var st state
	err := r.pool.QueryRow(bounded, with(stateSQL, r.ring.Sequence, "", 0), r.ring.Name, r.ring.Tables, r.cfg.MaxBytes, r.cfg.MaxAge, r.cfg.Retention,
		r.ring.Horizon).Scan(
		&st.slots, &st.cur, &st.draining, &st.closed, &st.retired, &st.version, &st.sequence, &st.due, &st.expired, &st.clockIsWrong)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("%w: there is no ring %s", ErrSchema, r.ring.Name)
	case err != nil:
		return nil, fmt.Errorf("reading ring %s: %w", r.ring.Name, err)
	case int(st.slots) != r.ring.slots():
		return nil, fmt.Errorf("%w: ring %s has %d slots and not %d", ErrSchema, r.ring.Name, st.slots, r.ring.slots())
	case st.clockIsWrong:
		return nil, ErrClock
	}
	r.toldClock = false
	return &st, nil
}

// passed reports whether every transaction that may have read what the row said before this version has ended. The id that decides is taken
// after the row was read, and only once for a version.
func (r *Rotator) passed(ctx context.Context, st *state) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if r.wait == nil || r.wait.version != st.version {
		w := wait{version: st.version}
		if err := r.pool.QueryRow(bounded, ownXidSQL).Scan(&w.xid); err != nil {
			return false, fmt.Errorf("taking a transaction id: %w", err)
		}
		r.wait = &w
	}
	var passed bool
	if err := r.pool.QueryRow(bounded, passedSQL, r.wait.xid).Scan(&passed); err != nil {
		return false, fmt.Errorf("asking for open transactions: %w", err)
	}
	return passed, nil
}

// retire retires the oldest closed segment, if its retention has passed and nobody needs it.
func (r *Rotator) retire(ctx context.Context, st *state) (Outcome, error) {
	slot := st.closed[len(st.closed)-1]
	if !st.expired {
		return Outcome{Action: Idle}, nil
	}
	why, err := r.needed(ctx, slot)
	if err != nil {
		return Outcome{}, err
	}
	if why != "" {
		return Outcome{Action: Needed, Slot: slot, Why: why}, nil
	}
	return Outcome{Action: Retired, Slot: slot}, r.move(ctx, st, retireSQL)
}

// needed asks why a segment must be kept, without the lock: what it says may be over by the time that it is heard.
func (r *Rotator) needed(ctx context.Context, slot int16) (string, error) {
	var why *string
	bounded, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	err := pgx.BeginTxFunc(bounded, r.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(bounded, settingsSQL, text(r.cfg.LockTimeout), text(r.cfg.Timeout)); err != nil {
			return err
		}
		return tx.QueryRow(bounded, r.sql(r.ring.Needed, slot)).Scan(&why)
	})
	if err != nil {
		return "", fmt.Errorf("asking who needs segment %s: %w", r.ring.Tables[slot], err)
	}
	if why == nil {
		return "", nil
	}
	return *why, nil
}

// move is a step that only changes the row.
func (r *Rotator) move(ctx context.Context, st *state, sql string, more ...any) error {
	return r.begin(ctx, r.cfg.Timeout, func(ctx context.Context, tx pgx.Tx) error { return r.update(ctx, tx, st, sql, more...) })
}

// update advances the sequence, and then the row. In this order: a writer that reads the sequence before it is advanced has had its
// transaction id since before this step commits.
func (r *Rotator) update(ctx context.Context, tx pgx.Tx, st *state, sql string, more ...any) error {
	var next int64
	if err := tx.QueryRow(ctx, with(advanceSQL, r.ring.Sequence, "", 0), st.version).Scan(&next); err != nil {
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

// newUse is a number by which what was derived of a closed segment knows it again. Random, and new with the close: a failover may lose a close
// and what was in the segment last, and the segment is then closed again with other keys in it. Its slot, its version and what it was opened
// by are the same then.
func newUse() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand since Go 1.24)
	return int64(binary.BigEndian.Uint64(b[:]))
}

var errNeeded = errors.New("needed")

// empty empties the retired segment.
func (r *Rotator) empty(ctx context.Context, st *state, passed bool) (Outcome, error) {
	slot := *st.retired
	if !passed {
		return Outcome{Action: Waiting, Slot: slot}, nil
	}
	out := Outcome{Action: Busy, Slot: slot, Why: "it could not be locked a moment ago"}
	if time.Now().Before(r.pausedTo) {
		return out, nil
	}
	err := r.begin(ctx, r.cfg.Timeout/5, func(ctx context.Context, tx pgx.Tx) error {
		var version int64
		var retired *int16
		if err := tx.QueryRow(ctx, lockRowSQL, r.ring.Name).Scan(&version, &retired); err != nil {
			return fmt.Errorf("locking ring %s: %w", r.ring.Name, err)
		}
		if version != st.version || retired == nil || *retired != slot {
			return ErrMoved
		}
		if _, err := tx.Exec(ctx, r.sql(lockSQL, slot)); err != nil {
			return fmt.Errorf("locking segment %s: %w", r.ring.Tables[slot], err)
		}
		var why *string
		if err := tx.QueryRow(ctx, r.sql(r.ring.Needed, slot)).Scan(&why); err != nil {
			return fmt.Errorf("asking who needs segment %s: %w", r.ring.Tables[slot], err)
		}
		if why != nil {
			out = Outcome{Action: Needed, Slot: slot, Why: *why}
			return errNeeded
		}
		if r.ring.Keep != "" {
			if _, err := tx.Exec(ctx, r.sql(r.ring.Keep, slot)); err != nil {
				return fmt.Errorf("noting what outlasts segment %s: %w", r.ring.Tables[slot], err)
			}
		}
		inherited := false
		if slot >= st.slots {
			if err := tx.QueryRow(ctx, inheritedSQL, r.ring.Heirs, slot).Scan(&inherited); err != nil {
				return fmt.Errorf("asking whether another ring has segment %s: %w", r.ring.Tables[slot], err)
			}
		}
		if !inherited {
			if _, err := tx.Exec(ctx, r.sql(truncateSQL, slot)); err != nil {
				return fmt.Errorf("emptying segment %s: %w", r.ring.Tables[slot], err)
			}
		}
		// The sequence last, because writers above READ COMMITTED are refused from here to the end.
		return r.update(ctx, tx, st, truncatedSQL, slot)
	})
	var pg *pgconn.PgError
	switch {
	case err == nil:
		r.busy = 0
		return Outcome{Action: Truncated, Slot: slot}, nil
	case errors.As(err, &pg) && pg.Code == "55P03":
		out.Why = "somebody reads it: " + pg.Message
	case !errors.Is(err, errNeeded):
		return Outcome{}, err
	}
	// Everybody who wants the segment has queued behind this attempt: leave them alone for longer and longer.
	r.pausedTo = time.Now().Add(r.cfg.LockPause << min(r.busy, 6))
	r.busy++
	return out, nil
}

// begin runs a step's transaction under the lease. Detached, because a COMMIT that is cancelled while it waits for a standby has
// committed here only.
func (r *Rotator) begin(ctx context.Context, idle time.Duration, do func(context.Context, pgx.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	return pgx.BeginTxFunc(bounded, r.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(bounded, settingsSQL, text(r.cfg.LockTimeout), text(idle)); err != nil {
			return err
		}
		if _, err := tx.Exec(bounded, holdSQL, r.lease.ID, r.lease.Epoch, r.lease.Nonce); err != nil {
			return err
		}
		return do(bounded, tx)
	})
}

func (r *Rotator) sql(sql string, slot int16) string {
	return with(sql, r.ring.Sequence, r.ring.Tables[slot], slot)
}

// text is a duration as a setting, in milliseconds. 0 would mean no limit.
func text(d time.Duration) string { return fmt.Sprintf("%dms", max(d.Milliseconds(), 1)) }
