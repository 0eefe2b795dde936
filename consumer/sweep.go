package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// sweepSQL moves the position over what is done or raises; see the function's comment in the
// migration.
const sweepSQL = `select onlyonce.sweep($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

func newSweeper(w *worker) *sweeper {
	return &sweeper{w: w, done: make(chan sweepResult, 1), steps: make(chan struct{}, 1), prune: w.donePruning()}
}

// sweepIfDue begins a sweep if the position can be moved, and enough is done or enough time has
// passed.
func (s *slots) sweepIfDue() {
	next, _ := s.window.Frontier()
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
	} else if s.finished < sweepRows && time.Since(s.sweptAt) < s.w.c.pace.Sweep {
		return
	}
	plan := s.plan()
	s.sweeping, s.finished, s.moved = true, 0, time.Time{}
	ctx := context.Background()
	go func() { s.sweeper.done <- sweepResult{plan: plan, err: s.sweeper.sweep(ctx, plan)} }()
}

// plan returns how far the position can be moved (C4).
func (s *slots) plan() sweepPlan {
	p := sweepPlan{from: s.w.pos, last: s.w.anchor}
	p.next, p.epoch = s.window.Frontier()
	if e := s.window.LastBelow(p.next); e != nil {
		p.last = &anchor{offset: e.Offset, epoch: e.Epoch, hash: e.Hash}
	}
	p.emptyFrom, p.emptyUntil = s.window.Empty(p.next)
	return p
}

// sweep moves the position. It returns errFenced if the database has something else.
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
	w.batchCommitted(p.from)
	w.pruneIfDue(ctx)
	return nil
}

// swept records how a sweep ended (C4).
func (s *slots) swept(r sweepResult, committer *committer) error {
	s.sweeping, s.sweptAt = false, time.Now()
	s.sweeps++
	s.prunedAt, s.pruneWait = s.sweptAt, s.w.c.pace.PruneIdle
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
		if next, _ := s.window.Frontier(); cur.position <= w.pos || cur.position > next {
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
	s.window.SweptTo(pos)
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
	if next, _ := s.window.Frontier(); next <= s.w.pos || errors.Is(s.err, source.ErrOwnershipLost) {
		return nil
	}
	ctx, cancel := s.w.c.detached()
	defer cancel()
	p := s.plan()
	return s.swept(sweepResult{plan: p, err: s.sweeper.sweep(ctx, p)}, committer)
}

// Steps of pruning are this far apart: in sweeps, and in time when there are none and
// process.Pace.PruneIdle has been doubled.
const (
	pruneSweeps      = 10
	longestPruneWait = time.Minute
)

// pruneIfDue takes a step of pruning after some sweeps, or if there has been none for a while: a
// partition without messages does not keep the rows of its last ones (C5).
func (s *slots) pruneIfDue(ctx context.Context) {
	if s.pruning {
		return
	}
	at := progressRow{s.w.cur.run, s.w.pos}
	idle := s.sweeper.prune.from != at && time.Since(s.prunedAt) >= s.pruneWait
	if !idle && s.sweeps < min(pruneSweeps, s.w.c.pace.Prune) {
		return
	}
	s.pruning, s.sweeps = true, 0
	go func() {
		s.sweeper.prune.step(ctx, at)
		s.sweeper.steps <- struct{}{}
	}()
}

// stepPruned records that a step of pruning has ended. Another session's transaction may stay open
// for long.
func (s *slots) stepPruned() {
	s.pruning, s.prunedAt, s.pruneWait = false, time.Now(), min(2*s.pruneWait, longestPruneWait)
}
