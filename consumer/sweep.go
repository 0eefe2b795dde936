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
	"github.com/onlyonce/onlyonce/internal/pace"
)

// sweepSQL moves the position over what is done or raises; see the function's comment in the
// migration.
const sweepSQL = `
select onlyonce.sweep(
  cursor_id => $1,
  epoch => $2,
  nonce => $3,
  run => $4,
  expected => $5,
  next => $6,
  anchor_offset => $7,
  anchor_epoch => $8,
  anchor_hash => $9,
  leader_epoch => $10,
  empty_from => $11,
  empty_until => $12,
  lock_timeout => $13,
  statement_timeout => $14,
  idle_timeout => $15
)`

// sweeper is the scheduler's clock that moves the position over what is done: one sweep at a time,
// beside the scheduler.
type sweeper struct {
	s        *slots
	sweeping bool
	sweptAt  time.Time // when the last sweep ended
	finished int       // messages that were finished since the last sweep began
	moved    time.Time // since when the position could pass offsets that hold no message; zero: it cannot
}

// sweepRows is how many messages are done before a sweep comes earlier than after
// process.Pace.Sweep.
const sweepRows = 400

// sweepPlan is where the position is to be moved.
type sweepPlan struct {
	from, next int64
	last       *anchor
	epoch      int32
	emptyFrom  []int64
	emptyUntil []int64
}

// due returns when a sweep begins: if the position can be moved, when enough is done or enough time
// has passed. A position that moves without work is written now and then, but at once if the work
// ends there; due notes since when it could move.
func (sw *sweeper) due(now time.Time) time.Time {
	s := sw.s
	if sw.sweeping {
		return pace.Never
	}
	next, _ := s.window.Frontier()
	switch {
	case next <= s.w.pos:
		return pace.Never
	case sw.finished >= sweepRows:
		return now
	case sw.finished > 0:
		return sw.sweptAt.Add(s.w.c.pace.Sweep)
	}
	if sw.moved.IsZero() {
		sw.moved = now
	}
	if s.wantsMore() {
		return sw.moved.Add(flushAfter)
	}
	return now
}

// begin begins a sweep. The scheduler is told of its end by an event: see swept.
func (sw *sweeper) begin() error {
	s := sw.s
	plan := s.plan()
	sw.sweeping = true
	sw.finished = 0
	sw.moved = time.Time{}
	ctx := context.Background()
	go func() {
		err := s.w.sweep(ctx, plan)
		s.events <- func() error { return s.swept(plan, err) }
	}()
	return nil
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
func (w *worker) sweep(ctx context.Context, p sweepPlan) error {
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	cfg := &w.c.cfg
	cur := w.cur
	anchorOffset, anchorEpoch, anchorHash := p.last.columns()
	// The isolation level has to be named: the session may have another default.
	err := w.c.pool.InTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sweepSQL, cur.id, cur.epoch, cur.nonce, cur.run, p.from, p.next,
			anchorOffset, anchorEpoch, anchorHash, epochOrNull(p.epoch),
			codec.Bigints(p.emptyFrom), codec.Bigints(p.emptyUntil),
			guard.Millis(cfg.Timeouts.Lock), guard.Millis(cfg.Timeouts.Statement), guard.Millis(cfg.Timeouts.Idle))
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
func (s *slots) swept(p sweepPlan, failed error) error {
	s.sweeper.sweeping = false
	s.sweeper.sweptAt = time.Now()
	s.pruner.swept(s.sweeper.sweptAt)
	w := s.w
	pos := p.next
	last := p.last
	epoch := p.epoch
	switch {
	case errors.Is(failed, errFenced):
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
		pos = cur.position
		last = cur.anchor
		epoch = cur.leaderEpoch
	case failed != nil:
		s.sweeper.finished++ // there is still something to sweep
		w.state.setTrouble(&w.state.reachTrouble, failed)
		w.c.cfg.Logger.Warn("onlyonce: the position was not moved; it is tried again", "scope", w.c.cfg.Scope,
			"topic", w.id.Topic, "partition", w.id.Partition, "error", failed)
		return nil
	}
	w.state.clearTrouble(&w.state.reachTrouble)
	w.setPosition(pos, last, epoch)
	w.state.clearPassedHalt()
	s.window.SweptTo(pos)
	s.committer.offer(pos)
	return nil
}

// sweepRest moves the position over all that is done, when nothing is under way any more. A stop
// does not cut it short: the next owner then finds less above the position.
func (s *slots) sweepRest() error {
	if next, _ := s.window.Frontier(); next <= s.w.pos || errors.Is(s.err, source.ErrOwnershipLost) {
		return nil
	}
	ctx, cancel := s.w.c.detached()
	defer cancel()
	p := s.plan()
	return s.swept(p, s.w.sweep(ctx, p))
}

// pruner is the scheduler's clock that deletes rows of messages that are done, one step at a time,
// beside the scheduler and beside sweeps, because a step may take longer. A step is due after some
// sweeps, or if there has been none for a while: a partition without messages does not keep the
// rows of its last ones (C5).
type pruner struct {
	s        *slots
	rows     pruning
	stepping bool
	lastAt   time.Time     // when the last step or the last sweep ended
	wait     time.Duration // from then until old rows are looked at although nothing was swept
	sweeps   int           // since the last step began
}

// Steps of pruning are this far apart: in sweeps, and in time when there are none and
// process.Pace.PruneIdle has been doubled.
const (
	pruneSweeps      = 10
	longestPruneWait = time.Minute
)

// position is the row below which rows are old.
func (p *pruner) position() progressRow { return progressRow{p.s.w.cur.run, p.s.w.pos} }

func (p *pruner) due(now time.Time) time.Time {
	switch {
	case p.stepping:
		return pace.Never
	case p.sweeps >= min(pruneSweeps, p.s.w.c.pace.Prune):
		return now
	case p.rows.from == p.position():
		return pace.Never
	}
	return p.lastAt.Add(p.wait)
}

// swept notes that a sweep has ended.
func (p *pruner) swept(at time.Time) {
	p.sweeps++
	p.lastAt = at
	p.wait = p.s.w.c.pace.PruneIdle
}

// begin begins a step. Another session's transaction may stay open for long, so without sweeps each
// step waits twice as long as the one before.
func (p *pruner) begin(ctx context.Context) error {
	p.stepping = true
	p.sweeps = 0
	at := p.position()
	go func() {
		p.rows.step(ctx, at)
		p.s.events <- func() error {
			p.stepping = false
			p.lastAt = time.Now()
			p.wait = min(2*p.wait, longestPruneWait)
			return nil
		}
	}()
	return nil
}
