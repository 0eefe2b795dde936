package consumer

import (
	"context"
	"encoding/hex"
	"fmt"
)

// applier makes messages of the log take effect, one transaction after another. It repeats and
// divides transactions that fail, and parks messages that cannot be applied. The worker of a
// partition is one; if transactions run side by side, each slot is one.
type applier struct {
	engine

	// runLogAttempt runs one transaction of messages from the log.
	runLogAttempt func(work context.Context, a *attempt) error

	counting   attemptCounting
	sideBySide bool // other appliers work on the same partition
	troubled   bool // it has reported that an attempt failed, and nothing was committed since
}

// attemptCounting are the statements that count the attempts at a message that is alone. The first
// arguments of count and forget are cursor, epoch, nonce and offset; without an owner they are
// cursor and offset, as those of takeBack always are.
type attemptCounting struct {
	count, takeBack, forget string

	unowned bool // without epoch and nonce
}

// arguments returns the arguments of count and forget.
func (n *attemptCounting) arguments(cur *cursor, rest ...any) []any {
	if n.unowned {
		return append([]any{cur.id}, rest...)
	}
	return append([]any{cur.id, cur.epoch, cur.nonce}, rest...)
}

// A worker has one message at a time alone, whose count is in the cursor's row. Slots may each have
// one, and count in rows of onlyonce.attempts.
var (
	countInCursor = attemptCounting{count: countAttemptSQL, takeBack: takeBackSQL, forget: forgetAttemptsSQL}
	countInRows   = attemptCounting{count: countSlotAttemptSQL, takeBack: takeBackSlotSQL, forget: forgetSlotAttemptsSQL}
)

// countSlotAttemptSQL, takeBackSlotSQL and forgetSlotAttemptsSQL are countAttemptSQL, takeBackSQL
// and forgetAttemptsSQL for slots. The first count goes on from the cursor's, which an owner
// without slots may have left.
const (
	countSlotAttemptSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
insert into onlyonce.attempts as a (cursor_id, "offset", attempts, answers)
select held.id, $4, coalesce(c.attempts, 0) + 1, coalesce(c.answers, 0)
  from held left join onlyonce.cursors c on c.id = held.id and c.attempt_offset = $4
on conflict (cursor_id, "offset") do update set attempts = greatest(a.attempts - $5::integer, 0) + 1, answers = a.answers + $6::integer
returning attempts, attempts - 1 - answers`
	takeBackSlotSQL = `
update onlyonce.attempts set attempts = attempts - 1 where cursor_id = $1 and "offset" = $2 and attempts > 0`
	forgetSlotAttemptsSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
update onlyonce.attempts a set attempts = 0, answers = 0 from held where a.cursor_id = held.id and a."offset" = $4`
)

// haltBlocked halts the partition because of a message. If others are handled beside it, the detail
// names its offset and the hash of its ordering key, because the position may be below it.
func (w *applier) haltBlocked(m *Message, detail string, args ...any) *HaltError {
	if w.sideBySide {
		detail = "%s: " + detail
		args = append([]any{messageName(m.Offset, m.inOrder)}, args...)
	}
	h := w.haltErrorAt(w.state.position.Load(), HaltBlocked, detail, args...)
	h.blockedAt = m.Offset
	return h
}

// haltPosition is where the position will be when the partition has halted because of a message.
// Slots first handle everything below the message.
func (w *applier) haltPosition(m *Message) int64 {
	if w.sideBySide {
		return m.Offset
	}
	return w.state.position.Load()
}

// messageName describes a message without its payload.
func messageName(offset int64, key orderHash) string {
	if !key.Valid {
		return fmt.Sprintf("offset %d", offset)
	}
	return fmt.Sprintf("offset %d, ordering key %s", offset, keyHash(key))
}

// keyHash returns the hash of an ordering key, as it is shown.
func keyHash(key orderHash) string {
	if !key.Valid {
		return ""
	}
	return hex.EncodeToString(key.Bytes[:])
}
