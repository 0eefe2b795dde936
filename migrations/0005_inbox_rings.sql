-- onlyonce schema, version 5: the inbox is two rings of segments.

-- ---------------------------------------------------------------- rings

alter table onlyonce.rings
  add column uses    bigint[] not null default '{}',
  add column horizon interval check (horizon > interval '0');
comment on column onlyonce.rings.uses    is 'By slot (the first is slot 0): a random number of its last close. Slots are used again, and after a failover closed again; a use is not.';
comment on column onlyonce.rings.horizon is 'Rings of keys: how long a key is remembered at least, after its segment was closed. Null: for ever, and nothing is rotated.';

do $$
declare
  ring text;
begin
  foreach ring in array array['consumer_keys', 'standard_keys'] loop
    for slot in 0 .. 9 loop
      execute format('create table onlyonce.%I (key uuid primary key, fingerprint bigint not null)', ring || '_' || slot);
      execute format('comment on table onlyonce.%I is %L', ring || '_' || slot, 'Segment of ring ' || ring || ': keys that were claimed. onlyonce.rings says what it is used for.');
    end loop;
    execute format('create sequence onlyonce.%I start 1 cache 1', ring || '_version');
    perform setval(('onlyonce.' || ring || '_version')::regclass, 1);
    insert into onlyonce.rings (name, slots, horizon) values (ring, 10, interval '7 days');
    insert into onlyonce.segments (ring, slot, use_no, opened_at)
      select ring, s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end from generate_series(0, 9) s;
  end loop;
end $$;

-- ---------------------------------------------------------------- the view

do $$
begin
  execute 'create view onlyonce.inbox as ' || (
    select string_agg(format('select key, fingerprint, %L as segment from onlyonce.%I', ring || '_' || slot, ring || '_' || slot), ' union all ' order by ring, slot)
      from unnest(array['consumer_keys', 'standard_keys']) ring, generate_series(0, 9) slot);
end $$;
comment on view onlyonce.inbox is 'Keys that are remembered, of all segments. One that was claimed while a segment drained stands in two. Claim by the functions: a row alone excludes nobody.';

-- A key may be forgotten by hand: the next message with it is new.
create function onlyonce.forget_key() returns trigger
language plpgsql as $$
begin
  execute format('delete from onlyonce.%I where key = $1', old.segment) using old.key;
  return old;
end $$;
comment on function onlyonce.forget_key() is 'Trigger: DELETE on onlyonce.inbox deletes from the segment.';
create trigger forget instead of delete on onlyonce.inbox for each row execute function onlyonce.forget_key();

create table onlyonce.filters (
  ring     text        not null references onlyonce.rings (name),
  use      bigint      not null,
  parts    smallint    not null check (parts between 1 and 256),
  part     smallint    not null check (part >= 0 and part < parts),
  keys     bigint      not null,
  digest   bytea       not null,
  filter   bytea       not null,
  built_at timestamptz not null default clock_timestamp(),
  primary key (ring, use, parts, part)
);
alter table onlyonce.filters alter column filter set storage external;
comment on table  onlyonce.filters is 'Filters of closed segments: each says of most keys that the segment does not hold them. Consumers load them, so that claims need not look.';
comment on column onlyonce.filters.use    is 'Of which close (onlyonce.rings.uses). A filter of another use is of other keys.';
comment on column onlyonce.filters.parts  is 'Of how many parts the segment''s filter is: each is of the keys whose last byte b has b * parts / 256 = part. All together are the filter.';
comment on column onlyonce.filters.keys   is 'How many keys it was built of.';
comment on column onlyonce.filters.digest is 'SHA-256 of filter.';

create table onlyonce.frontiers (
  cursor_id bigint      primary key references onlyonce.cursors (id) on delete cascade,
  run       integer     not null,
  frontier  timestamptz not null
) with (fillfactor = 50);
comment on table  onlyonce.frontiers is 'How far each cursor is in the time of its log, by the database''s clock: nothing that was appended before it is still to be handled.';
comment on column onlyonce.frontiers.run      is 'The cursor''s run that this is said of. In another one nothing is known.';
comment on column onlyonce.frontiers.frontier is 'The latest of the times, each asked before the end of the log was, whose end the cursor has passed.';

create table onlyonce.owners (
  id         uuid        primary key,
  scope      text        not null,
  host       text        not null,
  pid        integer     not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at    timestamptz not null default clock_timestamp(),
  partitions jsonb       not null
) with (fillfactor = 50);
create index owners_scope on onlyonce.owners (scope);
comment on table  onlyonce.owners is 'What each consumer process knows of the partitions that it owns, for people and tools: the engine decides nothing by it.';
comment on column onlyonce.owners.id         is 'Drawn by each Consumer.Run.';
comment on column onlyonce.owners.seen_at    is 'When the process wrote the row: at once when a state changes, every 10 seconds otherwise. A process that stops in order deletes its row.';
comment on column onlyonce.owners.partitions is 'A list of objects: topic, partition, epoch, position, high_watermark, lag, last_stable, paused, halted (reason), detail, and ages in seconds at seen_at: halted_for, last_batch_age, waiting_for (an open Kafka transaction holds back what lies above last_stable).';

-- ---------------------------------------------------------------- cursors

alter table onlyonce.cursors add column redo_until bigint, add column redo_topic_id uuid;
comment on column onlyonce.cursors.redo_topic_id is 'In which topic redo_until lies: it means nothing in one that was made anew. Null: not known.';
comment on column onlyonce.cursors.redo_until is 'Messages below it may have been handled in a history that this database does not know, or that an operator has set back: calls under their keys may have been made. Null: none.';

create or replace view onlyonce.positions as
  select c.id, c.scope, c.topic, c.partition, c.group_id, c.cluster_id, c.topic_id, c.run, c.clean,
         c.attempt_offset, c.attempts, c.start_offset, c.start_policy, l.epoch, l.nonce,
         coalesce(p.next_offset, c.run_start) as next_offset,
         p.anchor_offset, p.anchor_epoch, p.anchor_hash,
         case when p.next_offset is null then c.run_epoch else p.leader_epoch end as leader_epoch, c.run_epoch,
         c.retired_at, c.replay_no, c.replay_until, c.replay_resume, c.replay_resend, c.redo_until, c.redo_topic_id
    from onlyonce.cursors c
    join onlyonce.leases l on l.id = c.id
    left join lateral (
      select q.next_offset, q.anchor_offset, q.anchor_epoch, q.anchor_hash, q.leader_epoch from onlyonce.progress q
       where q.cursor_id = c.id and q.run = c.run
       order by q.from_offset desc limit 1) p on true;

-- ---------------------------------------------------------------- claims

-- The claim, of one ring. In this order, each in a statement of its own (dedupe's and internal/ring's documentation have the interleavings):
--   1. The transaction gets its id: a rotator that moves the ring behind our back waits for every id that was given out before.
--   2. The ring's row is read. Above READ COMMITTED the snapshot may be older than the row: then its version is not the sequence's.
--   3. Closed segments are asked for the keys. Where the caller has asked a segment's filter (its use is in `asked`), only for what that could not
--      exclude (`hits`, of `hit_uses`). Filters of uses that are not closed here are not looked at.
--   4. Keys are inserted into the draining segment, and those that were fresh there into the current one: transactions that have read the
--      row before the announcement insert into the first only, those that read it after the drain into the second only. Sorted, the
--      draining one first, everywhere: so calls do not deadlock.
-- A key is fresh only if every segment says so. Waits for uncommitted copies. SEGMENT statements are written out by slot, because a plan is kept
-- only for a table that is named; and planned without sequential scans, because a segment may have been empty when its plan was made.
do $do$
declare
  claim constant text := $f$
create function onlyonce.claim_RING(keys uuid[], fingerprints bigint[],
  asked bigint[] default '{}', hit_uses bigint[] default '{}', hits uuid[] default '{}') returns smallint[]
language plpgsql as $$
declare
  cur      smallint;
  draining smallint;
  closed   smallint[];
  uses     bigint[];
  version  bigint;
  slot     smallint;
  rest     uuid[];
  prints   bigint[];
  probe    uuid[];
  got      uuid[];
  gotten   bigint[];
  found    uuid[]   := '{}';
  theirs   bigint[] := '{}';
  parked   uuid[];
  result   smallint[];
  seqscan  text     := current_setting('enable_seqscan');
  ignored  text;
begin
  if keys is null or fingerprints is null or array_position(keys, null) is not null or array_position(fingerprints, null) is not null then
    raise exception using errcode = '23502', message = 'onlyonce: claim: keys and fingerprints must not be null, nor hold a null';
  elsif cardinality(keys) <> cardinality(fingerprints) then
    raise exception using errcode = '22023', message = format('onlyonce: claim: %s keys and %s fingerprints', cardinality(keys), cardinality(fingerprints));
  end if;
  if cardinality(keys) = 0 then
    return '{}';
  end if;
  ignored := pg_current_xact_id()::text;
  select r.cur, r.draining, r.closed, r.uses, r.version into cur, draining, closed, uses, version from onlyonce.rings r where r.name = 'RING_keys';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.RING_keys_version s) then
    raise exception using errcode = '40001', message = 'onlyonce: the inbox changed its segments since this transaction began: run it again';
  end if;
  ignored := set_config('enable_seqscan', 'off', true);

  select array_agg(u.k), array_agg(u.f) into rest, prints
    from (select distinct on (v.k) v.k, v.f from unnest(keys, fingerprints) with ordinality as v(k, f, n) order by v.k, v.n) u;

  foreach slot in array closed loop
    probe := rest;
    if uses[slot + 1] = any (asked) then
      select array_agg(h.k) into probe from unnest(hit_uses, hits) as h(u, k) where h.u = uses[slot + 1] and h.k = any (rest);
      continue when probe is null;
    end if;
    case slot
      EACH_SLOT{when SLOT then select array_agg(s.key), array_agg(s.fingerprint) into got, gotten from onlyonce.SEGMENT s where s.key = any (probe);}
    end case;
    if got is not null then
      found := found || got;
      theirs := theirs || gotten;
      select array_agg(u.k), array_agg(u.f) into rest, prints from unnest(rest, prints) as u(k, f) where u.k <> all (got);
      exit when rest is null;
    end if;
  end loop;

  foreach slot in array array[draining, cur] loop
    continue when slot is null or rest is null;
    probe := rest;
    case slot
      EACH_SLOT{when SLOT then
        with claimed as (insert into onlyonce.SEGMENT (key, fingerprint) select unnest(rest), unnest(prints) on conflict do nothing returning key, fingerprint)
        select array_agg(c.key), array_agg(c.fingerprint) into rest, prints from claimed c;}
    end case;
    if cardinality(rest) is distinct from cardinality(probe) then
      -- A later statement: under READ COMMITTED it sees what the INSERT has waited for; above, that has raised 40001.
      select array_agg(p.k) into probe from unnest(probe) as p(k) where rest is null or p.k <> all (rest);
      case slot
        EACH_SLOT{when SLOT then select array_agg(s.key), array_agg(s.fingerprint) into got, gotten from onlyonce.SEGMENT s where s.key = any (probe);}
      end case;
      found := found || coalesce(got, '{}');
      theirs := theirs || coalesce(gotten, '{}');
    end if;
  end loop;

  if rest is not null then
    -- A copy of an unsettled parked message or event is a duplicate even when retention has removed its key.
    select array_agg(p.key) into parked from onlyonce.parked p
     where p.kind in ('message', 'event') and p.key = any (rest) and p.settled_at is null and p.reason <> 'conflict';
  end if;
  ignored := set_config('enable_seqscan', seqscan, true);
  if parked is null and cardinality(rest) = cardinality(keys) then
    return array_fill(0::smallint, array[cardinality(keys)]);
  end if;
  -- Neither fresh nor found: somebody has deleted it in between.
  if coalesce(cardinality(rest), 0) + cardinality(found) <> (select count(distinct k) from unnest(keys) k) then
    raise exception using errcode = '40001', message = 'onlyonce: a key was claimed and forgotten while it was asked for: run it again';
  end if;
  select array_agg(case when u.first and i.fresh and not (u.k = any (coalesce(parked, '{}'))) then 0
                        when i.f = u.f or i.f = 0 or u.f = 0 then 1
                        else 2 end::smallint order by u.n)
    into result
    from (select k, f, n, row_number() over (partition by k order by n) = 1 as first
            from unnest(keys, fingerprints) with ordinality as v(k, f, n)) u
    join (select k, f, true as fresh from unnest(rest, prints) as r(k, f) union all select k, f, false from unnest(found, theirs) as d(k, f)) i on i.k = u.k;
  return result;
end $$$f$;
  fresh constant text := $f$
create function onlyonce.claim_RING_fresh(keys uuid[], fingerprints bigint[],
  asked bigint[] default '{}', hit_uses bigint[] default '{}', hits uuid[] default '{}') returns void
language plpgsql as $$
declare
  cur      smallint;
  draining smallint;
  closed   smallint[];
  uses     bigint[];
  version  bigint;
  slot     smallint;
  probe    uuid[];
  duplicate boolean;
  seqscan  text := current_setting('enable_seqscan');
  ignored  text;
begin
  ignored := pg_current_xact_id()::text;
  select r.cur, r.draining, r.closed, r.uses, r.version into cur, draining, closed, uses, version from onlyonce.rings r where r.name = 'RING_keys';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.RING_keys_version s) then
    raise exception using errcode = '40001', message = 'onlyonce: the inbox changed its segments since this transaction began: run it again';
  end if;
  if cardinality(closed) > 0 then
    ignored := set_config('enable_seqscan', 'off', true);
    foreach slot in array closed loop
      probe := keys;
      if uses[slot + 1] = any (asked) then
        select array_agg(h.k) into probe from unnest(hit_uses, hits) as h(u, k) where h.u = uses[slot + 1];
        continue when probe is null;
      end if;
      case slot
        EACH_SLOT{when SLOT then select exists (select from onlyonce.SEGMENT s where s.key = any (probe)) into duplicate;}
      end case;
      if duplicate then
        raise exception using errcode = '23505', message = 'onlyonce: one of these keys was claimed before', detail = format('It stands in slot %s of ring RING_keys.', slot);
      end if;
    end loop;
    ignored := set_config('enable_seqscan', seqscan, true);
  end if;
  if draining is not null then
    case draining
      EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}
    end case;
  end if;
  case cur
    EACH_SLOT{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}
  end case;
  if exists (select 1 from onlyonce.parked p where p.settled_at is null and p.reason <> 'conflict') then -- mostly there is none
    if exists (select 1 from onlyonce.parked p
                where p.kind in ('message', 'event') and p.key = any (keys) and p.settled_at is null and p.reason <> 'conflict') then
      raise exception using errcode = '23505', message = 'onlyonce: a copy of one of these messages is parked';
    end if;
  end if;
end $$$f$;
  body   text;
  branch text[];
begin
  for body in select replace(x.f, 'RING', x.ring) from (values (claim, 'consumer'), (claim, 'standard'), (fresh, 'consumer')) as x(f, ring) loop
    -- EACH_SLOT{...} is repeated for each slot.
    for branch in select m from regexp_matches(body, '(EACH_SLOT\{([^}]*)\})', 'g') m loop
      body := replace(body, branch[1], (
        select string_agg(replace(replace(branch[2], 'SLOT', s::text), 'SEGMENT', substring(body from '(?:consumer|standard)_keys') || '_' || s),
                          E'\n      ' order by s)
          from generate_series(0, 9) s));
    end loop;
    execute body;
  end loop;
end $do$;
comment on function onlyonce.claim_consumer(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys of Kafka messages: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies. The last three: which closed segments the caller''s filters were asked of, and what they could not exclude.';
comment on function onlyonce.claim_standard(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys whose retention is by the clock: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies.';
comment on function onlyonce.claim_consumer_fresh(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys of Kafka messages, or raises 23505 unless every one is new. So it may share a round trip with the effects and COMMIT.';

-- For every transaction but the consumer engine's own claims: by the clock.
create function onlyonce.claim(keys uuid[], fingerprints bigint[]) returns smallint[]
language plpgsql as $$
begin
  return onlyonce.claim_standard(keys, fingerprints);
end $$;
comment on function onlyonce.claim(uuid[], bigint[]) is
  'Claims keys in the caller''s transaction: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies. Keys are remembered by the database''s clock.';

-- The key goes where claims of messages go.
create or replace function onlyonce.settle(
  cursor_id bigint, epoch bigint, nonce uuid, parked_id bigint, attempts integer, key uuid, fingerprint bigint,
  lock_timeout text, statement_timeout text, idle_timeout text
) returns void
language plpgsql as $$
begin
  perform set_config('lock_timeout', settle.lock_timeout, true),
          set_config('statement_timeout', settle.statement_timeout, true),
          set_config('idle_in_transaction_session_timeout', settle.idle_timeout, true);
  perform onlyonce.hold(settle.cursor_id, settle.epoch, settle.nonce);
  update onlyonce.parked p set state = 'resolved', settled_at = clock_timestamp(), next_attempt_at = null
   where p.id = settle.parked_id and p.state = 'retrying' and p.attempts = settle.attempts;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the parked row was settled or changed by somebody else',
      detail = format('parked row %s, attempt %s', settle.parked_id, settle.attempts);
  end if;
  if settle.key is not null then
    perform onlyonce.claim_consumer(array[settle.key], array[settle.fingerprint]);
  end if;
  perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;

-- ---------------------------------------------------------------- calls

-- Writes outbound calls in the caller's transaction. Arrays of one length, a call each, in the order in which they are to go out:
--   checks  0: the fence and the message's claim exclude that the call stands already.
--           1: it may stand already (the message is replayed, or done again): then nothing is written; OO004 if its bytes differ.
--           2: a call of the user's own transaction: its key is claimed in the inbox, and when that is forgotten the call may stand there still, unsent, or
--              parked with an outcome that nobody knows; OO004 if either has other bytes.
-- The locks of the ordering keys come first, in a statement before the INSERT that draws the ids, sorted, so that two
-- transactions that call this once cannot deadlock. 1,024 stripes: one lock a key would exhaust the server's lock table.
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

  -- In statements of their own: each locks the tables that it names until the transaction ends, segments too, which then cannot be emptied.
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
  -- The xid is assigned before the ring is read, each in a statement of its own: a rotator that announces another segment behind our
  -- back waits for every xid that was in progress then.
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

-- One call, for other languages: no ordering key, claimed by its own key. A null, or arrays of two lengths, would silently leave headers out.
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

comment on table onlyonce.webhook_ids is 'Which event a receiver claimed when. The key itself is in the ring standard_keys and remembered by its horizon; the row demands the seal, and tells operators.';

-- ---------------------------------------------------------------- scopes

create table onlyonce.scopes (
  scope      text        primary key check (scope <> ''),
  topics     text[]      not null,
  copies     text        check (copies in ('within', 'across')),
  home       text        not null,
  created_at timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.scopes is 'What ids mean in a scope that reads messages by id: its consumers agree on this row, or halt.';
comment on column onlyonce.scopes.topics is 'Topics that its consumers have read.';
comment on column onlyonce.scopes.copies is 'Whether an id counts within its topic or across the topics of the scope. Null: one topic, and nobody has chosen.';
comment on column onlyonce.scopes.home   is 'Topic whose keys never hold a topic: the one that the scope began with. Empty: it began with several.';

insert into onlyonce.schema_version (version) values (5);
