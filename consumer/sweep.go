package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/pace"
)

// sweepSQL moves the position over what is done or raises; see the function's comment in the
// migration.
const sweepSQL = `select onlyonce.sweep($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

// pruneDoneSQL deletes rows of onlyonce.done and of onlyonce.attempts. In: cursor, epoch, nonce,
// run, offset of the lower bound (of done), offset of the upper bound. The lower bound keeps it
// from walking over entries that are deleted already while an old snapshot prevents vacuum. It
// deletes nothing that is not below the position: a failover may have set that back since the owner
// noted the upper bound. By the primary keys.
const pruneDoneSQL = `
with held as (
  select p.id from onlyonce.leases l join onlyonce.positions p on p.id = l.id
   where l.id = $1 and l.epoch = $2 and l.nonce = $3 and p.run = $4 and p.next_offset >= $6),
counted as (
  delete from onlyonce.attempts a using held where a.cursor_id = held.id and a."offset" < $6)
delete from onlyonce.done d using held
 where d.cursor_id = held.id and d.run = $4 and d."offset" >= $5 and d."offset" < $6`

// sweeper moves the position over what is done, beside the scheduler: one sweep at a time. Then it
// prunes.
type sweeper struct {
	w     *worker
	done  chan sweepResult
	prune donePruning
}

// sweepPlan is where the position is to be moved.
type sweepPlan struct {
	from, next int64
	last       *anchor
	epoch      int32
	emptyFrom  []int64
	emptyUntil []int64
}

// sweepResult is how a sweep ended.
type sweepResult struct {
	plan   sweepPlan
	err    error
	pruned bool // it was none: there was nothing but old rows
}

func newSweeper(w *worker) *sweeper {
	return &sweeper{w: w, done: make(chan sweepResult, 1), prune: donePruning{from: math.MinInt64}}
}

// sweepIfDue begins a sweep if the position can be moved, and enough is done or enough time has
// passed.
func (s *slots) sweepIfDue() {
	next, _ := s.window.frontier()
	if s.sweeping || next <= s.w.pos {
		return
	}
	if s.finished == 0 {
		// There is nothing in between. A position that moves without work is written now and then,
		// but at once if the work ends there.
		if s.moved.IsZero() {
			s.moved = time.Now()
		}
		if time.Since(s.moved) < flushAfter && s.wantsMore() {
			return
		}
	} else if s.finished < sweepRows && time.Since(s.sweptAt) < pace.Sweep {
		return
	}
	plan := s.plan()
	s.sweeping, s.finished, s.moved = true, 0, time.Time{}
	ctx := context.Background()
	go func() { s.sweeper.done <- sweepResult{plan: plan, err: s.sweeper.sweep(ctx, plan)} }()
}

// plan returns how far the position can be moved.
func (s *slots) plan() sweepPlan {
	p := sweepPlan{from: s.w.pos, last: s.w.anchor}
	p.next, p.epoch = s.window.frontier()
	if last := s.window.anchorBelow(p.next); last != nil {
		p.last = last
	}
	p.emptyFrom, p.emptyUntil = s.window.empty(p.next)
	return p
}

// sweep moves the position, and takes a step of pruning. It returns errFenced if the database has
// something else.
func (s *sweeper) sweep(ctx context.Context, p sweepPlan) error {
	w := s.w
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	cfg, cur := &w.c.cfg, w.cur
	anchorOffset, anchorEpoch, anchorHash := p.last.columns()
	// The isolation level has to be named: the session may have another default.
	err := w.c.pool.InTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sweepSQL, cur.id, cur.epoch, cur.nonce, cur.run, p.from, p.next, anchorOffset, anchorEpoch, anchorHash, epochOrNull(p.epoch),
			codec.Bigints(p.emptyFrom), codec.Bigints(p.emptyUntil), guard.Millis(cfg.Timeouts.Lock), guard.Millis(cfg.Timeouts.Statement), guard.Millis(cfg.Timeouts.Idle))
		return err
	})
	switch state := guard.SQLState(err); {
	case state == codeFenceLost || state == codeRaceLost:
		return errFenced
	case err != nil:
		return fmt.Errorf("moving the position: %w", err) // after COMMIT unknown: the next sweep finds out
	}
	w.pruning.batchCommitted(cur.run, p.from)
	w.pruneStep(ctx)
	if s.prune.due() {
		s.pruneStep(ctx, p.next)
	}
	return nil
}

// swept records how a sweep ended.
func (s *slots) swept(r sweepResult, committer *committer) error {
	s.sweeping, s.sweptAt = false, time.Now()
	if r.pruned {
		s.pruneWait = min(2*s.pruneWait, longestPruneWait) // another session's transaction may stay open for long
		return nil
	}
	s.pruneWait = pace.PruneIdle
	w := s.w
	pos, last, epoch := r.plan.next, r.plan.last, r.plan.epoch
	switch {
	case errors.Is(r.err, errFenced):
		ctx, cancel := w.c.detached()
		defer cancel()
		cur, err := w.readOwnCursor(ctx)
		if err != nil {
			return err
		}
		// Nobody else moves it. So either an earlier sweep has committed and its answer was lost,
		// or the database has lost what this process remembers.
		if next, _ := s.window.frontier(); cur.position <= w.pos || cur.position > next {
			return errMoved
		}
		pos, last, epoch = cur.position, cur.anchor, cur.leaderEpoch
	case r.err != nil:
		s.finished++ // there is still something to sweep
		w.state.setTrouble(&w.state.reachTrouble, r.err)
		w.c.cfg.Logger.Warn("onlyonce: the position was not moved; it is tried again", "scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "error", r.err)
		return nil
	}
	w.state.clearTrouble(&w.state.reachTrouble)
	w.setPosition(pos, last, epoch)
	w.state.clearPassedHalt()
	s.window.sweptTo(pos)
	committer.offer(pos)
	return nil
}

// sweepRest moves the position over all that is done, when no slot is busy any more. A stop does
// not cut it short: the next owner then finds less above the position.
func (s *slots) sweepRest(committer *committer) error {
	if s.sweeping {
		if err := s.swept(<-s.sweeper.done, committer); err != nil {
			return err
		}
	}
	if next, _ := s.window.frontier(); next <= s.w.pos || errors.Is(s.err, ErrOwnershipLost) {
		return nil
	}
	ctx, cancel := s.w.c.detached()
	defer cancel()
	p := s.plan()
	return s.swept(sweepResult{plan: p, err: s.sweeper.sweep(ctx, p)}, committer)
}

// donePruning deletes rows of onlyonce.done that no transaction can need any more (C5).
//
// A transaction that has read an older position than the present one may insert an offset that is
// below it by now; only the row of that offset stops it. So rows outlive every transaction that was
// open when the position that passed them had committed; a transaction that begins later sees that
// position. Transactions count from their begin, also those that have no transaction id yet: above
// READ COMMITTED they may have a snapshot.
type donePruning struct {
	from   int64 // below it everything is deleted
	below  int64 // below it is what openAtNote was noted for
	sweeps int   // since the last step
	openAtNote
}

// Steps of pruning are this far apart: in sweeps, and in time when there are none and
// pace.PruneIdle has been doubled.
const (
	pruneSweeps      = 10
	longestPruneWait = time.Minute
)

// due reports whether it is time for a step, after a sweep.
func (p *donePruning) due() bool {
	p.sweeps++
	return p.sweeps >= min(pruneSweeps, pace.Prune)
}

// pruneIfIdle takes a step of pruning if there has been no sweep for a while. A partition without
// messages does not keep the rows of its last ones.
func (s *slots) pruneIfIdle() {
	pos := s.w.pos
	if s.sweeping || s.sweeper.prune.from == pos || time.Since(s.sweptAt) < s.pruneWait {
		return
	}
	s.sweeping = true
	go func() {
		ctx, cancel := s.w.c.bounded(context.Background())
		defer cancel()
		s.sweeper.pruneStep(ctx, pos)
		s.sweeper.done <- sweepResult{pruned: true}
	}()
}

// pruneStep takes the next step, after a sweep to pos has committed. What it cannot finish waits
// for the next call.
func (s *sweeper) pruneStep(ctx context.Context, pos int64) {
	p, w := &s.prune, s.w
	p.sweeps = 0
	err := p.step(ctx, w.c, func() (all bool, err error) {
		if _, err := w.c.pool.Exec(ctx, pruneDoneSQL, w.cur.id, w.cur.epoch, w.cur.nonce, w.cur.run, p.from, p.below); err != nil {
			return false, err
		}
		p.from = p.below
		return true, nil
	}, func() { p.below = pos })
	if err != nil && ctx.Err() == nil {
		w.c.cfg.Logger.Warn("onlyonce: old rows of done were not deleted", "scope", w.c.cfg.Scope, "topic", w.id.Topic, "partition", w.id.Partition, "error", err)
	}
}
