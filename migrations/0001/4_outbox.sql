-- onlyonce schema, version 1: the outbox. It is an append-only log of batches of calls, which
-- relays read by lanes. Its segments are emptied whole.

insert into onlyonce.rings (name, slots) values ('outbox', 6);
insert into onlyonce.segments (ring, slot, use_no, opened_at)
  select 'outbox', s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end
    from generate_series(0, 5) s;
create sequence onlyonce.outbox_version start 1 cache 1;
-- Use setval, never nextval: nextval logs 32 numbers ahead, so that the sequence would have a
-- higher number after a crash and on a standby.
select setval('onlyonce.outbox_version', 1);

-- ---------------------------------------------------------------- the log

-- One sequence for all segments, without a cache. It is drawn once for each batch, and each draw
-- reserves 1,024 ids: the ids of a batch's calls follow its own. Within an ordering key, ids rise
-- in the order of commits, because the locks of all keys of a batch are held from before its id is
-- drawn until the commit.
create sequence onlyonce.outbox_id start 1024 increment 1024 cache 1;

-- octets returns the size of bodies in bytes, before any compression. In PL/pgSQL, because a
-- function in SQL is planned in each statement that calls it.
create function onlyonce.octets(bodies bytea[]) returns integer
language plpgsql immutable strict parallel safe as $$
declare
  body  bytea;
  total integer := 0;
begin
  foreach body in array bodies loop
    total := total + coalesce(octet_length(body), 0);
  end loop;
  return total;
end $$;
comment on function onlyonce.octets is 'Size of bodies in bytes: what onlyonce.batches.bytes holds.';

-- longest returns the size in bytes of the longest of some texts. In PL/pgSQL, as octets.
create function onlyonce.longest(texts text[]) returns integer
language plpgsql immutable strict parallel safe as $$
declare
  one  text;
  most integer := 0;
begin
  foreach one in array texts loop
    most := greatest(most, octet_length(one));
  end loop;
  return most;
end $$;
comment on function onlyonce.longest is 'Size in bytes of the longest of some texts.';

-- A row is a batch of calls that one transaction wrote to one lane. What all calls of the batch
-- have in common is in a column, for example `tenant`. What differs is in that column's plural, for
-- example `tenants`: an array with an element for each call. One of the two is null. Read calls
-- from the view onlyonce.outbox_log, or from onlyonce.calls.
create table onlyonce.batches (
  slot         smallint    not null,
  lane         smallint    not null,
  id           bigint      not null default nextval('onlyonce.outbox_id'),
  n            smallint    not null,
  bytes        integer     not null,
  xid          xid8        not null default pg_current_xact_id(),
  sink         text        not null collate "C",
  created_at   timestamptz not null default clock_timestamp(),
  keys         uuid[]      not null,
  order_key    uuid,
  order_keys   uuid[],
  order_prefix   bigint,
  order_prefixes bigint[],
  tenant       text,
  tenants      text[],
  scope        text,
  scopes       text[],
  name         text,
  names        text[],
  method       text,
  methods      text[],
  target       text,
  targets      text[],
  header       text,
  headers      text[],
  trace        text,
  traces       text[],
  body         bytea,
  bodies       bytea[],
  origin_time  timestamptz,
  origin_times timestamptz[],
  not_before   timestamptz[],
  redo         boolean[],
  capture      boolean[],
  sealed       boolean[],
  erased       timestamptz[]
) partition by list (slot);
alter sequence onlyonce.outbox_id owned by onlyonce.batches.id;
comment on table  onlyonce.batches is
  'The outbox''s log: outbound calls in batches, append-only. A batch commits with the effects that '
  'enqueue its calls. A column holds what all calls of the batch have in common, the array of its plural '
  'what differs. Relays read it with a snapshot cursor a lane, see onlyonce.lanes; what fails goes to '
  'onlyonce.parked.';
comment on column onlyonce.batches.id         is
  'Id of the first call. The others have the ids after it, all in one block of 1,024.';
comment on column onlyonce.batches.n          is 'How many calls.';
comment on column onlyonce.batches.bytes      is
  'Size of the bodies, before any compression: relays read batches in portions of it.';
comment on column onlyonce.batches.xid        is 'Transaction that wrote the batch, also within savepoints.';
comment on column onlyonce.batches.keys       is
  'Idempotency keys that the remote sees: derived, the same on every replay.';
comment on column onlyonce.batches.order_key  is
  'Hash of (sink, tenant, scope, ordering key). Null: the call waits for no other.';
comment on column onlyonce.batches.order_prefix is
  'Hash of (sink, prefix of the ordering key), for rates: see onlyonce.rates. Null: the ordering key has '
  'no prefix, or there is none.';
comment on column onlyonce.batches.header     is 'Headers of a call: a line "Name: value" for each, sorted by name.';
comment on column onlyonce.batches.trace      is
  'W3C trace context of the transaction that enqueues: traceparent, and tracestate in a second line. No '
  'part of the frozen bytes.';
comment on column onlyonce.batches.body       is 'Body of a batch of one call. Other batches have bodies.';
comment on column onlyonce.batches.origin_time is
  'When the message that caused the call was appended to its log. Null: no message did.';
comment on column onlyonce.batches.not_before is
  'When the calls may be made at the earliest. Null, of all or of one: at once.';
comment on column onlyonce.batches.redo       is
  'The message may have been handled before, in a history that the database has lost: the key''s age '
  'counts from origin_time. Null: false, as for capture and sealed.';
comment on column onlyonce.batches.capture    is 'The answer is kept for RelayConfig.Complete.';
comment on column onlyonce.batches.sealed     is 'The body is encrypted; see package seal.';
comment on column onlyonce.batches.erased     is 'When the body was erased, after the call was settled.';

do $$
declare
  parent constant regclass := 'onlyonce.batches';
  -- 0A000, feature_not_supported: the server was built without lz4. Its own compression, pglz,
  -- costs several times what it saves here, so that bodies are stored as they are then.
  how text := 'set compression lz4';
  part text;
  col text;
begin
  begin
    execute 'create temporary table onlyonce_lz4 (v text compression lz4) on commit drop';
  exception when feature_not_supported then
    how := 'set storage external';
  end;
  for slot in 0 .. 5 loop
    execute format(
      'create table onlyonce_segments.batches_%s partition of onlyonce.batches for values in (%1$s)',
      slot
    );
    execute format(
      'comment on table onlyonce_segments.batches_%s is %L',
      slot,
      'Segment of onlyonce.batches; onlyonce.rings says what it is used for.'
    );
  end loop;
  for part in
    select 'onlyonce.batches' union all select format('onlyonce_segments.batches_%s', s) from generate_series(0, 5) s
  loop
    for col in select attname
                 from pg_attribute
                where attrelid = parent and attnum > 0 and attstorage = 'x' and attname <> 'sink' loop
      execute format('alter table %s alter column %I %s', part, col, how);
    end loop;
  end loop;
end $$;

-- check_batch refuses a row that relays could not read, for example one of an INSERT by hand. CHECK
-- constraints would do the same, and cost twice what the INSERT itself does: the server reads and
-- compiles their text in each statement, and this function's once in a session.
--
-- An inserted row has its transaction's own id, and the id that its session drew last (O3). Those
-- who may update the log may write others, for example a restore of the data, or `onlyonce outbox
-- rebase`. Logical replication fires no trigger of this kind.
create function onlyonce.check_batch() returns trigger
language plpgsql as $$
declare
  broken  text;
  message text;
  -- How many of each column and its plural are given. Of the last four both may be missing.
  given   integer[] := array[num_nonnulls(new.tenant, new.tenants),
                             num_nonnulls(new.scope, new.scopes),
                             num_nonnulls(new.name, new.names),
                             num_nonnulls(new.method, new.methods),
                             num_nonnulls(new.target, new.targets),
                             num_nonnulls(new.header, new.headers),
                             num_nonnulls(new.body, new.bodies),
                             num_nonnulls(new.order_key, new.order_keys),
                             num_nonnulls(new.order_prefix, new.order_prefixes),
                             num_nonnulls(new.trace, new.traces),
                             num_nonnulls(new.origin_time, new.origin_times)];
  singles constant text := 'tenant scope name method target header body order_key order_prefix trace origin_time';
  -- How many elements each array has. The first eight hold no null.
  lengths integer[] := array[cardinality(new.keys),
                             cardinality(new.tenants),
                             cardinality(new.scopes),
                             cardinality(new.names),
                             cardinality(new.methods),
                             cardinality(new.targets),
                             cardinality(new.headers),
                             cardinality(new.bodies),
                             cardinality(new.order_keys),
                             cardinality(new.order_prefixes),
                             cardinality(new.traces),
                             cardinality(new.origin_times),
                             cardinality(new.not_before),
                             cardinality(new.redo),
                             cardinality(new.capture),
                             cardinality(new.sealed),
                             cardinality(new.erased)];
  arrays  constant text := 'keys tenants scopes names methods targets headers bodies order_keys '
                           'order_prefixes traces origin_times not_before redo capture sealed erased';
  -- Which of the first eight hold a null.
  holes   boolean[] := array[array_position(new.keys, null) is not null,
                             array_position(new.tenants, null) is not null,
                             array_position(new.scopes, null) is not null,
                             array_position(new.names, null) is not null,
                             array_position(new.methods, null) is not null,
                             array_position(new.targets, null) is not null,
                             array_position(new.headers, null) is not null,
                             array_position(new.bodies, null) is not null];
begin
  if not (new.n between 1 and 1024 and (new.id & 1023) + new.n <= 1024) then
    broken := 'batches_n';
    message := 'n must be from 1 to 1,024, and the ids of all its calls in one block of 1,024';
  elsif given[1:7] <> '{1,1,1,1,1,1,1}' or 2 = any (given) then
    broken := 'batches_one_of_two';
    for i in 1 .. cardinality(given) loop
      if given[i] = 2 or given[i] = 0 and i <= 7 then
        message := format(
          'of %s and its plural one must be null%s',
          split_part(singles, ' ', i),
          case when i <= 7 then ', and the other not' end
        );
        exit;
      end if;
    end loop;
  elsif new.body is not null and new.n > 1 then
    broken := 'batches_one_of_two';
    message := 'body is for one call, and bodies for several';
  elsif array_remove(array_remove(lengths, null), new.n::integer) <> '{}' then
    broken := 'batches_lengths';
    for i in 1 .. cardinality(lengths) loop
      if lengths[i] <> new.n then
        message := format('%s has %s elements, and n is %s', split_part(arrays, ' ', i), lengths[i], new.n);
        exit;
      end if;
    end loop;
  elsif true = any (holes) then
    broken := 'batches_no_nulls';
    message := format('%s must hold no null', split_part(arrays, ' ', array_position(holes, true)));
  elsif not (new.bytes = case
                           when new.body is null then onlyonce.octets(new.bodies)
                           else octet_length(new.body)
                         end
             and (new.n = 1 or new.bytes <= 2097152)) then
    broken := 'batches_bytes';
    message := 'bytes must be the size of the bodies, and of more than one call at most 2,097,152';
  elsif octet_length(new.tenant) > 1024 or octet_length(new.scope) > 1024
      or octet_length(array_to_string(new.tenants, '')) > 1024 and onlyonce.longest(new.tenants) > 1024
      or octet_length(array_to_string(new.scopes, '')) > 1024 and onlyonce.longest(new.scopes) > 1024 then
    broken := 'batches_texts'; -- a call that is parked, or waits for a rate, has them in indexes
    message := 'tenant and scope must have at most 1,024 bytes';
  elsif tg_op = 'INSERT' and not has_table_privilege('onlyonce.batches'::regclass, 'UPDATE')
      and (new.xid <> pg_current_xact_id() or new.id <> currval('onlyonce.outbox_id'::regclass)) then
    broken := 'batches_own_numbers';
    message := 'xid must be that of the transaction, and id the next one of onlyonce.outbox_id';
  end if;
  if broken is not null then
    raise exception using errcode = 'check_violation',
      schema = 'onlyonce',
      table = 'batches',
      constraint = broken,
      message = 'onlyonce: batches: ' || message;
  end if;
  return new;
end $$;
comment on function onlyonce.check_batch is 'Trigger: refuses a batch that relays could not read.';
create trigger sound before insert or update on onlyonce.batches for each row execute function onlyonce.check_batch();

-- batches_new finds what is new in a lane. No index finds a call by its key: see call_keys.
create index batches_new on onlyonce.batches (sink, lane, xid, id);

create view onlyonce.outbox_log as
  select b.slot,
         b.lane,
         b.id + u.i - 1 as id,
         b.id as batch,
         b.xid,
         u.key,
         coalesce(u.order_key, b.order_key) as order_key,
         coalesce(u.order_prefix, b.order_prefix) as order_prefix,
         b.created_at,
         u.not_before,
         coalesce(u.origin_time, b.origin_time) as origin_time,
         coalesce(u.redo, false) as redo,
         coalesce(u.capture, false) as capture,
         coalesce(u.sealed, false) as sealed,
         b.sink,
         coalesce(u.tenant, b.tenant) as tenant,
         coalesce(u.scope, b.scope) as scope,
         coalesce(u.name, b.name) as name,
         coalesce(u.method, b.method) as method,
         coalesce(u.target, b.target) as target,
         coalesce(u.headers, b.header) as headers,
         coalesce(u.trace, b.trace) as trace,
         coalesce(u.body, b.body) as body,
         u.erased as erased_at
    from onlyonce.batches b
   cross join lateral unnest(
     b.keys,
     b.order_keys,
     b.order_prefixes,
     b.not_before,
     b.origin_times,
     b.redo,
     b.capture,
     b.sealed,
     b.tenants,
     b.scopes,
     b.names,
     b.methods,
     b.targets,
     b.headers,
     b.traces,
     b.bodies,
     b.erased
   )
         with ordinality as u(key, order_key, order_prefix, not_before, origin_time, redo, capture, sealed,
                              tenant, scope, name, method, target, headers, trace, body, erased, i);
comment on view onlyonce.outbox_log is
  'The calls of onlyonce.batches, a row for each. Conditions on sink, lane and xid use its index; one on '
  'key reads the whole log.';
comment on column onlyonce.outbox_log.batch       is 'Id of the batch that holds the call.';
comment on column onlyonce.outbox_log.key         is
  'Idempotency key that the remote sees: derived, the same on every replay.';
comment on column onlyonce.outbox_log.order_key   is
  'Hash of (sink, tenant, scope, ordering key). Null: the call waits for no other.';
comment on column onlyonce.outbox_log.order_prefix is 'Hash of (sink, prefix of the ordering key), see onlyonce.rates.';
comment on column onlyonce.outbox_log.origin_time is
  'When the message that asks for the call was appended to its log. Null: there is none.';
comment on column onlyonce.outbox_log.headers     is 'A line "Name: value" for each, sorted by name.';
comment on column onlyonce.outbox_log.erased_at   is 'When the body was erased, after the call was settled.';

-- ---------------------------------------------------------------- calls by their keys

-- A call is looked for by its key only if its message may have been handled before, for example in
-- a replay. So keys are indexed when a replay asks, and not when a call is written, which would
-- cost as much again. call_keys holds the calls that were visible in call_index.snapshot. A search
-- reads the calls that became visible later from the log itself, by lane and transaction, as a
-- relay does.
create table onlyonce.call_keys (
  slot  smallint not null,
  lane  smallint not null,
  key8  bigint   not null,
  xid   xid8     not null,
  batch bigint   not null
) partition by list (slot);
comment on table  onlyonce.call_keys is
  'Batches of the log by the first 8 bytes of their calls'' keys, as far as onlyonce.index_calls has '
  'come. A segment is emptied together with that of the log.';
create index call_keys_key8 on onlyonce.call_keys (key8);
do $$
begin
  for slot in 0 .. 5 loop
    execute format(
      'create table onlyonce_segments.call_keys_%s partition of onlyonce.call_keys for values in (%1$s)',
      slot
    );
    execute format(
      'comment on table onlyonce_segments.call_keys_%s is %L',
      slot,
      'Segment of onlyonce.call_keys, emptied with the segment of onlyonce.batches.'
    );
  end loop;
end $$;
create table onlyonce.call_index (
  one       boolean     primary key default true check (one),
  snapshot  pg_snapshot not null default '1:1:',
  system_id bigint,
  target    pg_snapshot,
  at_sink   text        not null default '' collate "C",
  at_lane   smallint    not null default 0,
  at_xid    xid8        not null default '0',
  at_id     bigint      not null default 0
);
insert into onlyonce.call_index default values;
comment on table  onlyonce.call_index is 'How far onlyonce.call_keys has come. One row.';
comment on column onlyonce.call_index.target    is
  'What is being noted, a portion at a time: batches visible in it. Null: nothing is.';
comment on column onlyonce.call_index.at_sink   is
  'Lane up to which target is noted, with at_lane. In this lane it is up to at_xid and at_id.';
comment on column onlyonce.call_index.snapshot  is 'Batches visible in it are in onlyonce.call_keys.';
comment on column onlyonce.call_index.system_id is
  'Database cluster that the snapshot is of. In any other it means nothing, and the whole log is read.';

create function onlyonce.key8(key uuid) returns bigint
language sql immutable strict parallel safe as $$
  select ('x' || encode(substr(uuid_send(key), 1, 8), 'hex'))::bit(64)::bigint
$$;
comment on function onlyonce.key8 is 'First 8 bytes of a key, see onlyonce.call_keys.';

-- indexed_calls returns the snapshot whose calls are in onlyonce.call_keys. After a restore into
-- another cluster that is none, until onlyonce.index_calls has run there.
create function onlyonce.indexed_calls() returns pg_snapshot
language sql stable as $$
  select coalesce(
    (select x.snapshot from onlyonce.call_index x, pg_control_system() c
      where x.system_id = c.system_identifier
        and pg_snapshot_xmax(x.snapshot) <= pg_snapshot_xmax(pg_current_snapshot())),
    '1:1:'
  )
$$;
comment on function onlyonce.indexed_calls is
  'The snapshot whose calls are in onlyonce.call_keys, if it is one of this cluster.';

create function onlyonce.log_sinks() returns setof text
language sql stable as $$
  with recursive sinks as (
    (select b.sink from onlyonce.batches b order by b.sink limit 1)
    union all
    select (select b.sink from onlyonce.batches b where b.sink > s.sink order by b.sink limit 1)
      from sinks s where s.sink is not null)
  select s.sink from sinks s where s.sink is not null
$$;
comment on function onlyonce.log_sinks is 'Sinks of which the log holds calls.';

-- index_calls records the keys of calls that became visible since it last recorded all: `most` keys
-- or somewhat more. It returns whether none are left. Call it until it returns true, each time in a
-- transaction of its own, because it locks the row of call_index until the transaction ends. In
-- portions, because the log may be large: one statement would reach its bound, and begin anew.
--
-- As a relay does, it works in passes, each between two snapshots. The snapshot is taken before the
-- statements that read: they see what the snapshot counts as ended. Transactions that were in
-- progress at the snapshot before are looked for by their ids, at the begin of the pass. The others
-- are read lane by lane, by transaction and id. Notes of another cluster are left: by their
-- transaction ids nothing is found, or what they mean.
--
-- It reads a lane in the order of batches_new and stops at the portion's end. Without the last two
-- settings the planner, which expects few rows after the place, reads the whole lane and sorts it:
-- 560 ms of 10 million calls in place of 33.
--
-- It runs with its owner's rights: the role that handles messages must not write the table that
-- says which calls exist (T13, O1).
create function onlyonce.index_calls(most integer) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off
set enable_bitmapscan = off set enable_sort = off as $$
declare
  x       onlyonce.call_index;
  cluster bigint := (select c.system_identifier from pg_control_system() c);
  l       record;
  b       record;
  noted   integer := 0;
begin
  select * into x from onlyonce.call_index for update;
  if x.system_id is distinct from cluster
     or pg_snapshot_xmax(coalesce(x.target, x.snapshot)) > pg_snapshot_xmax(pg_current_snapshot()) then
    x.snapshot := '1:1:'; x.target := null; x.system_id := cluster;
  end if;
  if x.target is null then
    x.target := pg_current_snapshot(); x.at_sink := ''; x.at_lane := 0; x.at_xid := '0'; x.at_id := 0;
    if pg_snapshot_xmin(x.snapshot) < pg_snapshot_xmax(x.snapshot) then
      insert into onlyonce.call_keys (
        slot,
        lane,
        key8,
        xid,
        batch
      )
        select o.slot,
               o.lane,
               onlyonce.key8(k),
               o.xid,
               o.id
          from onlyonce.log_sinks() s (sink)
         cross join generate_series(0, 15) n(lane)
         cross join pg_snapshot_xip(x.snapshot) w(xid)
         cross join lateral (
           select c.slot,
                  c.lane,
                  c.xid,
                  c.id,
                  c.keys
             from onlyonce.batches c where c.sink = s.sink and c.lane = n.lane and c.xid = w.xid offset 0) o
         cross join lateral unnest(o.keys) k
         where pg_visible_in_snapshot(w.xid, x.target);
    end if;
  end if;
  for l in
    select s.sink, n.lane::smallint from onlyonce.log_sinks() s (sink) cross join generate_series(0, 15) n(lane)
     where (s.sink collate "C", n.lane) >= (x.at_sink collate "C", x.at_lane::integer)
     order by s.sink collate "C", n.lane
  loop
    if (l.sink collate "C", l.lane) <> (x.at_sink collate "C", x.at_lane) then
      x.at_sink := l.sink; x.at_lane := l.lane; x.at_xid := '0'; x.at_id := 0;
    end if;
    for b in
      select c.slot, c.xid, c.id, c.keys from onlyonce.batches c
       where c.sink = l.sink
         and c.lane = l.lane
         and c.xid >= pg_snapshot_xmax(x.snapshot)
         and c.xid < pg_snapshot_xmax(x.target)
         and (c.xid, c.id) > (x.at_xid, x.at_id) and pg_visible_in_snapshot(c.xid, x.target)
       order by c.xid, c.id
    loop
      exit when noted >= most;
      insert into onlyonce.call_keys (
        slot,
        lane,
        key8,
        xid,
        batch
      )
        select b.slot,
               l.lane,
               onlyonce.key8(k),
               b.xid,
               b.id
          from unnest(b.keys) k;
      x.at_xid := b.xid; x.at_id := b.id;
      noted := noted + cardinality(b.keys);
    end loop;
    exit when noted >= most;
  end loop;
  if noted < most then
    x.snapshot := x.target; x.target := null;
  end if;
  update onlyonce.call_index i
     set snapshot = x.snapshot,
         system_id = x.system_id,
         target = x.target,
         at_sink = x.at_sink,
         at_lane = x.at_lane,
         at_xid = x.at_xid,
         at_id = x.at_id;
  return noted < most;
end $$;
comment on function onlyonce.index_calls is
  'Records the keys of a portion of the calls in onlyonce.call_keys, so that a replay finds them; returns '
  'whether none are left. Each call is a transaction of its own.';

-- ---------------------------------------------------------------- sinks and lanes

create table onlyonce.sinks (
  name         text        primary key collate "C",
  created_at   timestamptz not null default clock_timestamp(),
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  start_window interval
);
comment on table  onlyonce.sinks is 'Sinks that a relay has listed.';
comment on column onlyonce.sinks.start_window is
  'How long after a call''s first attempt relays start another one under its key, by the last relay that '
  'listed the sink. Null: for ever.';
comment on column onlyonce.sinks.paused_at is
  'Set by `onlyonce outbox pause`: no call is started until it is resumed. Null: not paused.';

create table onlyonce.sink_lanes (
  id   bigint   primary key references onlyonce.leases (id) on delete cascade,
  sink text     not null collate "C" references onlyonce.sinks (name) on delete cascade,
  lane smallint not null,
  unique (sink, lane)
);
comment on table onlyonce.sink_lanes is 'The lanes of each sink, and their leases. Each has one row in lane_cursors.';

-- lane_cursors has one row of each lane, which moves many times a second. While another transaction
-- holds a snapshot, vacuum removes none of its earlier versions: a look by the lane alone would
-- pass over all of them, 80,000 in an hour. So the key ends with the version, and each look begins
-- with the greatest (onlyonce.lanes), or names the one that it knows.
create table onlyonce.lane_cursors (
  id         bigint      not null references onlyonce.sink_lanes (id) on delete cascade,
  version    bigint      not null default 0,
  prev       pg_snapshot not null default '1:1:',
  target     pg_snapshot,
  last_id    bigint      not null default 0,
  started_at timestamptz not null default clock_timestamp(),
  server     timestamptz,
  system_id  bigint,
  timeline   text,
  history_at timestamptz,
  written    xid8        not null default pg_current_xact_id(),
  primary key (id, version)
);
comment on table  onlyonce.lane_cursors is
  'How far a lane of a sink has been sent. Calls visible in prev are done. Of those that are visible in '
  'target and not in prev (the pass), those up to last_id are done; it may be in the middle of a batch.';
comment on column onlyonce.lane_cursors.version    is 'Rises with each change; every change compares it.';
comment on column onlyonce.lane_cursors.target     is 'Null: no pass was ever begun.';
comment on column onlyonce.lane_cursors.started_at is
  'Journal: of the pass, only the first 1,024 calls above last_id can have been called, and none before '
  'this time. Infinity: none was.';
comment on column onlyonce.lane_cursors.server     is
  'Start time of the server that the cursor was last moved on. If it differs, system identifier, history '
  'and transaction ids are compared again.';
comment on column onlyonce.lane_cursors.timeline   is
  'onlyonce.history() when the cursor was last moved on another server or after a restart.';
comment on column onlyonce.lane_cursors.written    is
  'Transaction that wrote this row. If the row''s xmin is another, the row was copied, and transaction '
  'ids do not go on here.';
comment on column onlyonce.lane_cursors.history_at is
  'When a relay first saw this system identifier and history: a failover or a restore may have lost what '
  'committed before.';

-- Of v.id = l.id the planner expects one row, reads all versions, and sorts them. So the view asks for
-- the last row up to the lane's, which only the index gives without reading all.
create view onlyonce.lanes as
  select l.id,
         l.sink,
         l.lane,
         c.version,
         c.prev,
         c.target,
         c.last_id,
         c.started_at,
         c.server,
         c.system_id,
         c.timeline,
         c.history_at,
         c.written,
         c.copied
    from onlyonce.sink_lanes l
   cross join lateral (
     select v.*, v.xmin <> v.written::xid as copied
       from onlyonce.lane_cursors v
      where v.id <= l.id
      order by v.id desc, v.version desc limit 1) c
   where c.id = l.id;
comment on view onlyonce.lanes is 'The lanes of each sink, with their cursors. Copied: by a dump or by replication.';

-- rates has the rates of sinks, of their tenants, and of prefixes of ordering keys, each with a
-- bucket of permits that all relays of the sink share; how many calls they may have under way at
-- once; and until when a remote has asked for no calls. A call counts for its sink, and for one
-- more at most: for its ordering key's prefix if that has a rate, or else for its tenant.
--
-- A call that waits says whose rate it waits for (onlyonce.parked.waits_for), and not which row: if
-- there is no row, or nothing is set in it, nothing limits the call any more.
create table onlyonce.rates (
  sink       text             not null collate "C",
  calls_of   text             not null default '' collate "C" check (calls_of ~ '^($|tenants$|tenant |key .*[:/]$)'),
  order_prefix bigint         check ((order_prefix is not null) = (calls_of like 'key %')),
  configured double precision check (configured > 0 and configured <= 1e6),
  per_second double precision check (per_second > 0 and per_second <= 1e6),
  configured_in_flight integer check (configured_in_flight > 0 and configured_in_flight <= 1000000),
  in_flight  integer          check (in_flight > 0 and in_flight <= 1000000),
  set_at     timestamptz,
  set_by     text,
  reason     text,
  permits    double precision not null default 1,
  filled_at  timestamptz      not null default clock_timestamp(),
  held_until timestamptz,
  held_why   text,
  primary key (sink, calls_of)
) with (fillfactor = 50);
-- rates_limits has those that limit or hold calls, and not the buckets of tenants that have no rate
-- of their own.
create index rates_limits on onlyonce.rates (sink)
 where per_second is not null
   or configured is not null
   or in_flight is not null
   or configured_in_flight is not null
   or held_until is not null;
comment on table  onlyonce.rates is
  'How many calls a second relays start to a sink, for one of its tenants, or for ordering keys with a '
  'prefix, and how many they may have under way.';
comment on column onlyonce.rates.calls_of   is
  'Whose calls. Empty: all of the sink. ''tenant acme'': the tenant acme''s. ''tenants'': each tenant''s '
  'without a rate of its own, whose bucket is then a row without a rate. ''key account-17:'': those whose '
  'ordering keys begin with ''account-17:''.';
comment on column onlyonce.rates.order_prefix is 'Of a prefix: its hash, as onlyonce.batches.order_prefix has it.';
comment on column onlyonce.rates.configured is
  'Calls a second, by RelayConfig.Rates of the relay that was started last. Null: no limit.';
comment on column onlyonce.rates.per_second is
  'Calls a second, set by `onlyonce outbox rate`. It counts instead of `configured`. Null: that one counts.';
comment on column onlyonce.rates.configured_in_flight is
  'Calls under way at once, by RelayConfig.Rates of the relay that was started last. Null: no limit.';
comment on column onlyonce.rates.in_flight  is
  'Calls under way at once, set by `onlyonce outbox rate`. It counts instead of `configured_in_flight`. '
  'Null: that one counts.';
comment on column onlyonce.rates.permits    is 'Calls that relays may start, as of filled_at.';
comment on column onlyonce.rates.held_until is
  'Relays start no calls until then. Null, past, or more than an hour ahead: they may.';
comment on column onlyonce.rates.held_why   is 'Why they do not. Null: the remote has asked for it (Retry-After).';

-- shares has which part of the calls that may be under way each relay may have. Their sum is at
-- most that number, unless it was lowered while calls were under way. A relay that died keeps its
-- share for ten seconds.
create table onlyonce.shares (
  sink   text        not null collate "C",
  calls_of text      not null collate "C",
  relay  uuid        not null,
  share  integer     not null,
  wants  integer     not null,
  since  timestamptz not null,
  until  timestamptz not null,
  asked  bigint      not null,
  primary key (sink, calls_of, relay)
) with (fillfactor = 50);
comment on table  onlyonce.shares is 'Which part of onlyonce.rates.in_flight each relay may use.';
comment on column onlyonce.shares.share is 'How many calls the relay may have under way.';
comment on column onlyonce.shares.wants is 'How many it would like to have.';
comment on column onlyonce.shares.since is 'Of a share of 0: since when the relay waits.';
comment on column onlyonce.shares.until is 'The share is the relay''s until then, unless it asks again.';
comment on column onlyonce.shares.asked is
  'The number of the relay''s request that was answered last. An earlier one that arrives later is ignored.';

-- take_share returns how many calls a relay may have under way, and records it for ten seconds.
-- `most` is how many all relays together may have, `held` how many this one may have had until now,
-- `wants` how many it would like to have. `asked` numbers its requests: if a later one was answered
-- before, it returns null. Relays that ask for as much get an equal part, and what one does not
-- want goes to the others. Nothing that a relay holds is taken away: if the result is less, it
-- starts no call until it has fewer under way, and asks again. With more relays than calls, the one
-- that has waited longest is next. The caller has locked the row of onlyonce.rates (O15).
create function onlyonce.take_share(
  sink text,
  calls_of text,
  relay uuid,
  asked bigint,
  most integer,
  held integer,
  wants integer
) returns integer
language plpgsql as $$
declare
  at     timestamptz := clock_timestamp();
  mine   onlyonce.shares;
  waits  timestamptz;
  others bigint;
  used   bigint;
  first  bigint;
  kept   bigint;
  fair   bigint;
  wanted integer;
  result integer;
begin
  delete from onlyonce.shares s where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.until <= at;
  update onlyonce.shares s set until = at + interval '10 seconds', since = least(s.since, at) -- the clock was set back
   where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.until > at + interval '1 minute';
  select s.*
    into mine
    from onlyonce.shares s
   where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.relay = take_share.relay;
  if mine.asked >= take_share.asked then
    return null;
  end if;
  if take_share.wants = 0 and take_share.held = 0 then
    delete from onlyonce.shares s
     where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.relay = take_share.relay;
    return 0;
  end if;
  waits := case when mine.share = 0 and take_share.held = 0 then mine.since else at end;
  select count(*), coalesce(sum(s.share), 0), count(*) filter (where s.share = 0 and s.since < waits)
    into others, used, first
    from onlyonce.shares s
   where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.relay <> take_share.relay;
  -- Those that want less than an equal part leave the rest to the others.
  fair := take_share.most;
  others := others + 1;
  for wanted in select s.wants
                  from onlyonce.shares s
                 where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.relay <> take_share.relay
                union all select take_share.wants order by 1 loop
    exit when wanted > fair / others;
    fair := fair - wanted;
    others := others - 1;
  end loop;
  fair := greatest(fair / greatest(others, 1), 1);
  select coalesce(sum(greatest(s.share, least(s.wants, fair))), 0) into kept
    from onlyonce.shares s
   where s.sink = take_share.sink and s.calls_of = take_share.calls_of and s.relay <> take_share.relay;
  result := greatest(
    least(take_share.wants, greatest(fair, take_share.most - kept), take_share.most - used - first),
    0
  );
  insert into onlyonce.shares as s (
    sink,
    calls_of,
    relay,
    share,
    wants,
    since,
    until,
    asked
  )
  values (
    take_share.sink,
    take_share.calls_of,
    take_share.relay,
    greatest(result, take_share.held),
    take_share.wants,
    waits,
    at + interval '10 seconds',
    take_share.asked
  )
  on conflict on constraint shares_pkey do update
      set share = excluded.share,
          wants = excluded.wants,
          since = excluded.since,
          until = excluded.until,
          asked = excluded.asked;
  return result;
end $$;
comment on function onlyonce.take_share is 'Takes a relay''s part of the calls that may be under way.';

-- take_permits takes permits out of the buckets of a sink: at most `wanted` for each of
-- `limits`, which are names as in onlyonce.rates.calls_of. One call of it serves many calls. A
-- bucket fills at the rate, up to half a second's worth, and always up to one. Rows are locked in
-- the order of names until the transaction ends. If the clock was set back by more than a minute,
-- the bucket goes on from what it had. What has no rate is left out. wait: microseconds until the
-- bucket has a permit. share: how many calls the relay may have under way; null: no number is set,
-- or a later request was answered before (O14, O15).
create function onlyonce.take_permits(
  sink text,
  relay uuid,
  asked bigint,
  limits text[],
  wanted integer[],
  held integer[],
  wants integer[]
)
returns table (calls_of text, granted integer, wait bigint, share integer)
language plpgsql as $$
declare
  e    onlyonce.rates; -- of each tenant
  r    onlyonce.rates;
  at   timestamptz;
  per  double precision;
  most integer;
  has  double precision;
  n    integer;
begin
  select x.* into e from onlyonce.rates x
   where x.sink = take_permits.sink
     and x.calls_of = 'tenants'
     and coalesce(x.per_second, x.configured, x.in_flight, x.configured_in_flight) is not null;
  if found then
    insert into onlyonce.rates (sink, calls_of)
      select take_permits.sink, l
        from unnest(take_permits.limits) l where l like 'tenant %' order by l collate "C" on conflict do nothing;
  end if;
  for r in
    select x.*
      from onlyonce.rates x
     where x.sink = take_permits.sink
       and x.calls_of = any (take_permits.limits)
       and (coalesce(x.per_second, x.configured, x.in_flight, x.configured_in_flight) is not null
            or e.sink is not null and x.calls_of like 'tenant %')
     order by x.calls_of for no key update
  loop
    if coalesce(r.per_second, r.configured, r.in_flight, r.configured_in_flight) is not null then
      per := coalesce(r.per_second, r.configured);
      most := coalesce(r.in_flight, r.configured_in_flight);
    else
      per := coalesce(e.per_second, e.configured);
      most := coalesce(e.in_flight, e.configured_in_flight);
    end if;
    n := array_position(take_permits.limits, r.calls_of);
    calls_of := r.calls_of;
    granted := 0;
    wait := 0;
    share := null;
    if per is not null then
      per := greatest(per, 1e-9); -- a call in 31 years: waits for less fit no number
      at := clock_timestamp();
      has := least(greatest(per / 2, 1), r.permits + per * greatest(extract(epoch from at - r.filled_at), 0));
      granted := least(take_permits.wanted[n], floor(has));
      if r.held_until > at and r.held_until <= at + interval '1 hour' then
        granted := 0;
        wait := extract(epoch from r.held_until - at) * 1000000;
      elsif has - granted < 1 then
        wait := ceil((1 - has + granted) / per * 1000000);
      end if;
      update onlyonce.rates x
         set permits = has - granted,
             filled_at = case when r.filled_at > at + interval '1 minute' then at else greatest(at, r.filled_at) end
       where x.sink = r.sink and x.calls_of = r.calls_of;
    end if;
    if most is not null then
      share := onlyonce.take_share(
        r.sink,
        r.calls_of,
        take_permits.relay,
        take_permits.asked,
        most,
        take_permits.held[n],
        take_permits.wants[n]
      );
    end if;
    return next;
  end loop;
end $$;
comment on function onlyonce.take_permits is
  'Takes permits to start calls out of the buckets of a sink, which all relays share, and a relay''s '
  'part of the calls that may be under way.';

-- A sink has 16 lanes, and the number never changes: each lane reads its rows by its own cursor, so
-- a row cannot change its lane.
create function onlyonce.lane(key uuid) returns smallint
language sql immutable strict parallel safe as $$
  select (get_byte(uuid_send(key), 15) & 15)::smallint
$$;
comment on function onlyonce.lane is
  'Lane of an ordering key. SQL functions use it for the key of a call without one, too; programs in Go '
  'choose the lane of such calls at random, for a transaction''s calls together.';

-- ---------------------------------------------------------------- enqueue

-- call_fingerprint returns 64 bits of SHA-256 over the frozen parts of a call. A sealed body is
-- left out, because it is different each time it is sealed.
--
-- Sink, tenant, scope and name are among them, their lengths in bytes in front: the remote takes
-- calls of one key for one call, so a key that a program has chosen must not stand for two (O1).
create function onlyonce.call_fingerprint(
  sink text,
  tenant text,
  scope text,
  name text,
  method text,
  target text,
  headers text,
  body bytea,
  sealed boolean
)
returns bigint
language sql immutable strict parallel safe as $$
  select ('x' || encode(substr(sha256(convert_to(
           octet_length(sink)
             || ' ' || octet_length(tenant) || ' ' || octet_length(scope) || ' ' || octet_length(name) || E'\n'
             || sink || tenant || scope || name || method || E'\n' || target || E'\n' || headers || E'\n\n', 'UTF8')
           || case when sealed then '' else body end), 1, 8), 'hex'))::bit(64)::bigint
$$;
comment on function onlyonce.call_fingerprint is
  'What onlyonce.inbox.fingerprint holds for a call that was enqueued outside of a consumer.';

create function onlyonce.header_lines(names text[], vals text[]) returns text
language sql immutable parallel safe as $$
  select coalesce(string_agg(n || ': ' || v, E'\n' order by i), '')
    from unnest(names, vals) with ordinality as h(n, v, i)
$$;
create function onlyonce.header_lines(names bytea[], vals bytea[]) returns text
language sql stable parallel safe as $$
  select coalesce(string_agg(convert_from(n, 'UTF8') || ': ' || convert_from(v, 'UTF8'), E'\n' order by i), '')
    from unnest(names, vals) with ordinality as h(n, v, i)
$$;
comment on function onlyonce.header_lines(bytea[], bytea[]) is
  'Headers of onlyonce.parked as onlyonce.outbox_log holds them.';
comment on function onlyonce.header_lines(text[], text[]) is 'Headers as onlyonce.outbox_log holds them.';

-- logged_calls finds calls of a sink in the log by their keys: in call_keys, and what those do not
-- show yet in the log itself, by lane and transaction. It locks the tables that it names until the
-- transaction ends, also segments, which cannot be emptied while they are locked.
create function onlyonce.logged_calls(of_sink text, wanted uuid[])
returns table (
  key uuid,
  sink text,
  tenant text,
  scope text,
  name text,
  method text,
  target text,
  headers text,
  body bytea,
  sealed boolean,
  erased boolean
)
language plpgsql set jit = off as $$
#variable_conflict use_column
declare
  seen pg_snapshot := onlyonce.indexed_calls();
begin
  return query
    with near as materialized (
      select c.slot, c.lane, c.xid, c.batch from unnest(wanted) w cross join lateral (
        select k.slot, k.lane, k.xid, k.batch from onlyonce.call_keys k where k.key8 = onlyonce.key8(w) offset 0) c
      union
      select f.* from generate_series(0, 15) l(lane) cross join lateral (
        select b.slot, b.lane, b.xid, b.id from onlyonce.batches b
         where b.sink = of_sink and b.lane = l.lane and b.xid >= pg_snapshot_xmax(seen) and b.keys && wanted offset 0) f
      union
      select f.* from generate_series(0, 15) l(lane) cross join pg_snapshot_xip(seen) x cross join lateral (
        select b.slot, b.lane, b.xid, b.id from onlyonce.batches b
         where b.sink = of_sink and b.lane = l.lane and b.xid = x and b.keys && wanted offset 0) f)
    select r.key,
           r.sink,
           r.tenant,
           r.scope,
           r.name,
           r.method,
           r.target,
           r.headers,
           r.body,
           r.sealed,
           r.erased_at is not null
      from near m cross join lateral (
        select * from onlyonce.outbox_log o
         where o.slot = m.slot and o.sink = of_sink and o.lane = m.lane and o.xid = m.xid and o.batch = m.batch
        offset 0) r
     where r.key = any (wanted);
end $$;
comment on function onlyonce.logged_calls is 'Calls of a sink that the log holds, by their keys.';

-- enqueued_before returns which calls of a batch exist already, by their numbers from 1 on. OO004
-- if the bytes of one of those differ, or its sink, tenant, scope or name. `checks` says how a call
-- can exist already; null: 0 for all.
--   0: only parked and not settled. The fence and the message's claim exclude it otherwise.
--   1: because its message is handled again, for example in a replay. It is looked for in the log.
--   2: it is a call of the user's own transaction. Its key is claimed in the inbox, with its
--      fingerprint. That key is remembered for as long as the call is to be sent (K6).
-- A call that is parked is found in each case, however long it waits for an operator: a message's
-- id may be forgotten by then, and come again. With 0 a body that cannot be compared counts as
-- another one: the message is new here, and must not lose its call.
--
-- If a parked call was redriven under a new key, it is found by its first one, with 1 and 2 also
-- when it is settled: the remote would not recognise the first key (O1).
create function onlyonce.enqueued_before(
  checks smallint[],
  fingerprints bigint[],
  sink text,
  keys uuid[],
  tenant text,
  tenants text[],
  scope text,
  scopes text[],
  name text,
  names text[],
  method text,
  methods text[],
  target text,
  targets text[],
  header text,
  headers text[],
  body bytea,
  bodies bytea[],
  sealed boolean[]
) returns bigint[]
language plpgsql as $$
#variable_conflict use_variable
declare
  skip   bigint[] := '{}';
  old    record;
  claims smallint[];
  i      integer := 0;
  wanted uuid[];
  stored uuid[];
  seqscan text := current_setting('enable_seqscan');
  ignored text;
begin
  if 2 = any (checks) then
    if cardinality(checks) = 1 then
      claims := onlyonce.claim(keys, fingerprints, array[scope]);
    else
      select onlyonce.claim(
        array_agg(u.k order by u.n),
        array_agg(u.f order by u.n),
        array_agg(coalesce(u.s, scope) order by u.n)
      )
        into claims
        from unnest(checks, keys, fingerprints, scopes) with ordinality as u(c, k, f, s, n) where u.c = 2;
    end if;
    for n in 1 .. cardinality(keys) loop
      if checks[n] = 2 then
        i := i + 1;
        if claims[i] = 2 then
          raise exception using errcode = 'OO004',
            message = format(
              'onlyonce: call %L to sink %L was enqueued before with other bytes, or its key is that of '
              'a call of another sink, tenant, scope or name',
              coalesce(names[n], name),
              sink
            );
        elsif claims[i] = 1 then
          skip := skip || n::bigint;
        end if;
      end if;
    end loop;
  end if;
  if 1 = any (checks) then
    select array_agg(u.k) into wanted from unnest(checks, keys) as u(c, k) where u.c = 1;
  end if;
  -- Mostly no call is parked under one of these keys, and the statement below, which compares and
  -- is planned anew for each call, is not needed. Only the keys themselves are looked up, by the
  -- indexes parked_calls_key and parked_first_key (T13).
  ignored := set_config('enable_seqscan', 'off', true);
  select array_agg(distinct u.key) into stored
    from (select p.key from onlyonce.parked p where p.key = any (keys) and p.kind = 'call' and p.settled_at is null
          union all
          select p.first_key from onlyonce.parked p where p.first_key = any (keys)) u (key);
  ignored := set_config('enable_seqscan', seqscan, true);
  if wanted is null and stored is null then
    return skip;
  end if;
  for old in
    with stored as materialized (
      select f.*, false as settled
        from (select where wanted is not null) asked cross join lateral onlyonce.logged_calls(sink, wanted) f
      union all
      select p.key,
             p.sink,
             p.tenant,
             p.scope,
             p.call_name,
             p.method,
             p.target,
             onlyonce.header_lines(p.header_names, p.header_values),
             p.body,
             p.sealed,
             p.erased_at is not null,
             false
        from unnest(stored) w join onlyonce.parked p on p.kind = 'call' and p.key = w and p.settled_at is null
      union all
      select p.first_key,
             p.sink,
             p.tenant,
             p.scope,
             p.call_name,
             p.method,
             p.target,
             onlyonce.header_lines(p.header_names, p.header_values),
             p.body,
             p.sealed,
             p.erased_at is not null,
             p.settled_at is not null
        from unnest(stored) w join onlyonce.parked p on p.first_key = w)
    select u.n, coalesce(u.name, name) as name,
           bool_and((o.sink, o.tenant, o.scope, o.name) is distinct from
                      (sink, coalesce(u.tenant, tenant), coalesce(u.scope, scope), coalesce(u.name, name))
                    or (o.method, o.target, o.headers) is distinct from
                      (coalesce(u.m, method), coalesce(u.t, target), coalesce(u.h, header))
                    or case when coalesce(u.s, false) or o.sealed then coalesce(u.c, 0) = 0
                            else not o.erased and o.body <> coalesce(u.b, body) end) as differs
      from unnest(
        checks,
        keys,
        tenants,
        scopes,
        names,
        methods,
        targets,
        headers,
        bodies,
        sealed
      ) with ordinality as u(c, k, tenant, scope, name, m, t, h, b, s, n)
      join stored o on o.key = u.k
     where (u.c > 0 or not o.settled) and u.n <> all (skip)
     group by 1, 2
  loop
    if old.differs then
      raise exception using errcode = 'OO004',
        message = format(
          'onlyonce: call %L to sink %L was enqueued before with other bytes, or its key is that of a '
          'call of another sink, tenant, scope or name',
          old.name,
          sink
        );
    end if;
    skip := skip || old.n;
  end loop;
  return skip;
end $$;
comment on function onlyonce.enqueued_before is
  'Which calls of a batch exist already; raises OO004 if their bytes differ.';

-- enqueue_batch writes a batch of calls to one lane of one sink, in the caller's transaction. What
-- all calls have in common is given in the singular, what differs in the plural, see
-- onlyonce.batches. `checks` is null, or has an element for each call, see enqueued_before;
-- fingerprints are those of onlyonce.call_fingerprint, and may be null where checks is not 2.
--
-- The locks of the ordering keys come first, in a statement before the INSERT that draws the ids,
-- and in sorted order. A transaction that writes several batches gives `locks` of all of them with
-- the first one. So two transactions that do that once each cannot deadlock. There are 1,024 locks
-- for all keys: one for each key would exhaust the server's lock table.
--
-- SEGMENT statements are written out by slot: an INSERT by the partitioned table would look for its
-- partition each time.
do $do$
declare
  body text := $f$
-- enqueue_batch writes calls of one lane under the locks of their ordering keys (O4, O8).
create function onlyonce.enqueue_batch(
  locks uuid[],
  checks smallint[],
  fingerprints bigint[],
  lane smallint,
  sink text,
  keys uuid[],
  order_key uuid,
  order_keys uuid[],
  order_prefix bigint,
  order_prefixes bigint[],
  tenant text,
  tenants text[],
  scope text,
  scopes text[],
  name text,
  names text[],
  method text,
  methods text[],
  target text,
  targets text[],
  header text,
  headers text[],
  trace text,
  traces text[],
  body bytea,
  bodies bytea[],
  origin_time timestamptz,
  origin_times timestamptz[],
  not_before timestamptz[],
  redo boolean[],
  capture boolean[],
  sealed boolean[]
) returns void
language plpgsql as $$
#variable_conflict use_variable
declare
  n       smallint := cardinality(keys);
  bytes   integer  := case when body is null then onlyonce.octets(bodies) else octet_length(body) end;
  cur     smallint;
  version bigint;
  skip    bigint[];
  ignored text;
begin
  if locks is not null then
    perform pg_advisory_xact_lock(1869507705, s.stripe)
       from (select distinct (get_byte(uuid_send(k), 0) << 8 | get_byte(uuid_send(k), 1)) & 1023 as stripe
               from unnest(locks) k where k is not null order by 1) s;
  end if;
  skip := onlyonce.enqueued_before(
    checks,
    fingerprints,
    sink,
    keys,
    tenant,
    tenants,
    scope,
    scopes,
    name,
    names,
    method,
    methods,
    target,
    targets,
    header,
    headers,
    body,
    bodies,
    sealed
  );
  -- The xid is assigned before the ring is read, each in a statement of its own. A rotator that
  -- announces another segment in between waits for every xid that was in progress then.
  ignored := pg_current_xact_id()::text;
  select r.cur, r.version into cur, version from onlyonce.rings r where r.name = 'outbox';
  if current_setting('transaction_isolation') <> 'read committed'
     and version <> (select last_value from onlyonce.outbox_version) then
    raise exception using errcode = '40001',
      message = 'onlyonce: the outbox changed its segment since this transaction began: run the transaction again';
  end if;
  if cardinality(skip) > 0 then
    -- What is new among calls that exist is rare: each becomes a batch of its own.
    insert into onlyonce.batches (
      slot,
      lane,
      n,
      bytes,
      sink,
      keys,
      order_key,
      order_prefix,
      tenant,
      scope,
      name,
      method,
      target,
      header,
      trace,
      body,
      origin_time,
      not_before,
      redo,
      capture,
      sealed
    )
      select cur,
             lane,
             1,
             octet_length(coalesce(u.b, body)),
             sink,
             array[u.k],
             coalesce(u.o, order_key),
             coalesce(u.op, order_prefix),
             coalesce(u.tenant, tenant),
             coalesce(u.scope, scope),
             coalesce(u.name, name),
             coalesce(u.method, method),
             coalesce(u.target, target),
             coalesce(u.h, header),
             coalesce(u.trace, trace),
             coalesce(u.b, body),
             coalesce(u.ot, origin_time),
             case when u.nb is not null then array[u.nb] end,
             case when u.redo then array[true] end,
             case when u.capture then array[true] end,
             case when u.sealed then array[true] end
        from unnest(
          keys,
          order_keys,
          order_prefixes,
          tenants,
          scopes,
          names,
          methods,
          targets,
          headers,
          traces,
          bodies,
          origin_times,
          not_before,
          redo,
          capture,
          sealed
        )
             with ordinality as u(k, o, op, tenant, scope, name, method, target, h, trace, b, ot, nb, redo,
                                  capture, sealed, i)
       where u.i <> all (skip)
       order by u.i;
    return;
  end if;
  case cur
    EACH_SLOT{when SLOT then
      insert into onlyonce_segments.batches_SLOT (
        slot,
        lane,
        n,
        bytes,
        sink,
        keys,
        order_key,
        order_keys,
        order_prefix,
        order_prefixes,
        tenant,
        tenants,
        scope,
        scopes,
        name,
        names,
        method,
        methods,
        target,
        targets,
        header,
        headers,
        trace,
        traces,
        body,
        bodies,
        origin_time,
        origin_times,
        not_before,
        redo,
        capture,
        sealed
      )
        values (
          SLOT,
          lane,
          n,
          bytes,
          sink,
          keys,
          order_key,
          order_keys,
          order_prefix,
          order_prefixes,
          tenant,
          tenants,
          scope,
          scopes,
          name,
          names,
          method,
          methods,
          target,
          targets,
          header,
          headers,
          trace,
          traces,
          body,
          bodies,
          origin_time,
          origin_times,
          not_before,
          redo,
          capture,
          sealed
        );}
  end case;
end $$$f$;
  branch text[];
begin
  -- EACH_SLOT{...} is repeated for each slot.
  for branch in select m from regexp_matches(body, '(EACH_SLOT\{([^}]*)\})', 'g') m loop
    body := replace(
      body,
      branch[1],
      (select string_agg(replace(branch[2], 'SLOT', s::text), E'\n    ' order by s) from generate_series(0, 5) s)
    );
  end loop;
  execute body;
end $do$;
comment on function onlyonce.enqueue_batch is
  'Writes a batch of outbound calls to one lane in the caller''s transaction; relays send them after '
  'COMMIT, each under its key.';

-- enqueue_calls writes outbound calls of any sinks, for programs in other languages. The arrays
-- have one length, with an element for each call, in the order in which the calls are to be sent.
-- It makes batches of them: of each sink and lane, at most 1,024 calls, and 256 kB of bodies and
-- one body more.
create function onlyonce.enqueue_calls(
  checks smallint[],
  keys uuid[],
  order_keys uuid[],
  sinks text[],
  tenants text[],
  scopes text[],
  names text[],
  methods text[],
  targets text[],
  headers text[],
  traces text[],
  bodies bytea[],
  not_before timestamptz[],
  origin_times timestamptz[],
  redo boolean[],
  capture boolean[],
  sealed boolean[],
  order_prefixes bigint[] default null
) returns void
language plpgsql as $$
declare
  b     record;
  locks uuid[] := case when cardinality(array_remove(order_keys, null)) > 0 then order_keys end;
begin
  if (select count(distinct l)
        from unnest(array[cardinality(checks),
                          cardinality(keys),
                          cardinality(order_keys),
                          cardinality(sinks),
                          cardinality(tenants),
                          cardinality(scopes),
                          cardinality(names),
                          cardinality(methods),
                          cardinality(targets),
                          cardinality(headers),
                          cardinality(traces),
                          cardinality(bodies),
                          cardinality(not_before),
                          cardinality(origin_times),
                          cardinality(redo),
                          cardinality(capture),
                          cardinality(sealed),
                          coalesce(cardinality(order_prefixes), cardinality(keys))]) l) <> 1 then
    raise exception using errcode = '22023', message = 'onlyonce: enqueue_calls: the arrays differ in length';
  end if;
  for b in
    select p.lane,
           p.sink,
           min(p.i) as i,
           array_agg(p.k order by p.i) as keys,
           nullif(array_agg(p.c order by p.i), array_fill(0::smallint, array[count(*)::integer])) as checks,
           array_agg(case when p.c = 2 then onlyonce.call_fingerprint(
             p.sink,
             p.tenant,
             p.scope,
             p.name,
             p.method,
             p.target,
             p.h,
             p.b,
             p.sealed
           ) end order by p.i) as fingerprints,
           case when bool_or(p.o is not null) then array_agg(p.o order by p.i) end as order_keys,
           case when bool_or(p.op is not null) then array_agg(p.op order by p.i) end as order_prefixes,
           array_agg(p.tenant order by p.i) as tenants,
           array_agg(p.scope order by p.i) as scopes,
           array_agg(p.name order by p.i) as names,
           array_agg(p.method order by p.i) as methods,
           array_agg(p.target order by p.i) as targets,
           array_agg(p.h order by p.i) as headers,
           case when bool_or(p.trace is not null) then array_agg(p.trace order by p.i) end as traces,
           array_agg(p.b order by p.i) as bodies,
           case when bool_or(p.nb is not null) then array_agg(p.nb order by p.i) end as not_before,
           case when bool_or(p.ot is not null) then array_agg(p.ot order by p.i) end as origin_times,
           case when bool_or(p.redo) then array_agg(p.redo order by p.i) end as redo,
           case when bool_or(p.capture) then array_agg(p.capture order by p.i) end as capture,
           case when bool_or(p.sealed) then array_agg(p.sealed order by p.i) end as sealed
      from (select a.*, (row_number() over (partition by a.sink, a.lane, a.part order by a.i) - 1) / 1024 as block
              from (select u.*,
                           l.lane,
                           (sum(octet_length(u.b)) over (partition by u.sink, l.lane order by u.i)
                              - octet_length(u.b)) / 262144 as part
                      from unnest(
                        checks,
                        keys,
                        order_keys,
                        order_prefixes,
                        sinks,
                        tenants,
                        scopes,
                        names,
                        methods,
                        targets,
                        headers,
                        traces,
                        bodies,
                        not_before,
                        origin_times,
                        redo,
                        capture,
                        sealed
                      )
                           with ordinality as u(c, k, o, op, sink, tenant, scope, name, method, target, h, trace, b,
                                                nb, ot, redo, capture, sealed, i)
                     cross join lateral onlyonce.lane(coalesce(u.o, u.k)) l(lane)) a) p
     group by p.sink, p.lane, p.part, p.block order by 3
  loop
    if cardinality(b.keys) = 1 then
      perform onlyonce.enqueue_batch(
        locks,
        b.checks,
        b.fingerprints,
        b.lane,
        b.sink,
        b.keys,
        b.order_keys[1],
        null,
        b.order_prefixes[1],
        null,
        b.tenants[1],
        null,
        b.scopes[1],
        null,
        b.names[1],
        null,
        b.methods[1],
        null,
        b.targets[1],
        null,
        b.headers[1],
        null,
        b.traces[1],
        null,
        b.bodies[1],
        null,
        b.origin_times[1],
        null,
        b.not_before,
        b.redo,
        b.capture,
        b.sealed
      );
    else
      perform onlyonce.enqueue_batch(
        locks,
        b.checks,
        b.fingerprints,
        b.lane,
        b.sink,
        b.keys,
        null,
        b.order_keys,
        null,
        b.order_prefixes,
        null,
        b.tenants,
        null,
        b.scopes,
        null,
        b.names,
        null,
        b.methods,
        null,
        b.targets,
        null,
        b.headers,
        null,
        b.traces,
        null,
        b.bodies,
        null,
        b.origin_times,
        b.not_before,
        b.redo,
        b.capture,
        b.sealed
      );
    end if;
    locks := null; -- all are taken
  end loop;
end $$;
comment on function onlyonce.enqueue_calls is
  'Writes outbound calls in the caller''s transaction; relays send them after COMMIT, each under its key.';

-- enqueue writes one call, for programs in other languages: without an ordering key, claimed by its
-- own key. It refuses a null, or arrays of two lengths, because either would leave headers out; and
-- a line end in a text that goes out in a line, because what follows it would be a line of its own:
-- for example, a header that the program did not write (O12).
create function onlyonce.enqueue(
  key uuid,
  tenant text,
  scope text,
  sink text,
  name text,
  method text,
  target text,
  header_names text[],
  header_values text[],
  body bytea
) returns void
language plpgsql as $$
declare
  lines text := onlyonce.header_lines(header_names, header_values);
  wrong text;
begin
  if header_names is null
     or header_values is null
     or array_position(header_names, null) is not null
     or array_position(header_values, null) is not null then
    raise exception using errcode = '23502',
      message = 'onlyonce: enqueue: header_names and header_values must not be null, nor hold a null: '
                'for no headers give empty arrays';
  elsif cardinality(header_names) <> cardinality(header_values) then
    raise exception using errcode = '22023',
      message = format(
        'onlyonce: enqueue: %s header_names and %s header_values',
        cardinality(header_names),
        cardinality(header_values)
      );
  end if;
  select format('%s is %L: it must %s', h.field, left(h.v, 60), h.rule) into wrong
    from (select 'method' as field, enqueue.method as v, 'hold no control character' as rule, 0 as i
          union all select 'target', enqueue.target, 'hold no control character: percent-encode it', 0
          union all select format('header_names[%s]', i), n, 'be a token of RFC 9110: no space, colon or line end', i
                      from unnest(header_names) with ordinality as u(n, i)
          union all select format('header_values[%s]', i),
                           w,
                           'hold no line end and no other control character but tabs',
                           i
                      from unnest(header_values) with ordinality as u(w, i)) h
   where case when h.field like 'header_names%' then h.v !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$'
              else h.v ~ E'[\x01-\x08\x0A-\x1F\x7F]' end
   order by h.i limit 1;
  if wrong is not null then
    raise exception using errcode = '22023', message = 'onlyonce: enqueue: ' || wrong;
  end if;
  perform onlyonce.enqueue_batch(
    null,
    array[2::smallint],
    array[onlyonce.call_fingerprint(
      enqueue.sink,
      enqueue.tenant,
      enqueue.scope,
      enqueue.name,
      enqueue.method,
      enqueue.target,
      lines,
      enqueue.body,
      false
    )],
    onlyonce.lane(enqueue.key),
    enqueue.sink,
    array[enqueue.key],
    null,
    null,
    null,
    null,
    enqueue.tenant,
    null,
    enqueue.scope,
    null,
    enqueue.name,
    null,
    enqueue.method,
    null,
    enqueue.target,
    null,
    lines,
    null,
    null,
    null,
    enqueue.body,
    null,
    null,
    null,
    null,
    null,
    null,
    null
  );
end $$;
comment on function onlyonce.enqueue is
  'Writes an outbound call in the caller''s transaction; the relay sends it after COMMIT under `key`.';

-- ---------------------------------------------------------------- passes

-- history names the history that this server has: where the name differs, what committed before may
-- be gone. It is the timeline, read from the WAL because pg_control_checkpoint() lags behind a
-- promotion, and the system identifier, because pg_upgrade begins with timeline 1 again. Some
-- managed servers do not tell it: Amazon Aurora raises 55000 below wal_level = logical. There it is
-- the time at which the server started, which differs for each server that was promoted or
-- restored, and for each that only started again (O3).
create function onlyonce.history() returns text
language plpgsql as $$
begin
  return (select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || ' of ' || c.system_identifier
            from pg_control_system() c);
exception when insufficient_privilege
            or object_not_in_prerequisite_state
            or undefined_function
            or feature_not_supported then
  return 'started ' || extract(epoch from pg_postmaster_start_time());
end $$;
comment on function onlyonce.history is
  'Name of the history of this server: its timeline and system identifier, or when it started, if it '
  'does not tell its timeline.';

-- advance moves a lane's cursor. It is the relay's only write for a call that succeeds. It compares
-- the version, so that a COMMIT whose answer was lost is not repeated. It raises if the version
-- differs, because it shares a round trip with COMMIT.
--   freeze false: calls of the pass up to last_id are done.
--   freeze true:  the pass is done, and the next one begins; its target is the snapshot of this
--                 UPDATE. The transaction has an xid by then, which the snapshot counts as ended:
--                 it writes no row of the log.
--   keep_started: some of the rows that may have been called since started_at are not done yet.
--   quiet:        no row above last_id was called, or will be before the cursor is moved again.
-- If the cursor was last moved on another server, or before a restart, it is first compared with
-- what this server knows (O3): a promotion or a restore may have lost transactions. A session never
-- moves from one server to another.
--
-- pg_upgrade makes another cluster and keeps the files of tables, the transaction ids and their
-- counter. So the row's xmin is the transaction that the row names. What a dump or logical
-- replication has copied was written by a transaction of this cluster, which is another one. If
-- both numbers happen to agree, the counters of both clusters agreed at that moment: then ids of
-- later transactions are beyond the cursor. The server keeps 32 bits of xmin, also of rows that
-- were frozen.
create function onlyonce.advance(
  lane_id bigint,
  seen bigint,
  last_id bigint,
  freeze boolean,
  keep_started boolean,
  quiet boolean default false
) returns void
language plpgsql as $$
declare
  l    record;
  sys  bigint;
  line text;
begin
  select * into l from onlyonce.lanes x where x.id = advance.lane_id;
  if l.server is distinct from pg_postmaster_start_time() then
    select c.system_identifier into sys from pg_control_system() c;
    if l.system_id <> sys and l.copied
       or pg_snapshot_xmax(pg_current_snapshot()) < greatest(l.written, pg_snapshot_xmax(coalesce(l.target, l.prev)))
       or exists (select 1 from onlyonce.batches r
                   where r.sink = l.sink and r.lane = l.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot())) then
      raise exception using errcode = 'OO007',
        message = format(
          'onlyonce: lane %s of sink %L was written by another database cluster: its transaction ids do not apply here',
          l.lane,
          l.sink
        ),
        hint = 'After a restore from a dump or a move to another cluster run: onlyonce outbox rebase';
    end if;
    line := onlyonce.history();
  end if;
  update onlyonce.lane_cursors x set
      prev       = case when advance.freeze then coalesce(x.target, x.prev) else x.prev end,
      target     = case when advance.freeze then pg_current_snapshot() else x.target end,
      last_id    = case when advance.freeze then 0 else advance.last_id end,
      started_at = case when advance.keep_started then x.started_at
                        when advance.quiet then 'infinity'
                        else onlyonce.steady_clock() end,
      version    = x.version + 1,
      server     = pg_postmaster_start_time(),
      system_id  = coalesce(sys, x.system_id),
      timeline   = coalesce(line, x.timeline),
      history_at = case when line <> x.timeline then clock_timestamp() else x.history_at end,
      written    = pg_current_xact_id()
    where x.id = advance.lane_id and x.version = advance.seen;
  if not found then
    raise exception using errcode = 'OO008',
      message = 'onlyonce: the lane has moved',
      detail = format('lane %s is not at version %s', advance.lane_id, advance.seen);
  end if;
end $$;
comment on function onlyonce.advance is
  'Moves a lane''s cursor from the version that its owner has read; raises OO008 if it has moved, OO007 '
  'if the log was written by another cluster.';

-- all_parked raises unless each of these calls of the log is parked. A relay calls it in the
-- transaction that parks them, because its cursor moves past them: a call that is not there would
-- never be sent (O1).
create function onlyonce.all_parked(row_ids bigint[]) returns void
language plpgsql as $$
declare
  missing bigint;
begin
  select min(u.id)
    into missing from unnest(row_ids) u (id) where not exists (select from onlyonce.parked p where p.row_id = u.id);
  if missing is not null then
    raise exception using errcode = 'no_data_found',
      message = format('onlyonce: call %s should be parked and is not', missing);
  end if;
end $$;
comment on function onlyonce.all_parked is 'Raises unless each of these calls of the log is parked.';

-- ---------------------------------------------------------------- calls

-- The state of each call, for people and for tests. It is too slow for hot paths.
create view onlyonce.calls as
  select r.id,
         r.key,
         r.tenant,
         r.scope,
         r.sink,
         r.lane,
         r.name,
         r.order_key,
         r.created_at,
         r.not_before,
         r.erased_at,
         r.xid,
         r.batch,
         p.id as parked_id,
         p.attempts,
         p.error,
         p.settled_at,
         case when p.state = 'resolved' then 'delivered'
              when p.state is not null then p.state
              when l.id is null then 'pending'
              when pg_visible_in_snapshot(r.xid, l.prev) then 'delivered'
              when l.target is not null
                and pg_visible_in_snapshot(r.xid, l.target)
                and r.id <= l.last_id then 'delivered'
              else 'pending' end as state
    from onlyonce.outbox_log r
    left join onlyonce.lanes l on l.sink = r.sink and l.lane = r.lane
    left join onlyonce.parked p on p.row_id = r.id;
comment on view onlyonce.calls is
  'Each call of the log: pending, delivered, or as onlyonce.parked has it (retrying, blocked, waiting, '
  'reconcile, discarded).';
