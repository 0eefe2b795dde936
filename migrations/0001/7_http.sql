-- onlyonce schema, version 1: answers to HTTP requests, kept under their keys, and operations that go on after the answer.

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
  erased_at    timestamptz,
  abandoned_at timestamptz
);
comment on table  onlyonce.http_records is 'Requests that came with an Idempotency-Key: what the first one was answered. In transactional mode a record commits with the writes that it stands for.';
comment on column onlyonce.http_records.id           is 'onlyonce.key(tenant, scope, key): the key itself is not kept.';
comment on column onlyonce.http_records.scope        is 'Method, route and principal: "http POST /v1/charges acct_1".';
comment on column onlyonce.http_records.fingerprint  is 'Keyed hash of the request: the same key with another request is refused.';
comment on column onlyonce.http_records.token        is 'Random for each attempt: tells one whose COMMIT had no answer whether it was its own that came through.';
comment on column onlyonce.http_records.state        is 'running: a handler in lease mode works on it, or has left it. completed. reconcile: a step''s outcome is unknown and too old to ask about under its key.';
comment on column onlyonce.http_records.lease_id     is 'While running: whose it is. Null in transactional mode, where nobody sees a record that is not completed.';
comment on column onlyonce.http_records.response     is 'Status, headers and body as they are answered again; null while running.';
comment on column onlyonce.http_records.keep         is 'How long it is kept from its completion.';
comment on column onlyonce.http_records.expires_at   is 'From when on it counts as absent, by the database clock. Null: not completed.';
comment on column onlyonce.http_records.abandoned_at is 'Since when operators are shown that no client came back for it: its steps had their effect, and it was never completed. The next request goes on.';

-- What may be purged.
create index http_records_expired on onlyonce.http_records (expires_at);
-- What nobody has completed: a handful.
create index http_records_open on onlyonce.http_records (created_at) where completed_at is null;

create table onlyonce.http_steps (
  record_id uuid        not null references onlyonce.http_records (id) on delete cascade,
  name      text        not null,
  first_at  timestamptz not null default clock_timestamp(),
  done_at   timestamptz,
  result    bytea,
  sealed    boolean     not null default false,
  primary key (record_id, name)
);
comment on table  onlyonce.http_steps is 'External calls of handlers in lease mode: written before the first call, and again with its result.';
comment on column onlyonce.http_steps.sealed is 'Of a step without a result: whether the layer that began it seals.';
comment on column onlyonce.http_steps.first_at is 'Before the first call under the step''s key can have been made: the provider''s memory of it counts from here.';

-- A record in transactional mode is inserted completed, one in lease mode is completed by an update: neither may come through
-- without the engine's seal.
create constraint trigger sealed after insert or update of state on onlyonce.http_records
  deferrable initially deferred
  for each row when (new.state = 'completed') execute function onlyonce.require_seal();

-- First statement of a handler's transaction: its bounds, an id, and leave to seal it.
create function onlyonce.http_open(lock_timeout text, statement_timeout text, idle_timeout text) returns void
language plpgsql as $$
declare
  ignored text;
begin
  ignored := set_config('lock_timeout', http_open.lock_timeout, true)
          || set_config('statement_timeout', http_open.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', http_open.idle_timeout, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;
comment on function onlyonce.http_open(text, text, text) is 'Opens a handler''s transaction. It then needs onlyonce.seal() before COMMIT.';

-- The claim in transactional mode: 1 it is the caller's, 0 somebody else is at it, 2 it is completed already.
-- The lock is held until the transaction has ended, and is given back after its record is visible; so the record is looked for in
-- a statement behind the one that took the lock. It is tried and not waited for: a duplicate must not keep a connection for as long as the first one's
-- handler runs. Two keys that share 32 bits share a lock: one of them is told to come back.
-- Above READ COMMITTED the record may be invisible here; then onlyonce.http_complete finds it.
create function onlyonce.http_begin(id uuid, lock_timeout text, statement_timeout text, idle_timeout text) returns integer
language plpgsql as $$
begin
  perform onlyonce.http_open(http_begin.lock_timeout, http_begin.statement_timeout, http_begin.idle_timeout);
  if not pg_try_advisory_xact_lock(1869507706, ('x' || right(http_begin.id::text, 8))::bit(32)::integer) then
    return 0;
  end if;
  perform 1 from onlyonce.http_records r
    where r.id = http_begin.id and (r.expires_at is null or r.expires_at > clock_timestamp());
  return case when found then 2 else 1 end;
end $$;
comment on function onlyonce.http_begin(uuid, text, text, text) is 'Claims a key in transactional mode: 1 claimed, 0 somebody is at it, 2 it is completed.';

-- Writes the record in the transaction of the effects, last before the seal. Raises OO010 where one stands: it shares a round trip with COMMIT.
-- One that has expired is absent, and is replaced with its steps and its lease. Returns until when the record is kept.
create function onlyonce.http_complete(
  id uuid, tenant text, scope text, fingerprint bytea, token uuid, response bytea, sealed boolean, keep interval
) returns timestamptz
language plpgsql as $$
declare
  expired record;
  until   timestamptz := clock_timestamp() + http_complete.keep;
begin
  insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, response, sealed, keep, completed_at, expires_at)
    values (http_complete.id, http_complete.tenant, http_complete.scope, http_complete.fingerprint, http_complete.token, 'completed',
            http_complete.response, http_complete.sealed, http_complete.keep, clock_timestamp(), until)
    on conflict do nothing;
  if found then
    return until;
  end if;
  delete from onlyonce.http_records r where r.id = http_complete.id and r.expires_at <= clock_timestamp() returning r.lease_id into expired;
  if not found then
    raise exception using errcode = 'OO010', message = 'onlyonce: the request was answered by somebody else meanwhile';
  end if;
  delete from onlyonce.leases l where l.id = expired.lease_id;
  insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, response, sealed, keep, completed_at, expires_at)
    values (http_complete.id, http_complete.tenant, http_complete.scope, http_complete.fingerprint, http_complete.token, 'completed',
            http_complete.response, http_complete.sealed, http_complete.keep, clock_timestamp(), until);
  return until;
end $$;
comment on function onlyonce.http_complete(uuid, text, text, bytea, uuid, bytea, boolean, interval) is 'Keeps the answer in the transaction of its effects, or raises OO010.';

-- The claim in lease mode, a transaction of its own. One that has expired is absent.
-- Somebody else's uncommitted claim is waited for, for as long as a statement takes to commit.
create function onlyonce.http_claim(id uuid, tenant text, scope text, fingerprint bytea, token uuid, keep interval, ttl interval)
returns table (lease bigint, epoch bigint)
language plpgsql as $$
begin
  delete from onlyonce.http_records r where r.id = http_claim.id and r.expires_at <= clock_timestamp();
  insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep)
    values (http_claim.id, http_claim.tenant, http_claim.scope, http_claim.fingerprint, http_claim.token, 'running', http_claim.keep)
    on conflict do nothing;
  if not found then
    return;
  end if;
  insert into onlyonce.leases as l (name, epoch, nonce, until)
    values ('http/' || http_claim.id, 1, http_claim.token, clock_timestamp() + http_claim.ttl)
    on conflict on constraint leases_name_key do update set epoch = l.epoch + 1, nonce = excluded.nonce, until = excluded.until
    returning l.id, l.epoch into lease, epoch;
  update onlyonce.http_records r set lease_id = lease where r.id = http_claim.id;
  return next;
end $$;
comment on function onlyonce.http_claim(uuid, text, text, bytea, uuid, interval, interval) is 'Claims a key in lease mode: one row, the lease and its epoch; none where a record stands.';

-- Begins a step, a transaction of its own, before its call: so that one which may have been made is known of. first_at stays that of the
-- first attempt. seals says whether its result will be sealed, so that an operator who resolves the step knows. Raises OO001 for an owner that was replaced. late: the first attempt is older than the provider remembers.
create function onlyonce.http_step(lease bigint, epoch bigint, nonce uuid, record_id uuid, name text, within interval, seals boolean)
returns table (done boolean, result bytea, sealed boolean, late boolean)
language plpgsql as $$
begin
  perform onlyonce.hold(http_step.lease, http_step.epoch, http_step.nonce);
  insert into onlyonce.http_steps as s (record_id, name, sealed) values (http_step.record_id, http_step.name, http_step.seals)
    on conflict do nothing;
  return query select s.done_at is not null, s.result, s.sealed, s.done_at is null and s.first_at + within <= clock_timestamp()
                 from onlyonce.http_steps s where s.record_id = http_step.record_id and s.name = http_step.name;
end $$;
comment on function onlyonce.http_step(bigint, bigint, uuid, uuid, text, interval, boolean) is 'Begins a step of a request in lease mode, or returns the result that it had.';

create function onlyonce.http_step_done(lease bigint, epoch bigint, nonce uuid, record_id uuid, name text, result bytea, sealed boolean) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(http_step_done.lease, http_step_done.epoch, http_step_done.nonce);
  update onlyonce.http_steps s set done_at = clock_timestamp(), result = http_step_done.result, sealed = http_step_done.sealed
   where s.record_id = http_step_done.record_id and s.name = http_step_done.name and s.done_at is null;
end $$;
comment on function onlyonce.http_step_done(bigint, bigint, uuid, uuid, text, bytea, boolean) is 'Keeps a step''s result.';

-- Completes a record in lease mode, last before the seal. The lease is locked as late as this: its renewal would wait for the lock, and with it
-- those of all leases of the process. Who takes over waits for this transaction, and finds no lease behind it. Returns until when it is kept.
create function onlyonce.http_finish(id uuid, lease bigint, epoch bigint, nonce uuid, response bytea, sealed boolean) returns timestamptz
language plpgsql as $$
declare
  until timestamptz;
begin
  perform onlyonce.hold(http_finish.lease, http_finish.epoch, http_finish.nonce);
  update onlyonce.http_records r
     set state = 'completed', lease_id = null, token = http_finish.nonce, response = http_finish.response, sealed = http_finish.sealed,
         completed_at = clock_timestamp(), expires_at = clock_timestamp() + r.keep
   where r.id = http_finish.id and r.lease_id = http_finish.lease and r.state = 'running'
  returning r.expires_at into until;
  if not found then
    raise exception using errcode = 'OO001', message = 'onlyonce: fence lost: the request is somebody else''s';
  end if;
  delete from onlyonce.leases l where l.id = http_finish.lease;
  return until;
end $$;
comment on function onlyonce.http_finish(uuid, bigint, bigint, uuid, bytea, boolean) is 'Keeps the answer of a request in lease mode, and gives its lease up.';

-- Sets a request aside whose step has an unknown outcome. A transaction of its own.
create function onlyonce.http_reconcile(id uuid, lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(http_reconcile.lease, http_reconcile.epoch, http_reconcile.nonce);
  update onlyonce.http_records r set state = 'reconcile' where r.id = http_reconcile.id and r.lease_id = http_reconcile.lease and r.state = 'running';
end $$;
comment on function onlyonce.http_reconcile(uuid, bigint, bigint, uuid) is 'Sets a request aside for an operator.';

-- Gives a request in lease mode back whose answer is not kept: without a step it is as if it had never come, with one the next
-- request goes on where this one has stopped. The lease keeps when it ended: onlyonce.http_abandon counts from the last attempt.
create function onlyonce.http_release(id uuid, lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(http_release.lease, http_release.epoch, http_release.nonce);
  if exists (select from onlyonce.http_steps s where s.record_id = http_release.id) then
    update onlyonce.leases l set until = clock_timestamp(), nonce = null where l.id = http_release.lease;
  else
    delete from onlyonce.http_records r where r.id = http_release.id and r.lease_id = http_release.lease and r.state = 'running';
    delete from onlyonce.leases l where l.id = http_release.lease;
  end if;
end $$;
comment on function onlyonce.http_release(uuid, bigint, bigint, uuid) is 'Gives a request in lease mode back whose answer is not kept.';

-- Deletes at most `most` records that have expired, what their steps kept, and the leases of those that an operator has closed. Who holds one locked keeps it. Expiry is asked again
-- where it decides: a record may have been replaced since it was found.
create function onlyonce.http_purge(most integer) returns integer
language plpgsql as $$
declare
  purged integer;
begin
  with old as (
    select r.id from onlyonce.http_records r where r.expires_at <= clock_timestamp() order by r.expires_at limit most for update skip locked),
  gone as (
    delete from onlyonce.http_records r using old where r.id = old.id and r.expires_at <= clock_timestamp() returning r.lease_id),
  free as (
    delete from onlyonce.leases l using gone where l.id = gone.lease_id)
  select count(*) into purged from gone;
  return purged;
end $$;
comment on function onlyonce.http_purge(integer) is 'Deletes records of the HTTP layer that have expired, at most so many; returns how many.';

-- Sees to requests in lease mode whose client has not come back: whose last attempt ended longer ago than the record would be kept. Only one
-- without a step is as good as absent. One with a step is never deleted: its provider may have forgotten the step's key by now, so a client
-- that still asks would have the call made a second time. Where a step's outcome is unknown the request is set aside; where all are known it is
-- marked, so that operators see it, and the next request goes on with the results that are there. The lease is locked before the steps are
-- looked at, in a statement behind it: nobody takes it over or begins a step meanwhile.
create function onlyonce.http_abandon(most integer, out deleted integer, out aside integer, out abandoned integer)
language plpgsql as $$
declare
  r record;
begin
  deleted := 0;
  aside := 0;
  abandoned := 0;
  for r in
    select h.id, l.id as lease from onlyonce.http_records h join onlyonce.leases l on l.id = h.lease_id
     where h.completed_at is null and h.state = 'running' and l.until + h.keep <= clock_timestamp()
       and (h.abandoned_at is null or exists (select from onlyonce.http_steps s where s.record_id = h.id and s.done_at is null))
     order by h.created_at limit most for update of l skip locked
  loop
    if exists (select from onlyonce.http_steps s where s.record_id = r.id and s.done_at is null) then
      update onlyonce.http_records h set state = 'reconcile' where h.id = r.id and h.state = 'running';
      update onlyonce.leases l set epoch = l.epoch + 1, nonce = null where l.id = r.lease; -- who has just read the record does not take it over
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
comment on function onlyonce.http_abandon(integer) is 'Sees to requests in lease mode that no client came back for: deletes those without a step, and shows the others to operators.';

-- ---------------------------------------------------------------- operations

create table onlyonce.operations (
  id           uuid        primary key,
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
  expires_at   timestamptz
);
comment on table  onlyonce.operations is 'Work that was answered 202: what became of it. The work itself is an event of onlyonce.event_log.';
comment on column onlyonce.operations.state is 'running, also while it waits to begin. succeeded, failed, cancelled: written in the transaction of the work.';
comment on column onlyonce.operations.keep is 'How long it is kept from its end.';
create index operations_expired on onlyonce.operations (expires_at);

-- Apart from onlyonce.operations: whoever writes here must not wait for the work's transaction.
create table onlyonce.operation_signals (
  id         uuid        primary key references onlyonce.operations (id) on delete cascade,
  percent    smallint,
  text       text,
  updated_at timestamptz,
  cancel_at  timestamptz
);
comment on table  onlyonce.operation_signals is 'How far work has come, as it said last, and whether its client wants it no more.';
