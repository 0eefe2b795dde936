package consumer

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// stillParkedSQL reads the messages at these offsets that are parked and not settled. In: kind,
// scope, topic, partition, offsets. Out: one row of arrays, empty if there are none. By the index
// parked_position.
const stillParkedSQL = `
select coalesce(array_agg(p."offset"), '{}'), array_agg(p.topic_id), array_agg(p.record_time), array_agg(p.record_key), array_agg(p.body), array_agg(p.sealed)
  from onlyonce.parked p
 where p.kind = $1 and p.settled_at is null and p.scope = $2 and p.topic = $3 and p.partition = $4 and p."offset" = any($5::bigint[])`

// skipStillParked takes messages out of a plan that are read again, and whose first handling is
// still to come, because they are parked. It is the one check for all that sets a position back:
// `onlyonce replay`, `onlyonce cursor adopt`, and commits that the database has lost (K7).
//
// What is parked stays so only until its row is settled: a row that a transaction of the retrier is
// about to settle counts as parked here. The row is of another message if the log was written anew
// since.
func (e *engine) skipStillParked(ctx context.Context, tx *guard.Tx, p *plan, dispositions []*disposition) {
	if p.alreadyParked {
		return
	}
	at := map[int64]int{}
	offsets := make([]int64, 0, len(p.msgs))
	for i, m := range p.msgs {
		if m.mayRepeat || m.replay > 0 {
			at[m.Offset] = i
			offsets = append(offsets, m.Offset)
		}
	}
	if len(offsets) == 0 {
		return
	}
	var found []int64
	var topics []pgtype.UUID
	var times []time.Time
	var keys, values [][]byte
	var sealed []bool
	err := tx.EngineRow(
		ctx,
		stepClaim,
		stillParkedSQL,
		e.c.parkedKind(),
		e.c.cfg.Scope,
		e.id.Topic,
		e.id.Partition,
		codec.Bigints(offsets),
	).
		Scan(&found, &topics, &times, &keys, &values, &sealed)
	if err != nil {
		tx.Fail(stepClaim, err)
		return
	}
	for n, offset := range found {
		i := at[offset]
		row := &Message{
			Topic:     e.id.Topic,
			Partition: e.id.Partition,
			Offset:    offset,
			Time:      times[n],
			Key:       keys[n],
			Value:     values[n],
			topicID:   topics[n].Bytes,
		}
		closed := false
		if sealed[n] {
			value, err := e.c.open(row)
			// what does not open is compared by the rest
			row.Value = value
			closed = err != nil
		}
		if row.isRecord(p.msgs[i], closed) {
			dispositions[i] = &disposition{reason: reasonDuplicate}
		}
	}
}

// isRecord reports whether a parked row is of this record of the log. closed: its value is not
// known.
func (m *Message) isRecord(other *Message, closed bool) bool {
	none := [16]byte{}
	if m.topicID != none && other.topicID != none && m.topicID != other.topicID {
		return false
	}
	return m.Time.Equal(storableTime(other.Time).Truncate(time.Microsecond)) &&
		bytes.Equal(m.Key, other.Key) &&
		(closed || bytes.Equal(m.Value, other.Value))
}

// refuseBlockedSQL raises OO006 if one of these ordering keys is blocked; blockedSQL returns which
// are, in one row with an array in their order. By the partial index parked_order. A key that is
// not blocked now stays so until this transaction ends: only the worker's own transactions block
// keys of a partition, and they run one after another.
const (
	refuseBlockedSQL = `select onlyonce.pass($1)`
	blockedSQL       = `select onlyonce.blocked($1)`
)

// checkOrder finds which messages must wait because an earlier one of their ordering key is parked,
// also if this transaction parks it. On the optimistic path the server raises if the database has
// any. A batch with a key that was blocked when it was last asked is not on that path (D4).
func (e *engine) checkOrder(ctx context.Context, tx *guard.Tx, p *plan, dispositions []*disposition, askFirst bool) {
	if e.c.cfg.OnFailure != ParkOrderingKey || p.alreadyParked {
		return
	}
	keys := make([]pgtype.UUID, 0, len(p.msgs))
	index := make([]int, 0, len(p.msgs))
	for i, m := range p.msgs {
		if m.orderKey.Valid && (dispositions[i] == nil || dispositions[i].parks()) {
			keys = append(keys, m.orderKey)
			index = append(index, i)
		}
	}
	if len(keys) == 0 {
		return
	}
	held := map[pgtype.UUID]bool{}
	if askFirst || e.blocked.any(keys) {
		var blocked []bool
		if err := tx.EngineRow(ctx, stepOrder, blockedSQL, keys).Scan(&blocked); err != nil {
			tx.Fail(stepOrder, err)
			return
		}
		if len(blocked) != len(keys) {
			tx.Fail(stepOrder, fmt.Errorf("%d answers for %d ordering keys", len(blocked), len(keys)))
			return
		}
		for n, b := range blocked {
			e.blocked.note(keys[n], b)
			if b {
				held[keys[n]] = true
			}
		}
	} else {
		tx.Engine(stepOrder, refuseBlockedSQL, keys)
	}
	for _, i := range index {
		m := p.msgs[i]
		switch {
		case held[m.orderKey] && dispositions[i] == nil:
			dispositions[i] = &disposition{reason: parked.Behind, err: errBehind, waitsFor: m.orderKey}
		case dispositions[i] != nil:
			held[m.orderKey] = true // it will be parked, and later messages of its key wait for it
		}
	}
}

// tooOldSQL reads the time until which ids are too old; see the function's comment in the
// migration. In: scope. Out: one row, null if nothing is forgotten. refuseTooOldSQL raises OO003
// if the oldest id of a batch is. In: scope, the time of that id. Two rows by their primary keys.
const (
	tooOldSQL       = `select onlyonce.too_old($1)`
	refuseTooOldSQL = `select onlyonce.refuse_too_old($1, $2)`
)

// checkAge finds which messages may be copies whose key is forgotten (K9). It runs after the claim:
// a segment that the claim did not search counts as forgotten by then, whenever it was retired. On
// the optimistic path the server raises if there is such a message.
//
// Messages of a replay are exempt, and so are parked ones: an operator has decided on them.
func (e *engine) checkAge(ctx context.Context, tx *guard.Tx, p *plan, dispositions []*disposition, claimFirst bool) {
	exempt := p.alreadyParked || len(p.msgs) == 0 || p.msgs[0].replay > 0
	if exempt || e.c.cfg.TooOld != ParkTooOld {
		return
	}
	oldest := time.Time{}
	for i, m := range p.msgs {
		if dispositions[i] == nil && (oldest.IsZero() || m.madeAt.Before(oldest)) {
			oldest = m.madeAt
		}
	}
	if oldest.IsZero() {
		return // duplicates only
	}
	if !claimFirst {
		tx.Engine(stepAge, refuseTooOldSQL, e.c.cfg.Scope, storableTime(oldest))
		return
	}
	var until *time.Time
	if err := tx.EngineRow(ctx, stepAge, tooOldSQL, e.c.cfg.Scope).Scan(&until); err != nil {
		tx.Fail(stepAge, err)
		return
	}
	for i, m := range p.msgs {
		if until != nil && dispositions[i] == nil && !m.madeAt.After(*until) {
			dispositions[i] = &disposition{reason: parked.TooOld, err: fmt.Errorf(
				"its id was made at %s, and ids that were made until %s may be forgotten: the database does "+
					"not know whether it is a copy",
				m.madeAt.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}
		}
	}
}
