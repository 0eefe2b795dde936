-- onlyonce schema, version 4: a log of events in the database, which consumers read like a topic, what the webhook receiver
-- remembers, and answers to HTTP requests, kept under their keys.

-- ---------------------------------------------------------------- streams

create table onlyonce.streams (
  id          integer generated always as identity primary key,
  topic       text        not null unique collate "C" check (topic ~ '^[A-Za-z0-9._-]{1,249}$'),
  incarnation uuid        not null default gen_random_uuid(),
  partitions  smallint    not null check (partitions between 1 and 1024),
  created_at  timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.streams is 'Topics of onlyonce.event_log.';
comment on column onlyonce.streams.incarnation is 'What onlyonce.cursors has as topic_id: a stream that is deleted and made again is another one.';
comment on column onlyonce.streams.partitions  is 'For good: which partition an event belongs to follows from it.';

create table onlyonce.event_log (
  slot          smallint    not null,
  stream        integer     not null,
  partition     smallint    not null,
  "offset"      bigint      not null,
  tenant        text        not null,
  id            text        not null,
  order_key     bytea,
  header_names  text[]      not null,
  header_values bytea[]     not null,
  body          bytea,
  appended_at   timestamptz not null default clock_timestamp(),
  erased_at     timestamptz
) partition by list (slot);
comment on table  onlyonce.event_log is 'Events, append-only: see onlyonce.append_events. Offsets of a partition are dense, and rise in the order of commits. A segment is emptied when every cursor has passed it.';
comment on column onlyonce.event_log.id        is 'Unique by the doing of who appends: consumers do not claim it again.';
comment on column onlyonce.event_log.order_key is 'What the event is about: it chose the partition. Null: the id did.';
comment on column onlyonce.event_log.erased_at is 'When headers and body were erased, after the event was handled.';

-- Unique within a segment, and so not on the parent, whose unique indexes must hold the slot in front.
do $$
begin
  for slot in 0 .. 5 loop
    execute format('create table onlyonce.event_log_%s partition of onlyonce.event_log for values in (%s)', slot, slot);
    execute format('create unique index event_log_%s_position on onlyonce.event_log_%s (stream, partition, "offset")', slot, slot);
    execute format('comment on table onlyonce.event_log_%s is %L', slot, 'Segment of onlyonce.event_log; onlyonce.rings says what it is used for.');
  end loop;
end $$;

insert into onlyonce.rings (name, slots) values ('events', 6);
insert into onlyonce.segments (ring, slot, use_no, opened_at)
  select 'events', s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end from generate_series(0, 5) s;
create sequence onlyonce.events_version start 1 cache 1;
select setval('onlyonce.events_version', 1); -- and never nextval, see onlyonce.outbox_version

create table onlyonce.stream_floors (
  stream      integer  not null,
  partition   smallint not null,
  next_offset bigint   not null,
  primary key (stream, partition)
);
comment on table onlyonce.stream_floors is 'Below next_offset a partition has had its offsets: written when a segment is emptied, because the partition may have nothing in the others.';

create table onlyonce.stream_offsets (
  group_id     text        not null,
  stream       integer     not null references onlyonce.streams (id) on delete cascade,
  partition    smallint    not null,
  "offset"     bigint      not null,
  metadata     text        not null,
  committed_at timestamptz not null default clock_timestamp(),
  primary key (group_id, stream, partition)
) with (fillfactor = 50);
comment on table onlyonce.stream_offsets is 'What a group has committed, as Kafka keeps it: for lag, and as a proof of membership. The position is in onlyonce.cursors.';

-- Which partition an event belongs to, by its ordering key or its id.
create function onlyonce.stream_partition(key bytea, partitions smallint) returns smallint
language sql immutable strict parallel safe as $$
  select (('x' || encode(substr(sha256(key), 1, 3), 'hex'))::bit(24)::integer % partitions)::smallint
$$;
comment on function onlyonce.stream_partition(bytea, smallint) is 'Partition of an ordering key, or of an event that has none by its id.';

-- Appends events in the caller's transaction. Arrays of one length, an event each, in their order; `parts` has the partition where it is
-- not to be chosen by key. The headers of all events stand in one array, those of event n from header_ends[n-1] + 1 to header_ends[n].
--
-- Offsets rise in the order of commits: a partition's lock is held from before its greatest offset is read until the transaction ends. So
-- call this late, and once: two calls in one transaction can deadlock with another one's two. Each step is a
-- statement of its own, because under READ COMMITTED a statement sees what had committed when it began:
--   1. the locks, sorted;
--   2. the greatest offset of each partition: whoever had the lock before has committed, or left nothing. This locks all segments against
--      being emptied until the transaction ends;
--   3. the floors: where a segment was emptied before 2 had its lock, its floor is seen here, and its rows were not needed there;
--   4. the segment to insert into, after the transaction id: see onlyonce.enqueue_calls.
-- Above READ COMMITTED all of them see what was there when the transaction began. Whoever has appended since is found by the unique
-- indexes, which do not go by snapshots: by trying the first offset of each partition in the segment that is inserted into, and in the one
-- that was before, which late writers still insert into. A segment that was announced or emptied since is found by the ring's sequence. 40001: run
-- the transaction again.
create function onlyonce.append_events(
  topics text[], parts smallint[], tenants text[], ids text[], order_keys bytea[], header_ends integer[], header_names text[],
  header_values bytea[], bodies bytea[]
) returns void
language plpgsql as $$
declare
  found_in onlyonce.streams;
  of       integer[];  -- of each event its stream,
  at       smallint[]; -- its partition,
  nth      integer[];  -- and where these two stand in pairs
  pairs    bigint[];   -- each stream and partition that there is, and
  nexts    bigint[];   -- the offset that it gives out next
  keys     integer[];  -- of the locks
  key      integer;
  pair     bigint;
  top      bigint;
  floor    bigint;
  ring     onlyonce.rings;
  seqscan  text := current_setting('enable_seqscan');
  sort     text := current_setting('enable_sort');
  ignored  text;
begin
  -- Loops of small statements, and none over arrays: mostly there is one event, and to start a plan of joins costs more than all the rest.
  for n in 1 .. cardinality(topics) loop
    if found_in.topic is distinct from topics[n] then
      select * into found_in from onlyonce.streams s where s.topic = topics[n];
      if not found then
        raise exception using errcode = 'OO009', message = format('onlyonce: there is no stream %L', topics[n]);
      end if;
    end if;
    of[n] := found_in.id;
    at[n] := coalesce(parts[n], onlyonce.stream_partition(coalesce(order_keys[n], convert_to(ids[n], 'UTF8')), found_in.partitions));
    keys[n] := (of[n] & 65535) << 15 | at[n];
  end loop;

  if cardinality(keys) > 1 then
    select array_agg(distinct u.k order by u.k) into keys from unnest(keys) u(k);
  end if;
  foreach key in array keys loop
    perform pg_advisory_xact_lock(1702260340, key);
  end loop;

  perform pg_current_xact_id();
  ignored := set_config('enable_seqscan', 'off', true) || set_config('enable_sort', 'off', true);
  for n in 1 .. cardinality(topics) loop
    pair := (of[n]::bigint << 16) | at[n];
    nth[n] := array_position(pairs, pair);
    if nth[n] is null then
      select l."offset" into top from onlyonce.event_log l where l.stream = of[n] and l.partition = at[n] order by l."offset" desc limit 1;
      select f.next_offset into floor from onlyonce.stream_floors f where f.stream = of[n] and f.partition = at[n];
      pairs := pairs || pair;
      nexts := nexts || greatest(coalesce(top + 1, 0), coalesce(floor, 0));
      nth[n] := cardinality(pairs);
    end if;
  end loop;
  ignored := set_config('enable_seqscan', seqscan, true) || set_config('enable_sort', sort, true);

  select * into ring from onlyonce.rings r where r.name = 'events';
  if current_setting('transaction_isolation') <> 'read committed' then
    begin
      insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, header_names, header_values)
        select v, (h.pair >> 16)::integer, (h.pair & 65535)::smallint, h.next, '', '', '{}', '{}'
          from unnest(pairs, nexts) h(pair, next), unnest(array_remove(array[ring.cur, ring.draining], null)) v;
      raise exception using errcode = 'OO000';
    exception
      when sqlstate 'OO000' then null;
      when unique_violation then
        raise exception using errcode = '40001', message = 'onlyonce: somebody has appended to the stream since this transaction began: run it again';
    end;
    if ring.version <> (select last_value from onlyonce.events_version) then
      raise exception using errcode = '40001', message = 'onlyonce: the event log changed its segment since this transaction began: run it again';
    end if;
  end if;

  for n in 1 .. cardinality(topics) loop
    insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, order_key, header_names, header_values, body)
      values (ring.cur, of[n], at[n], nexts[nth[n]], tenants[n], ids[n], order_keys[n],
              header_names[1 + coalesce(header_ends[n - 1], 0) : header_ends[n]], header_values[1 + coalesce(header_ends[n - 1], 0) : header_ends[n]],
              bodies[n]);
    nexts[nth[n]] := nexts[nth[n]] + 1;
  end loop;
end $$;
comment on function onlyonce.append_events(text[], smallint[], text[], text[], bytea[], integer[], text[], bytea[], bytea[]) is
  'Appends events to streams in the caller''s transaction; consumers read them after COMMIT, in the order of their offsets.';

-- Where a partition begins and where it ends: the first offset that is there, and the next one to be given out.
-- Whoever calls it has locked onlyonce.event_log before his snapshot was taken: emptying a segment is not bound by snapshots.
create function onlyonce.stream_bounds(stream integer, partition smallint, out first_offset bigint, out next_offset bigint)
language plpgsql stable as $$
begin
  select greatest(coalesce((select l."offset" + 1 from onlyonce.event_log l
                             where l.stream = stream_bounds.stream and l.partition = stream_bounds.partition order by l."offset" desc limit 1), 0),
                  coalesce((select f.next_offset from onlyonce.stream_floors f
                             where f.stream = stream_bounds.stream and f.partition = stream_bounds.partition), 0))
    into next_offset;
  select coalesce((select l."offset" from onlyonce.event_log l
                    where l.stream = stream_bounds.stream and l.partition = stream_bounds.partition order by l."offset" limit 1), next_offset)
    into first_offset;
end $$;
comment on function onlyonce.stream_bounds(integer, smallint) is 'First and next offset of a partition of the event log.';

-- Commits a group's offset under the lease of the partition, or raises OO001.
create function onlyonce.commit_stream_offset(
  lease bigint, epoch bigint, nonce uuid, group_id text, stream integer, partition smallint, "offset" bigint, metadata text
) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(commit_stream_offset.lease, commit_stream_offset.epoch, commit_stream_offset.nonce);
  insert into onlyonce.stream_offsets as o (group_id, stream, partition, "offset", metadata)
    values (commit_stream_offset.group_id, commit_stream_offset.stream, commit_stream_offset.partition, commit_stream_offset."offset",
            commit_stream_offset.metadata)
    on conflict on constraint stream_offsets_pkey
    do update set "offset" = excluded."offset", metadata = excluded.metadata, committed_at = excluded.committed_at;
end $$;
comment on function onlyonce.commit_stream_offset(bigint, bigint, uuid, text, integer, smallint, bigint, text) is
  'Commits a group''s offset in a partition of the event log, while the caller owns it; raises OO001 otherwise.';

-- ---------------------------------------------------------------- parked events

alter table onlyonce.parked add column event_id text;
comment on column onlyonce.parked.event_id is 'Id of an event, as onlyonce.event_log has it.';
alter table onlyonce.parked add column body_of bigint;
comment on column onlyonce.parked.body_of is 'Of reason same-body: the row that has the body, if this one is a further copy and has none. Null: its own.';
comment on column onlyonce.parked.kind   is 'message: from Kafka. call: from the outbox. event: from onlyonce.event_log, or set aside by a webhook receiver.';
comment on column onlyonce.parked.reason is 'failed, permanent, exhausted, crashed, behind, conflict or no-key for messages and events; same-body, divergent, stale or forward for events that a webhook receiver has set aside; failed, scheduled, behind, cut, completion, rejected, unopened or window for calls.';

drop trigger sealed on onlyonce.parked;
create constraint trigger sealed after update on onlyonce.parked
  deferrable initially deferred
  for each row when (old.state = 'retrying' and new.state = 'resolved' and new.kind <> 'call') execute function onlyonce.require_seal();

-- Has events appended that a receiver set aside without ever appending them: rows without an offset. Returns how many.
create function onlyonce.append_parked(ids bigint[]) returns bigint
language plpgsql as $$
declare
  r onlyonce.parked;
  n bigint := 0;
begin
  for r in select * from onlyonce.parked p where p.id = any (ids) and p.kind = 'event' and p.state = 'waiting' and p."offset" is null order by p.id for update loop
    if r.body_of is not null then
      select p.body into r.body from onlyonce.parked p where p.id = r.body_of;
      if r.body is null then
        raise exception using errcode = 'no_data_found',
          message = format('onlyonce: parked row %s has the body of row %s, which was erased or deleted', r.id, r.body_of);
      end if;
    end if;
    perform onlyonce.append_events(array[r.topic], array[null::smallint], array[r.tenant], array[r.event_id], array[r.record_key],
      array[cardinality(r.header_names)], array(select convert_from(h, 'UTF8') from unnest(r.header_names) with ordinality u(h, i) order by i),
      r.header_values, array[r.body]);
    update onlyonce.parked p set state = 'resolved', settled_at = clock_timestamp() where p.id = r.id;
    n := n + 1;
  end loop;
  return n;
end $$;
comment on function onlyonce.append_parked(bigint[]) is 'Appends to their streams events that a webhook receiver had set aside.';

-- ---------------------------------------------------------------- webhooks

create table onlyonce.webhook_ids (
  endpoint text        not null,
  key      uuid        not null,
  seen_at  timestamptz not null default clock_timestamp()
);
comment on table onlyonce.webhook_ids is 'When a receiver claimed which key in onlyonce.inbox: both are deleted when the endpoint''s retention has passed.';
create index webhook_ids_age on onlyonce.webhook_ids (endpoint, seen_at);

-- The receiver's transaction is fenced by the claim, and so a handler's own COMMIT of it is refused.
create constraint trigger sealed after insert on onlyonce.webhook_ids
  deferrable initially deferred
  for each row execute function onlyonce.require_seal();

create table onlyonce.webhook_bodies (
  endpoint  text        not null,
  digest    bytea       not null,
  seen_at   timestamptz not null,
  parked_id bigint,
  primary key (endpoint, digest)
);
comment on table onlyonce.webhook_bodies is 'SHA-256 of bodies that came lately to endpoints whose senders do not sign an event''s id.';
comment on column onlyonce.webhook_bodies.parked_id is 'The first copy that was set aside since then: it has the body, later ones name it. Null: none was.';
create index webhook_bodies_age on onlyonce.webhook_bodies (endpoint, seen_at);

create table onlyonce.webhook_objects (
  scope      text        not null,
  object     uuid        not null,
  version    bigint      not null,
  changed_at timestamptz not null default clock_timestamp(),
  primary key (scope, object)
) with (fillfactor = 70);
comment on table  onlyonce.webhook_objects is 'The greatest version of each object whose event was applied: events that arrive behind it are stale.';
comment on column onlyonce.webhook_objects.object is 'Hash of (tenant, scope, object key).';

create table onlyonce.webhook_endpoints (
  endpoint      text        primary key,
  reconciled_at timestamptz,
  aside_on      date,
  aside         bigint
);
comment on table  onlyonce.webhook_endpoints is 'What is remembered of a webhook endpoint.';
comment on column onlyonce.webhook_endpoints.reconciled_at is 'When the last complete reconciliation with the provider began.';

comment on column onlyonce.webhook_endpoints.aside_on      is 'Day, in UTC, of the last copy that was set aside for its body alone.';
comment on column onlyonce.webhook_endpoints.aside         is 'Bytes of such copies on that day.';

-- The first statement of a receiver's transaction: claims the event. Returns 0 fresh, 1 duplicate, 2 the same id with another body,
-- 3 another id with a body that came within the window. Waits for an uncommitted copy, at most `wait`: then 55P03. The transaction is
-- fenced by it, and needs onlyonce.seal() before COMMIT.
-- An id is claimed before a body, in that order everywhere, and a body's holder waits for no other: no two of these deadlock.
create function onlyonce.receive_webhook(
  endpoint text, key uuid, fingerprint bigint, digest bytea, body_window interval, wait text, lock_timeout text, statement_timeout text, idle_timeout text
) returns smallint
language plpgsql as $$
declare
  outcome smallint;
  ignored text;
begin
  ignored := set_config('lock_timeout', receive_webhook.wait, true)
          || set_config('statement_timeout', receive_webhook.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', receive_webhook.idle_timeout, true);
  outcome := (onlyonce.claim(array[receive_webhook.key], array[receive_webhook.fingerprint]))[1];
  if outcome = 0 then
    insert into onlyonce.webhook_ids (endpoint, key) values (receive_webhook.endpoint, receive_webhook.key);
    if receive_webhook.digest is not null then
      insert into onlyonce.webhook_bodies as b (endpoint, digest, seen_at)
        values (receive_webhook.endpoint, receive_webhook.digest, clock_timestamp())
        on conflict on constraint webhook_bodies_pkey do update set seen_at = clock_timestamp(), parked_id = null
          where b.seen_at < clock_timestamp() - receive_webhook.body_window;
      if not found then
        outcome := 3;
      end if;
    end if;
  end if;
  ignored := set_config('lock_timeout', receive_webhook.lock_timeout, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  return outcome;
end $$;
comment on function onlyonce.receive_webhook(text, uuid, bigint, bytea, interval, text, text, text, text) is
  'First statement of a webhook receiver''s transaction: 0 fresh, 1 duplicate, 2 same id with another body, 3 same body under another id.';

-- Whether an event is newer than what was applied of its object; notes it if so. One of the same version is, too: times of events are rarely
-- finer than a second. The object's row is locked until the transaction ends.
create function onlyonce.newer(scope text, object uuid, version bigint) returns boolean
language plpgsql as $$
begin
  insert into onlyonce.webhook_objects as o (scope, object, version)
    values (newer.scope, newer.object, newer.version)
    on conflict on constraint webhook_objects_pkey do update set version = excluded.version, changed_at = clock_timestamp()
      where o.version <= excluded.version;
  return found;
end $$;
comment on function onlyonce.newer(text, uuid, bigint) is 'Notes the version of an object, unless a greater one is noted: then false.';

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

insert into onlyonce.schema_version (version) values (4);
