package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// A scope's keys are claimed in the ring of its class. While the class changes, they are claimed in
// both rings, in the order of ring.Classes, so that two claims do not deadlock (K10). The
// statements of each class; see the functions' comments in the migration. In: keys, fingerprints,
// and the result of inbox.Filters.Ask.
var (
	claimSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer($1, $2, $3, $4, $5)`,
		ring.Short:    `select onlyonce.claim_consumer_short($1, $2, $3, $4, $5)`,
		ring.Long:     `select onlyonce.claim_consumer_long($1, $2, $3, $4, $5)`,
	}
	claimFreshSQL = map[string]string{
		ring.Standard: `select onlyonce.claim_consumer_fresh($1, $2, $3, $4, $5)`,
		ring.Short:    `select onlyonce.claim_consumer_short_fresh($1, $2, $3, $4, $5)`,
		ring.Long:     `select onlyonce.claim_consumer_long_fresh($1, $2, $3, $4, $5)`,
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

// findIDs finds the messages' ids. It returns a disposition for each message without one, and nil
// for the others.
func (e *engine) findIDs(msgs []*Message) []*disposition {
	dispositions := make([]*disposition, len(msgs))
	e.c.identifyAll(msgs, e.c.identify)
	for i, m := range msgs {
		m.mayRepeat = m.Offset < e.redoUntil
		m.idInTopic = e.idInTopic
		switch err := m.idErr; {
		case errors.Is(err, ErrSkip):
			dispositions[i] = &disposition{reason: reasonSkipped, err: err}
		case err != nil:
			dispositions[i] = &disposition{reason: parked.NoKey, err: err}
		}
	}
	return dispositions
}

// identifyAll gives the messages what the consumer knows of all of them, and finds the ids of those
// that have none yet, by find: identify or identifyInOrder. The program's functions run in a
// goroutine of their own, which may end.
func (c *Consumer) identifyAll(msgs []*Message, find func(*Message) error) {
	next := 0
	rest := func() error {
		for next < len(msgs) {
			m := msgs[next]
			next++
			m.scope = c.cfg.Scope
			m.traceOf = c.cfg.Trace
			if !m.identified {
				_ = find(m) // kept in the message
			}
		}
		return nil
	}
	if !c.identifyMayKill() || !slices.ContainsFunc(msgs, func(m *Message) bool { return !m.identified }) {
		_ = rest()
	}
	for next < len(msgs) {
		_ = callApart(rest)
	}
}

// identify finds the tenant and the id of a message. If a user's function panics, ends its
// goroutine or ends the process, the message counts as one without an id, because the function
// would do so again in each process. It runs in identifyAll, or in a test.
func (c *Consumer) identify(m *Message) (err error) {
	was := *m
	if c.copyBytes.Load() {
		m.ownBytes()
	}
	err = errNoReturn // unless the functions return
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: Config.Key, Fingerprint, Tenant or OrderingKey panicked: %v", ErrNoKey, p)
		}
		m.identified = true
		m.idErr = err
		m.restore(&was)
	}()
	if c.events {
		m.tenant = m.eventTenant
	} else if c.cfg.Tenant != nil {
		m.tenant = c.cfg.Tenant(m)
	}
	if c.cfg.OnFailure == ParkOrderingKey {
		m.orderKey = c.orderOf(m)
	}
	key := c.cfg.Key
	if c.events {
		key = eventKey
	}
	if key == nil {
		return nil
	}
	id, keyErr := key(m)
	switch {
	case keyErr != nil:
		return keyErr
	case id == "":
		return ErrNoKey
	case m.timed && c.cfg.TooOld == tooOldUnset:
		return fmt.Errorf("%w: Config.Key calls one of TimedKey: it must be that one itself, with Config.TooOld",
			ErrConfig)
	}
	if c.cfg.Fingerprint != nil {
		m.fingerprint = inbox.Compared(c.cfg.Fingerprint(m))
	}
	m.id = id
	return nil
}

// identifyInOrder is identify for a message that is handled beside others: it also finds the
// ordering key by which it waits for earlier messages, under any policy.
func (c *Consumer) identifyInOrder(m *Message) error {
	_ = c.identify(m) // an error is the message's, and is met again
	if c.cfg.OnFailure == ParkOrderingKey {
		m.inOrder = m.orderKey
		return nil
	}
	was := *m
	found := m.idErr
	if c.copyBytes.Load() {
		m.ownBytes()
	}
	m.idErr = errNoReturn // unless it returns
	defer m.restore(&was)
	if err := recoverPanic(func() error { m.inOrder = c.orderOf(m); return nil }); err != nil {
		found = fmt.Errorf("%w: Config.OrderingKey panicked: %w", ErrNoKey, err)
	}
	m.idErr = found
	return nil
}

// identifyMayKill reports whether the program has functions that find ids and ordering keys.
func (c *Consumer) identifyMayKill() bool {
	return c.cfg.Key != nil || c.cfg.Tenant != nil || c.cfg.OrderingKey != nil
}

// orderOf returns the stored form of a message's ordering key.
func (c *Consumer) orderOf(m *Message) orderHash {
	key := m.Key // the record's
	if c.cfg.OrderingKey != nil {
		key = c.cfg.OrderingKey(m)
	}
	if len(key) == 0 {
		return orderHash{}
	}
	return orderHash{Bytes: parked.MessageOrder(m.tenant, c.cfg.Scope, m.Topic, string(key)), Valid: true}
}
