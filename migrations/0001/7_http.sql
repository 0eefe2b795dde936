-- onlyonce schema, version 1: answers to HTTP requests, stored under their keys, and operations
-- that go on after the answer.

-- ---------------------------------------------------------------- HTTP requests

create table onlyonce.http_records (
  id           uuid        primary key,
  tenant       text        not null,
  scope        text        not null,
  fingerprint  bytea       not null,
  token        uuid        not null,
  state        text        not null,
  lease_id     bigint,
  response     bytea,
  sealed       boolean     not null default false,
  keep         interval    not null,
  created_at   timestamptz not null default clock_timestamp(),
  completed_at timestamptz,
  expires_at   timestamptz,
  watched_at   timestamptz,
  refusal      smallint,
  erased_at    timestamptz,
  abandoned_at timestamptz,
  look_at      timestamptz,
  look         interval,
  calls        uuid[],
  call_sinks   text[],
  call_lanes   smallint[],
  calls_xid    xid8
);
comment on table  onlyonce.http_records is
  'Requests that came with an Idempotency-Key, each with the answer to the first one. In transactional '
  'mode a record commits together with the handler''s writes.';
comment on column onlyonce.http_records.id           is 'onlyonce.key(tenant, scope, key): the key itself is not kept.';
comment on column onlyonce.http_records.scope        is 'Method, route and principal: "http POST /v1/charges acct_1".';
comment on column onlyonce.http_records.fingerprint  is
  'Keyed hash of the request: the same key with another request is refused.';
comment on column onlyonce.http_records.token        is
  'Random for each attempt: an attempt whose COMMIT had no answer compares it to find out whether it was '
  'the one that committed.';
comment on column onlyonce.http_records.state        is
  'running: a handler in lease mode works on it, or did so and ended without an answer. completed. '
  'reconcile: a step''s outcome is unknown, and the provider may have forgotten its key.';
comment on column onlyonce.http_records.lease_id     is
  'While running: its lease. Null in transactional mode, in which a record is visible only once it is completed.';
comment on column onlyonce.http_records.response     is
  'Status, headers and body as they are answered again; null while running.';
comment on column onlyonce.http_records.refusal      is
  'Status of an answer of 400 and above, which stays when the answer is erased. Null: the request took '
  'effect, or is not completed.';
comment on column onlyonce.http_records.keep         is 'How long it is kept from its completion.';
comment on column onlyonce.http_records.expires_at   is
  'The time from which it counts as absent, by the database clock, if look_at is null. Null: not '
  'completed, as completed_at.';
comment on column onlyonce.http_records.watched_at   is
  'Watched time at its completion. It does not count as absent before watched_at + keep, whatever the clock says.';
comment on column onlyonce.http_records.look_at      is
  'When the purge next checks whether the calls and operations of the request are settled. Until they are, '
  'the record does not expire. Null: it has begun none, or all were settled.';
comment on column onlyonce.http_records.look         is
  'How often it checks: `keep`, less how long remotes remember the keys of its calls.';
comment on column onlyonce.http_records.calls        is 'Derived keys of the calls that it has enqueued. Null: none.';
comment on column onlyonce.http_records.call_sinks   is
  'With call_lanes: the lanes that it has written these calls to, each once.';
comment on column onlyonce.http_records.calls_xid    is
  'The transaction that has written them, as onlyonce.batches has it. Null: not known after a rebase.';
comment on column onlyonce.http_records.abandoned_at is
  'The time since which operators see that no client came back for it: its steps had their effect, and '
  'it was never completed. The next request goes on with it.';

-- Finds the records that may be purged, and the requests that are not completed, which are few. (A
-- partial index of the latter would have its condition compiled by each INSERT.)
create index http_records_expired on onlyonce.http_records (expires_at);
-- Finds the requests in lease mode that were not completed, by how long they would be kept.
create index http_records_open on onlyonce.http_records (keep, created_at)
  where expires_at is null and state = 'running' and abandoned_at is null;
-- Finds the requests that wait for an operator.
create index http_records_held on onlyonce.http_records (created_at)
  where expires_at is null and (state = 'reconcile' or abandoned_at is not null);

-- Finds the records whose calls or operations are to be looked at.
create index http_records_look on onlyonce.http_records (look_at) where look_at is not null;

-- has_expired says whether a completed record, or an operation that has ended, counts as absent:
-- once its time is over by the clock and by watched time (T11), and never while what it has begun
-- may be open. It is the one place that decides that. Index conditions beside it only find
-- candidates (H19).
create function onlyonce.has_expired(
  expires_at timestamptz,
  watched_at timestamptz,
  keep interval,
  look_at timestamptz default null
) returns boolean
language plpgsql as $$
begin
  if look_at is not null or expires_at is null or expires_at > clock_timestamp() then
    return false;
  end if;
  return watched_at + keep <= (select w.at from onlyonce.watched w);
end $$;
comment on function onlyonce.has_expired is 'Whether a record or an operation counts as absent.';

create table onlyonce.http_steps (
  record_id uuid        not null references onlyonce.http_records (id) on delete cascade,
  name      text        not null,
  first_at  timestamptz not null default onlyonce.steady_clock(),
  done_at   timestamptz,
  result    bytea,
  sealed    boolean     not null default false,
  primary key (record_id, name)
);
comment on table  onlyonce.http_steps is
  'External calls of handlers in lease mode: written before the first call, and again with its result.';
comment on column onlyonce.http_steps.sealed is 'Of a step without a result: whether the layer that began it seals.';
comment on column onlyonce.http_steps.first_at is
  'A time before the first call under the step''s key: how long the provider remembers the key is counted from here.';

-- In transactional mode a record is inserted as completed; in lease mode an UPDATE completes it.
-- Neither may commit without the engine's seal. The function looks at the state, because each
-- INSERT would compile a WHEN clause, which costs more than the call.
create function onlyonce.http_require_seal() returns trigger
language plpgsql as $$
begin
  if new.state = 'completed'
     and current_setting('onlyonce.sealed', true) is distinct from pg_current_xact_id()::text then
    raise exception using errcode = 'OO002', message = 'onlyonce: not sealed: COMMIT before the engine was done',
      hint = 'A handler must not COMMIT. If it ran SET CONSTRAINTS ALL IMMEDIATE, it must name its '
             'constraints instead.';
  end if;
  return null;
end $$;
comment on function onlyonce.http_require_seal is
  'Deferred trigger: refuses a COMMIT of a completed record that was not sealed.';

create constraint trigger sealed after insert or update of state on onlyonce.http_records
  deferrable initially deferred
  for each row execute function onlyonce.http_require_seal();

-- http_open is the first statement of a handler's transaction. It sets the transaction's bounds,
-- assigns its id, and allows the seal in it. `place` is the tenant if it must live in this
-- database, here and in http_begin and http_claim: see onlyonce.enter_place. Null: there is one
-- database (N2).
create function onlyonce.http_open(
  lock_timeout text,
  statement_timeout text,
  idle_timeout text,
  place text default null
) returns void
language plpgsql as $$
declare
  ignored text;
begin
  ignored := set_config('lock_timeout', http_open.lock_timeout, true)
          || set_config('statement_timeout', http_open.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', http_open.idle_timeout, true)
          || set_config('jit', 'off', true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  if http_open.place is not null then
    perform onlyonce.enter_place(http_open.place);
  end if;
end $$;
comment on function onlyonce.http_open is
  'Opens a handler''s transaction. It then needs onlyonce.seal() before COMMIT.';

-- http_begin claims a key in transactional mode. It returns 1 if the caller has it, 0 if another
-- request is running under it, and 2 if there is a record. An expired record counts as absent: it
-- is deleted in this transaction, with its steps and its lease.
--
-- The lock is held until the transaction has ended, and released after its record is visible. So
-- the record is looked for in a statement after the one that took the lock. The function does not
-- wait for the lock, because a duplicate would keep a connection for as long as the first request's
-- handler runs. Two keys that share 32 bits share a lock: then one of the requests is answered 409,
-- and comes back.
--
-- Above READ COMMITTED the record may be invisible here; then onlyonce.http_complete finds it.
--
-- It repeats what http_open does, because a call of a function within a function is a query (T11,
-- H17).
create function onlyonce.http_begin(
  id uuid,
  lock_timeout text,
  statement_timeout text,
  idle_timeout text,
  place text default null
) returns integer
language plpgsql as $$
declare
  ignored text;
  ended   boolean;
  lease   bigint;
begin
  ignored := set_config('lock_timeout', http_begin.lock_timeout, true)
          || set_config('statement_timeout', http_begin.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', http_begin.idle_timeout, true)
          || set_config('jit', 'off', true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  if http_begin.place is not null then
    perform onlyonce.enter_place(http_begin.place);
  end if;
  if not pg_try_advisory_xact_lock(1869507706, ('x' || right(http_begin.id::text, 8))::bit(32)::integer) then
    return 0;
  end if;
  select onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)
    into ended from onlyonce.http_records r where r.id = http_begin.id;
  if not found then
    return 1;
  end if;
  if not ended then
    return 2;
  end if;
  delete from onlyonce.http_records r
   where r.id = http_begin.id and onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)
  returning r.lease_id into lease;
  if not found and exists (select from onlyonce.http_records r where r.id = http_begin.id) then
    return 2; -- a copy in lease mode has replaced it meanwhile
  end if;
  delete from onlyonce.leases l where l.id = lease;
  return 1;
end $$;
comment on function onlyonce.http_begin is
  'Claims a key in transactional mode: 1 claimed, 0 another request is running, 2 there is a record.';

-- http_complete writes the record in the transaction of the effects, and seals the transaction. It
-- is the last statement before COMMIT, with which it shares a round trip, so it fails if there is a
-- record by now: the primary key refuses a second one. It returns the time until which the record
-- is kept at least.
--
-- `look` is how often the purge checks whether the calls and operations of the request are settled
-- (H31).
--
-- It does what onlyonce.seal() does, in the same statement (H17, H19).
create function onlyonce.http_complete(
  id uuid,
  tenant text,
  scope text,
  fingerprint bytea,
  token uuid,
  response bytea,
  sealed boolean,
  keep interval,
  look interval default null,
  operation boolean default false,
  calls uuid[] default null,
  call_sinks text[] default null,
  call_lanes smallint[] default null,
  refusal smallint default null
) returns timestamptz
language plpgsql as $$
declare
  xact  text        := pg_current_xact_id()::text;
  at    timestamptz := clock_timestamp();
  until timestamptz := at + http_complete.keep;
begin
  if current_setting('onlyonce.fenced', true) is distinct from xact then
    raise exception using errcode = 'OO002',
      message = 'onlyonce: not sealed: the fence was not taken in this transaction',
      hint = 'Something ended the transaction that the fence opened: no COMMIT, ROLLBACK or BEGIN between the two.';
  end if;
  xact := set_config('onlyonce.sealed', xact, true);
  insert into onlyonce.http_records (
    id,
    tenant,
    scope,
    fingerprint,
    token,
    state,
    response,
    sealed,
    keep,
    created_at,
    completed_at,
    expires_at,
    watched_at,
    look_at,
    look,
    calls,
    call_sinks,
    call_lanes,
    calls_xid,
    refusal
  )
    values (
      http_complete.id,
      http_complete.tenant,
      http_complete.scope,
      http_complete.fingerprint,
      http_complete.token,
      'completed',
      http_complete.response,
      http_complete.sealed,
      http_complete.keep,
      at,
      at,
      until,
      (select w.at from onlyonce.watched w),
      case when http_complete.operation or http_complete.calls is not null then at + http_complete.look end,
      http_complete.look,
      http_complete.calls,
      http_complete.call_sinks,
      http_complete.call_lanes,
      case when http_complete.calls is not null then pg_current_xact_id() end,
      http_complete.refusal
    );
  set constraints all immediate;
  return until;
end $$;
comment on function onlyonce.http_complete is
  'Stores the answer in the transaction of its effects; fails on the primary key if there is one. Seals '
  'the transaction: only COMMIT follows.';

-- http_claim claims a key in lease mode, in a transaction of its own. An expired record counts as
-- absent. It waits for another request's uncommitted claim, which takes as long as one statement
-- takes to commit (T11, H18, H19).
create function onlyonce.http_claim(
  id uuid,
  tenant text,
  scope text,
  fingerprint bytea,
  token uuid,
  keep interval,
  ttl interval,
  place text default null
)
returns table (lease bigint, epoch bigint)
language plpgsql as $$
begin
  if http_claim.place is not null then
    perform onlyonce.enter_place(http_claim.place);
  end if;
  delete from onlyonce.http_records r
   where r.id = http_claim.id and onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at);
  insert into onlyonce.http_records (
    id,
    tenant,
    scope,
    fingerprint,
    token,
    state,
    keep
  )
    values (
      http_claim.id,
      http_claim.tenant,
      http_claim.scope,
      http_claim.fingerprint,
      http_claim.token,
      'running',
      http_claim.keep
    )
    on conflict do nothing;
  if not found then
    return;
  end if;
  insert into onlyonce.leases as l (name, epoch, nonce, until)
    values ('http/' || http_claim.id, 1, http_claim.token, clock_timestamp() + http_claim.ttl)
    on conflict on constraint leases_name_key do update
    set epoch = l.epoch + 1, nonce = excluded.nonce, until = excluded.until
    returning l.id, l.epoch into lease, epoch;
  update onlyonce.http_records r set lease_id = lease where r.id = http_claim.id;
  return next;
end $$;
comment on function onlyonce.http_claim is
  'Claims a key in lease mode: one row, the lease and its epoch; none if there is a record.';

-- http_step begins a step, in a transaction of its own, before the step's call is made: so a call
-- that may have been made is always known. Later attempts keep first_at. `seals` says whether the
-- result will be sealed, for an operator who resolves the step.
--
-- `late` in its result means that the step has no result, and that its first attempt is longer ago
-- than `within`, or ahead of the clock, which was ahead then: the provider may have forgotten the
-- key. It raises OO001 if the caller no longer
-- owns the request (H18).
create function onlyonce.http_step(
  lease bigint,
  epoch bigint,
  nonce uuid,
  record_id uuid,
  name text,
  within interval,
  seals boolean
)
returns table (done boolean, result bytea, sealed boolean, late boolean)
language plpgsql as $$
declare
  now timestamptz := onlyonce.steady_clock();
begin
  perform onlyonce.hold(http_step.lease, http_step.epoch, http_step.nonce);
  insert into onlyonce.http_steps as s (record_id, name, sealed)
    values (http_step.record_id, http_step.name, http_step.seals)
    on conflict do nothing;
  if found then
    update onlyonce.http_records r
       set abandoned_at = null where r.id = http_step.record_id and r.abandoned_at is not null;
  end if;
  return query
    select s.done_at is not null,
           s.result,
           s.sealed,
           s.done_at is null and (s.first_at + within <= now or s.first_at > now + interval '1 minute')
      from onlyonce.http_steps s
     where s.record_id = http_step.record_id and s.name = http_step.name;
end $$;
comment on function onlyonce.http_step is
  'Begins a step of a request in lease mode, or returns the result that it had.';

create function onlyonce.http_step_done(
  lease bigint,
  epoch bigint,
  nonce uuid,
  record_id uuid,
  name text,
  result bytea,
  sealed boolean
) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(http_step_done.lease, http_step_done.epoch, http_step_done.nonce);
  update onlyonce.http_steps s
     set done_at = clock_timestamp(), result = http_step_done.result, sealed = http_step_done.sealed
   where s.record_id = http_step_done.record_id and s.name = http_step_done.name and s.done_at is null;
end $$;
comment on function onlyonce.http_step_done is 'Stores a step''s result.';

-- http_finish completes a record in lease mode, and seals the transaction, as the last statement
-- before COMMIT. It locks the lease this late, because a renewal would wait for the lock, and with
-- it the renewals of all leases of the process. A process that wants to take over waits for this
-- transaction, and then finds no lease. It returns the time until which the record is kept.
--
-- It raises OO010 if a step has no result, for example one of an earlier attempt that this one has
-- not asked for. The steps are read after the lease is deleted, which waits for steps that begin
-- (H18, H27).
create function onlyonce.http_finish(
  id uuid,
  lease bigint,
  epoch bigint,
  nonce uuid,
  response bytea,
  sealed boolean,
  look interval default null,
  calls uuid[] default null,
  call_sinks text[] default null,
  call_lanes smallint[] default null,
  refusal smallint default null
) returns timestamptz
language plpgsql as $$
declare
  until timestamptz;
begin
  perform onlyonce.hold(http_finish.lease, http_finish.epoch, http_finish.nonce);
  update onlyonce.http_records r
     set state = 'completed',
         lease_id = null,
         token = http_finish.nonce,
         response = http_finish.response,
         sealed = http_finish.sealed,
         refusal = http_finish.refusal,
         completed_at = clock_timestamp(),
         expires_at = clock_timestamp() + r.keep,
         watched_at = (select w.at from onlyonce.watched w),
         look_at = case when http_finish.calls is not null then clock_timestamp() + http_finish.look end,
         look = http_finish.look,
         calls = http_finish.calls,
         call_sinks = http_finish.call_sinks,
         call_lanes = http_finish.call_lanes,
         calls_xid = case when http_finish.calls is not null then pg_current_xact_id() end
   where r.id = http_finish.id and r.lease_id = http_finish.lease and r.state = 'running'
  returning r.expires_at into until;
  if not found then
    raise exception using errcode = 'OO001', message = 'onlyonce: fence lost: another process owns the request';
  end if;
  delete from onlyonce.leases l where l.id = http_finish.lease;
  if exists (select from onlyonce.http_steps s where s.record_id = http_finish.id and s.done_at is null) then
    raise exception using errcode = 'OO010', message = 'onlyonce: the outcome of a step of this request is unknown';
  end if;
  perform onlyonce.seal();
  return until;
end $$;
comment on function onlyonce.http_finish is
  'Stores the answer of a request in lease mode, deletes its lease, and seals the transaction. Raises '
  'OO010 if a step has no result.';

-- http_reconcile sets a request aside because the outcome of one of its steps is unknown. It is a
-- transaction of its own.
create function onlyonce.http_reconcile(id uuid, lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(http_reconcile.lease, http_reconcile.epoch, http_reconcile.nonce);
  update onlyonce.http_records r
     set state = 'reconcile'
   where r.id = http_reconcile.id and r.lease_id = http_reconcile.lease and r.state = 'running';
end $$;
comment on function onlyonce.http_reconcile is 'Sets a request aside for an operator.';

-- http_release releases a request in lease mode whose answer is not kept. A request without a step
-- is deleted, as if it had never come. If it has a step, the next request goes on where this one
-- has stopped. The lease keeps the time at which it ended: onlyonce.http_abandon counts from the
-- last attempt.
--
-- The lease is ended before the steps are read, in an earlier statement. That waits for a step that
-- begins, for example in a goroutine that the handler has left, and no other can begin after it. It
-- is locked by this UPDATE alone: with onlyonce.hold before it, two locks of one row, it could
-- deadlock with a renewal (H18).
create function onlyonce.http_release(id uuid, lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  update onlyonce.leases l set until = clock_timestamp(), nonce = null
   where l.id = http_release.lease and l.epoch = http_release.epoch and l.nonce = http_release.nonce;
  if not found then
    raise exception using errcode = 'OO001', message = 'onlyonce: fence lost: another process owns the request';
  end if;
  if not exists (select from onlyonce.http_steps s where s.record_id = http_release.id) then
    delete from onlyonce.http_records r
     where r.id = http_release.id and r.lease_id = http_release.lease and r.state = 'running';
    delete from onlyonce.leases l where l.id = http_release.lease;
  end if;
end $$;
comment on function onlyonce.http_release is 'Releases a request in lease mode whose answer is not kept.';

-- http_unsettled says whether a call of a request is unsettled: parked under its key, or redriven
-- from there under another one, or still to be sent from the log. By the indexes parked_calls_key,
-- parked_first_key and batches_new. After a rebase the transaction is not known: then each call of
-- the lane counts that is as old.
create function onlyonce.http_unsettled(
  calls uuid[],
  sinks text[],
  lanes smallint[],
  xid xid8,
  completed_at timestamptz
) returns boolean
language plpgsql as $$
#variable_conflict use_variable
begin
  return exists (select from unnest(calls) k
                  cross join lateral (select p.key
                                        from onlyonce.parked p
                                       where p.kind = 'call' and p.settled_at is null and p.key >= k
                                       order by p.key limit 1) p
                  where p.key = k)
      or exists (select from unnest(calls) k
                  cross join lateral (select p.settled_at from onlyonce.parked p where p.first_key = k offset 0) p
                  where p.settled_at is null)
      or exists (select from unnest(sinks, lanes) u (sink, lane)
                   left join onlyonce.lanes l on l.sink = u.sink collate "C" and l.lane = u.lane
                  cross join lateral (
                    select b.xid, b.id + b.n - 1 as last from onlyonce.batches b
                     where b.sink = u.sink collate "C" and b.lane = u.lane
                       and b.xid >= coalesce(xid, pg_snapshot_xmin(l.prev), '0') and (xid is null or b.xid = xid)
                       and (xid is not null or b.created_at <= completed_at)
                       and not coalesce(pg_visible_in_snapshot(b.xid, l.prev), false) offset 0) b
                  where not coalesce(pg_visible_in_snapshot(b.xid, l.target) and b.last <= l.last_id, false));
end $$;
comment on function onlyonce.http_unsettled is
  'Whether a call of a request is parked and not settled, or still to be sent.';

-- http_look looks at what requests have begun, for at most `most` of them, and returns for how
-- many. While a call or an operation of one is open, its record is looked at again after `look`,
-- and says that it is kept for `keep` at least. Once all of it is settled, the record is kept until
-- `keep` has passed since the last operation ended, and for `keep` less `look` from now on: the
-- last attempt at a call was made before now, so the remote has forgotten its key by then. So a key
-- is never free while a call or an operation of its request may still take effect, or a remote
-- would take the next request's call for a copy. The first look comes `look` after the answer, so
-- that a record whose calls are settled by then ends after `keep`, as others do (H26, H31).
create function onlyonce.http_look(most integer) returns integer
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  r      onlyonce.http_records;
  ended  timestamptz;
  open   boolean;
  looked integer := 0;
begin
  for r in
    select h.*
      from onlyonce.http_records h
     where h.look_at <= (select clock_timestamp()) order by h.look_at limit most for no key update skip locked
  loop
    select bool_or(o.state = 'running'), max(o.completed_at)
      into open, ended from onlyonce.operations o where o.record_id = r.id;
    open := coalesce(open, false) or onlyonce.http_unsettled(
      r.calls,
      r.call_sinks,
      r.call_lanes,
      r.calls_xid,
      r.completed_at
    );
    update onlyonce.http_records h
       set expires_at = greatest(h.expires_at,
                                 case when open then clock_timestamp() + h.keep end,
                                 ended + h.keep,
                                 clock_timestamp() + h.keep - h.look),
           watched_at = greatest(h.watched_at,
                                 (select w.at from onlyonce.watched w)
                                   - case when open then interval '0' else h.look end),
           look_at = case when open then clock_timestamp() + h.look end
     where h.id = r.id;
    looked := looked + 1;
  end loop;
  return looked;
end $$;
comment on function onlyonce.http_look is
  'Checks whether the calls and operations of requests are settled; until they are, the records do not '
  'expire. Returns how many it has checked.';

-- http_purge deletes at most `most` expired records, with the results of their steps, and with the
-- leases of those that an operator has closed. It skips rows that another transaction has locked.
-- It runs when http_look has looked at all that are due, and so it passes over none that has begun
-- something: a record is looked at before it expires, and while that is open its expiry is moved.
-- It checks the expiry again when it deletes: a record may have been replaced since it was found.
-- The clock is read in a subquery, because only so it bounds the index scan: otherwise all records
-- that are kept are read each time. For the same reason it is planned without sequential scans: the
-- table may have been empty then. That makes the one sequential scan which is left, of
-- onlyonce.watched, look so costly that the server would compile the statement: so jit is off (T13,
-- T11, H20).
create function onlyonce.http_purge(most integer) returns integer
language plpgsql set enable_seqscan = off set jit = off as $$
declare
  purged integer;
begin
  with old as (
    select r.id from onlyonce.http_records r
     where r.expires_at <= (select clock_timestamp())
       and onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)
     order by r.expires_at limit most for update skip locked),
  gone as (
    delete from onlyonce.http_records r
     where r.id = any (array(select old.id from old))
       and onlyonce.has_expired(r.expires_at, r.watched_at, r.keep, r.look_at)
    returning r.lease_id),
  free as (
    delete from onlyonce.leases l where l.id = any (array(select gone.lease_id from gone)))
  select count(*) into purged from gone;
  return purged;
end $$;
comment on function onlyonce.http_purge is
  'Deletes records of the HTTP layer that have expired, at most so many; returns how many.';

-- http_abandon handles requests in lease mode whose client has not come back: those whose last
-- attempt ended longer ago than their record would be kept.
--   without a step                      deleted: such a request is as good as absent
--   with a step of unknown outcome      set aside for an operator
--   with steps whose results are known  marked as abandoned, so that operators see it; the next
--                                       request goes on, and a step that it begins takes the mark away
-- A request with a step is never deleted. Its provider may have forgotten the step's key by now, so
-- a client that still asks would cause the call a second time.
--
-- The lease is locked before the steps are read, in an earlier statement, so that no process takes
-- it over or begins a step meanwhile (T13, H18).
--
-- A lease does not end before its request was made. So for each time that records are kept, of
-- which there are as many as routes have, it reads those that were made that long ago, by the index
-- http_records_open, and passes over no younger one.
create function onlyonce.http_abandon(most integer, out deleted integer, out aside integer, out abandoned integer)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  r    record;
  upto timestamptz := (select least(clock_timestamp(), w.at) from onlyonce.watched w);
begin
  deleted := 0;
  aside := 0;
  abandoned := 0;
  for r in
    with recursive keeps as (
      (select h.keep from onlyonce.http_records h
        where h.expires_at is null and h.state = 'running' and h.abandoned_at is null order by h.keep limit 1)
      union all
      select (select h.keep from onlyonce.http_records h
               where h.expires_at is null and h.state = 'running' and h.abandoned_at is null and h.keep > k.keep
               order by h.keep limit 1)
        from keeps k where k.keep is not null)
    select h.id, l.id as lease
      from keeps k
     cross join lateral (
       select h.id, h.lease_id from onlyonce.http_records h
        where h.expires_at is null
          and h.state = 'running'
          and h.abandoned_at is null
          and h.keep = k.keep
          and h.created_at <= upto - k.keep
        order by h.created_at offset 0) h
      join onlyonce.leases l on l.id = h.lease_id
     where l.until + k.keep <= upto
     limit most for update of l skip locked
  loop
    if exists (select from onlyonce.http_steps s where s.record_id = r.id and s.done_at is null) then
      update onlyonce.http_records h set state = 'reconcile' where h.id = r.id and h.state = 'running';
      update onlyonce.leases l
         set epoch = l.epoch + 1, nonce = null
       where l.id = r.lease; -- a process that has just read the record cannot take it over
      aside := aside + 1;
    elsif exists (select from onlyonce.http_steps s where s.record_id = r.id) then
      update onlyonce.http_records h set abandoned_at = clock_timestamp() where h.id = r.id and h.state = 'running';
      abandoned := abandoned + 1;
    else
      delete from onlyonce.http_records h where h.id = r.id and h.state = 'running';
      delete from onlyonce.leases l where l.id = r.lease;
      deleted := deleted + 1;
    end if;
  end loop;
end $$;
comment on function onlyonce.http_abandon is
  'Handles requests in lease mode whose client did not come back: deletes those without a step, and '
  'shows the others to operators.';

-- The secrets of fingerprints, so that a process that has another secret under an id is recognized.
create table onlyonce.http_fingerprint_keys (
  id          bigint      primary key,
  check_value bytea       not null,
  created_at  timestamptz not null default clock_timestamp(),
  refused_at  timestamptz
);
comment on table  onlyonce.http_fingerprint_keys is
  'The secrets that requests are hashed with, by Config.FingerprintKeys. A secret itself is not kept.';
comment on column onlyonce.http_fingerprint_keys.check_value is
  'A keyed hash of the id, by the first process that had it. A process that gets another hash has another secret.';
comment on column onlyonce.http_fingerprint_keys.refused_at  is
  'When a process with another secret under the id was last refused. At most every 10 s.';

-- http_check_keys returns the ids under which the caller has another secret than processes before
-- it. If there are none, it writes the ids that are new. If all are known, it only reads, so that
-- it works on a standby too. If two processes bring different secrets under a new id, the second
-- insert waits for the first one's COMMIT. So whether ids are new is asked before the comparison:
-- that one, a later statement, sees each row that is not new (H30).
create function onlyonce.http_check_keys(ids bigint[], check_values bytea[]) returns bigint[]
language plpgsql as $$
declare
  missing boolean;
  changed bigint[];
begin
  loop
    missing := exists (select from unnest(ids) n (id)
                        where not exists (select from onlyonce.http_fingerprint_keys k where k.id = n.id));
    select coalesce(array_agg(k.id order by k.id), '{}') into changed
      from unnest(ids, check_values) n (id, check_value)
      join onlyonce.http_fingerprint_keys k using (id) where k.check_value <> n.check_value;
    exit when changed <> '{}' or not missing;
    insert into onlyonce.http_fingerprint_keys (id, check_value)
      select n.id, n.check_value from unnest(ids, check_values) n (id, check_value) order by 1 on conflict do nothing;
  end loop;
  if changed <> '{}' then
    update onlyonce.http_fingerprint_keys k set refused_at = clock_timestamp()
     where k.id = any (changed) and (k.refused_at is null or k.refused_at < clock_timestamp() - interval '10 seconds');
  end if;
  return changed;
end $$;
comment on function onlyonce.http_check_keys is
  'Compares the secrets of fingerprints with those of earlier processes, and returns the ids whose '
  'secret is another. Writes those of new ids.';

-- ---------------------------------------------------------------- operations

create table onlyonce.operations (
  id           uuid        primary key,
  record_id    uuid        not null,
  topic        text        not null collate "C",
  tenant       text        not null,
  principal    text        not null,
  name         text        not null,
  state        text        not null default 'running',
  result       bytea,
  sealed       boolean     not null default false,
  error_code   text,
  error_text   text,
  keep         interval    not null,
  created_at   timestamptz not null default clock_timestamp(),
  completed_at timestamptz,
  expires_at   timestamptz,
  watched_at   timestamptz,
  erased_at    timestamptz
);
comment on table  onlyonce.operations is
  'Operations whose requests were answered 202, and how they ended. The work itself is an event of onlyonce.event_log.';
comment on column onlyonce.operations.record_id is
  'Id of the request in onlyonce.http_records. That record does not expire before the operation has ended.';
comment on column onlyonce.operations.topic is 'Stream of its event, whose id is the operation''s.';
comment on column onlyonce.operations.state is
  'running, also while it waits to begin. succeeded, failed, cancelled: written in the transaction of the work.';
comment on column onlyonce.operations.keep is 'How long it is kept after its end.';
comment on column onlyonce.operations.watched_at is 'Watched time at its end, as in onlyonce.http_records.';
create index operations_expired on onlyonce.operations (expires_at);
create index operations_record on onlyonce.operations (record_id);
create index operations_running on onlyonce.operations (topic, tenant)
  where state = 'running' and topic is not null; -- as parked_due

-- A table of its own, because clients and Operation.Progress write it, and must not wait for the
-- transaction of the work, which locks the row in onlyonce.operations.
create table onlyonce.operation_signals (
  id         uuid        primary key references onlyonce.operations (id) on delete cascade,
  percent    smallint,
  text       text,
  updated_at timestamptz,
  cancel_at  timestamptz
);
comment on table  onlyonce.operation_signals is
  'The latest progress of each operation, and whether its client has cancelled it.';

-- http_erase erases a request's answer, the results of its steps, and what its operations keep:
-- result, text of the error, progress, and the event with their input, in the log and in parked
-- rows. The rows stay: copies of the request get 410, or the status of a refusal (H15). It returns
-- how many answers and operations it has erased. What is not completed is left as it is, because it
-- needs the results of its steps.
--
-- An operation that still runs needs its input, so it raises 55006; if one is about to commit its
-- end, it waits for that. A log is read whole, because only its offset finds an event by an index.
-- Locks the operations' rows (H19).
create function onlyonce.http_erase(record uuid) returns bigint
language plpgsql as $$
declare
  op     onlyonce.operations;
  erased bigint;
begin
  update onlyonce.http_records r set response = null, erased_at = clock_timestamp()
   where r.id = http_erase.record and r.state = 'completed' and r.erased_at is null;
  get diagnostics erased = row_count;
  if erased > 0 then
    update onlyonce.http_steps s set result = null where s.record_id = http_erase.record;
  end if;
  for op in select *
              from onlyonce.operations o
             where o.record_id = http_erase.record and o.erased_at is null order by o.id for update loop
    if op.state = 'running' then
      raise exception using errcode = '55006',
        message = format('onlyonce: operation %s of the request has not ended', op.id),
        hint = 'Erase the request again once it has.';
    end if;
    update onlyonce.operations o set result = null, error_text = null, erased_at = clock_timestamp() where o.id = op.id;
    update onlyonce.operation_signals s set text = null where s.id = op.id;
    update onlyonce.event_log l
       set body = null, header_names = '{}', header_values = '{}', erased_at = clock_timestamp()
      from onlyonce.streams t
     where t.topic = op.topic
       and l.stream = t.id
       and l.tenant = op.tenant
       and l.id = op.id::text
       and l.erased_at is null;
    update onlyonce.parked p set body = null, header_names = '{}', header_values = '{}', erased_at = clock_timestamp()
     where p.kind = 'event'
       and p.topic = op.topic
       and p.tenant = op.tenant
       and p.event_id = op.id::text
       and p.erased_at is null;
    erased := erased + 1;
  end loop;
  return erased;
end $$;
comment on function onlyonce.http_erase is
  'Erases the answer to a request, the results of its steps, and result and input of its operations.';
