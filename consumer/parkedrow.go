package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// takeParkedSQL counts an attempt at the parked row that is due first, before it runs. In: cursor,
// epoch, nonce, scope, topic, partition, after how many seconds the row is due again if this
// process dies, and how many seconds ahead a due time is at most. A due time beyond that was
// written while the clock was ahead, and counts as reached (T9). Out: at most one row; none, too,
// if the cursor has another owner. By the indexes parked_due and parked_order: a row is due only if
// no earlier row of its ordering key is unsettled (T13).
const takeParkedSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share),
due as (
  select d.id
    from (values (timestamptz '-infinity', clock_timestamp()),
                 (clock_timestamp() + make_interval(secs => $8), 'infinity')) r (after, until)
   cross join lateral (
     select p.id, p.next_attempt_at, p."offset" from onlyonce.parked p
      where p.scope = $4
        and p.topic = $5
        and p.partition = $6
        and p.state = 'retrying'
        and p.next_attempt_at > r.after
        and p.next_attempt_at <= r.until
        and not exists (select 1 from onlyonce.parked f
                         where f.order_key = p.order_key
                           and f.settled_at is null
                           and (f.partition, f."offset") < (p.partition, p."offset")
                        offset 0)
      order by p.next_attempt_at, p."offset" limit 1) d
   order by d.next_attempt_at, d."offset" limit 1)
update onlyonce.parked p set attempts = p.attempts + 1, next_attempt_at = clock_timestamp() + make_interval(secs => $7)
  from held where p.id = (select due.id from due) and p.state = 'retrying'
returning p.id,
          p.attempts,
          p.reason,
          p.tenant,
          p.key,
          p."offset",
          p.record_time,
          p.record_key,
          p.header_names,
          p.header_values,
          p.body,
          p.order_key,
          coalesce(p.cluster_id, ''),
          p.topic_id,
          p.log_append_time,
          p.replay_no,
          p.replay_resend,
          coalesce(p.event_id, ''),
          p.sealed,
          p.redrives`

// settleParkedSQL is the fence of an attempt at a parked row; see the function's comment in the
// migration. In: cursor, epoch, nonce, row, attempt, key, fingerprint, the three timeouts; the
// message's offset. If another message has the row's id by now, it asks for row 0, which does not
// exist: OO001.
//
// The message is compared because a failover may lose the row while its handler runs (O3). The
// server then gives the id to another message, which has been attempted as often by now.
const settleParkedSQL = `
select onlyonce.settle(
  cursor_id => $1,
  epoch => $2,
  nonce => $3,
  parked_id => coalesce((select p.id
                           from onlyonce.parked p
                           join onlyonce.cursors c
                             on c.id = $1 and (c.scope, c.topic, c.partition) = (p.scope, p.topic, p.partition)
                          where p.id = $4 and p."offset" = $11), 0),
  attempts => $5,
  key => $6,
  fingerprint => $7,
  lock_timeout => $8,
  statement_timeout => $9,
  idle_timeout => $10
)`

// failParkedSQL writes the result of an attempt at a parked row that did not settle it. In: cursor,
// epoch, nonce, row, state, reason, error, attempts to take back, seconds until it is due again,
// attempts as counted, the message's offset, which is compared as settleParkedSQL does. A message
// that has not claimed its key (conflict, no-key) keeps that reason (O3).
const failParkedSQL = `
with held as (select id from onlyonce.leases where id = $1 and epoch = $2 and nonce = $3 for share)
update onlyonce.parked p
   set state = $5,
       reason = case when p.reason in ('conflict', 'no-key') then p.reason else $6 end,
       error = $7,
       attempts = greatest(p.attempts - $8, 0),
       next_attempt_at = case when $5 = 'retrying' then clock_timestamp() + make_interval(secs => $9) end
  from held join onlyonce.cursors c on c.id = held.id
 where p.id = $4
   and p.state = 'retrying'
   and p.attempts = $10
   and p."offset" = $11
   and (p.scope, p.topic, p.partition) = (c.scope, c.topic, c.partition)`

// failParkedInTxSQL is failParkedSQL as the fence of a transaction in which Config.OnParked writes:
// it allows the seal. Out: no row if there was nothing to update.
const failParkedInTxSQL = failParkedSQL + `
returning set_config('onlyonce.fenced', pg_current_xact_id()::text, true)`

// parkedRow is a parked message that was read back.
type parkedRow struct {
	id      int64
	attempt int // this attempt
	counted int // the same with attempts that are to be taken back
	reason  string
	tenant  string
	key     pgtype.UUID // null: the message had no id, or the consumer ran without ids
	m       *Message
	claimed bool  // its key was claimed when it was parked
	closed  error // why its body does not open; nil: it is open

	redrives int // how often operators have redriven it
}

// takeRow counts an attempt at the row that is due first. It returns nil if there is none. A drain
// does not cut it short, because the attempt might then be counted and never made. The caller says
// how the attempt ended: its plan settles the row, or recordFailure writes it.
func (r *retrier) takeRow(ctx context.Context) (*parkedRow, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.cfg.Timeouts.Lock)
	defer cancel()
	row := &parkedRow{m: &Message{Topic: r.id.Topic, Partition: r.id.Partition, LeaderEpoch: -1}}
	var at pgtype.Timestamptz
	var names, values [][]byte
	var topicID pgtype.UUID
	var sealed bool
	m := row.m
	err := r.c.pool.QueryRow(
		ctx,
		takeParkedSQL,
		r.cur.id,
		r.cur.epoch,
		r.cur.nonce,
		r.c.cfg.Scope,
		r.id.Topic,
		r.id.Partition,
		r.c.cfg.Backoff.Max.Seconds(),
		r.c.longestWait().Seconds(),
	).Scan(
		&row.id, &row.attempt, &row.reason, &row.tenant, &row.key, &m.Offset, &at, &m.Key,
		&names, &values, &m.Value, &m.orderKey, &m.clusterID, &topicID, &m.LogAppendTime,
		&m.replay, &m.resend, &m.eventID, &sealed, &row.redrives,
	)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("taking a parked message: %w", err)
	}
	row.counted = row.attempt
	row.attempt = max(row.counted-r.owed[row.id], 1)
	m.Time = at.Time
	m.topicID = topicID.Bytes
	m.Attempt = row.attempt
	for i := range names {
		m.Headers = append(m.Headers, Header{Name: string(names[i]), Value: values[i]})
	}
	if sealed {
		m.Value, row.closed = r.c.open(m)
	}
	if r.c.events {
		m.eventTenant = row.tenant
	}
	m.contents = m.hashContents()
	row.claimed = !r.c.events && row.reason != parked.Conflict && row.reason != parked.NoKey
	return row, nil
}

// open opens the sealed body of a parked message (D9).
func (c *Consumer) open(m *Message) ([]byte, error) {
	if c.cfg.Sealer == nil {
		return nil, errors.New("the parked message is sealed, and Config.Sealer is not set")
	}
	value, err := c.cfg.Sealer.Open(parked.MessagePlace(c.cfg.Scope, m.Topic, m.Partition, m.Offset), m.Value)
	if err != nil {
		return nil, fmt.Errorf("opening the parked message: %w", err)
	}
	return value, nil
}

// verifyIdentity finds the message's id again, and refuses one that has changed. Calls that its
// handler enqueues derive their keys from the id, and would go out again under other keys (D5). It
// refuses a message whose body does not open.
func (r *retrier) verifyIdentity(row *parkedRow) error {
	if row.closed != nil {
		return row.closed
	}
	m := row.m
	order := row.m.orderKey
	m.idInTopic = r.idInTopic
	r.c.identifyAll([]*Message{m}, r.c.identify)
	err := m.idErr
	m.orderKey = order // it blocks the key under which it was parked
	switch {
	case errors.Is(err, ErrSkip) && row.reason == parked.NoKey:
		return nil // the program has learnt that it is no message
	case err != nil:
		return err
	case storableText(m.tenant) != row.tenant:
		return fmt.Errorf("Config.Tenant names the tenant %q now, and named %q when this was parked",
			m.tenant, row.tenant)
	case row.reason == parked.Conflict:
		m.notACopy = true // O1
		return nil
	case row.reason == parked.NoKey:
		return nil
	case !row.key.Valid && r.c.events:
		return nil // another event of its id was parked, too (W7); its calls have the keys of the id
	case !row.key.Valid:
		// It was parked by a consumer without ids: its position identifies it.
		m.id = ""
		return nil
	}
	if m.id == "" || m.hashOutsideReplay() != row.key.Bytes {
		return errors.New("Config.Key finds another id in this message than when it was parked: its calls " +
			"would get other keys")
	}
	return nil
}

// count is what is known of the attempts at the row. The attempt at the limit may have been under
// way when another message killed the process, and the one after it was made alone. So a row has
// one more than a message of the log before its attempts count as crashes. Those with an answer
// gave it up or were taken back.
func (row *parkedRow) count() count {
	return count{attempt: row.attempt, counted: row.attempt - 1, unanswered: row.attempt - 1}
}

// planOf returns the plan for a row.
func (r *retrier) planOf(row *parkedRow) *plan {
	return &plan{
		msgs:          []*Message{row.m},
		alone:         true,
		fence:         r.rowFence(row),
		alreadyParked: true,
		skipClaim:     row.reason != parked.NoKey,
	}
}

// rowFence is the fence of a parked row: it settles the row, and claims the row's key again if that
// was claimed when the message was parked.
type rowFence struct {
	r           *retrier
	row         *parkedRow
	key         pgtype.UUID // which onlyonce.settle claims; null: none
	fingerprint int64
	claims      bool // the key is claimed in rings that onlyonce.settle does not know
}

func (r *retrier) rowFence(row *parkedRow) *rowFence {
	f := &rowFence{r: r, row: row}
	if !row.claimed || !row.key.Valid {
		return f
	}
	_, f.fingerprint = row.m.hash()
	inStandard := slices.Equal(r.cur.classes, []string{ring.Standard}) // the ring in which onlyonce.settle claims
	if inStandard {
		f.key = row.key
	}
	f.claims = !inStandard
	return f
}

func (f *rowFence) span() (from, next int64) { return 0, 0 }

func (f *rowFence) queue(tx *guard.Tx) {
	r := f.r
	bounds := &f.r.c.cfg.Timeouts
	tx.Engine(
		stepFence,
		settleParkedSQL,
		r.cur.id,
		r.cur.epoch,
		r.cur.nonce,
		f.row.id,
		f.row.counted,
		f.key,
		f.fingerprint,
		guard.Millis(bounds.Lock),
		guard.Millis(bounds.Statement),
		guard.Millis(bounds.Idle),
		f.row.m.Offset,
	)
	if f.claims {
		sql, args := r.claimStatement([][16]byte{f.row.key.Bytes}, []int64{f.fingerprint})
		tx.Engine(stepClaim, sql, args...)
	}
}

// explain takes a row that does not settle as settled: by an attempt whose answer was lost, by an
// operator, or by the next owner, whom this owner's next statement meets.
func (f *rowFence) explain(_ context.Context, err error) error {
	if errors.Is(err, errFenced) {
		return nil
	}
	return err
}

func (f *rowFence) committed(_ *plan, o *outcome) {
	r := f.r
	row := f.row
	if o.answerLost {
		r.promoteAllSoon()
		return
	}
	delete(r.owed, row.id)
	if r.countsForBrake() {
		r.recordOutcomes(o.reasons...)
	}
	r.c.emitResolved(o, row)
	if row.m.orderKey.Valid {
		r.promotions.add(row.m.orderKey)
	}
}

// recordFailure writes the result of the attempt. A drain does not cut it short, because an attempt
// that this process gave up must not count. If the server is away, such an attempt is taken back
// with the next one of the row (D2).
func (r *retrier) recordFailure(row *parkedRow, v *disposition, owed int) error {
	back := owed + row.counted - row.attempt
	state := v.parkedState()
	m := row.m
	reason := v.reason
	if v.reason == row.reason && state == parked.Blocked {
		state = parked.Waiting
	}
	if row.reason == parked.Conflict || row.reason == parked.NoKey {
		reason = row.reason // which the row keeps, too
	}
	event := ParkedEvent{
		TopicPartition: source.TopicPartition{Topic: m.Topic, Partition: m.Partition},
		Offset:         m.Offset,
		Reason:         ParkReason(reason),
		State:          ParkState(state),
		Err:            v.err,
	}
	event.ID = r.parkingID(m, reason, row.redrives)
	found, err := r.writeFailure(
		v.quiet,
		m,
		event,
		r.cur.id,
		r.cur.epoch,
		r.cur.nonce,
		row.id,
		state,
		v.reason,
		storableText(v.err.Error()),
		back,
		v.wait.Seconds(),
		row.counted,
		m.Offset,
	)
	if errors.As(err, new(*hindrance)) { // of Config.OnParked: the row stays, and this attempt does not count
		again := &disposition{reason: parked.Failed, err: err, wait: backoffFor(r.c.cfg, row.attempt)}
		return errors.Join(err, r.recordFailure(row, again, max(owed, 1)))
	}
	delete(r.owed, row.id)
	if err != nil { // this one counts in the database, and how it ended does not
		r.owed[row.id] = row.counted - row.attempt + 1
		return fmt.Errorf("writing how an attempt at a parked message ended: %w", err)
	}
	if state == parked.Retrying {
		r.setDue(v.wait)
	}
	switch {
	case !found:
		r.promoteAllSoon() // it was settled: COMMIT's answer was lost
	case state == parked.Waiting:
		r.c.emitParked(event)
	}
	return nil
}

// writeFailure writes the result of an attempt, by failParkedSQL with args. found is false if the
// row is not as args say. Unless quiet, Config.OnParked writes in the same transaction. If that
// fails, the error is a hindrance.
func (r *retrier) writeFailure(quiet bool, m *Message, event ParkedEvent, args ...any) (found bool, err error) {
	if quiet || r.c.cfg.OnParked == nil || event.State != StateWaiting {
		ctx, cancel := r.c.detached()
		defer cancel()
		tag, err := r.c.pool.Exec(ctx, failParkedSQL, args...)
		return tag.RowsAffected() > 0, err
	}
	ctx, cancel := r.c.bounded(context.Background())
	defer cancel()
	held, err := r.acquireConn(ctx)
	if err != nil {
		return false, err
	}
	defer held.release()
	tx := guard.Begin(held.conn.Conn())
	tx.Report = r.c.logStray
	defer r.c.rollback(tx)
	if r.c.onBegin(ctx, tx) == nil {
		r.c.setTimeouts(tx)
		var fenced string
		err = tx.EngineRow(ctx, stepPark, failParkedInTxSQL, args...).Scan(&fenced)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		if err == nil {
			_, _ = r.c.onParked(ctx, tx, m, event) // kept as the failure, as that of COMMIT
			_ = r.c.commit(tx)
		}
	}
	switch failed := tx.Failure(); {
	case failed != nil && !tx.Lost():
		return false, &hindrance{failed, 0}
	case failed != nil:
		return false, failed
	}
	return true, err
}
