package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// stillParkedSQL reads the messages at these offsets that are parked and not settled. In: kind,
// scope, topic, partition, offsets. Out: one row of arrays, empty if there are none. By the index
// parked_position.
const stillParkedSQL = `
select coalesce(array_agg(p."offset"), '{}'),
       array_agg(p.topic_id),
       array_agg(p.record_time),
       array_agg(p.record_key),
       array_agg(p.body),
       array_agg(p.sealed)
  from onlyonce.parked p
 where p.kind = $1
   and p.settled_at is null
   and p.scope = $2
   and p.topic = $3
   and p.partition = $4
   and p."offset" = any($5::bigint[])`

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
// also if this transaction parks it. On the optimistic path the server raises if there is such a
// message. A batch with a key that was blocked when the database was last asked is not on that path
// (D4).
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
				"its id was made at %s, and ids that were made until %s may be forgotten: the database "+
					"cannot tell whether it is a copy",
				m.madeAt.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}
		}
	}
}

// A scope's keys are claimed in the ring of its class. While the class changes, they are claimed in
// both rings, in the order of ring.Classes, so that two claims do not deadlock (K10). See the
// functions' comments in the migration. In: keys, fingerprints, and the result of
// inbox.Filters.Ask.
const claimArgsSQL = `(
  keys => $1,
  fingerprints => $2,
  asked => $3,
  hit_uses => $4,
  hits => $5
)`

// The statements of each class.
var (
	claimSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer` + claimArgsSQL,
		ring.Short:    `select onlyonce.claim_consumer_short` + claimArgsSQL,
		ring.Long:     `select onlyonce.claim_consumer_long` + claimArgsSQL,
	}
	claimFreshSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer_fresh` + claimArgsSQL,
		ring.Short:    `select onlyonce.claim_consumer_short_fresh` + claimArgsSQL,
		ring.Long:     `select onlyonce.claim_consumer_long_fresh` + claimArgsSQL,
	}
)

// unsettledSQL finds which of these keys belong to a parked message that is not settled. In: keys,
// kind. Out: one row with an array. By the unique index parked_key_unresolved.
const unsettledSQL = `
select coalesce(array_agg(key), '{}') from onlyonce.parked
 where kind = $2 and kind <> 'call' and key = any($1::uuid[]) and settled_at is null and reason <> 'conflict'`

// claimKeys claims the keys of all messages that have one, and records a disposition on each that
// is not fresh. On the optimistic path it only queues the claim, which raises at the server unless
// all are fresh.
func (e *engine) claimKeys(
	ctx context.Context,
	tx *guard.Tx,
	msgs []*Message,
	dispositions []*disposition,
	claimFirst bool,
) {
	if e.c.cfg.Key == nil && !e.c.events {
		return
	}
	if len(msgs) > 0 && msgs[0].replay > 0 {
		e.claimOutsideReplay(tx, msgs, dispositions)
		if e.skipParked(ctx, tx, msgs, dispositions); tx.Failure() != nil {
			return
		}
	}
	if e.c.events {
		return // claimed when they were appended
	}
	hashes := make([][16]byte, 0, len(msgs))
	fingerprints := make([]int64, 0, len(msgs))
	index := make([]int, 0, len(msgs))
	for i, m := range msgs {
		if dispositions[i] == nil {
			hash, fingerprint := m.hash()
			hashes = append(hashes, hash)
			fingerprints = append(fingerprints, fingerprint)
			index = append(index, i)
		}
	}
	if len(hashes) == 0 {
		return
	}
	if !claimFirst {
		for _, class := range e.cur.classes {
			tx.Engine(stepClaim, claimFreshSQL[class], e.claimArgs(class, hashes, fingerprints)...)
		}
		return
	}
	var outcomes []int16
	sql, args := e.claimStatement(hashes, fingerprints)
	if err := tx.EngineRow(ctx, stepClaim, sql, args...).Scan(&outcomes); err != nil {
		tx.Fail(stepClaim, err)
		return
	}
	if len(outcomes) != len(index) {
		tx.Fail(stepClaim, fmt.Errorf("%d outcomes for %d keys", len(outcomes), len(index)))
		return
	}
	for n, o := range outcomes {
		switch dedupe.Outcome(o) {
		case dedupe.Duplicate:
			dispositions[index[n]] = &disposition{reason: reasonDuplicate}
		case dedupe.Conflict:
			dispositions[index[n]] = &disposition{reason: parked.Conflict, err: errConflict}
		}
	}
}

// claimOutsideReplay queues the claim of the keys that copies outside of the replay have (F10). It
// does not ask whether they are new, because a replay is about messages that were handled. Some
// messages in it were not: they are below the cursor's start, an adoption has passed over them, or
// they are parked here. In this way they leave a key too.
func (e *engine) claimOutsideReplay(tx *guard.Tx, msgs []*Message, dispositions []*disposition) {
	if e.c.events {
		return
	}
	hashes := make([][16]byte, 0, len(msgs))
	fingerprints := make([]int64, 0, len(msgs))
	for i, m := range msgs {
		if dispositions[i] == nil {
			hash, fingerprint := m.hashIn(0)
			hashes = append(hashes, hash)
			fingerprints = append(fingerprints, fingerprint)
		}
	}
	if len(hashes) > 0 {
		sql, args := e.claimStatement(hashes, fingerprints)
		tx.Engine(stepClaim, sql, args...)
	}
}

// claimArgs returns the arguments of a claim in the ring of one class. The process has filters of
// the ring that Config.Horizon names.
func (e *engine) claimArgs(class string, hashes [][16]byte, fingerprints []int64) []any {
	var asked, uses []int64
	var hits [][16]byte
	if class == e.c.cfg.Horizon.class() {
		asked, uses, hits = e.c.filters.Ask(hashes)
	}
	return []any{
		codec.UUIDs(hashes),
		codec.Bigints(fingerprints),
		codec.Bigints(asked),
		codec.Bigints(uses),
		codec.UUIDs(hits),
	}
}

// claimStatement returns the statement that claims keys in the scope's ring, or in both while its
// class changes, and returns which are new.
func (e *engine) claimStatement(hashes [][16]byte, fingerprints []int64) (sql string, args []any) {
	classes := e.cur.classes
	if len(classes) == 2 {
		return claimBothSQL, []any{classes[0], classes[1], codec.UUIDs(hashes), codec.Bigints(fingerprints)}
	}
	return claimSQL[classes[0]], e.claimArgs(classes[0], hashes, fingerprints)
}

// skipParked takes messages out of a replay if their first handling is still to come, because
// they, or copies of them, are parked. Their keys in the replay differ from those of the parked
// rows, so the claim would find them new, and a redrive would apply them again. It runs after
// claimOutsideReplay, which waits for a transaction that is parking a copy (K7).
func (e *engine) skipParked(ctx context.Context, tx *guard.Tx, msgs []*Message, dispositions []*disposition) {
	originals := make([][16]byte, len(msgs))
	for i, m := range msgs {
		originals[i] = m.hashOutsideReplay()
	}
	var parked []pgtype.UUID
	if err := tx.EngineRow(
		ctx,
		stepClaim,
		unsettledSQL,
		codec.UUIDs(originals),
		e.c.parkedKind(),
	).Scan(&parked); err != nil {
		tx.Fail(stepClaim, err)
		return
	}
	for i := range msgs {
		if dispositions[i] == nil &&
			slices.ContainsFunc(parked, func(u pgtype.UUID) bool { return u.Bytes == originals[i] }) {
			dispositions[i] = &disposition{reason: reasonDuplicate}
		}
	}
}

// claimBothSQL claims keys in the rings of two classes. In: the classes, keys, fingerprints. Out:
// one row, as of claimSQL.
const claimBothSQL = `select onlyonce.claim_both($1, $2, $3, $4)`

var (
	errNoReturn = fmt.Errorf("%w: Config.Key, Fingerprint, Tenant or OrderingKey called runtime.Goexit", ErrNoKey)
	errConflict = errors.New("the id was used before for a message with another payload")
	errBehind   = errors.New("an earlier message of its ordering key is parked")
)
