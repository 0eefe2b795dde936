package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// identifyCounted is identifyInOrder for messages of which one may have ended a process (F9).
// Attempts are counted before the program's functions are called, as before a handler, and taken
// back afterwards. If a message has a count, each gets one, and nothing else of the process is
// under way meanwhile. Otherwise one count is for all, at the first of them.
func (ap *applier) identifyCounted(ctx context.Context, msgs []*Message) error {
	n, exclusive := len(msgs), slices.ContainsFunc(msgs, ap.cur.suspected)
	if exclusive {
		n = 1
	}
	for part := range slices.Chunk(msgs, n) {
		release, err := ap.lockAttempts(ctx, exclusive)
		if err != nil {
			return err
		}
		counted, unanswered, err := ap.countAttempt(ctx, part[0].Offset, 0, 0)
		if err == nil {
			ap.giveUpIdentifying(part[0], counted, unanswered)
			ap.c.identifyAll(part, ap.c.identifyInOrder)
			ap.takeBackAttempt(part[0].Offset)
		}
		release()
		if err != nil {
			return err
		}
	}
	return nil
}

// countAttemptSQL counts one attempt at a message that is alone, before it runs. In: cursor, epoch,
// nonce, offset, how many attempts that were counted here are taken back because they ended without
// a fault of the message, and how many earlier ones have had an answer. Out: one row with the
// count, and how many before this one have had no answer; or no row if the cursor has another
// owner. The lock on the lease keeps a suspended process from counting after it was replaced.
//
// It deletes the counts of messages below the position, unless another transaction has one in its
// hands. By the primary keys.
const countAttemptSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share),
passed as (
  select a."offset" from onlyonce.attempts a
   where a.cursor_id = $1 and a."offset" < (select p.next_offset from onlyonce.positions p where p.id = $1) and a."offset" <> $4
   limit 1000 for update skip locked),
gone as (
  delete from onlyonce.attempts a using passed where a.cursor_id = $1 and a."offset" = passed."offset")
insert into onlyonce.attempts as a (cursor_id, "offset", attempts, answers)
select $1, $4, 1, 0 where exists (select from held)
on conflict (cursor_id, "offset") do update set attempts = greatest(a.attempts - $5::integer, 0) + 1, answers = a.answers + $6::integer
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

// countAttempt counts an attempt before it is made, minus those that are owed, and records how many
// earlier ones had an answer that counts.
func (ap *applier) countAttempt(ctx context.Context, offset int64, owed, answered int) (n, unanswered int, err error) {
	err = ap.c.queryRow(ctx, countAttemptSQL, ap.cur.id, ap.cur.epoch, ap.cur.nonce, offset, owed, answered).Scan(&n, &unanswered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		// By another owner, or by an operator: the next read of the cursor decides.
		return 0, 0, errMoved
	case err != nil:
		return 0, 0, fmt.Errorf("counting an attempt: %w", err)
	}
	return n, unanswered, nil
}

// takeBackAttempt tries once. If it fails, the attempt stays counted, which is the cautious side.
func (ap *applier) takeBackAttempt(offset int64) {
	ap.changeCount("attempt not taken back", takeBackSQL, offset, ap.cur.id, offset)
}

// forgetAttempts resets the count of a message that is not given up although its attempts are used
// up. It tries once, like takeBackAttempt.
func (ap *applier) forgetAttempts(offset int64) {
	ap.changeCount("attempts not forgotten", forgetAttemptsSQL, offset, ap.cur.id, ap.cur.epoch, ap.cur.nonce, offset)
}

func (ap *applier) changeCount(failed, sql string, offset int64, args ...any) {
	ctx, cancel := ap.c.detached()
	defer cancel()
	if _, err := ap.c.pool.Exec(ctx, sql, args...); err != nil {
		ap.c.cfg.Logger.Warn("onlyonce: "+failed, "scope", ap.c.cfg.Scope, "offset", offset, "error", err)
	}
}

// giveUpIdentifying makes a message one without an id, if also the attempt to park it as crashed
// has ended the process: that calls no handler, only what finds its id (F9).
func (ap *applier) giveUpIdentifying(m *Message, counted, unanswered int) {
	parking := ap.c.cfg.MaxAttempts + 1
	if ap.c.cfg.OnParked != nil {
		parking++ // that may have been the cause: see crashed
	}
	if !m.identified && counted > parking && unanswered > 2 {
		m.identified, m.idErr = true, fmt.Errorf("%w: %d attempts ended without an answer, the last while Config.Key, Config.Tenant or Config.OrderingKey ran", ErrNoKey, unanswered)
	}
}
