package parked

// InsertMessageSQL parks a whole message. It is part of the transaction that moves the position
// past the message and has claimed its key, so a copy of a parked message is a duplicate. An event
// that an operator has had appended may have the id of one that is parked: it has no key then (W7).
const InsertMessageSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  tenant,
  scope,
  key,
  topic,
  partition,
  "offset",
  record_time,
  record_key,
  header_names,
  header_values,
  body,
  order_key,
  next_attempt_at,
  cluster_id,
  topic_id,
  log_append_time,
  replay_no,
  replay_resend,
  event_id,
  sealed
)
values (
  $23,
  $1,
  $2,
  $3,
  $4,
  $5,
  $6,
  case when $23 = 'event' and exists (select from onlyonce.parked p
                                       where p.kind = 'event'
                                         and p.key = $7::uuid
                                         and p.settled_at is null
                                         and p.reason <> 'conflict')
       then null else $7::uuid end,
  $8,
  $9,
  $10,
  $11,
  $12,
  $13,
  $14,
  $15,
  $16,
  case when $1 = 'retrying' then clock_timestamp() + make_interval(secs => $17) end,
  $18,
  $19,
  $20,
  $21,
  $22,
  $24,
  $25
)`

// PromoteSQL makes the first row of each ordering key due, once no unsettled row precedes it; see
// the comment on onlyonce.promote. In: ordering keys, uuid[]. One row: how many rows became due.
const PromoteSQL = `select count(onlyonce.promote(k)) from unnest($1::uuid[]) k`

// PromotedAtOnce is how many keys one statement promotes at most.
const PromotedAtOnce = 100

// LockSQL locks parked rows, in the order of ids, as every command does. In: ids. If an attempt at
// one of them is under way, it waits for that, because the attempt holds the row from its first
// statement on. Only a later statement sees what became of it.
const LockSQL = `select id from onlyonce.parked where id = any ($1::bigint[]) order by id for update`

// notFirst is a condition on a parked row p: an unsettled row of its ordering key is before it.
// Such a row waits as blocked until that one is settled, and is not retrying: whoever looks for
// what is due would pass over all of the key's rows, at each look (D4, T13). By the index
// parked_order; the OFFSET keeps the planner from making it a join over all rows.
const notFirst = `exists (
         select 1 from onlyonce.parked f
          where f.order_key = p.order_key
            and f.settled_at is null
            and (f.partition, f."offset") < (p.partition, p."offset")
         offset 0)`

// redriven are the assignments that make a row due that an operator redrives, or have it wait for
// those of its ordering key. A row that is being retried keeps its attempts, because its consumer,
// or its relay, settles it by them: it may be at work at this moment.
const redriven = `state = case when p.state <> 'retrying' and ` + notFirst + ` then 'blocked' else 'retrying' end,
       next_attempt_at = case when p.state <> 'retrying' and ` + notFirst + ` then null else clock_timestamp() end,
       attempts = case when p.state = 'retrying' then p.attempts else 0 end,
       redrives = p.redrives + 1,
       redriven_at = clock_timestamp()`

// RedriveSQL makes parked messages and events due, with all attempts before them. In: ids. Under
// the lock on the rows; [PromoteSQL] follows after the COMMIT, because a row that blocks another
// one may be settled meanwhile.
const RedriveSQL = `
update onlyonce.parked p
   set ` + redriven + `
 where p.id = any ($1::bigint[])
   and p.kind in ('message', 'event')
   and p.state in ('waiting', 'retrying')
   and (p.kind = 'message' or p."offset" is not null)`

// AppendSQL appends events to their streams that a receiver has parked before they were appended;
// see the function's comment in the migration.
const AppendSQL = `select onlyonce.append_parked($1)`

// DiscardSQL settles parked messages and events without applying them, and calls without sending
// them. In: ids. Under the lock on the rows.
const DiscardSQL = `
update onlyonce.parked set state = 'discarded', settled_at = onlyonce.steady_clock(), next_attempt_at = null
 where id = any ($1::bigint[])
   and (state in ('waiting', 'blocked', 'retrying') or kind = 'call' and state = 'reconcile')`

// EndGivenUpSQL ends the operations of the HTTP layer whose events are given up: otherwise they run
// for ever, and are neither forgotten nor erased. It writes what idempotency.endOperationSQL writes
// (H23). In: ids, settled by now. By the index operations_running.
const EndGivenUpSQL = `
update onlyonce.operations o
   set state = 'failed',
       error_code = 'failed',
       completed_at = clock_timestamp(),
       expires_at = clock_timestamp() + o.keep,
       watched_at = (select w.at from onlyonce.watched w)
  from onlyonce.parked p
 where p.id = any ($1::bigint[]) and p.kind = 'event' and p.state = 'discarded'
   and o.topic = p.topic and o.tenant = p.tenant and o.state = 'running' and o.id::text = p.event_id`

// ClaimGivenUpSQL claims the keys of messages that are given up, and of events that their receiver
// had parked. A row that was parked for longer than a horizon has a key that is forgotten, so
// without this claim a copy would be applied (K7). (A worker's key of an event differs from its
// receiver's.) In: ids, settled by now. A row for each scope of messages and one more, whose values
// are not needed. It claims in the consumers' rings first, as every transaction does.
const ClaimGivenUpSQL = `
with given_up as (
  select p.kind, p.scope, p.key from onlyonce.parked p
   where p.id = any ($1::bigint[])
     and p.kind in ('message', 'event')
     and p.key is not null
     and p.reason not in ('conflict', 'no-key')
     and (p.kind = 'message' or p."offset" is null))
select onlyonce.claim_scope(m.scope, m.keys, array_fill(0::bigint, array[cardinality(m.keys)]))
  from (select scope, array_agg(key) as keys
          from given_up where kind = 'message' group by scope order by scope offset 0) m
 union all
select onlyonce.claim(e.keys, array_fill(0::bigint, array[cardinality(e.keys)]), e.scopes)
  from (select array_agg(key order by key) as keys, array_agg(scope order by key) as scopes
          from given_up where kind = 'event' having count(*) > 0) e`

// RedriveCallsSQL makes parked calls due. In: ids, the key that each is sent under from now on
// (null: its own), and whether an operator has verified that they were not applied. Under the lock
// on the rows.
//
// [KnownCall.Decide] has allowed it. The key's window counts on: the remote may know the key. No
// attempt is open any more if an operator has verified that the call was not applied (O6). Such a
// row has reason failed from then on: no attempt of a history that is lost counts any more.
//
// The key that the call was enqueued under is kept: a message that is handled again asks for it
// (O1), and a sealed body opens under no other one (O13).
//
// [PromoteSQL] follows, as after [RedriveSQL].
const RedriveCallsSQL = `
update onlyonce.parked p
   set ` + redriven + `,
       reason = case when $3::boolean then 'failed' else p.reason end,
       open = p.open and not $3::boolean,
       first_attempt_at = case when u.key is null then p.first_attempt_at end,
       key = coalesce(u.key, p.key),
       first_key = case when u.key is not null then coalesce(p.first_key, p.key) else p.first_key end
  from unnest($1::bigint[], $2::uuid[]) as u(id, key)
 where p.id = u.id and p.kind = 'call' and p.erased_at is null
   and case when $3::boolean then p.state in ('waiting', 'reconcile') else p.state in ('waiting', 'retrying') end`

// ResolveCallsSQL settles parked calls that were applied, as an operator has verified. In: ids.
// Under the lock on the rows.
const ResolveCallsSQL = `
update onlyonce.parked
   set state = 'resolved',
       settled_at = onlyonce.steady_clock(),
       next_attempt_at = null,
       redrives = redrives + 1,
       redriven_at = clock_timestamp()
 where id = any ($1::bigint[]) and kind = 'call' and state in ('waiting', 'reconcile')`
