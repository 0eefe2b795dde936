package outbox

import (
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
)

// dueClass is a column of the index parked_calls_due. A range of dueRanges has the rows of a class
// that are due by now, or that were written while the clock was ahead (T9).
const (
	dueTimes  = `clock_timestamp() as now, clock_timestamp() + interval '2 days' as ahead`
	dueClass  = `(case when p.state = 'reconcile' then 2 when p.reason = 'scheduled' then 1 else 0 end)`
	dueRanges = `select v.class, v.after, v.until
                   from t, lateral (values (0, timestamptz '-infinity', t.now),
                                           (1, '-infinity', t.now),
                                           (2, '-infinity', t.now),
                                           (0, t.ahead, 'infinity'),
                                           (2, t.ahead, 'infinity')) v (class, after, until)`
	// dueIn is a condition on a parked call p: it is in a range r. The function onlyonce.is_due has
	// the same rule for a row that is found already.
	dueIn = `p.kind = 'call' and p.sink = @sink and p.lane = @lane and ` + dueClass +
		` = r.class and p.next_attempt_at > r.after and p.next_attempt_at <= r.until`
)

// Conditions on a parked call p: it is not under way, and no call of its ordering key is.
const (
	notUnderWay    = `p.id <> all (@picked::bigint[]) and (p.row_id is null or p.row_id <> all (@late::bigint[]))`
	keyNotUnderWay = `(p.order_key is null or p.order_key <> all (@keys::uuid[]))`
)

// ofLimitedTenant is a condition on a parked call p: its tenant has a rate.
const ofLimitedTenant = `(p.tenant = any (@tenants::text[]) or @each::boolean and p.tenant <> '')`

// firstOfKey is a condition on a parked call p: no unsettled call of its ordering key precedes it.
// By the index parked_order; the OFFSET keeps the planner from making it a join over all rows.
const firstOfKey = `(p.order_key is null or not exists (
                select 1
                  from onlyonce.parked f
                 where f.order_key = p.order_key
                   and f.settled_at is null
                   and (f.partition, f."offset") < (p.partition, p."offset")
                offset 0))`

// pickSQL picks parked calls that are due, and calls that wait for a rate for which there are
// permits, the longest waiting first, and journals their attempts. Out: a row each, in no order. By
// the indexes parked_calls_due and parked_waits; the clock is read once, in a subselect, because a
// volatile function is no index condition. It locks the rows, and skips those that another session,
// for example an operator's, has locked.
//
//	@picked, @late, @keys  calls under way: their rows' ids here, their ids in the log, their
//	                       ordering keys
//	@slots                 how many it picks at most
//	@start_window          how long after the first attempt another may start (null: for ever)
//	@lease_ttl             after that the calls are due again, if this relay dies
//	@reconciles            whether calls of unknown outcome are asked about
//	@waiting, @permits     whose calls wait for a rate, and how many of each may be made
//	@tenants, @prefixes    that have a rate: none of their due calls is picked
//	@each                  whether each tenant has one
//
// If the window of an open call has passed, it is returned too, without an attempt: its age keeps
// it from being made, and it is left for reconciliation. A call that has been accepted and waits
// for its completion is not called any more. A call is not picked if an earlier call of its
// ordering key is unsettled. A call that waited for a rate keeps that rate's name and its place
// until it is settled: it may turn out to count for another one by now, and then waits for that.
//
// The age of a call without an open attempt here counts from when it was parked, if the database
// has since lost a history that may have had one (O6), unless a person has closed it (reason
// failed). Whether an earlier attempt is open, and whether one can have reached the remote, is
// asked of the row as it was: a subselect in RETURNING sees the statement's snapshot. A due time
// that was written while the clock was ahead counts as past, see onlyonce.is_due (T9).
//
// A tenant or a prefix with a rate may have millions of due calls, which setAsideSQL moves a
// thousand a turn. So if there is a rate, it looks no further than a thousand (O4, O13).
var pickSQL = newStatement(`
with t as materialized (
  select ` + dueTimes + `,
         ` + keyNow + ` as late,
         (select case when a.timeline <> onlyonce.history() then 'infinity' else a.history_at end
            from onlyonce.lanes a
           where a.sink = @sink and a.lane = @lane) as history),
-- The calls whose time has come, of each range those that are due for the longest.
due as materialized (
  select d.id, d.at
    from (` + dueRanges + `) r
   cross join lateral (
     select case
              when cardinality(@tenants::text[]) + cardinality(@prefixes::bigint[]) = 0
                and not @each::boolean then r.until
              else coalesce((select p.next_attempt_at
                               from onlyonce.parked p
                              where ` + dueIn + `
                              order by p.next_attempt_at offset 1000 + @slots limit 1), r.until)
            end as until) n
   cross join lateral (
     select p.id, p.next_attempt_at as at
       from onlyonce.parked p
      where ` + dueIn + `
        and p.next_attempt_at <= n.until
        and p.state in ('retrying', 'reconcile')
        and ` + notUnderWay + `
        and ` + keyNotUnderWay + `
        and ` + firstOfKey + `
        and (not ` + ofLimitedTenant + ` and (p.order_prefix is null or p.order_prefix <> all (@prefixes::bigint[]))
             or p.response_status is not null
             or p.state = 'reconcile')
      order by p.next_attempt_at, p.id limit @slots for no key update skip locked) d
   where r.class < 2 or @reconciles),
-- The calls that wait for a rate, as many as it has permits for.
released as materialized (
  select w.id, w.at
    from unnest(@waiting::text[], @permits::int[]) as r(calls_of, permits)
   cross join lateral (
     select p.id, p.waits_since as at
       from onlyonce.parked p
      where p.kind = 'call'
        and p.sink = @sink
        and p.waits_for = r.calls_of
        and p.lane = @lane
        and p.state = 'retrying'
        and p.next_attempt_at is null
        and ` + notUnderWay + `
        and ` + keyNotUnderWay + `
        and ` + firstOfKey + `
      order by p.waits_since, p.id limit r.permits for no key update skip locked) w),
picked as materialized (
  select c.id
    from (select * from due union all select * from released) c
   order by c.at, c.id limit @slots)
update onlyonce.parked o
   set picks = o.picks + 1,
       attempts = o.attempts + case
                    when o.state = 'reconcile' then 0
                    when o.response_status is null
                      and o.open
                      and o.first_attempt_at <= (select late from t) - @start_window::interval then 0
                    else 1
                  end,
       first_attempt_at = case
                            when o.state = 'reconcile' or o.response_status is not null then o.first_attempt_at
                            when onlyonce.attempt_may_be_lost(o.open, o.reason, o.parked_at, (select history from t))
                              then least(o.first_attempt_at,
                                         case o.reason
                                           when 'scheduled'
                                             then greatest(o.parked_at, o.next_attempt_at, o.waits_since)
                                           else o.parked_at
                                         end)
                            else coalesce(o.first_attempt_at, greatest(clock_timestamp(), (select late from t)))
                          end,
       open = o.open or o.state <> 'reconcile' and o.response_status is null,
       next_attempt_at = clock_timestamp() + @lease_ttl::interval
 where o.id = any (array(select p.id from picked p))
   and (onlyonce.is_due(o.next_attempt_at, o.reason, (select now from t))
        or o.next_attempt_at is null and o.waits_for is not null)
returning o.id,
          coalesce(o.row_id, 0) as row_id,
          o.key,
          o.order_key,
          coalesce(o.order_prefix, 0) as order_prefix,
          o.tenant,
          o.scope,
          o.call_name,
          o.method,
          o.target,
          onlyonce.header_lines(o.header_names, o.header_values) as headers,
          coalesce(o.trace, '') as trace,
          o.body,
          o.capture,
          o.sealed,
          coalesce(o.first_key, o.key) as first_key,
          (select not (b.open or onlyonce.attempt_may_be_lost(b.open, b.reason, b.parked_at, (select history from t)))
             from onlyonce.parked b where b.id = o.id) as none_open,
          (
            select b.first_attempt_at is not null
            or onlyonce.attempt_may_be_lost(b.open, b.reason, b.parked_at, (select history from t))
              from onlyonce.parked b where b.id = o.id) as maybe_called_before,
          o.attempts,
          o.picks,
          o.state,
          case
            when o.first_attempt_at > (select late from t) + interval '1 minute' ` + ageUnknown + `
            else coalesce(
              (extract(epoch from greatest(
                clock_timestamp(),
                (select late from t)
              ) - o.first_attempt_at) * 1000000)::bigint,
              0
            )
          end as age,
          (extract(epoch from clock_timestamp() - coalesce(o.record_time, o.parked_at)) * 1000000)::bigint as waited,
          o.response_status,
          coalesce(o.response_headers, '') as response_headers,
          o.response_body,
          coalesce(o.waits_for, '') as waited_for`)

// setAsideSQL makes due calls wait for the rate that they count for, among those that wait already.
// Its parameters are those of pickSQL, and for each of @prefixes its @prefixes_calls_of, which is
// onlyonce.rates.calls_of. It looks at the first @most due calls of the lane, and the next turn at
// those after them. A call that waited for another of its ordering key has the place that it came
// with. No attempt is counted, and no key's window begins. A call that was accepted needs no rate:
// its completion is no call. By the indexes parked_calls_due and parked_pkey. It locks each row by
// its id, skips those that another session has locked, and looks afterwards at what may have
// changed. A join would compare each row with each, if there were few when it was planned (T13,
// O14).
var setAsideSQL = newStatement(`
with t as materialized (select ` + dueTimes + `),
due as materialized (
  select p.*
    from (` + dueRanges + `) r
   cross join lateral (
     select p.id,
            p.row_id,
            p.tenant,
            p.order_prefix,
            p.next_attempt_at
       from onlyonce.parked p
      where ` + dueIn + `
        and p.state = 'retrying'
        and p.response_status is null
      order by p.next_attempt_at limit @most) p
   where r.class < 2
   order by p.next_attempt_at limit @most),
limited as materialized (
  select l.id
    from due p
   cross join lateral (
     select l.id,
            l.state,
            l.reason,
            l.response_status,
            l.next_attempt_at
       from onlyonce.parked l
      where l.id = p.id for no key update skip locked) l
   where (` + ofLimitedTenant + ` or p.order_prefix = any (@prefixes::bigint[]))
     and ` + notUnderWay + `
     and l.state = 'retrying'
     and l.response_status is null
     and onlyonce.is_due(l.next_attempt_at, l.reason, (select now from t)))
update onlyonce.parked o
   set waits_for = coalesce((select r.calls_of
                               from unnest(@prefixes::bigint[], @prefixes_calls_of::text[]) as r(prefix, calls_of)
                              where r.prefix = o.order_prefix), 'tenant ' || o.tenant),
       waits_since = case when o.reason = 'behind' then o.parked_at
                          else least(o.next_attempt_at, (select now from t)) end,
       next_attempt_at = null
 where o.id = any (array(select l.id from limited l))`)

// nextDueSQL reads in how many microseconds the next parked call of a lane is due: null if there is
// none. Its parameters are those of pickSQL. By the index parked_calls_due.
var nextDueSQL = newStatement(`
with t as materialized (select ` + dueTimes + `)
select (extract(epoch from min(case when r.class <> 1 and r.after > '-infinity' then t.now else d.at end)
                             - clock_timestamp()) * 1000000)::bigint
  from t
 cross join lateral (values (0, timestamptz '-infinity', t.ahead),
                            (1, '-infinity', 'infinity'),
                            (2, '-infinity', t.ahead),
                            (0, t.ahead, 'infinity'),
                            (2, t.ahead, 'infinity')) r (class, after, until)
 cross join lateral (
   select p.next_attempt_at as at from onlyonce.parked p
    where ` + dueIn + ` and p.state in ('retrying', 'reconcile') and ` + notUnderWay + ` and ` + keyNotUnderWay + `
    order by p.next_attempt_at limit 1) d
 where r.class < 2 or @reconciles`)

// endings are arrays of one length, a value for each attempt: how it ended, as parkSQL and
// settleSQL write it.
//
//	@states, @reasons, @errors     of the call's row
//	@delays                        microseconds until it is due (null: never by itself)
//	@statuses, @headers, @bodies   of an answer that was captured (null: there is none)
//	@waits_for                     whose rate it waits for (empty: none); no attempt was made then
//	@pass_on                       of all: whether given-up calls release their ordering keys
type endings struct {
	states, reasons, errs, waitsFor []string
	delays                          []*int64
	statuses                        []*int32
	headers                         []*string
	bodies                          [][]byte
}

const (
	endingArrays = `
    @states::text[],
    @reasons::text[],
    @errors::text[],
    @delays::bigint[],
    @statuses::int[],
    @headers::text[],
    @bodies::bytea[],
    @waits_for::text[]`
	endingColumns = `
state,
reason,
error,
delay,
status,
response_headers,
response_body,
waits_for`
)

// add adds an attempt.
func (e *endings) add(a *callAttempt, d disposition) {
	var delay *int64
	if d.due {
		micros := d.delay.Microseconds()
		delay = &micros
	}
	waitsFor := ""
	if a.state == attemptRated {
		waitsFor = storedCallsOf(a.waitsFor)
	}
	status, headers, body := d.answerColumns()
	e.states = append(
		e.states,
		d.state,
	)
	e.reasons = append(e.reasons, d.reason)
	e.errs = append(e.errs, d.lastError)
	e.waitsFor = append(e.waitsFor, waitsFor)
	e.delays = append(
		e.delays,
		delay,
	)
	e.statuses = append(e.statuses, status)
	e.headers = append(e.headers, headers)
	e.bodies = append(e.bodies, body)
}

// queue queues a statement that takes endings and further arguments.
func (e *endings) queue(b *pgx.Batch, s *statement, passOn bool, args pgx.NamedArgs) {
	maps.Copy(args, pgx.NamedArgs{
		"states": e.states, "reasons": e.reasons, "errors": e.errs, "delays": e.delays,
		"statuses": e.statuses, "headers": e.headers, "bodies": e.bodies, "waits_for": e.waitsFor, "pass_on": passOn,
	})
	s.queue(b, args).Exec(ignoreTag)
}

// settleSQL writes how attempts at parked calls ended. Its parameters are those of endings, and:
//
//	@ids, @rows  ids here, 0 for a call that is known by the log's id alone; ids in the log
//	@keys        the calls' keys
//	@picks       the numbers of the picks
//	@asked       whether the attempt asked what became of the call
//	@open        whether an attempt is open
//	@unseen      whether no attempt can have reached the remote: the key's window has not begun
//	@none        whether no attempt was made: it is not counted then
//
// Rows that an operator has changed meanwhile stay as they are. By the index parked_key, for which
// the keys are named once more: a plan that was made before there were many rows reads all of them
// for a join (T13). It locks the rows.
//
// The pick is compared because a COMMIT without an answer may arrive late, when the call is tried
// again already. The number of the attempt would not do: a redrive counts attempts anew, and an
// attempt that was not made is taken back.
//
// The key is compared because a failover may lose the row while the call is made (O3). The server
// then gives its ids to another call, which has been attempted as often by now. An operator gives a
// call another key only when no attempt at it is under way (O6, O13).
var settleSQL = newStatement(`
update onlyonce.parked p
   set state = s.state,
       reason = case when s.reason = '' or s.waits_for <> '' then p.reason else s.reason end,
       error = case when s.waits_for <> '' then p.error else s.error end,
       waits_for = nullif(s.waits_for, ''),
       waits_since = case when s.waits_for <> '' then coalesce(p.waits_since, p.parked_at) end,
       attempts = p.attempts - case when s.none then 1 else 0 end,
       next_attempt_at = clock_timestamp() + s.delay * interval '1 microsecond',
       first_attempt_at = case when s.unseen then null else p.first_attempt_at end,
       open = s.open,
       settled_at = case when s.state = 'resolved' then onlyonce.steady_clock() end,
       order_key = case when @pass_on and s.state in ('waiting', 'reconcile') then null else p.order_key end,
       response_status = coalesce(s.status, p.response_status),
       response_headers = coalesce(s.response_headers, p.response_headers),
       response_body = coalesce(s.response_body, p.response_body)
  from unnest(
    @ids::bigint[],
    @rows::bigint[],
    @keys::uuid[],
    @picks::int[],
    @asked::boolean[],
    @open::boolean[],
    @unseen::boolean[],
    @none::boolean[],
    ` + endingArrays + `
  )
       as s(id, row_id, key, pick, asked, open, unseen, none, ` + endingColumns + `)
 where p.key = any (@keys::uuid[])
   and (p.id = s.id or s.id = 0 and p.row_id = s.row_id)
   and p.kind = 'call'
   and p.key = s.key
   and p.state = case when s.asked then 'reconcile' else 'retrying' end and p.picks = s.pick`)

// parkSQL copies calls of the log, whole, to onlyonce.parked, from which they are tried again. Its
// parameters are those of endings, and:
//
//	@ids             ids in the log
//	@xids, @batches  the transactions and ids of their batches
//	@attempts        how many were made
//	@open            whether an attempt is open
//	@seen            whether an attempt, by this relay or an earlier owner of the lane, can have
//	                 reached the remote: the key's window has begun
//
// By the index batches_new, each batch once. It copies from the log and not from the relay's
// memory, where a sealed body is open.
//
// A call's first time is what it was at the read, because the lane's version is the same, or
// onlyonce.advance raises. A call that is parked already stays as it is.
//
// If another call that is not settled has the key, by the indexes parked_calls_key and
// parked_first_key, or an earlier call of this statement, the call is parked as a conflict. Both
// may be one call, which the remote would apply again once it has forgotten the key; or they are
// two, of which the remote would take one for the other. An operator decides. A call that is under
// way, accepted or given up goes by its own answer. Two relays that park for two lanes at once may
// not see each other's calls: then both are tried again, under one key (O1).
var parkSQL = newStatement(`
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  picks,
  tenant,
  scope,
  key,
  order_key,
  order_prefix,
  sink,
  lane,
  partition,
  row_id,
  "offset",
  call_name,
  method,
  target,
  header_names,
  header_values,
  body,
  trace,
  capture,
  sealed,
  not_before,
  next_attempt_at,
  first_attempt_at,
  open,
  record_time,
  response_status,
  response_headers,
  response_body,
  waits_for,
  waits_since
)
with d as materialized (
  select * from unnest(
    @ids::bigint[],
    @xids::text[]::xid8[],
    @batches::bigint[],
    @attempts::int[],
    @open::boolean[],
    @seen::boolean[],
    ` + endingArrays + `
  )
    as d(id, xid, batch, attempts, open, seen, ` + endingColumns + `)),
b as materialized (select distinct xid, batch from d),
r as materialized (
  select r.*, row_number() over (partition by r.key order by r.id) as nth
    from b
   cross join lateral (select *
                         from onlyonce.outbox_log r
                        where r.sink = @sink and r.lane = @lane and r.xid = b.xid and r.batch = b.batch offset 0) r
   where r.id = any (@ids::bigint[])),
k as materialized (
  select d.id,
         coalesce((select p.id
                     from onlyonce.parked p
                    where p.kind = 'call' and p.settled_at is null and p.key = r.key and p.row_id <> r.id limit 1),
                  (select p.id
                     from (select * from onlyonce.parked f where f.first_key = r.key offset 0) p
                    where p.settled_at is null and p.row_id <> r.id limit 1),
                  case when r.nth > 1 then 0 end) as other
    from d join r on r.id = d.id
   where d.state in ('retrying', 'blocked') and d.status is null and d.reason <> 'under-way')
select 'call' as kind,
       case when k.other is null then d.state else 'waiting' end as state,
       case when k.other is null then d.reason else 'conflict' end as reason,
       case
         when k.other is null then d.error
         when k.other = 0 then 'an earlier call has the same key'
         else format('parked call %s has the same key', k.other)
       end as error,
       d.attempts,
       d.attempts as picks,
       r.tenant,
       r.scope,
       r.key,
       case when @pass_on
              and (d.state in ('waiting', 'reconcile') or k.other is not null) then null
            else r.order_key end as order_key,
       r.order_prefix,
       r.sink,
       r.lane,
       r.lane as partition,
       r.id as row_id,
       r.id as "offset",
       r.name as call_name,
       r.method,
       r.target,
       array(select convert_to(split_part(l, ': ', 1), 'UTF8')
               from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n)
              where l <> '' order by n) as header_names,
       array(select convert_to(substr(l, strpos(l, ': ') + 2), 'UTF8')
               from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n)
              where l <> '' order by n) as header_values,
       r.body,
       r.trace,
       r.capture,
       r.sealed,
       r.not_before,
       case when k.other is null then clock_timestamp() + d.delay * interval '1 microsecond' end as next_attempt_at,
       case when d.seen then ` + firstCallTime + ` end as first_attempt_at,
       d.open,
       r.created_at as record_time,
       d.status as response_status,
       d.response_headers,
       d.response_body,
       case when k.other is null then nullif(d.waits_for, '') end as waits_for,
       case when k.other is null and d.waits_for <> '' then clock_timestamp() end as waits_since
  from r
  join d on d.id = r.id
  left join k on k.id = r.id
  join onlyonce.lanes a on a.sink = @sink and a.lane = @lane
 order by r.id
on conflict (row_id) where row_id is not null do nothing`)

// allParkedSQL raises unless each of these calls is parked. It follows the statement that moves the
// cursor past them, and which compares the cursor first: a call that was left out would count as
// delivered (O1). In: ids in the log. By the index parked_row.
const allParkedSQL = `select onlyonce.all_parked($1)`

// queueSettlements queues the statement that settles parked calls. A completion that succeeded has
// settled its own.
func queueSettlements(b *pgx.Batch, sink *relaySink, done []*callAttempt) {
	var (
		e            endings
		ids, rows    []int64
		keys         []uuid.UUID
		picks        []int32
		asked, none  []bool
		open, unseen []bool
	)
	for _, a := range done {
		d := sink.dispositionOf(a)
		if a.completing() && d.state == parked.Resolved {
			continue
		}
		e.add(a, d)
		ids = append(ids, a.parked)
		rows = append(rows, a.ID)
		keys = append(keys, a.key)
		picks = append(picks, a.pick)
		// asking is never counted
		asked = append(asked, a.reconciling)
		none = append(none, (a.unopened || d.uncounted) && !a.reconciling)
		open = append(open, d.open)
		unseen = append(unseen, !a.mayHaveBeenCalled())
	}
	if len(ids) > 0 {
		e.queue(b, settleSQL, sink.cfg.PassOn, pgx.NamedArgs{
			"ids":    ids,
			"rows":   rows,
			"keys":   pgUUIDs(keys),
			"picks":  picks,
			"asked":  asked,
			"open":   open,
			"unseen": unseen,
			"none":   none,
		})
	}
}

// queueParking queues the statement that parks calls of the log.
func queueParking(b *pgx.Batch, lane *heldLane, toPark []*callAttempt) {
	var (
		e            endings
		ids, batches []int64
		xids         []string
		attempts     []int32
		open, seen   []bool
	)
	for _, a := range toPark {
		d := lane.sink.dispositionOf(a)
		e.add(a, d)
		underWay := a.state == attemptUnderWay // mayHaveLeft is its goroutine's then
		made := int32(0)
		if (underWay || a.mayHaveLeft) && !d.uncounted {
			made = 1
		}
		ids = append(ids, a.ID)
		xids = append(xids, a.batch.xid)
		batches = append(batches, a.batch.id)
		attempts = append(attempts, made)
		open = append(open, d.open)
		seen = append(seen, a.mayHaveBeenCalled())
	}
	if len(ids) > 0 {
		e.queue(b, parkSQL, lane.sink.cfg.PassOn, pgx.NamedArgs{
			"sink":     lane.sink.name,
			"lane":     lane.number,
			"ids":      ids,
			"xids":     xids,
			"batches":  batches,
			"attempts": attempts,
			"open":     open,
			"seen":     seen,
		})
	}
}

// queueParkedCheck queues the statement that compares what was parked with what was to be.
func queueParkedCheck(b *pgx.Batch, toPark []*callAttempt) {
	if len(toPark) == 0 {
		return
	}
	ids := make([]int64, len(toPark))
	for i, a := range toPark {
		ids[i] = a.ID
	}
	b.Queue(allParkedSQL, ids).Exec(ignoreTag)
}
