package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/internal/guard"
)

// tries are the attempts at a message that is alone, as this process makes them. The database
// counts each before it runs, so that one that kills the process is counted too.
//
// If this process gives up an attempt for a reason of its own (ownership lost, a server that is
// away, a drain), it owes the count, and takes it back: with the next attempt, or when there is
// none. What the next owner finds counted is therefore either an answer of the handler or a crash.
// If no message may be passed over, answers are taken back too, and only crashes remain counted
// (D2).
type tries struct {
	ap *applier
	m  *Message
	// exclusive means that attempts are made with nothing else of this process under way: some were
	// already counted at the take-over. Each further one that ends without an answer is then the
	// message's own (F9).
	exclusive bool

	count // of the attempt that has begun; zero: none has

	owed     bool // the last counted attempt is to be taken back; there is never more than one
	answered bool // the last counted attempt had an answer that counts, and the database does not know yet
	answers  int  // answers that were taken back

	hinderedSince time.Time // since when it has met nothing but hindrances; zero: it has not
}

// begin counts an attempt before it is made. If it fails, the attempt must not be made.
func (t *tries) begin(ctx context.Context) error {
	t.count = count{}
	n, unanswered, err := t.ap.countAttempt(ctx, t.m.Offset, t.owed, t.answered)
	var server *pgconn.PgError
	switch {
	case err == nil:
		t.owed = false
		t.answered = false
		t.count = count{attempt: n + t.answers, counted: n, unanswered: unanswered}
	case errors.Is(err, errMoved), errors.As(err, &server): // it was not counted
	default:
		// Whether it was counted is unknown. If it was, what was owed before has been taken back.
		t.owed = true
	}
	return err
}

// ended notes how the attempt that has begun ended. If it was made alone and is to be taken back,
// that happens at once: see applier.tryAlone (D1, D2).
func (t *tries) ended(err error) {
	_, answer := errors.AsType[*handlerFailure](err)
	switch {
	case err == nil:
	case !answer:
		t.owed = true
	case t.ap.c.cfg.OnFailure == BlockPartition:
		t.owed = true
		t.answers++
	default:
		t.answered = true
	}
	if t.exclusive {
		t.takeBack()
	}
}

// takeBack takes back the attempt that is owed, if one is. Whoever makes no other attempt calls it.
// If that fails, the attempt stays owed, and is taken back with the next one (D2).
func (t *tries) takeBack() {
	if t.owed {
		t.owed = !t.ap.takeBackAttempt(t.m.Offset)
	}
}

// hindered notes an attempt that has failed. If the message has met nothing but hindrances for
// Config.BlockedAfter, it returns the halt of the partition; otherwise err.
func (t *tries) hindered(ctx context.Context, err error) error {
	h, is := errors.AsType[*hindrance](err)
	if !is {
		t.hinderedSince = time.Time{}
		return err
	}
	// A session that ends because another one has crashed says nothing, unless there was no other.
	t.exclusive = t.exclusive || guard.SQLState(h.err) == codeCrashShutdown
	if t.hinderedSince.IsZero() {
		t.hinderedSince = time.Now()
		return err
	}
	cfg := &t.ap.c.cfg
	since := time.Since(t.hinderedSince)
	switch {
	case h.keptOut() && since < cfg.longest():
	case since >= cfg.BlockedAfter:
		const detail = "the message at offset %d keeps failing, for a reason that is not the message's: %v%s"
		return t.ap.haltBlocked(t.m, detail, t.m.Offset, h, t.ap.because(ctx, h))
	}
	return err
}

// identifyCounted is identifyInOrder for messages one of which may have ended a process (F9).
// Attempts are counted before the program's functions are called, as before a handler, and taken
// back afterwards. If a message has a count, each gets one, and nothing else of the process is
// under way meanwhile. Otherwise one count is for all, at the first of them.
func (ap *applier) identifyCounted(ctx context.Context, msgs []*Message) error {
	n := len(msgs)
	exclusive := slices.ContainsFunc(msgs, ap.cur.suspected)
	if exclusive {
		n = 1
	}
	for part := range slices.Chunk(msgs, n) {
		if err := ap.identifyPart(ctx, part, exclusive); err != nil {
			return err
		}
	}
	return nil
}

// identifyPart finds the ids of messages under one count, at the first of them.
func (ap *applier) identifyPart(ctx context.Context, part []*Message, exclusive bool) error {
	release, err := ap.acquireLock(ctx, exclusive)
	if err != nil {
		return err
	}
	defer release() // after the count is taken back: see tryAlone
	t := tries{ap: ap, m: part[0]}
	if err := t.begin(ctx); err != nil {
		return err
	}
	ap.giveUpIdentifying(part[0], t.count)
	ap.c.identifyAll(part, ap.c.identifyInOrder)
	ap.takeBackAttempt(part[0].Offset)
	return nil
}

// countAttemptSQL counts one attempt at a message that is alone, before it runs. In: cursor, epoch,
// nonce, offset, how many attempts that were counted here are taken back because they ended without
// a fault of the message, and how many earlier ones have had an answer. Out: one row with the
// count, and how many before this one have had no answer; or no row if the cursor has another
// owner. The lock on the lease keeps a suspended process from counting after it was replaced.
//
// It deletes the counts of messages below the position, unless another transaction has locked one.
// By the primary keys.
const countAttemptSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share),
passed as (
  select a."offset" from onlyonce.attempts a
   where a.cursor_id = $1
     and a."offset" < (select p.next_offset from onlyonce.positions p where p.id = $1)
     and a."offset" <> $4
   limit 100 for update skip locked),
gone as (
  delete from onlyonce.attempts a using passed where a.cursor_id = $1 and a."offset" = passed."offset")
insert into onlyonce.attempts as a (cursor_id, "offset", attempts, answers)
select $1, $4, 1, 0 where exists (select from held)
on conflict (cursor_id, "offset") do update
   set attempts = greatest(a.attempts - $5::integer, 0) + 1, answers = a.answers + $6::integer
returning attempts, attempts - 1 - answers`

// takeBackSQL takes back an attempt that this process counted, if the process then had to stop for
// a reason that is not the message's. It does not compare the owner: a new owner, too, must not
// take the attempt for one that ended in a crash. In: cursor, offset.
const takeBackSQL = `
update onlyonce.attempts set attempts = attempts - 1 where cursor_id = $1 and "offset" = $2 and attempts > 0`

// forgetAttemptsSQL resets the count of a message's attempts. In: as of countAttemptSQL, the first
// four.
const forgetAttemptsSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
update onlyonce.attempts set attempts = 0, answers = 0
 where cursor_id = $1 and "offset" = $4 and exists (select from held)`

// countAttempt counts an attempt before it is made, minus one that is owed, and records whether an
// earlier one had an answer that counts.
func (ap *applier) countAttempt(ctx context.Context, offset int64, owed, answered bool) (n, unanswered int, err error) {
	err = ap.c.queryRow(
		ctx,
		countAttemptSQL,
		ap.cur.id,
		ap.cur.epoch,
		ap.cur.nonce,
		offset,
		oneIf(owed),
		oneIf(answered),
	).
		Scan(&n, &unanswered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		// By another owner, or by an operator: the next read of the cursor decides.
		return 0, 0, errMoved
	case err != nil:
		return 0, 0, fmt.Errorf("counting an attempt: %w", err)
	}
	return n, unanswered, nil
}

func oneIf(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// takeBackAttempt tries once, and reports whether it is done. If it is not, the attempt stays
// counted, which is the cautious side: the caller that makes another attempt takes it back with
// that.
func (ap *applier) takeBackAttempt(offset int64) (done bool) {
	return ap.changeCount("attempt not taken back", takeBackSQL, offset, ap.cur.id, offset)
}

// forgetAttempts resets the count of a message that is not given up although its attempts are used
// up. It tries once, like takeBackAttempt.
func (ap *applier) forgetAttempts(offset int64) {
	ap.changeCount("attempts not forgotten", forgetAttemptsSQL, offset, ap.cur.id, ap.cur.epoch, ap.cur.nonce, offset)
}

func (ap *applier) changeCount(failed, sql string, offset int64, args ...any) (done bool) {
	ctx, cancel := ap.c.detached()
	defer cancel()
	_, err := ap.c.pool.Exec(ctx, sql, args...)
	if err != nil {
		ap.c.cfg.Logger.Warn("onlyonce: "+failed, "scope", ap.c.cfg.Scope, "offset", offset, "error", err)
	}
	return err == nil
}

// giveUpIdentifying makes a message count as one without an id, if even the attempt to park it as
// crashed has ended the process: that calls no handler, only what finds its id (F9).
func (ap *applier) giveUpIdentifying(m *Message, n count) {
	parking := ap.c.cfg.MaxAttempts + 1
	if ap.c.cfg.OnParked != nil {
		parking++ // that may have been the cause: see judgeUnanswered
	}
	if m.identified || n.counted <= parking || n.unanswered <= 2 {
		return
	}
	m.identified = true
	m.idErr = fmt.Errorf("%w: %d attempts ended without an answer, "+
		"the last while Config.Key, Config.Tenant or Config.OrderingKey ran", ErrNoKey, n.unanswered)
}
