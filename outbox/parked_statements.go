package outbox

// dueClass is a column of the index parked_calls_due. A range of dueRanges has the rows of a class
// that are due by now, or that were written while the clock was ahead (T9).
const (
	dueTimes  = `clock_timestamp() as now, clock_timestamp() + interval '2 days' as ahead`
	dueClass  = `(case when p.state = 'reconcile' then 2 when p.reason = 'scheduled' then 1 else 0 end)`
	dueRanges = `select v.class, v.after, v.until from t, lateral (values (0, timestamptz '-infinity', t.now), (1, '-infinity', t.now), (2, '-infinity', t.now),
              (0, t.ahead, 'infinity'), (2, t.ahead, 'infinity')) v (class, after, until)`
	dueIn = `p.kind = 'call' and p.sink = $1 and p.lane = $2 and ` + dueClass + ` = r.class and p.next_attempt_at > r.after and p.next_attempt_at <= r.until`
)

// firstOfKey is a condition on a parked call p: no unsettled call of its ordering key precedes it.
// By the index parked_order; the OFFSET keeps the planner from making it a join over all rows.
const firstOfKey = `(p.order_key is null or not exists (
                select 1 from onlyonce.parked f
                 where f.order_key = p.order_key and f.settled_at is null and (f.partition, f."offset") < (p.partition, p."offset") offset 0))`

// pickSQL picks parked calls that are due, and calls that wait for a rate for which there are
// permits, the longest waiting first, and journals their attempts. In: sink, lane; ids under way;
// how many; how long after the first attempt another may start (null: for ever); when they are due
// again if this relay dies; whether calls of unknown outcome are asked about; ids in the log of
// rows under way; ordering keys of both; whose calls wait for a rate, and how many of each may be
// made; tenants and prefixes with a rate, none of whose due calls is picked. Out: a row each, in no
// order. By the indexes parked_calls_due and parked_waits; the clock is read once, in a subselect,
// because a volatile function is no index condition. It locks the rows, and skips those that
// another session, for example an operator's, has locked.
//
// If a call's window has passed, it is returned too, without an attempt: its age keeps it from
// being made, and it is left for reconciliation. A call that has been accepted and waits for its
// completion is not called any more. A call is not picked if an earlier call of its ordering key is
// unsettled. A call that waited for a rate keeps that rate's name and its place until it is
// settled: it may turn out to count for another one by now, and then waits for that.
//
// The age of a call that was never called here counts from when it was parked, if the database has
// lost a history since in which it may have been called (O6). RelayConfig.Backoff.Max is a day
// at most. So a due time more than two days ahead was written while the clock was ahead, unless the
// program scheduled the call: it counts as past (T9).
//
// Of a tenant or a prefix with a rate there may be millions of due calls, which setAsideSQL moves a
// thousand a turn. So if there is a rate, it looks no further than a thousand.
const pickSQL = `
with t as materialized (
  select ` + dueTimes + `, ` + keyNow + ` as late,
         (select case when a.timeline <> substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) then 'infinity' else a.history_at end
            from onlyonce.lanes a where a.sink = $1 and a.lane = $2) as history)
update onlyonce.parked o
   set picks = o.picks + 1,
       attempts = o.attempts + case when o.state = 'reconcile' or o.response_status is null and o.first_attempt_at <= (select late from t) - $5::interval then 0 else 1 end,
       first_attempt_at = case when o.state = 'reconcile' or o.response_status is not null then o.first_attempt_at
                               else coalesce(o.first_attempt_at,
                                 case when o.reason in ('behind', 'scheduled', 'cut', 'rate') and o.parked_at < (select history from t)
                                      then case o.reason when 'scheduled' then greatest(o.parked_at, o.next_attempt_at, o.waits_since) else o.parked_at end end,
                                 greatest(clock_timestamp(), (select late from t))) end,
       next_attempt_at = clock_timestamp() + $6::interval
 where o.id = any (array(select c.id from (
         select d.* from (` + dueRanges + `) r cross join lateral (
            select case when cardinality($12::text[]) + cardinality($13::bigint[]) = 0 then r.until else
              coalesce((select p.next_attempt_at from onlyonce.parked p where ` + dueIn + ` order by p.next_attempt_at offset 1000 + $4 limit 1), r.until) end as until) n
          cross join lateral (
           select p.id, p.next_attempt_at as at from onlyonce.parked p
            where ` + dueIn + ` and p.next_attempt_at <= n.until and p.state in ('retrying', 'reconcile') and p.id <> all ($3::bigint[])
              and (p.row_id is null or p.row_id <> all ($8::bigint[])) and (p.order_key is null or p.order_key <> all ($9::uuid[]))
              and ` + firstOfKey + `
              and (p.tenant <> all ($12::text[]) and (p.order_prefix is null or p.order_prefix <> all ($13::bigint[])) or p.response_status is not null or p.state = 'reconcile')
            order by p.next_attempt_at, p.id limit $4 for no key update skip locked) d
          where r.class < 2 or $7
         union all
         select w.id, w.waits_since from unnest($10::text[], $11::int[]) as r(calls_of, permits) cross join lateral (
            select p.id, p.waits_since from onlyonce.parked p
             where p.kind = 'call' and p.sink = $1 and p.waits_for = r.calls_of and p.lane = $2 and p.state = 'retrying' and p.next_attempt_at is null
               and p.id <> all ($3::bigint[]) and (p.row_id is null or p.row_id <> all ($8::bigint[]))
               and (p.order_key is null or p.order_key <> all ($9::uuid[]))
               and ` + firstOfKey + `
             order by p.waits_since, p.id limit r.permits for no key update skip locked) w) c
         order by c.at, c.id limit $4))
   and (o.next_attempt_at <= (select now from t) or o.next_attempt_at > (select ahead from t) and o.reason <> 'scheduled'
        or o.next_attempt_at is null and o.waits_for is not null)
returning o.id, coalesce(o.row_id, 0), o.key, o.order_key, coalesce(o.order_prefix, 0), o.tenant, o.scope, o.call_name, o.method, o.target,
          onlyonce.header_lines(o.header_names, o.header_values), coalesce(o.trace, ''), o.body, o.capture, o.sealed, coalesce(o.first_key, o.key), o.first_attempt_at > (select late from t) and o.first_attempt_at <= (select late from t) + interval '1 minute',
          o.attempts, o.picks, o.state, case when o.first_attempt_at > (select late from t) + interval '1 minute' ` + ageUnknown + `
               else coalesce((extract(epoch from greatest(clock_timestamp(), (select late from t)) - o.first_attempt_at) * 1000000)::bigint, 0) end,
          (extract(epoch from clock_timestamp() - coalesce(o.record_time, o.parked_at)) * 1000000)::bigint,
          o.response_status, coalesce(o.response_headers, ''), o.response_body, coalesce(o.waits_for, '')`

// setAsideSQL makes due calls wait for the rate that they count for, among those that wait already.
// In: sink, lane; ids under way; tenants with a rate; ids in the log of rows under way; arrays of
// one length: prefixes with a rate, and how onlyonce.rates calls them. It looks at the first 1,000
// due calls of the lane, and the next turn at those after them. A call that waited for another of
// its ordering key has the place that it came with. No attempt is counted, and no key's window
// begins. A call that was accepted needs no rate: its completion is no call. By the index
// parked_calls_due; locks the rows, and skips those that another session has locked.
const setAsideSQL = `
update onlyonce.parked o
   set waits_for = coalesce((select r.calls_of from unnest($6::bigint[], $7::text[]) as r(prefix, calls_of) where r.prefix = o.order_prefix), 'tenant ' || o.tenant),
       waits_since = case when o.reason = 'behind' then o.parked_at else o.next_attempt_at end, next_attempt_at = null
 where o.id = any (array(
         select p.id from onlyonce.parked p join (
           select d.id from (values (0), (1)) r (class) cross join lateral (
             select p.id, p.next_attempt_at from onlyonce.parked p
              where p.kind = 'call' and p.sink = $1 and p.lane = $2 and ` + dueClass + ` = r.class and p.next_attempt_at <= (select clock_timestamp())
                and p.state = 'retrying' and p.response_status is null
              order by p.next_attempt_at limit 1000) d
            order by d.next_attempt_at limit 1000) d on d.id = p.id
          where p.state = 'retrying' and (p.tenant = any ($4::text[]) or p.order_prefix = any ($6::bigint[])) and p.response_status is null and p.next_attempt_at <= clock_timestamp()
            and p.id <> all ($3::bigint[]) and (p.row_id is null or p.row_id <> all ($5::bigint[]))
          order by p.id for no key update of p skip locked))`

// nextDueSQL reads in how many microseconds the next parked call of a lane is due. In: sink, lane,
// ids under way, whether calls of unknown outcome are asked about, ids in the log of rows under
// way; ordering keys of both. One row: null if there is none. By the index parked_calls_due.
const nextDueSQL = `
with t as materialized (select ` + dueTimes + `)
select (extract(epoch from min(case when r.class <> 1 and r.after > '-infinity' then t.now else d.at end) - clock_timestamp()) * 1000000)::bigint
  from t cross join lateral (values (0, timestamptz '-infinity', t.ahead), (1, '-infinity', 'infinity'), (2, '-infinity', t.ahead),
                                    (0, t.ahead, 'infinity'), (2, t.ahead, 'infinity')) r (class, after, until)
 cross join lateral (
   select p.next_attempt_at as at from onlyonce.parked p
    where ` + dueIn + ` and p.state in ('retrying', 'reconcile') and p.id <> all ($3::bigint[]) and (p.row_id is null or p.row_id <> all ($5::bigint[]))
      and (p.order_key is null or p.order_key <> all ($6::uuid[]))
    order by p.next_attempt_at limit 1) d
 where r.class < 2 or $4`

// settleSQL writes how attempts at parked calls ended. In: arrays of one length: ids, 0 for a row
// that is known by the log's id alone; the log's ids; states, reasons, errors, microseconds until
// they are due (null: never by themselves), whether the key's window counts anew, status, headers
// and body of an answer; then whether a given-up call releases its ordering key; whether the
// attempt asked what became of the call; the numbers of the picks, and whether no attempt was made
// (it is not counted then); the calls' keys; whose rate they wait for (empty: none), in which case
// no attempt was made either. Rows that an operator has changed meanwhile stay as they are. By the
// index parked_key; locks the rows.
//
// The pick is compared because a COMMIT without an answer may arrive late, when the call is tried
// again already. The number of the attempt would not do: a redrive counts attempts anew, and an
// attempt that was not made is taken back.
//
// The key is compared because a failover may lose the row while the call is made (O3). The server
// then gives its ids to another call, which has been attempted as often by now. An operator gives a
// call another key only when no attempt at it is under way.
const settleSQL = `
update onlyonce.parked p
   set state = s.state, reason = case when s.state = 'resolved' or s.waits_for <> '' then p.reason else s.reason end,
       error = case when s.waits_for <> '' then p.error else s.error end,
       waits_for = nullif(s.waits_for, ''), waits_since = case when s.waits_for <> '' then coalesce(p.waits_since, p.parked_at) end,
       attempts = p.attempts - case when s.none then 1 else 0 end,
       next_attempt_at = clock_timestamp() + s.delay * interval '1 microsecond',
       first_attempt_at = case when s.fresh then null else p.first_attempt_at end,
       settled_at = case when s.state = 'resolved' then onlyonce.steady_clock() end,
       order_key = case when $11 and s.state in ('waiting', 'reconcile') then null else p.order_key end,
       response_status = coalesce(s.status, p.response_status), response_headers = coalesce(s.response_headers, p.response_headers),
       response_body = coalesce(s.response_body, p.response_body)
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::boolean[], $8::int[], $9::text[], $10::bytea[], $12::boolean[], $13::int[],
              $14::boolean[], $15::uuid[], $16::text[])
       as s(id, row_id, state, reason, error, delay, fresh, status, response_headers, response_body, asked, pick, none, key, waits_for)
 where (p.id = s.id or s.id = 0 and p.row_id = s.row_id) and p.kind = 'call' and p.key = s.key
   and p.state = case when s.asked then 'reconcile' else 'retrying' end and p.picks = s.pick`
