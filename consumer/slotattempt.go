package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// fenceSlotSQL records offsets as done or raises; see the function's comment in the migration.
const fenceSlotSQL = `select onlyonce.fence_slot($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

// stillDoneSQL finds out what became of offsets. In: cursor, epoch, nonce, run, offsets. Out: one
// row with whether the cursor is still this owner's, and how many of the offsets are done; no row
// if there is no cursor. One statement, so that an offset that is being swept and pruned counts
// once.
const stillDoneSQL = `
select l.epoch = $2 and l.nonce = $3, p.run = $4 and p.retired_at is null,
       (select count(*) from unnest($5::bigint[]) u (o)
         where u.o < p.next_offset
            or exists (select from onlyonce.done d where d.cursor_id = p.id and d.run = p.run and d."offset" = u.o))
  from onlyonce.positions p join onlyonce.leases l on l.id = p.id where p.id = $1`

// runSlotAttempt runs one transaction of messages beside those of other slots. Its fence records
// them as done, and checks what they depend on: the message before each of them by its ordering
// key, if that is not among them and not below the position.
func (one *slot) runSlotAttempt(work context.Context, a *attempt) error {
	cfg, cur, t := &one.c.cfg, one.cur, one.work
	offsets, hashes, after := make([]int64, 0, len(a.msgs)), make([]int64, 0, len(a.msgs)), make([]int64, 0, len(a.msgs))
	inside := make(map[int64]bool, len(a.msgs))
	for _, m := range a.msgs {
		e := t.entry(m.Offset)
		offsets, hashes = append(offsets, e.offset), append(hashes, e.anchor.recordHash())
		inside[e.offset] = true
		if e.after >= t.low && !inside[e.after] {
			after = append(after, e.after)
		}
	}
	a.done.From, a.done.Next = offsets[0], offsets[len(offsets)-1]+1
	a.fence = func(tx *guard.Tx) {
		tx.Engine(stepFence, fenceSlotSQL, cur.id, int32(one.nr), cur.epoch, cur.nonce, cur.run, t.low,
			codec.Bigints(offsets), codec.Bigints(hashes), codec.Bigints(after),
			guard.Millis(cfg.Timeouts.Lock), guard.Millis(cfg.Timeouts.Statement), guard.Millis(cfg.Timeouts.Idle))
	}
	err := one.runAttempt(work, a)
	defer one.brake.ended(a)
	switch {
	case errors.Is(err, errFenced):
		err = one.explainSlotFence(work, a, offsets)
	case errors.Is(err, errChanged):
		err = errMoved // what is in memory is not what the log holds
	}
	if err == nil {
		one.committed(a)
		one.events <- slotEvent{slot: one, offsets: offsets}
	}
	return err
}

// explainSlotFence finds out why the fence raised, with a statement of its own. If all the offsets
// are done, an earlier attempt has committed, and its answer was lost. Otherwise what this process
// remembers is not what the database has, for example because a failover has lost commits: position
// and set are read anew.
func (one *slot) explainSlotFence(work context.Context, a *attempt, offsets []int64) error {
	var mine, sameRun bool
	var done int
	ctx, cancel := one.c.bounded(work)
	defer cancel()
	err := one.c.pool.QueryRow(ctx, stillDoneSQL, one.cur.id, one.cur.epoch, one.cur.nonce, one.cur.run, codec.Bigints(offsets)).Scan(&mine, &sameRun, &done)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("reading which messages are done: %w", err)
	case err != nil || !mine && sameRun:
		return fmt.Errorf("%w: cursor %d has another owner", source.ErrOwnershipLost, one.cur.id)
	case mine && done == len(offsets):
		// What that attempt did cannot be known; it may have parked messages.
		a.parked, a.done.Handled, a.done.Duplicates, a.done.Parked = nil, 0, 0, 0
		one.w.retrier.promoteAllSoon()
		return nil
	}
	return errMoved
}

// committed records a transaction that has committed.
func (one *slot) committed(a *attempt) {
	one.committedBeside(a)
	one.w.retrier.noteParked(a)
}

// committedBeside records a transaction that has committed beside others of its partition.
func (w *applier) committedBeside(a *attempt) {
	w.state.slotCommitted(w.troubled)
	w.troubled = false
	w.recordCommitted(a)
}
