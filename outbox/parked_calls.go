package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/fault"
	"github.com/onlyonce/onlyonce/internal/frozen"
	"github.com/onlyonce/onlyonce/internal/parked"
)

// pickSQL picks parked calls that are due and journals their attempts. In: sink, lane; ids under
// way; how many; how long after the first attempt another may start (null: for ever); when they are
// due again if this relay dies; whether calls of unknown outcome are asked about; ids in the log of
// rows under way; ordering keys of both. Out: a row each, in no order. By the index
// parked_calls_due; the clock is read once, in a subselect, because a volatile function is no index
// condition. It locks the rows, and skips those that another session, for example an operator's,
// has locked.
//
// If a call's window has passed, it is returned too, without an attempt: its age keeps it from
// being made, and it is left for reconciliation. A call that has been accepted and waits for its
// completion is not called any more. A call is not picked if an earlier call of its ordering key is
// unsettled.
//
// The age of a call that was never called here counts from when it was parked, if the database has
// lost a history since in which it may have been called (O6). RelayConfig.RetryMax is a day at
// most. So a due time more than two days ahead was written while the clock was ahead, unless the
// program scheduled the call: it counts as past (T9).
const pickSQL = `
with t as materialized (
  select clock_timestamp() as now,
         (select case when a.timeline <> substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) then 'infinity' else a.history_at end
            from onlyonce.lanes a where a.sink = $1 and a.lane = $2) as history)
update onlyonce.parked o
   set attempts = o.attempts + case when o.state = 'reconcile' or o.response_status is null and o.first_attempt_at <= (select now from t) - $5::interval then 0 else 1 end,
       first_attempt_at = case when o.state = 'reconcile' or o.response_status is not null then o.first_attempt_at
                               else coalesce(o.first_attempt_at,
                                 case when o.reason in ('behind', 'scheduled', 'cut') and o.parked_at < (select history from t)
                                      then case o.reason when 'scheduled' then greatest(o.parked_at, o.next_attempt_at) else o.parked_at end end,
                                 clock_timestamp()) end,
       next_attempt_at = clock_timestamp() + $6::interval
 where o.id = any (array(
         select p.id from onlyonce.parked p
          where p.kind = 'call' and p.sink = $1 and p.lane = $2
            and (p.next_attempt_at <= (select now from t) or p.next_attempt_at > (select now from t) + interval '2 days' and p.reason <> 'scheduled')
            and (p.state = 'retrying' or $7 and p.state = 'reconcile') and p.id <> all ($3::bigint[])
            and (p.row_id is null or p.row_id <> all ($8::bigint[])) and (p.order_key is null or p.order_key <> all ($9::uuid[]))
            and (p.order_key is null or not exists (
              select 1 from onlyonce.parked f
               where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset")))
          order by p.next_attempt_at, p.id limit $4 for no key update skip locked))
   and (o.next_attempt_at <= (select now from t) or o.next_attempt_at > (select now from t) + interval '2 days' and o.reason <> 'scheduled')
returning o.id, coalesce(o.row_id, 0), o.key, o.order_key, o.tenant, o.scope, o.call_name, o.method, o.target,
          onlyonce.header_lines(o.header_names, o.header_values), coalesce(o.trace, ''), o.body, o.capture, o.sealed, coalesce(o.sealed_as, o.key), o.first_attempt_at > (select now from t),
          o.attempts, o.state, coalesce((extract(epoch from clock_timestamp() - o.first_attempt_at) * 1000000)::bigint, 0),
          o.response_status, coalesce(o.response_headers, ''), o.response_body`

// nextDueSQL reads in how many microseconds the next parked call of a lane is due. In: sink, lane,
// ids under way, whether calls of unknown outcome are asked about, ids in the log of rows under
// way; ordering keys of both. One row: null if there is none. By the index parked_calls_due.
const nextDueSQL = `
select (extract(epoch from min(case when p.next_attempt_at > clock_timestamp() + interval '2 days' and p.reason <> 'scheduled' then clock_timestamp()
                                    else p.next_attempt_at end) - clock_timestamp()) * 1000000)::bigint from onlyonce.parked p
 where p.kind = 'call' and p.sink = $1 and p.lane = $2 and p.next_attempt_at is not null and (p.state = 'retrying' or $4 and p.state = 'reconcile')
   and p.id <> all ($3::bigint[]) and (p.row_id is null or p.row_id <> all ($5::bigint[]))
   and (p.order_key is null or p.order_key <> all ($6::uuid[]))`

// settleSQL writes how attempts at parked calls ended. In: arrays of one length: ids, 0 for a row
// that is known by the log's id alone; the log's ids; states, reasons, errors, microseconds until
// they are due (null: never by themselves), whether the key's window counts anew, status, headers
// and body of an answer; then whether a given-up call releases its ordering key; whether the
// attempt asked what became of the call; the attempts' numbers, and whether no attempt was made (it
// is not counted then). Rows that an operator has changed meanwhile stay as they are. By the
// primary key and the index parked_row; locks the rows.
const settleSQL = `
update onlyonce.parked p
   set state = s.state, reason = case when s.state = 'resolved' then p.reason else s.reason end, error = s.error,
       attempts = p.attempts - case when s.none then 1 else 0 end,
       next_attempt_at = clock_timestamp() + s.delay * interval '1 microsecond',
       first_attempt_at = case when s.fresh then null else p.first_attempt_at end,
       settled_at = case when s.state = 'resolved' then clock_timestamp() end,
       order_key = case when $11 and s.state in ('waiting', 'reconcile') then null else p.order_key end,
       response_status = coalesce(s.status, p.response_status), response_headers = coalesce(s.response_headers, p.response_headers),
       response_body = coalesce(s.response_body, p.response_body)
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::boolean[], $8::int[], $9::text[], $10::bytea[], $12::boolean[], $13::int[],
              $14::boolean[])
       as s(id, row_id, state, reason, error, delay, fresh, status, response_headers, response_body, asked, attempts, none)
 where (p.id = s.id or s.id = 0 and p.row_id = s.row_id) and p.kind = 'call'
   and p.state = case when s.asked then 'reconcile' else 'retrying' end and p.attempts = s.attempts`

// sweepSQL makes the next calls of a lane's ordering keys due, in case a process died after it
// committed a settlement and before it promoted them. In: sink, lane. One row: how many.
const sweepSQL = `
select count(onlyonce.promote(k.order_key))
  from (select distinct order_key from onlyonce.parked
         where kind = 'call' and sink = $1 and lane = $2 and settled_at is null and state = 'blocked' and order_key is not null) k`

// pickAtOnce bounds how many parked calls one transaction picks: their bodies are held in memory.
const pickAtOnce = 16

// settleAndPick settles the parked calls that have returned, picks due ones for which there is a
// slot and journals their attempts, in one fenced transaction. Then it makes them. If the
// transaction fails, or its outcome is unknown, nothing of it counts. Calls that were to be settled
// are settled by the next one (the statement may run twice), and picked calls become due again by
// themselves. slots is how many slots the caller has taken for it already.
func (o *laneOwner) settleAndPick(pick bool, slots int) error {
	if pick {
		slots += o.sender.acquireSlots(pickAtOnce - slots)
	}
	if pick && slots == 0 && len(o.returnedParked) == 0 {
		o.parkedNeedSlot = true // until serve has a slot
		o.parkedDueAt = time.Now().Add(o.sender.cfg.PollInterval)
		return nil
	}
	o.parkedNeedSlot = o.parkedNeedSlot && slots == 0
	var under []int64
	for id := range o.pickedCalls {
		under = append(under, id)
	}
	var late []int64
	for id := range o.lateCalls {
		late = append(late, id)
	}
	under, late = notNil(under), notNil(late)
	keys := pgUUIDs(o.keysUnderWay())
	var picked []*callAttempt
	var nextDue *int64
	var flushedLSN string
	readAt := time.Now() // the database measures ages after this moment
	done := o.returnedParked
	reconciles := o.sender.cfg.Reconcile != nil
	commit := func() error {
		return o.fenced(func(b *pgx.Batch) {
			queueSettlements(b, o, done)
			if slots > 0 {
				b.Queue(pickSQL, o.sender.name, o.lane, under, slots, windowBound(o.sender.limits.startWindow()), o.sender.cfg.LeaseTTL, reconciles, late, keys).Query(collect(&picked, o.scanParked))
			}
		}, func(b *pgx.Batch) {
			if slots > 0 {
				b.Queue(nextDueSQL, o.sender.name, o.lane, under, reconciles, late, keys).QueryRow(func(r pgx.Row) error { return r.Scan(&nextDue) })
			}
			if slots > 0 && len(o.sender.cfg.WaitFor) > 0 {
				b.Queue(lsnSQL).QueryRow(func(r pgx.Row) error { return r.Scan(&flushedLSN) })
			}
		})
	}
	err := fault.Point(fault.RelayPicking)
	if err == nil {
		err = commit()
	}
	if err == nil {
		err = fault.Point(fault.RelayPicked)
	}
	if err != nil {
		o.sender.slots.release(slots)
		return err
	}
	o.returnedParked = nil
	for _, a := range done {
		delete(o.pickedCalls, a.parked)
		if a.parked == 0 {
			delete(o.lateCalls, a.ID)
		}
		d := o.dispositionOf(a)
		// A completion's transaction may have settled its call even if it reported an error.
		if a.order != nil && (d.state == parked.Resolved || a.completing() ||
			o.sender.cfg.PassOn && (d.state == parked.Waiting || d.state == parked.Reconcile)) {
			o.keysToPromote = append(o.keysToPromote, *a.order)
		}
		if d.due && (d.state == parked.Retrying || reconciles) {
			o.parkedDueIn(d.delay)
		}
		o.sender.emit.settled(d.event(a))
	}
	if slots == 0 {
		return nil
	}
	o.parkedDue = nextDue != nil
	if o.parkedDue {
		o.parkedDueAt = readAt.Add(fromMicros(*nextDue))
		if len(picked) == 0 && !o.parkedDueAt.After(time.Now()) { // another session has locked it
			o.parkedDueAt = time.Now().Add(o.sender.cfg.PollInterval)
		}
	}
	if len(picked) > 0 && flushedLSN != "" && !o.awaitStandbys(flushedLSN) {
		picked = nil // due again by themselves
	}
	window := o.sender.limits.startWindow()
	for _, a := range picked {
		slots--
		o.pickedCalls[a.parked] = a
		a.readAt, a.mayBeCalled = readAt, true
		if window != Forever && a.task == nil {
			a.notAfter = readAt.Add(window - a.age)
		}
	}
	o.startCalls(picked...)
	o.sender.slots.release(slots)
	return nil
}

// scanParked reads a row of pickSQL.
func (o *laneOwner) scanParked(row pgx.CollectableRow) (*callAttempt, error) {
	a := &callAttempt{state: attemptReturned}
	var headers, state, answerHeaders string
	var age int64
	var status *int32
	var answer []byte
	var opensWindow *bool // null: in state reconcile, without an attempt
	err := row.Scan(&a.parked, &a.ID, &a.key, &a.order, &a.Tenant, &a.Scope, &a.Name, &a.Method, &a.Target, &headers, &a.Trace, &a.Body, &a.Capture, &a.sealed, &a.sealedAs,
		&opensWindow, &a.Attempt, &state, &age, &status, &answerHeaders, &answer)
	if a.order != nil {
		a.Order = a.order.String()
	}
	a.Key, a.Sink, a.Header = a.key.String(), o.sender.name, frozen.Parse(headers)
	a.opensWindow = opensWindow != nil && *opensWindow
	a.age = max(fromMicros(age), 0) // the database's clock may have been set back
	switch {
	case status != nil:
		a.answer = &Response{Status: int(*status), Header: frozen.Parse(answerHeaders), Body: answer}
		a.task = o.complete
	case state == parked.Reconcile:
		a.task, a.reconciling = o.reconcile, true
	}
	return a, err
}

// queueSettlements queues the statement that settles parked calls. A completion that succeeded has
// settled its own.
func queueSettlements(b *pgx.Batch, o *laneOwner, done []*callAttempt) {
	var (
		ids, rows             []int64
		states, reasons, errs []string
		delays                []*int64
		fresh                 []bool
		statuses              []*int32
		headers               []*string
		bodies                [][]byte
		asked                 []bool
		attempts              []int32
		none                  []bool
	)
	for _, a := range done {
		d := o.dispositionOf(a)
		if a.completing() && d.state == parked.Resolved {
			continue
		}
		asked, attempts = append(asked, a.reconciling), append(attempts, int32(a.Attempt))
		none = append(none, a.unopened && !a.reconciling) // asking is never counted
		ids, rows, states, reasons, errs, fresh = append(ids, a.parked), append(rows, a.ID), append(states, d.state), append(reasons, d.reason), append(errs, d.lastError), append(fresh, d.windowAnew || a.unopened && a.opensWindow)
		var delay *int64
		if d.due {
			micros := d.delay.Microseconds()
			delay = &micros
		}
		status, head, body := d.answerColumns()
		delays, statuses, headers, bodies = append(delays, delay), append(statuses, status), append(headers, head), append(bodies, body)
	}
	if len(ids) > 0 {
		b.Queue(settleSQL, ids, rows, states, reasons, errs, delays, fresh, statuses, headers, bodies, o.sender.cfg.PassOn, asked, attempts, none).Exec(ignoreTag)
	}
}

// promoteBlockedCalls makes calls due whose predecessor is settled by now.
func (o *laneOwner) promoteBlockedCalls() error {
	ctx, cancel := o.sender.detached(o.ctx)
	defer cancel()
	keys := pgUUIDs(o.keysToPromote)
	var n int64
	err := fault.Point(fault.RelayPromoting)
	switch {
	case err != nil:
	case o.swept:
		err = o.sender.pool.QueryRow(ctx, parked.PromoteSQL, keys).Scan(&n)
	default:
		err = o.sender.pool.QueryRow(ctx, sweepSQL, o.sender.name, o.lane).Scan(&n)
	}
	if err == nil {
		err = fault.Point(fault.RelayPromoted)
	}
	if err != nil {
		o.swept = false
		return fmt.Errorf("promoting blocked calls: %w", err)
	}
	o.keysToPromote, o.swept = nil, true
	if n > 0 {
		o.parkedDueIn(0)
	}
	return nil
}

// reconcile asks RelayConfig.Reconcile whether a call whose key the remote may have forgotten was
// applied.
func (o *laneOwner) reconcile(ctx context.Context, a *callAttempt) {
	a.decision, a.result = Unknown, RetryLater("RelayConfig.Reconcile does not know", nil)
	if !o.openBody(a) {
		return
	}
	decision, err := o.sender.cfg.Reconcile(ctx, &a.Delivery)
	switch {
	case err != nil:
		a.result = RetryLater("RelayConfig.Reconcile: "+err.Error(), err)
	case decision == Applied, decision == NotApplied:
		a.decision = decision
	}
}

// windowBound is null for [Forever].
func windowBound(window time.Duration) *time.Duration {
	if window == Forever {
		return nil
	}
	return &window
}

// notNil keeps an empty list from becoming NULL, because a comparison with NULL is unknown.
func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}
