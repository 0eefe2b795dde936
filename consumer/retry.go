package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// takeParkedSQL counts an attempt at the parked row that is due first, before it runs. In: cursor,
// epoch, nonce, scope, topic, partition, after how many seconds the row is due again if this
// process dies, and how many seconds ahead a due time is at most. A due time beyond that was
// written while the clock was ahead, and counts as reached (T9). Out: at most one row; none, too,
// if the cursor has another owner. By the indexes parked_due and parked_order: a row is due only if
// no earlier row of its ordering key is unsettled.
const takeParkedSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share),
due as (
  select p.id from onlyonce.parked p
   where p.scope = $4 and p.topic = $5 and p.partition = $6 and p.state = 'retrying'
     and (p.next_attempt_at <= clock_timestamp() or p.next_attempt_at > clock_timestamp() + make_interval(secs => $8))
     and not exists (select 1 from onlyonce.parked f
                      where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset"))
   order by p.next_attempt_at, p."offset" limit 1)
update onlyonce.parked p set attempts = p.attempts + 1, next_attempt_at = clock_timestamp() + make_interval(secs => $7)
  from due, held where p.id = due.id and p.state = 'retrying'
returning p.id, p.attempts, p.reason, p.tenant, p.key, p."offset", p.record_time, p.record_key, p.header_names, p.header_values,
          p.body, p.order_key, coalesce(p.cluster_id, ''), p.topic_id, p.log_append_time, p.replay_no, p.replay_resend,
          coalesce(p.event_id, '')`

// settleParkedSQL is the fence of an attempt at a parked row; see the function's comment in the
// migration.
const settleParkedSQL = `select onlyonce.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// failParkedSQL writes the result of an attempt at a parked row that did not settle it. In: cursor,
// epoch, nonce, row, state, reason, error, attempts to take back, seconds until it is due again,
// attempts as counted. A message that has not claimed its key (conflict, no-key) keeps that reason.
const failParkedSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
update onlyonce.parked p
   set state = $5, reason = case when p.reason in ('conflict', 'no-key') then p.reason else $6 end, error = $7, attempts = p.attempts - $8,
       next_attempt_at = case when $5 = 'retrying' then clock_timestamp() + make_interval(secs => $9) end
  from held where p.id = $4 and p.state = 'retrying' and p.attempts = $10`

// sweepBlockedSQL makes the first row of each ordering key due, for the keys of a partition that
// have blocked rows. It is for a process that died between a commit and the promote that follows
// it. It handles a number of keys at once, above $4 (null: from the first). Out: one row with how
// many rows became due, and the last of these keys, null if there are no more.
const sweepBlockedSQL = `
select count(onlyonce.promote(k.order_key)), (array_agg(k.order_key order by k.order_key desc))[1]
  from (select distinct order_key from onlyonce.parked
         where scope = $1 and topic = $2 and partition = $3 and settled_at is null and state = 'blocked' and ($4::uuid is null or order_key > $4)
         order by order_key limit 5000) k`

// sweepEvery bounds how long a row can stay blocked although nothing blocks it.
const sweepEvery = 5 * time.Minute

// retrier reads the parked messages of one owned partition, and tries them again through the
// engine, beside the worker and under the same lease. It never holds up the worker: if a key's
// messages fail, only messages of that key wait.
type retrier struct {
	engine
	wake chan struct{}

	mu          sync.Mutex
	promoteKeys map[pgtype.UUID]struct{} // ordering keys to promote
	promoteAll  bool                     // promote all

	// retryAlone makes it run attempts alone: which ones were under way when the previous owner
	// died is not known.
	retryAlone bool
	ownedSince time.Time // when this process took over

	polled  *polledPartition
	dueAt   time.Time // when the next row is due; zero: none is known
	sample  frontierSample
	sweptAt time.Time
}

func newRetrier(w *worker) *retrier {
	return &retrier{engine: engine{c: w.c, id: w.id, cur: w.cur, state: w.state, brake: w.brake, idInTopic: w.idInTopic, redoUntil: w.redoUntil}, wake: make(chan struct{}, 1),
		promoteKeys: map[pgtype.UUID]struct{}{}, promoteAll: true, retryAlone: w.unclean, ownedSince: time.Now(), polled: w.c.poller.join(w.id, w.cur, w.state)}
}

func (r *retrier) leavePoller() { r.c.poller.leave(r.polled) }

// noteParked records what a transaction of the worker has parked.
func (r *retrier) noteParked(a *attempt) {
	if len(a.parked) == 0 {
		return
	}
	r.mu.Lock()
	for _, k := range a.blockedKeys {
		r.promoteKeys[k] = struct{}{}
	}
	r.mu.Unlock()
	r.wakeUp()
}

// sweepSoon is for transactions of which it is not known what they parked.
func (r *retrier) sweepSoon() {
	r.mu.Lock()
	r.promoteAll = true
	r.mu.Unlock()
	r.wakeUp()
}

func (r *retrier) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.c.poller.pollSoon() // another row may be due next now
}

// retryUntilDone tries parked messages until ctx is done (nil), or the partition is paused
// (errPaused) or taken over (errMoved). The current attempt ends with work.
func (r *retrier) retryUntilDone(ctx, work context.Context) error {
	defer r.stopHandlers()
	retry := newBackoff(r.c.cfg)
	var wait time.Duration // after a failure; 0 if there was none
	for {
		answered, err := r.waitForWork(ctx, wait)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = r.promoteBlocked(ctx)
		}
		for more := err == nil && r.isDue(); more && err == nil && ctx.Err() == nil; {
			if r.isDue() {
				// What is due is taken now; a later due time is recorded once it is known.
				r.dueAt = time.Time{}
			}
			if more, err = r.retryNext(ctx, work); err == nil {
				_, err = r.checkPoll() // a pause must not wait for all of a thousand rows
			}
		}
		wait = 0
		switch {
		case errors.Is(err, errPaused), endsWork(err):
			return err
		case err != nil && ctx.Err() == nil:
			r.state.setTrouble(&r.state.parkedTrouble, err)
			wait = r.reportRetry(Retry{Offset: -1, Err: err}, retry)
		case answered:
			r.state.clearTrouble(&r.state.parkedTrouble)
			retry.Reset()
		}
	}
}

// awaitFirstPoll waits for the first answer.
func (r *retrier) awaitFirstPoll(ctx context.Context) error {
	select {
	case a := <-r.polled.answers:
		return r.applyPoll(a)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitForWork waits until there is something to do: the poller has answered, a row is due, or
// another goroutine has left work. After a failure it first waits for that long.
func (r *retrier) waitForWork(ctx context.Context, failed time.Duration) (answered bool, err error) {
	if failed > 0 && !sleep(ctx, failed) {
		return false, nil
	}
	var due <-chan time.Time
	if !r.dueAt.IsZero() {
		t := time.NewTimer(time.Until(r.dueAt))
		defer t.Stop()
		due = t.C
	}
	select {
	case a := <-r.polled.answers:
		return true, r.applyPoll(a)
	case <-due:
	case <-r.wake:
	case <-ctx.Done():
	}
	return r.checkPoll()
}

// checkPoll takes the poller's answer if there is a new one.
func (r *retrier) checkPoll() (answered bool, err error) {
	select {
	case a := <-r.polled.answers:
		return true, r.applyPoll(a)
	default:
		return false, nil
	}
}

// applyPoll records what operators and time have changed.
func (r *retrier) applyPoll(a pollAnswer) error {
	if err := fault.Point(fault.Tending); err != nil {
		return err
	}
	switch {
	case a.err != nil:
		return a.err
	// An idle partition has no fence that would raise; the next read of the cursor decides.
	case !a.owned, a.position < a.knownPosition:
		return errMoved
	case a.paused:
		return errPaused
	}
	r.dueAt = time.Time{}
	if a.due != nil {
		due := time.Duration(*a.due * float64(time.Second))
		if due > r.c.longestWait() {
			due = 0 // T9: it was written while the clock was ahead
		}
		r.setDue(due)
	}
	r.sampleFrontier(a)
	return nil
}

// setDue records that a row is due in a time, unless an earlier one is.
func (r *retrier) setDue(d time.Duration) {
	if at := time.Now().Add(d); r.dueAt.IsZero() || at.Before(r.dueAt) {
		r.dueAt = at
	}
}

func (r *retrier) isDue() bool { return !r.dueAt.IsZero() && !time.Now().Before(r.dueAt) }

// promoteBlocked makes rows due that waited for a row which is settled by now.
func (r *retrier) promoteBlocked(ctx context.Context) error {
	r.mu.Lock()
	keys, all := r.promoteKeys, r.promoteAll || time.Since(r.sweptAt) > sweepEvery
	r.promoteKeys, r.promoteAll = map[pgtype.UUID]struct{}{}, false
	r.mu.Unlock()
	if len(keys) == 0 && !all {
		return nil
	}
	err := fault.Point(fault.Promoting)
	var promoted int64
	switch {
	case err != nil:
	case all:
		if promoted, err = r.sweepBlocked(ctx); err == nil {
			r.sweptAt = time.Now()
		}
	default:
		for k := range keys {
			var due int64
			bounded, cancel := r.c.bounded(ctx)
			err = r.c.pool.QueryRow(bounded, parked.PromoteSQL, []pgtype.UUID{k}).Scan(&due)
			cancel()
			if err != nil {
				break
			}
			promoted += due
		}
	}
	if err != nil {
		r.mu.Lock()
		r.promoteAll = true
		r.mu.Unlock()
		return fmt.Errorf("promoting blocked messages: %w", err)
	}
	if promoted > 0 {
		r.setDue(0)
	}
	return nil
}

// sweepBlocked checks each key that waits, in bounded statements, for as long as that takes.
func (r *retrier) sweepBlocked(ctx context.Context) (promoted int64, err error) {
	var last pgtype.UUID
	for {
		var n int64
		bounded, cancel := r.c.bounded(ctx)
		err := r.c.pool.QueryRow(bounded, sweepBlockedSQL, r.c.cfg.Scope, r.id.Topic, r.id.Partition, last).Scan(&n, &last)
		cancel()
		if promoted += n; err != nil || !last.Valid {
			return promoted, err
		}
	}
}

// parkedRow is a parked message that was read back.
type parkedRow struct {
	id      int64
	attempt int // this attempt
	reason  string
	tenant  string
	key     pgtype.UUID // null: the message had no id, or the consumer ran without ids
	m       *Message
	claimed bool // its key was claimed when it was parked
}

// retryNext takes the row that is due first, and reports whether there was one.
func (r *retrier) retryNext(ctx, work context.Context) (bool, error) {
	leave, err := r.lockAttempts(ctx, r.retryAlone)
	if err != nil {
		return false, err
	}
	defer leave()
	row, err := r.takeRow(ctx)
	if row == nil && err == nil && time.Since(r.ownedSince) > r.c.cfg.RetryMax+time.Second {
		// takeParkedSQL makes a row due after RetryMax: all that were under way have been tried.
		r.retryAlone = false
	}
	if err != nil || row == nil {
		return false, err
	}
	if err := fault.Point(fault.RetryTaken); err != nil {
		return false, err
	}
	limit := r.c.cfg.MaxAttempts
	// The attempt at the limit may have been under way when another message killed the process. The
	// one after it was made alone.
	if row.attempt > limit+1 {
		return true, r.recordFailure(row, &disposition{reason: parked.Crashed, err: fmt.Errorf("%d attempts ended without an answer", row.attempt-1)}, 1)
	}
	if err := r.verifyIdentity(row); err != nil {
		// Another try would find the same.
		return true, r.giveUp(row, &disposition{reason: parked.Permanent, err: err})
	}
	r.state.inRetry.Store(1)
	defer r.state.inRetry.Store(0)
	a := r.attemptOf(row)
	err = r.runAttempt(work, a)
	var f *handlerFailure
	var b *blockedError
	switch {
	case err == nil:
		if r.countsForBrake() {
			r.recordOutcomes(a.done.Handled)
		}
		r.c.emitResolved(a, row)
		if row.m.orderKey.Valid {
			r.mu.Lock()
			r.promoteKeys[row.m.orderKey] = struct{}{}
			r.mu.Unlock()
			err = r.promoteBlocked(ctx)
		}
		return true, errors.Join(fault.Point(fault.RetryCommitted), err)
	case errors.Is(err, errFenced):
		// It was settled by an attempt whose answer was lost, or changed by an operator or by the
		// next owner.
		r.sweepSoon()
		return true, nil
	case !errors.As(err, &f):
		return false, errors.Join(err, r.recordFailure(row, &disposition{reason: parked.Failed, err: err, wait: backoffFor(r.c.cfg, row.attempt)}, 1))
	case fault.Point(fault.RetryFailed) != nil:
		return false, fault.ErrInjected
	case errors.As(f.err, &b):
		return true, r.recordFailure(row, b.disposition, 0)
	case isHopeless(f.err) && !f.lost, row.attempt >= limit, r.countsForBrake() && r.brake.stopped():
		return true, r.giveUp(row, &disposition{reason: givenUpReason(f), err: f.err})
	}
	v := &disposition{reason: parked.Failed, err: f.err, wait: waitAtLeast(f.err, backoffFor(r.c.cfg, row.attempt))}
	r.reportRetry(Retry{Offset: row.m.Offset, Messages: 1, Attempt: row.attempt, Err: f.err, Parked: true}, backoff.NewConstantBackOff(v.wait))
	return true, r.recordFailure(row, v, 0)
}

// countsForBrake reports whether rows count for the brake. They do if failed messages are retried
// here; otherwise an operator has redriven them.
func (r *retrier) countsForBrake() bool { return r.c.cfg.OnFailure == ParkOrderingKey }

// giveUp leaves a row to an operator, unless the partition has to halt first.
func (r *retrier) giveUp(row *parkedRow, v *disposition) error {
	if r.countsForBrake() {
		if _, yes := r.brake.stopsAt(v.reason); yes {
			if err := r.recordFailure(row, &disposition{reason: parked.Failed, err: v.err, wait: backoffFor(r.c.cfg, row.attempt)}, 1); err != nil {
				return err
			}
			return r.haltEverythingFails(r.state.position.Load(), row.m.Offset, v)
		}
		defer r.recordOutcomes(0, v.reason)
	}
	return r.recordFailure(row, v, 0)
}

// longestWait is how far ahead a due time can be: the policy's waits are random around RetryMax,
// and a handler may ask for maxRetryAfter.
func (c *Consumer) longestWait() time.Duration {
	return max(2*c.cfg.RetryMax, maxRetryAfter+time.Minute)
}

// takeRow counts an attempt at the row that is due first. It returns nil if there is none. A drain
// does not cut it short, because the attempt might then be counted and never made.
func (r *retrier) takeRow(ctx context.Context) (*parkedRow, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.cfg.LockTimeout)
	defer cancel()
	row := &parkedRow{m: &Message{Topic: r.id.Topic, Partition: r.id.Partition, LeaderEpoch: -1}}
	var at pgtype.Timestamptz
	var names, values [][]byte
	var topicID pgtype.UUID
	m := row.m
	err := r.c.pool.QueryRow(ctx, takeParkedSQL, r.cur.id, r.cur.epoch, r.cur.nonce, r.c.cfg.Scope, r.id.Topic, r.id.Partition,
		r.c.cfg.RetryMax.Seconds(), r.c.longestWait().Seconds()).Scan(&row.id, &row.attempt, &row.reason, &row.tenant, &row.key, &m.Offset, &at, &m.Key, &names, &values,
		&m.Value, &m.orderKey, &m.clusterID, &topicID, &m.LogAppendTime, &m.replay, &m.resend, &m.EventID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("taking a parked message: %w", err)
	}
	m.Time, m.topicID, m.Attempt = at.Time, topicID.Bytes, row.attempt
	for i := range names {
		m.Headers = append(m.Headers, Header{Name: string(names[i]), Value: values[i]})
	}
	if r.c.events {
		m.EventTenant = row.tenant
	}
	row.claimed = !r.c.events && row.reason != parked.Conflict && row.reason != parked.NoKey
	return row, nil
}

// verifyIdentity finds the message's id again, and refuses one that has changed. Calls that its
// handler enqueues derive their keys from the id, and would go out again under other keys.
func (r *retrier) verifyIdentity(row *parkedRow) error {
	m, order := row.m, row.m.orderKey
	m.idInTopic = r.idInTopic
	err := r.c.identify(m)
	m.orderKey = order // it blocks the key under which it was parked
	switch {
	case err != nil:
		return err
	case storableText(m.tenant) != row.tenant:
		return fmt.Errorf("Config.Tenant names the tenant %q now, and named %q when this was parked", m.tenant, row.tenant)
	case row.reason == parked.Conflict:
		m.notACopy = true // O1
		return nil
	case row.reason == parked.NoKey:
		return nil
	case !row.key.Valid:
		// It was parked by a consumer without ids: its position identifies it.
		m.id = ""
		return nil
	}
	if m.id == "" || m.hashOutsideReplay() != row.key.Bytes {
		return errors.New("Config.Key finds another id in this message than when it was parked: its calls would get other keys")
	}
	return nil
}

// attemptOf returns the transaction for a row. Its fence settles the row, and claims the row's key
// if it has none claimed.
func (r *retrier) attemptOf(row *parkedRow) *attempt {
	cfg := &r.c.cfg
	var key pgtype.UUID
	var fingerprint int64
	if row.claimed && row.key.Valid {
		key = row.key
		_, fingerprint = row.m.hash()
	}
	return &attempt{
		msgs: []*Message{row.m}, alone: true, alreadyParked: true, skipClaim: row.reason != parked.NoKey,
		fence: func(tx *guard.Tx) {
			tx.Engine(stepFence, settleParkedSQL, r.cur.id, r.cur.epoch, r.cur.nonce, row.id, row.attempt, key, fingerprint,
				guard.Millis(cfg.LockTimeout), guard.Millis(cfg.StatementTimeout), guard.Millis(cfg.IdleTimeout))
			if err := fault.Point(fault.RetrySettled); err != nil {
				tx.Fail(stepFence, err)
			}
		},
	}
}

// recordFailure writes the result of the attempt. A drain does not cut it short, because an attempt
// that this process gave up must not count.
func (r *retrier) recordFailure(row *parkedRow, v *disposition, owed int) error {
	ctx, cancel := r.c.detached()
	defer cancel()
	state := v.parkedState()
	if v.reason == row.reason && state == parked.Blocked {
		state = parked.Waiting
	}
	tag, err := r.c.pool.Exec(ctx, failParkedSQL, r.cur.id, r.cur.epoch, r.cur.nonce, row.id, state, v.reason, storableText(v.err.Error()), owed,
		v.wait.Seconds(), row.attempt)
	if err != nil {
		return fmt.Errorf("writing how an attempt at a parked message ended: %w", err)
	}
	if state == parked.Retrying {
		r.setDue(v.wait)
	}
	switch {
	case tag.RowsAffected() == 0:
		r.sweepSoon() // it was settled: COMMIT's answer was lost
	case state == parked.Waiting:
		m, reason := row.m, v.reason
		if row.reason == parked.Conflict || row.reason == parked.NoKey {
			reason = row.reason // which the row keeps, too
		}
		r.c.emitParked(Parked{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset, Reason: reason, State: state, Err: v.err})
	}
	return nil
}
