package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// hinderedLimit is how often a batch is made again as it is that the server hinders. Then it is divided: it may need more than there is room for, or one of
// its messages may be what meets the others. Dividing holds nothing against a message.
const hinderedLimit = 3

// lostLimit is after how many lost connections in a row a batch is taken apart: one of its messages may be what kills them.
const lostLimit = 3

// handle brings the position to next, with the effects of msgs or with those parked that cannot be applied. It returns
// when that is done, when ctx is (nothing in hand is committed then), or with what ended the work.
//
// A batch that fails because of a handler is rolled back and divided. Only a message that stands alone is judged: in a
// batch, a queued statement's error may surface at a neighbour, and a deferred constraint's at the very end.
func (w *worker) handle(ctx, work context.Context, msgs []*Message, next int64) error {
	if msgs[0].Offset < w.aloneUntil {
		if err := w.part(ctx, work, msgs[:1], nextOf(msgs, 1, next)); err != nil || len(msgs) == 1 {
			return err
		}
		return w.part(ctx, work, msgs[1:], next)
	}
	retry := newBackoff(w.c.cfg)
	for lost, hindered := 0, 0; ; {
		leave, err := w.enter(ctx, false)
		if err != nil {
			return err
		}
		err = w.attempt(work, &attempt{msgs: msgs, next: next})
		leave()
		var f *failure
		var h *hindrance
		var stop *brakeError
		switch {
		case err == nil || final(err):
			return err
		case errors.As(err, &f) && errors.As(f.err, &stop):
			if f.index == 0 {
				return w.everythingFails(w.pos, msgs[0].Offset, stop.verdict)
			}
			if err := w.part(ctx, work, msgs[:f.index], nextOf(msgs, f.index, next)); err != nil {
				return err
			}
			return w.part(ctx, work, msgs[f.index:], next)
		case errors.As(err, &f) && f.lost && lost < lostLimit:
			lost++
		case errors.As(err, &f):
			return w.divide(ctx, work, msgs, next, f.index)
		case errors.As(err, &h) && hindered == hinderedLimit:
			return w.divide(ctx, work, msgs, next, h.index)
		case h != nil:
			hindered++
		}
		if !sleep(ctx, w.tryAgain(Retry{Offset: msgs[0].Offset, Messages: len(msgs), Err: err}, retry)) {
			return ctx.Err()
		}
	}
}

// divide handles the messages around the one that failed, and that one by itself; halves where it is not known, which takes
// the fewest runs until it stands alone.
func (w *worker) divide(ctx, work context.Context, msgs []*Message, next int64, failed int) error {
	cuts := []int{0, len(msgs) / 2, len(msgs)}
	if failed >= 0 {
		cuts = []int{0, failed, failed + 1, len(msgs)}
	}
	for i, from := range cuts[:len(cuts)-1] {
		if to := cuts[i+1]; from < to {
			if err := w.part(ctx, work, msgs[from:to], nextOf(msgs, to, next)); err != nil {
				return err
			}
		}
	}
	return nil
}

// part handles some messages of a batch; a single one stands alone from here on.
func (w *worker) part(ctx, work context.Context, msgs []*Message, next int64) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case len(msgs) == 1:
		return w.handleAlone(ctx, work, msgs[0], next)
	}
	return w.handle(ctx, work, msgs, next)
}

// nextOf is the position behind the first n messages of a batch that ends at next.
func nextOf(msgs []*Message, n int, next int64) int64 {
	if n < len(msgs) {
		return msgs[n].Offset
	}
	return next
}

// handleAlone brings the position over one message: applied, found to be a duplicate, or parked.
//
// Attempts are counted before they run, so that one which takes the process with it is counted too. What remains counted
// at the next owner's is therefore either an answer of the handler's or a crash; an attempt that this process gave up for a
// reason of its own (ownership lost, a server away, a drain) is taken back. Where nothing is passed over, answers are
// taken back too, and what remains counted are crashes.
//
// A message with attempts that were counted at the take-over is tried with nothing else of this process under way, so that every
// further attempt that ends without an answer is its own (F9). Such an attempt is taken back at once, where it is to be taken back.
func (w *worker) handleAlone(ctx, work context.Context, m *Message, next int64) error {
	retry := newBackoff(w.c.cfg)
	apart := w.cur.suspect != nil && *w.cur.suspect == m.Offset
	owed, answers, answered := 0, 0, 0
	var hindered time.Time // since when the server has done nothing but hinder it
	for {
		leave, err := w.enter(ctx, apart)
		n, unanswered := 0, 0
		if err == nil {
			n, unanswered, err = w.countAttempt(work, m.Offset, owed, answered)
			var server *pgconn.PgError
			if err != nil && !errors.Is(err, errMoved) && !errors.As(err, &server) {
				owed++ // nobody knows whether it was counted, and it was not made
			}
			if err == nil {
				owed, answered = 0, 0
				if err = w.tryAlone(work, m, next, n, n+answers, unanswered); err == nil {
					leave()
					return nil
				}
				var f *failure
				switch {
				case !errors.As(err, &f):
					owed = 1
				case w.c.cfg.OnFailure == BlockPartition:
					owed, answers = 1, answers+1
				default:
					answered = 1
				}
				if apart && owed > 0 {
					w.takeBack(m.Offset)
					owed = 0
				}
			}
			leave()
		}
		var h *hindrance
		switch {
		case !errors.As(err, &h):
			hindered = time.Time{}
		case hindered.IsZero():
			hindered = time.Now()
		case time.Since(hindered) >= w.c.cfg.BlockedAfter:
			err = w.halt(HaltBlocked, "the server refuses the transaction of the message at offset %d, which is tried again: %v", m.Offset, h)
		}
		apart = apart || h != nil && sqlState(h.failed) == codeCrashShutdown
		if final(err) || ctx.Err() != nil || !sleep(ctx, w.tryAgain(Retry{Offset: m.Offset, Messages: 1, Attempt: n + answers, Err: err}, retry)) {
			if owed > 0 {
				w.takeBack(m.Offset)
			}
			if final(err) {
				return err
			}
			return ctx.Err()
		}
	}
}

// tryAlone makes an attempt at a message, and parks it if that was its last. counted is how many attempts the database knows, and unanswered how
// many of them, this one aside, have ended without an answer. A message
// that must be parked, and may not or cannot be, halts the partition.
func (w *worker) tryAlone(work context.Context, m *Message, next int64, counted, n, unanswered int) error {
	err := w.applyOrPark(work, m, next, counted, n, unanswered)
	var f *failure
	var b *blockedError
	var stop *brakeError
	switch {
	case errors.As(err, &f) && errors.As(f.err, &stop):
		w.forgetAttempts(m.Offset)
		return w.everythingFails(w.pos, m.Offset, stop.verdict)
	case !errors.As(err, &f) || !errors.As(f.err, &b):
		return err
	case b.reason == parked.Crashed: // the count stands, whatever is deployed
		return w.halt(HaltBlocked, "%s: %v; adopt at %d to have it tried again, behind it to give it up", b.reason, b.err, w.pos)
	}
	return w.halt(HaltBlocked, "%s: %v", b.reason, b.err)
}

func (w *worker) applyOrPark(work context.Context, m *Message, next int64, counted, n, unanswered int) error {
	park := func(v *verdict) error {
		return w.attempt(work, &attempt{msgs: []*Message{m}, next: next, alone: true, verdict: v})
	}
	limit := w.c.cfg.MaxAttempts
	if counted > limit && unanswered > 1 {
		// The attempts before this one were counted and told nobody how they ended: they took the process with them. The first of them may have been
		// under way when another message did that; the others were made with nothing else under way.
		return park(&verdict{reason: parked.Crashed, err: fmt.Errorf("%d attempts ended without an answer", unanswered), attempts: counted - 1})
	}
	one := *m
	one.Attempt = n
	err := w.attempt(work, &attempt{msgs: []*Message{&one}, next: next, alone: true})
	var f *failure
	var b *blockedError
	switch {
	case !errors.As(err, &f) || errors.As(f.err, &b) || errors.As(f.err, new(*brakeError)):
		return err
	case w.brake.stopped():
		return &failure{err: &brakeError{&verdict{reason: gaveUp(f), err: f.err}}}
	case hopeless(f.err) && !f.lost && w.c.cfg.OnFailure == BlockPartition:
		return &failure{err: &blockedError{&verdict{reason: parked.Permanent, err: f.err}}}
	case w.c.cfg.OnFailure == BlockPartition:
		return err
	case hopeless(f.err) && !f.lost:
		return park(&verdict{reason: parked.Permanent, err: f.err, attempts: n})
	case n >= limit:
		return park(&verdict{reason: parked.Exhausted, err: f.err, attempts: n})
	case w.c.cfg.OnFailure == ParkOrderingKey:
		return park(&verdict{reason: parked.Failed, err: f.err, attempts: n, wait: waitAtLeast(f.err, backoffFor(w.c.cfg, n))})
	}
	return err
}

// gaveUp is the reason for which a message is given up whose last attempt ended so.
func gaveUp(f *failure) string {
	if hopeless(f.err) && !f.lost {
		return parked.Permanent
	}
	return parked.Exhausted
}

// forgetAttempts is for a message that is not given up although its attempts are used up. It is one try, as takeBack is.
func (w *worker) forgetAttempts(offset int64) {
	ctx, cancel := w.c.detached()
	defer cancel()
	if _, err := w.c.pool.Exec(ctx, forgetAttemptsSQL, w.cur.id, w.cur.epoch, w.cur.nonce, offset); err != nil {
		w.c.cfg.Logger.Warn("onlyonce: attempts not forgotten", "scope", w.c.cfg.Scope, "offset", offset, "error", err)
	}
}

// countAttempt counts an attempt before it is made, less what is owed, and notes how many of those before had an answer that counts.
func (w *worker) countAttempt(ctx context.Context, offset int64, owed, answered int) (n, unanswered int, err error) {
	if err := fault.Point(fault.Counting); err != nil {
		return 0, 0, err
	}
	ctx, cancel := w.c.bounded(ctx)
	defer cancel()
	err = w.c.pool.QueryRow(ctx, countAttemptSQL, w.cur.id, w.cur.epoch, w.cur.nonce, offset, owed, answered).Scan(&n, &unanswered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, 0, errMoved // by another owner, or by an operator: the next look at the cursor tells
	case err != nil:
		return 0, 0, fmt.Errorf("counting an attempt: %w", err)
	}
	return n, unanswered, fault.Point(fault.Counted)
}

// takeBack is one try: what stays counted errs towards caution.
func (w *worker) takeBack(offset int64) {
	ctx, cancel := w.c.detached()
	defer cancel()
	if fault.Point(fault.TakingBack) != nil {
		return
	}
	if _, err := w.c.pool.Exec(ctx, takeBackSQL, w.cur.id, offset); err != nil {
		w.c.cfg.Logger.Warn("onlyonce: attempt not taken back", "scope", w.c.cfg.Scope, "offset", offset, "error", err)
	}
}

// advance moves the position over offsets that hold nothing to handle.
func (w *worker) advance(ctx, work context.Context, next int64) error {
	retry := newBackoff(w.c.cfg)
	for {
		err := fault.Point(fault.Advancing)
		if err == nil {
			err = w.attempt(work, &attempt{next: next})
		}
		if err == nil || final(err) {
			return err
		}
		if !sleep(ctx, w.tryAgain(Retry{Offset: w.pos, Err: err}, retry)) {
			return ctx.Err()
		}
	}
}

// final reports whether err ends the work on this partition, rather than asking for another try.
func final(err error) bool {
	var f *failure
	var g *guard.Failure
	if errors.As(err, &f) || errors.As(err, &g) && g.Step == stepHook {
		return false // functions of the user's may return any error, these too
	}
	var halt *HaltError
	return errors.As(err, &halt) || errors.Is(err, ErrOwnershipLost) || errors.Is(err, errMoved) || errors.Is(err, context.Canceled)
}
