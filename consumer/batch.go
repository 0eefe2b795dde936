package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// claimSQL and claimFreshSQL claim keys, sorted inside; see the functions' comments in the migration.
const (
	claimSQL      = `select onlyonce.claim($1, $2)`
	claimFreshSQL = `select onlyonce.claim_fresh($1, $2)`
)

// Steps of the engine's statements.
const (
	stepFence = "fence"
	stepClaim = "claim"
	stepPark  = "park"
	stepPrune = "prune"
	stepSeal  = "seal"
)

const (
	pruneEvery  = 256              // batches between two prunings of progress rows
	claimsAhead = 32               // batches that claim first after a duplicate was met
	rerunLimit  = 5                // immediate runs after serialization failures and deadlocks
	endTimeout  = 15 * time.Second // bound of COMMIT and ROLLBACK, detached from any request
)

// failure says that an attempt was rolled back because of the handler or its statements.
type failure struct {
	index int // message whose handler returned the error, -1 where it is not known
	err   error
	lost  bool // the connection was lost meanwhile
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// attempt is one transaction's worth of work.
type attempt struct {
	msgs    []*Message
	next    int64
	alone   bool
	verdict *verdict // park the message instead of handling it
	ran     bool     // a handler was called
	anchor  *anchor  // last record below next
	done    BatchDone
	parked  []Parked
}

// attempt runs the transaction for msgs, which moves the position to next, until it has committed or something stands against
// it: *failure (the handler), errMoved, ErrOwnershipLost, or any other error for a fault of the server or the way to it.
func (w *worker) attempt(work context.Context, a *attempt) error {
	started := time.Now()
	conn, err := w.c.pool.Acquire(work)
	if err != nil {
		return fmt.Errorf("getting a connection: %w", err)
	}
	release := sync.OnceFunc(conn.Release)
	defer release()
	a.anchor = w.anchor
	if n := len(a.msgs); n > 0 {
		a.anchor = anchorOf(a.msgs[n-1])
	}
	claimFirst := a.alone || a.verdict != nil || w.c.cfg.ClaimFirst || w.cautious > 0
	for run := 0; ; run++ {
		a.done = BatchDone{Topic: w.id.Topic, Partition: w.id.Partition, From: w.pos, Next: a.next, Messages: len(a.msgs),
			Alone: a.alone, Fallback: a.done.Fallback}
		a.parked, a.ran = nil, false
		tx := guard.Begin(conn.Conn())
		index, herr := w.transact(work, tx, a, claimFirst)
		if herr == nil && tx.Failure() == nil {
			_ = tx.Commit(endTimeout) // kept as the failure
		}
		failed, lost := tx.Failure(), tx.Lost()
		if herr == nil && tx.Committed() {
			release() // before hooks are called
			w.committed(a, started)
			return nil
		}
		tx.Rollback(endTimeout)

		state := sqlState(failed)
		switch {
		case run < rerunLimit && unlucky(state):
			continue // the whole transaction, handler included
		case failed != nil && failed.Step == stepClaim && state == codeKeyNotFresh && !claimFirst:
			claimFirst, a.done.Fallback, w.cautious = true, true, claimsAhead
			continue
		case failed != nil && failed.Step == stepFence && (state == codeFenceLost || state == codeRaceLost):
			release() // fenced needs a connection, and this may be the pool's last
			return w.fenced(work, a, started)
		}
		return w.blame(work, a, index, herr, failed, lost)
	}
}

// transact queues or sends everything up to the handler's last statement. It returns the handler's error and the message it was about.
func (w *worker) transact(work context.Context, tx *guard.Tx, a *attempt, claimFirst bool) (index int, err error) {
	cfg := w.c.cfg
	anchorOffset, anchorEpoch, anchorHash := a.anchor.args()
	tx.Engine(stepFence, fenceSQL, w.cur.id, w.cur.epoch, w.cur.nonce, w.cur.run, w.pos, a.next,
		anchorOffset, anchorEpoch, anchorHash, millis(cfg.LockTimeout), millis(cfg.StatementTimeout), millis(cfg.IdleTimeout))
	if w.batches >= pruneEvery {
		tx.Engine(stepPrune, pruneSQL, w.cur.id, w.cur.run, w.pos)
	}
	verdicts := w.judgeKeys(a.msgs)
	if w.claim(work, tx, a.msgs, verdicts, claimFirst); tx.Failure() != nil {
		return -1, nil
	}
	defer tx.CloseHandler()
	for i, m := range a.msgs {
		v := verdicts[i]
		if v == nil && a.verdict != nil {
			v = a.verdict
		}
		switch {
		case v == nil:
			a.ran = true
			tx.SetOrigin(w.origin(m))
			err := w.call(work, tx, m)
			tx.ClearOrigin()
			if err != nil {
				return i, err
			}
			if tx.Failure() != nil {
				return -1, nil
			}
			a.done.Handled++
		case v.reason == reasonDuplicate:
			a.done.Duplicates++
		default:
			w.park(tx, m, v)
			a.parked = append(a.parked, Parked{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Reason: v.reason, Err: v.err})
		}
	}
	a.done.Parked = len(a.parked)
	return -1, nil
}

// judgeKeys finds the messages' ids. It returns a verdict for each that has none, and nil for the others.
func (w *worker) judgeKeys(msgs []*Message) []*verdict {
	verdicts := make([]*verdict, len(msgs))
	for i, m := range msgs {
		if err := w.c.identify(m); err != nil {
			verdicts[i] = &verdict{reason: reasonNoKey, err: err}
		}
	}
	return verdicts
}

// identify finds the tenant and the id of a message. A function of the user's that panics makes the message one without
// an id: it would panic again, whoever looks at it.
func (c *Consumer) identify(m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: Config.Key or Config.Tenant panicked: %v", ErrNoKey, p)
		}
	}()
	if c.cfg.Tenant != nil {
		m.tenant = c.cfg.Tenant(m)
	}
	if c.cfg.Key == nil {
		return nil
	}
	id, err := c.cfg.Key(m)
	if err == nil && id == "" {
		err = ErrNoKey
	}
	if err == nil {
		m.id = id
	}
	return err
}

// claim claims the keys of all messages that have one, and notes a verdict on each that is not fresh. On the optimistic path it
// only queues the claim, which raises at the server unless all are fresh.
func (w *worker) claim(ctx context.Context, tx *guard.Tx, msgs []*Message, verdicts []*verdict, claimFirst bool) {
	if w.c.cfg.Key == nil {
		return
	}
	hashes := make([][16]byte, 0, len(msgs))
	fingerprints := make([]int64, 0, len(msgs))
	index := make([]int, 0, len(msgs))
	for i, m := range msgs {
		if verdicts[i] == nil {
			k := m.key(w.c.cfg.Scope)
			hashes, fingerprints, index = append(hashes, k.Hash()), append(fingerprints, k.Fingerprint.Int64()), append(index, i)
		}
	}
	if len(hashes) == 0 {
		return
	}
	keys, prints := codec.UUIDs(hashes), codec.Bigints(fingerprints)
	if !claimFirst {
		tx.Engine(stepClaim, claimFreshSQL, keys, prints)
		return
	}
	var outcomes []int16
	if err := tx.EngineRow(ctx, stepClaim, claimSQL, keys, prints).Scan(&outcomes); err != nil {
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
			verdicts[index[n]] = &verdict{reason: reasonDuplicate}
		case dedupe.Conflict:
			verdicts[index[n]] = &verdict{reason: reasonConflict, err: errConflict}
		}
	}
}

// call runs the handler, and makes an error of a panic.
func (w *worker) call(ctx context.Context, tx *guard.Tx, m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return w.c.handler(ctx, tx, m)
}

// blame decides whose fault a rolled back attempt is: the handler's (*failure), or the server's or the way to it.
func (w *worker) blame(work context.Context, a *attempt, index int, herr error, failed *guard.Failure, lost bool) error {
	switch {
	case work.Err() != nil:
		return context.Cause(work) // given up while it ran: nobody's fault
	case failed == nil:
		return &failure{index: index, err: herr, lost: lost}
	case unlucky(sqlState(failed)), sqlState(failed) == codeLockTimeout, strings.HasPrefix(sqlState(failed), classResources):
		return failed // others are in the way, or the server has no room, however often
	case failed.Step == "" && herr != nil && errors.Is(herr, failed):
		return &failure{index: index, err: herr, lost: lost}
	case failed.Step == "":
		return &failure{index: -1, err: failed, lost: lost} // a statement's error stands above what the handler made of it
	case lost && a.ran:
		return &failure{index: -1, err: failed, lost: true} // perhaps a message kills connections; the count will tell
	case failed.Step == stepSeal && sqlState(failed) != "":
		return &failure{index: -1, err: failed} // a deferred constraint
	}
	return failed
}

// unlucky reports whether a SQLSTATE means that the same transaction may succeed when it is run again.
func unlucky(state string) bool {
	return state == codeSerialization || state == codeDeadlock
}

// committed takes note of a transaction that has committed.
func (w *worker) committed(a *attempt, started time.Time) {
	w.pos, w.anchor = a.next, a.anchor
	if w.batches >= pruneEvery {
		w.batches = 0
	}
	w.batches++
	switch {
	case a.done.Duplicates > 0:
		w.cautious = claimsAhead
	case w.cautious > 0:
		w.cautious--
	}
	a.done.Duration = time.Since(started)
	for _, p := range a.parked {
		w.c.cfg.Logger.Warn("onlyonce: message parked", "scope", w.c.cfg.Scope, "topic", p.Topic, "partition", p.Partition,
			"offset", p.Offset, "reason", p.Reason, "error", p.Err)
		if w.c.cfg.Hooks.Parked != nil {
			w.c.cfg.Hooks.Parked(p)
		}
	}
	if w.c.cfg.Hooks.Batch != nil && len(a.msgs) > 0 {
		w.c.cfg.Hooks.Batch(a.done)
	}
}

// fenced finds out why the fence raised, in a statement of its own: the row was mine and stands where this attempt was to
// bring it (an earlier attempt, whose answer was lost, has committed); it is mine and stands elsewhere (an operator moved it, or
// an earlier attempt with another end committed); or it is not mine any more.
func (w *worker) fenced(work context.Context, a *attempt, started time.Time) error {
	cur, err := w.c.readCursor(work, w.id.Topic, w.id.Partition)
	switch {
	case err != nil:
		return err
	case cur == nil || cur.epoch != w.cur.epoch || cur.nonce != w.cur.nonce:
		if cur != nil && cur.run != w.cur.run {
			return errMoved // by an operator, who took the cursor over for that
		}
		return fmt.Errorf("%w: cursor %d has another owner", ErrOwnershipLost, w.cur.id)
	case cur.next == a.next:
		a.parked, a.done.Handled, a.done.Duplicates, a.done.Parked = nil, 0, 0, 0 // nobody can tell what that attempt did
		w.committed(a, started)
		return nil
	}
	return errMoved
}

func (w *worker) origin(m *Message) dedupe.Origin {
	return dedupe.Origin{Tenant: m.tenant, Scope: w.c.cfg.Scope, ID: m.id, Position: dedupe.Position{
		ClusterID: w.id.ClusterID, TopicID: w.id.TopicID, Topic: m.Topic, Partition: m.Partition, Offset: m.Offset}}
}

// plain makes text that PostgreSQL stores: valid UTF-8 without NUL, and not longer than what helps.
func plain(s string) string {
	const limit = 8 << 10
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
