package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/pace"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// handleAlone moves the position past one message, which is applied, found to be a duplicate, or
// parked.
//
// Attempts are counted before they run, so that one that kills the process is counted too. If this
// process gives up an attempt for a reason of its own (ownership lost, a server that is away, a
// drain), it takes the count back. What the next owner finds counted is therefore either an answer
// of the handler or a crash. If no message may be passed over, answers are taken back too, and only
// crashes remain counted.
//
// If attempts were already counted at the take-over, the message is tried with nothing else of this
// process under way. Each further attempt that ends without an answer is then its own (F9). If such
// an attempt is to be taken back, that happens at once (D1, D2).
func (ap *applier) handleAlone(until stop, m *Message, next int64) error {
	retry := newBackoff(ap.c.cfg)
	exclusive := ap.cur.suspected(m)
	owed, answers, answered := 0, 0, 0
	var refusedSince time.Time // since when it has met nothing but hindrances
	for {
		release, err := ap.lockAttempts(until.taking, exclusive)
		n, unanswered := 0, 0
		if err == nil {
			n, unanswered, err = ap.countAttempt(until.working, m.Offset, owed, answered)
			var server *pgconn.PgError
			if err != nil && !errors.Is(err, errMoved) && !errors.As(err, &server) {
				owed++ // whether it was counted is unknown, and it was not made
			}
			if err == nil {
				owed, answered = 0, 0
				if err = ap.tryAlone(until.working, m, next, n, n+answers, unanswered); err == nil {
					release()
					return nil
				}
				var f *handlerFailure
				switch {
				case !errors.As(err, &f):
					owed = 1
				case ap.c.cfg.OnFailure == BlockPartition:
					owed, answers = 1, answers+1
				default:
					answered = 1
				}
				if exclusive && owed > 0 {
					ap.takeBackAttempt(m.Offset)
					owed = 0
				}
			}
			release()
		}
		var h *hindrance
		switch {
		case !errors.As(err, &h):
			refusedSince = time.Time{}
		case refusedSince.IsZero():
			refusedSince = time.Now()
		case h.keptOut() && time.Since(refusedSince) < ap.c.cfg.longest():
		case time.Since(refusedSince) >= ap.c.cfg.BlockedAfter:
			err = ap.haltBlocked(m, "the message at offset %d is tried again, and fails for a reason that is not its own: %v%s", m.Offset, h, ap.because(until.taking, h))
		}
		exclusive = exclusive || h != nil && guard.SQLState(h.err) == codeCrashShutdown
		if endsWork(err) || until.taking.Err() != nil || !pace.Sleep(until.taking, ap.reportLogRetry(RetryEvent{Offset: m.Offset, Messages: 1, Attempt: n + answers, Err: err}, retry)) {
			if owed > 0 {
				ap.takeBackAttempt(m.Offset)
			}
			if endsWork(err) {
				return err
			}
			return until.taking.Err()
		}
	}
}

// tryAlone makes an attempt at a message, and parks the message if that was the last. counted is
// how many attempts the database has recorded; unanswered is how many of them, without this one,
// have ended without an answer. If the message must be parked, but is not allowed to be or cannot
// be, the partition halts (D3).
func (ap *applier) tryAlone(work context.Context, m *Message, next int64, counted, n, unanswered int) error {
	err := ap.applyOrPark(work, m, next, counted, n, unanswered)
	var f *handlerFailure
	var b *blockedError
	var stop *brakeError
	switch {
	case errors.As(err, &f) && errors.As(f.err, &stop):
		ap.forgetAttempts(m.Offset)
		return ap.haltEverythingFails(ap.state.position.Load(), m.Offset, stop.disposition)
	case !errors.As(err, &f) || !errors.As(f.err, &b):
		return err
	case b.reason == parked.Crashed: // the count is final, whatever version is deployed
		return ap.haltBlocked(m, "%s: %v; adopt at %d to try it again, or at the next offset to give it up", b.reason, b.err, ap.haltPosition(m))
	}
	return ap.haltBlocked(m, "%s: %v", b.reason, b.err)
}

func (ap *applier) applyOrPark(work context.Context, m *Message, next int64, counted, n, unanswered int) error {
	park := func(v *disposition) error {
		return ap.runTransaction(work, &attempt{msgs: []*Message{m}, next: next, alone: true, disposition: v})
	}
	limit := ap.c.cfg.MaxAttempts
	if counted > limit && unanswered > 1 {
		// The attempts before this one were counted but have no result: they killed the process.
		// The first of them may have been under way when another message did that. The others were
		// made with nothing else under way.
		ap.giveUpIdentifying(m, counted, unanswered)
		v := ap.c.crashed(unanswered, counted-1-limit)
		v.attempts = counted - 1
		return park(v)
	}
	one := *m
	one.Attempt = n
	err := ap.runTransaction(work, &attempt{msgs: []*Message{&one}, next: next, alone: true})
	var f *handlerFailure
	var b *blockedError
	switch {
	case !errors.As(err, &f) || errors.As(f.err, &b) || errors.As(f.err, new(*brakeError)):
		return err
	case ap.brake.Stopped():
		return &handlerFailure{err: &brakeError{&disposition{reason: givenUpReason(f), err: f.err}}}
	case isHopeless(f.err) && !f.lost && ap.c.cfg.OnFailure == BlockPartition:
		return &handlerFailure{err: &blockedError{&disposition{reason: parked.Permanent, err: f.err}}}
	case ap.c.cfg.OnFailure == BlockPartition:
		return err
	case isHopeless(f.err) && !f.lost:
		return park(&disposition{reason: parked.Permanent, err: f.err, attempts: n})
	case n >= limit:
		return park(&disposition{reason: parked.Exhausted, err: f.err, attempts: n})
	case ap.c.cfg.OnFailure == ParkOrderingKey:
		return park(&disposition{reason: parked.Failed, err: f.err, attempts: n, wait: waitAtLeast(f.err, backoffFor(ap.c.cfg, n))})
	}
	return err
}
