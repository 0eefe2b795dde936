-- onlyonce schema, version 1: the outbox. It is an append-only log of calls, which relays read by
-- lanes. Its segments are emptied whole.

insert into onlyonce.rings (name, slots) values ('outbox', 6);
insert into onlyonce.segments (ring, slot, use_no, opened_at)
  select 'outbox', s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end from generate_series(0, 5) s;
create sequence onlyonce.outbox_version start 1 cache 1;
-- Use setval, never nextval: nextval logs 32 numbers ahead, so that the sequence would have a
-- higher number after a crash and on a standby.
select setval('onlyonce.outbox_version', 1);

-- ---------------------------------------------------------------- the log

-- One sequence for all segments, without a cache. Within an ordering key, ids rise in the order of
-- commits, because the key's lock is held from before the id is drawn until the commit.
create sequence onlyonce.outbox_id cache 1;

create table onlyonce.outbox_log (
  slot        smallint    not null,
  lane        smallint    not null,
  id          bigint      not null default nextval('onlyonce.outbox_id'),
  xid         xid8        not null default pg_current_xact_id(),
  key         uuid        not null,
  order_key   uuid,
  created_at  timestamptz not null default clock_timestamp(),
  not_before  timestamptz,
  origin_time timestamptz,
  redo        boolean     not null default false,
  capture     boolean     not null default false,
  sealed      boolean     not null default false,
  sink        text        not null collate "C",
  tenant      text        not null,
  scope       text        not null,
  name        text        not null,
  method      text        not null,
  target      text        not null,
  headers     text        not null,
  trace       text,
  body        bytea       not null,
  erased_at   timestamptz
) partition by list (slot);
alter sequence onlyonce.outbox_id owned by onlyonce.outbox_log.id;
comment on table  onlyonce.outbox_log is 'Outbound calls, append-only: a row commits with the effects that ask for it. Relays read it with a snapshot cursor a lane, see onlyonce.lanes; what fails goes to onlyonce.parked.';
comment on column onlyonce.outbox_log.xid         is 'Transaction that wrote the row, also within savepoints.';
comment on column onlyonce.outbox_log.key         is 'Idempotency key that the remote sees: derived, the same on every replay.';
comment on column onlyonce.outbox_log.order_key   is 'Hash of (sink, tenant, scope, ordering key). Null: the call waits for no other.';
comment on column onlyonce.outbox_log.origin_time is 'When the message that asks for the call was appended to its log. Null: there is none.';
comment on column onlyonce.outbox_log.redo        is 'The message may have been handled before, in a history that the database has lost: the key''s age counts from origin_time.';
comment on column onlyonce.outbox_log.headers     is 'A line "Name: value" for each, sorted by name.';
comment on column onlyonce.outbox_log.trace       is 'W3C trace context of the transaction that asks: traceparent, and tracestate in a second line. No part of the frozen bytes.';
comment on column onlyonce.outbox_log.sealed      is 'The body is encrypted; see package seal.';
comment on column onlyonce.outbox_log.erased_at   is 'When the body was erased, after the call was settled.';

create table onlyonce.outbox_log_0 partition of onlyonce.outbox_log for values in (0);
create table onlyonce.outbox_log_1 partition of onlyonce.outbox_log for values in (1);
create table onlyonce.outbox_log_2 partition of onlyonce.outbox_log for values in (2);
create table onlyonce.outbox_log_3 partition of onlyonce.outbox_log for values in (3);
create table onlyonce.outbox_log_4 partition of onlyonce.outbox_log for values in (4);
create table onlyonce.outbox_log_5 partition of onlyonce.outbox_log for values in (5);
do $$
begin
  for slot in 0 .. 5 loop
    execute format('comment on table onlyonce.outbox_log_%s is %L', slot, 'Segment of onlyonce.outbox_log; onlyonce.rings says what it is used for.');
  end loop;
end $$;

-- outbox_log_new finds what is new in a lane. outbox_log_key finds a call by its key, for replays,
-- operators and erasure.
create index outbox_log_new on onlyonce.outbox_log (sink, lane, xid, id);
create index outbox_log_key on onlyonce.outbox_log (key);

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
comment on column onlyonce.sinks.start_window is 'How long after a call''s first attempt relays start another one under its key, by the last relay that listed the sink. Null: for ever.';
comment on column onlyonce.sinks.paused_at is 'Set by `onlyonce outbox pause`: no call is started until it is resumed. Null: not paused.';

create table onlyonce.lanes (
  id         bigint      primary key references onlyonce.leases (id) on delete cascade,
  sink       text        not null collate "C" references onlyonce.sinks (name) on delete cascade,
  lane       smallint    not null,
  prev       pg_snapshot not null default '1:1:',
  target     pg_snapshot,
  last_id    bigint      not null default 0,
  started_at timestamptz not null default clock_timestamp(),
  version    bigint      not null default 0,
  server     timestamptz,
  system_id  bigint,
  timeline   text,
  history_at timestamptz,
  unique (sink, lane)
) with (fillfactor = 50);
comment on table  onlyonce.lanes is 'How far a lane of a sink has been sent. Rows visible in prev are done. Of those that are visible in target and not in prev (the pass), those up to last_id are done.';
comment on column onlyonce.lanes.target     is 'Null: no pass was ever begun.';
comment on column onlyonce.lanes.started_at is 'Journal: of the pass, only the first 1,024 rows above last_id can have been called, and none before this time. Infinity: none was.';
comment on column onlyonce.lanes.version    is 'Rises with each change; every change compares it.';
comment on column onlyonce.lanes.server     is 'Start time of the server that the cursor was last moved on. If it differs, system identifier, timeline and transaction ids are compared again.';
comment on column onlyonce.lanes.history_at is 'When a relay first saw this system identifier and timeline: a failover or a restore may have lost what committed before.';

-- A sink has 16 lanes, and the number never changes: each lane reads its rows by its own cursor, so
-- a row cannot change its lane.
create function onlyonce.lane(key uuid) returns smallint
language sql immutable strict parallel safe as $$
  select (get_byte(uuid_send(key), 15) & 15)::smallint
$$;
comment on function onlyonce.lane(uuid) is 'Lane of an ordering key, or of a call that has none by its own key.';

-- ---------------------------------------------------------------- enqueue

-- call_fingerprint returns 64 bits of SHA-256 over the frozen parts of a call. A sealed body is
-- left out, because it is different each time it is sealed.
create function onlyonce.call_fingerprint(method text, target text, headers text, body bytea, sealed boolean) returns bigint
language sql immutable strict parallel safe as $$
  select ('x' || encode(substr(sha256(convert_to(method || E'\n' || target || E'\n' || headers || E'\n\n', 'UTF8')
           || case when sealed then '' else body end), 1, 8), 'hex'))::bit(64)::bigint
$$;
comment on function onlyonce.call_fingerprint(text, text, text, bytea, boolean) is 'What onlyonce.inbox.fingerprint holds for a call that was enqueued outside of a consumer.';

create function onlyonce.header_lines(names text[], vals text[]) returns text
language sql immutable parallel safe as $$
  select coalesce(string_agg(n || ': ' || v, E'\n' order by i), '') from unnest(names, vals) with ordinality as h(n, v, i)
$$;
create function onlyonce.header_lines(names bytea[], vals bytea[]) returns text
language sql stable parallel safe as $$
  select coalesce(string_agg(convert_from(n, 'UTF8') || ': ' || convert_from(v, 'UTF8'), E'\n' order by i), '') from unnest(names, vals) with ordinality as h(n, v, i)
$$;
comment on function onlyonce.header_lines(bytea[], bytea[]) is 'Headers of onlyonce.parked as onlyonce.outbox_log holds them.';
comment on function onlyonce.header_lines(text[], text[]) is 'Headers as onlyonce.outbox_log holds them.';

-- enqueue_calls writes outbound calls in the caller's transaction. The arrays have one length, with
-- an element for each call, in the order in which the calls are to be sent. `checks` says whether
-- the call may exist already:
--   0: no. The fence and the message's claim exclude it.
--   1: yes, for example because the message is replayed. Then nothing is written; OO004 if its
--      bytes differ.
--   2: it is a call of the user's own transaction. Its key is claimed in the inbox. If the inbox
--      has forgotten the key, the call may still exist, unsent or parked with an unknown outcome.
--      OO004 if the bytes of either differ.
--
-- The locks of the ordering keys come first, in a statement before the INSERT that draws the ids,
-- and in sorted order, so that two transactions that call this once each cannot deadlock. There are
-- 1,024 locks for all keys: one for each key would exhaust the server's lock table.
create function onlyonce.enqueue_calls(
  checks smallint[], keys uuid[], order_keys uuid[], sinks text[], tenants text[], scopes text[], names text[], methods text[],
  targets text[], headers text[], traces text[], bodies bytea[], not_before timestamptz[], origin_times timestamptz[],
  redo boolean[], capture boolean[], sealed boolean[]
) returns void
language plpgsql as $$
declare
  ring  onlyonce.rings;
  skip  bigint[] := '{}';
  old   record;
  claim smallint[];
  i     integer;
begin
  if exists (select 1 from unnest(order_keys) k where k is not null) then
    perform pg_advisory_xact_lock(1869507705, s.stripe)
       from (select distinct (get_byte(uuid_send(k), 0) << 8 | get_byte(uuid_send(k), 1)) & 1023 as stripe
               from unnest(order_keys) k where k is not null order by 1) s;
  end if;

  if 2 = any (checks) then
    select onlyonce.claim(array_agg(c.k order by c.n), array_agg(c.f order by c.n)) into claim
      from (select u.k, u.n, onlyonce.call_fingerprint(u.m, u.t, u.h, u.b, u.s) as f
              from unnest(checks, keys, methods, targets, headers, bodies, sealed) with ordinality as u(c, k, m, t, h, b, s, n) where u.c = 2) c;
    i := 0;
    for n in 1 .. cardinality(keys) loop
      if checks[n] = 2 then
        i := i + 1;
        if claim[i] = 2 then
          raise exception using errcode = 'OO004',
            message = format('onlyonce: call %L to sink %L was enqueued before with other bytes', names[n], sinks[n]);
        elsif claim[i] = 1 then
          skip := skip || n::bigint;
        end if;
      end if;
    end loop;
  end if;

  -- In statements of their own: each locks the tables that it names until the transaction ends,
  -- also segments, which cannot be emptied while they are locked.
  if checks && '{1,2}'::smallint[] then
    for old in
      select u.n, (o.method, o.target, o.headers) is distinct from (u.m, u.t, u.h) or not u.s and not o.sealed and not o.erased and o.body <> u.b as differs
        from unnest(checks, keys, methods, targets, headers, bodies, sealed) with ordinality as u(c, k, m, t, h, b, s, n)
        join lateral (
          select r.method, r.target, r.headers, r.body, r.sealed, r.erased_at is not null as erased from onlyonce.outbox_log r
           where r.key = u.k
          union all
          select p.method, p.target, onlyonce.header_lines(p.header_names, p.header_values), p.body, p.sealed, p.erased_at is not null
            from onlyonce.parked p where p.kind = 'call' and p.key = u.k and p.settled_at is null and p.reason <> 'conflict'
          limit 1) o on true
       where u.c > 0 and u.n <> all (skip)
    loop
      if old.differs then
        raise exception using errcode = 'OO004',
          message = format('onlyonce: call %L to sink %L was enqueued before with other bytes', names[old.n], sinks[old.n]);
      end if;
      skip := skip || old.n;
    end loop;
  end if;
  -- The xid is assigned before the ring is read, each in a statement of its own. A rotator that
  -- announces another segment in between waits for every xid that was in progress then.
  perform pg_current_xact_id();
  select * into ring from onlyonce.rings r where r.name = 'outbox';
  if current_setting('transaction_isolation') <> 'read committed'
     and ring.version <> (select last_value from onlyonce.outbox_version) then
    raise exception using errcode = '40001', message = 'onlyonce: the outbox changed its segment since this transaction began: run it again';
  end if;
  insert into onlyonce.outbox_log (slot, lane, key, order_key, sink, tenant, scope, name, method, target, headers, trace, body,
                                   not_before, origin_time, redo, capture, sealed)
    select ring.cur, onlyonce.lane(coalesce(u.o, u.k)), u.k, u.o, u.sink, u.tenant, u.scope, u.name, u.method, u.target, u.h, u.trace, u.b,
           u.nb, u.ot, u.redo, u.capture, u.sealed
      from unnest(keys, order_keys, sinks, tenants, scopes, names, methods, targets, headers, traces, bodies, not_before, origin_times,
                  redo, capture, sealed)
           with ordinality as u(k, o, sink, tenant, scope, name, method, target, h, trace, b, nb, ot, redo, capture, sealed, n)
     where cardinality(skip) = 0 or u.n <> all (skip)
     order by u.n;
end $$;
comment on function onlyonce.enqueue_calls(smallint[], uuid[], uuid[], text[], text[], text[], text[], text[], text[], text[], text[], bytea[],
  timestamptz[], timestamptz[], boolean[], boolean[], boolean[]) is 'Writes outbound calls in the caller''s transaction; relays send them after COMMIT, each under its key.';

-- enqueue writes one call, for programs in other languages: without an ordering key, claimed by its
-- own key. It refuses a null, or arrays of two lengths, because either would leave headers out.
create function onlyonce.enqueue(
  key uuid, tenant text, scope text, sink text, name text, method text, target text,
  header_names text[], header_values text[], body bytea
) returns void
language plpgsql as $$
begin
  if header_names is null or header_values is null or array_position(header_names, null) is not null or array_position(header_values, null) is not null then
    raise exception using errcode = '23502', message = 'onlyonce: enqueue: header_names and header_values must not be null, nor hold a null: for no headers give empty arrays';
  elsif cardinality(header_names) <> cardinality(header_values) then
    raise exception using errcode = '22023', message = format('onlyonce: enqueue: %s header_names and %s header_values', cardinality(header_names), cardinality(header_values));
  end if;
  perform onlyonce.enqueue_calls(array[2::smallint], array[enqueue.key], array[null::uuid], array[enqueue.sink], array[enqueue.tenant],
    array[enqueue.scope], array[enqueue.name], array[enqueue.method], array[enqueue.target],
    array[onlyonce.header_lines(enqueue.header_names, enqueue.header_values)], array[null::text], array[enqueue.body],
    array[null::timestamptz], array[null::timestamptz], array[false], array[false], array[false]);
end $$;
comment on function onlyonce.enqueue(uuid, text, text, text, text, text, text, text[], text[], bytea) is
  'Writes an outbound call in the caller''s transaction; the relay sends it after COMMIT under `key`.';

-- ---------------------------------------------------------------- passes

-- advance moves a lane's cursor. It is the relay's only write for a call that succeeds. It compares
-- the version, so that a COMMIT whose answer was lost is not repeated. It raises if the version
-- differs, because it shares a round trip with COMMIT.
--   freeze false: rows of the pass up to last_id are done.
--   freeze true:  the pass is done, and the next one begins; its target is the snapshot of this
--                 UPDATE. The transaction has an xid by then, which the snapshot counts as ended:
--                 it writes no row of the log.
--   keep_started: some of the rows that may have been called since started_at are not done yet.
--   quiet:        no row above last_id was called, or will be before the cursor is moved again.
-- If the cursor was last moved on another server, or before a restart, it is first compared with
-- what this server knows (O3): a promotion or a restore may have lost transactions. A session never
-- moves from one server to another.
create function onlyonce.advance(lane_id bigint, seen bigint, last_id bigint, freeze boolean, keep_started boolean, quiet boolean default false) returns void
language plpgsql as $$
declare
  l    onlyonce.lanes;
  sys  bigint;
  line text;
begin
  select * into l from onlyonce.lanes x where x.id = advance.lane_id;
  if l.server is distinct from pg_postmaster_start_time() then
    select c.system_identifier into sys from pg_control_system() c;
    line := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8); -- pg_control_checkpoint() lags behind a promotion
    if l.system_id <> sys
       or pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(coalesce(l.target, l.prev))
       or exists (select 1 from onlyonce.outbox_log r
                   where r.sink = l.sink and r.lane = l.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot())) then
      raise exception using errcode = 'OO007',
        message = format('onlyonce: lane %s of sink %L was written by another database cluster: its transaction ids mean nothing here', l.lane, l.sink),
        hint = 'After a restore from a dump or a move to another cluster run: onlyonce outbox rebase';
    end if;
  end if;
  update onlyonce.lanes x set
      prev       = case when advance.freeze then coalesce(x.target, x.prev) else x.prev end,
      target     = case when advance.freeze then pg_current_snapshot() else x.target end,
      last_id    = case when advance.freeze then 0 else advance.last_id end,
      started_at = case when advance.keep_started then x.started_at when advance.quiet then 'infinity' else clock_timestamp() end,
      version    = x.version + 1,
      server     = pg_postmaster_start_time(),
      system_id  = coalesce(x.system_id, sys),
      timeline   = coalesce(line, x.timeline),
      history_at = case when line <> x.timeline then clock_timestamp() else x.history_at end
    where x.id = advance.lane_id and x.version = advance.seen;
  if not found then
    raise exception using errcode = 'OO008',
      message = 'onlyonce: the lane has moved', detail = format('lane %s is not at version %s', advance.lane_id, advance.seen);
  end if;
end $$;
comment on function onlyonce.advance(bigint, bigint, bigint, boolean, boolean, boolean) is
  'Moves a lane''s cursor from the version that its owner knows; raises OO008 if it has moved, OO007 if the log was written by another cluster.';

-- ---------------------------------------------------------------- calls

-- The state of each call, for people and for tests. It is too slow for hot paths.
create view onlyonce.calls as
  select r.id, r.key, r.tenant, r.scope, r.sink, r.lane, r.name, r.order_key, r.created_at, r.not_before, r.erased_at, p.id as parked_id,
         p.attempts, p.error, p.settled_at,
         case when p.state = 'resolved' then 'delivered'
              when p.state is not null then p.state
              when l.id is null then 'pending'
              when pg_visible_in_snapshot(r.xid, l.prev) then 'delivered'
              when l.target is not null and pg_visible_in_snapshot(r.xid, l.target) and r.id <= l.last_id then 'delivered'
              else 'pending' end as state
    from onlyonce.outbox_log r
    left join onlyonce.lanes l on l.sink = r.sink and l.lane = r.lane
    left join onlyonce.parked p on p.row_id = r.id;
comment on view onlyonce.calls is 'Each call of the log: pending, delivered, or as onlyonce.parked has it (retrying, blocked, waiting, reconcile, discarded).';
