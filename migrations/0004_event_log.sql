-- onlyonce schema, version 4: a log of events in the database, which consumers read like a topic, and what the webhook receiver
-- remembers.
--
-- It only adds: code written for version 3 goes on working beside code for version 4.

-- Claims lock the inbox before they read onlyonce.parked, and a later version, applied in the same transaction, locks the inbox: were it taken behind
-- onlyonce.parked, this and a batch would wait for each other.
lock table onlyonce.inbox in access exclusive mode;

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
  select (((get_byte(h, 0) << 16) | (get_byte(h, 1) << 8) | get_byte(h, 2)) % partitions)::smallint from (select sha256(key) as h) s
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
  of_stream integer[];
  of_part   smallint[];
  streams   integer[];
  nth       smallint[];
  tops      bigint[];
  ring      onlyonce.rings;
  seqscan   text := current_setting('enable_seqscan');
  sort      text := current_setting('enable_sort');
  ignored   text;
begin
  select array_agg(s.id order by u.n),
         array_agg(coalesce(u.p, onlyonce.stream_partition(coalesce(u.k, convert_to(u.i, 'UTF8')), s.partitions)) order by u.n)
    from unnest(topics, parts, ids, order_keys) with ordinality as u(t, p, i, k, n) left join onlyonce.streams s on s.topic = u.t
    into of_stream, of_part;
  if array_position(of_stream, null) is not null then
    raise exception using errcode = 'OO009', message = format('onlyonce: there is no stream %L', topics[array_position(of_stream, null)]);
  end if;

  perform pg_advisory_xact_lock(1702260340, l.k)
     from (select distinct (u.s & 65535) << 15 | u.p as k from unnest(of_stream, of_part) u(s, p) order by 1) l;

  perform pg_current_xact_id();
  ignored := set_config('enable_seqscan', 'off', true) || set_config('enable_sort', 'off', true);
  select array_agg(x.s), array_agg(x.p), array_agg(coalesce(top."offset" + 1, 0))
    from (select u.s, u.p from unnest(of_stream, of_part) u(s, p) group by u.s, u.p) x
    left join lateral (select l."offset" from onlyonce.event_log l where l.stream = x.s and l.partition = x.p
                        order by l."offset" desc limit 1) top on true
    into streams, nth, tops;
  ignored := set_config('enable_seqscan', seqscan, true) || set_config('enable_sort', sort, true);

  select array_agg(greatest(h.top, coalesce(f.next_offset, 0)) order by h.n)
    from unnest(streams, nth, tops) with ordinality as h(s, p, top, n)
    left join onlyonce.stream_floors f on f.stream = h.s and f.partition = h.p
    into tops;

  select * into ring from onlyonce.rings r where r.name = 'events';
  if current_setting('transaction_isolation') <> 'read committed' then
    begin
      insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, header_names, header_values)
        select v, h.s, h.p, h.top, '', '', '{}', '{}'
          from unnest(streams, nth, tops) h(s, p, top), unnest(array_remove(array[ring.cur, ring.draining], null)) v;
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

  insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, order_key, header_names, header_values, body)
    select ring.cur, u.s, u.p, h.top + row_number() over (partition by u.s, u.p order by u.n) - 1, u.tenant, u.id, u.k,
           header_names[1 + coalesce(header_ends[u.n - 1], 0) : header_ends[u.n]], header_values[1 + coalesce(header_ends[u.n - 1], 0) : header_ends[u.n]], u.b
      from unnest(of_stream, of_part, tenants, ids, order_keys, bodies) with ordinality as u(s, p, tenant, id, k, b, n)
      join unnest(streams, nth, tops) h(s, p, top) on h.s = u.s and h.p = u.p;
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
comment on column onlyonce.parked.kind   is 'message: from Kafka. call: from the outbox. event: from onlyonce.event_log, or set aside by a webhook receiver.';
comment on column onlyonce.parked.reason is 'failed, permanent, exhausted, crashed, behind, conflict or no-key for messages and events; same-body, divergent or stale for events that a webhook receiver has set aside; failed, scheduled, behind, cut, completion, rejected or window for calls.';

drop trigger sealed on onlyonce.parked;
create constraint trigger sealed after update on onlyonce.parked
  deferrable initially deferred
  for each row when (old.state = 'retrying' and new.state = 'resolved' and new.kind <> 'call') execute function onlyonce.require_seal();

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
  endpoint text        not null,
  digest   bytea       not null,
  seen_at  timestamptz not null,
  primary key (endpoint, digest)
);
comment on table onlyonce.webhook_bodies is 'SHA-256 of bodies that came lately to endpoints whose senders do not sign an event''s id.';
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
  reconciled_at timestamptz
);
comment on table  onlyonce.webhook_endpoints is 'What is remembered of a webhook endpoint.';
comment on column onlyonce.webhook_endpoints.reconciled_at is 'When the last complete reconciliation with the provider began.';

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
        on conflict on constraint webhook_bodies_pkey do update set seen_at = clock_timestamp()
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

insert into onlyonce.schema_version (version) values (4);
