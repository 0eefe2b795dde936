-- onlyonce schema, version 5: the inbox is two rings of segments.
--
-- Code of the schema before goes on working beside code of this one: it claims by functions whose bodies change here, so that both find each
-- other's keys. onlyonce.inbox becomes a view. What was in it stays, as the oldest closed segment of both rings.
--
-- Takes ACCESS EXCLUSIVE on onlyonce.inbox: it waits for transactions that have claimed, and claims wait for it. A claim that began in the old
-- body and waits here fails afterwards ("cannot insert into view"), and is run again: its key would stand where nobody looks for keys to come.

lock table onlyonce.inbox in access exclusive mode;

-- ---------------------------------------------------------------- rings

alter table onlyonce.rings
  add column uses    bigint[] not null default '{}',
  add column horizon interval check (horizon > interval '0');
comment on column onlyonce.rings.uses    is 'By slot (the first is slot 0): a random number of its last close. Slots are used again, and after a failover closed again; a use is not.';
comment on column onlyonce.rings.horizon is 'Rings of keys: how long a key is remembered at least, after its segment was closed. Null: for ever, and nothing is rotated.';

alter table onlyonce.inbox rename to keys_old;
alter index onlyonce.inbox_pkey rename to keys_old_pkey;
comment on table onlyonce.keys_old is 'Keys that were claimed before schema 5: slot 10 of both rings, closed, and empty for good once both have retired it.';
comment on column onlyonce.keys_old.key is '128-bit hash of (tenant, scope, key), see dedupe/testdata/keys.json.';

do $$
declare
  ring  text;
  filled boolean := exists (select from onlyonce.keys_old);
begin
  foreach ring in array array['keys_log', 'keys_clock'] loop
    for slot in 0 .. 9 loop
      execute format('create table onlyonce.%I (key uuid primary key, fingerprint bigint not null)', ring || '_' || slot);
      execute format('comment on table onlyonce.%I is %L', ring || '_' || slot, 'Segment of ring ' || ring || ': keys that were claimed. onlyonce.rings says what it is used for.');
    end loop;
    execute format('create sequence onlyonce.%I start 1 cache 1', ring || '_version');
    perform setval(('onlyonce.' || ring || '_version')::regclass, 1);
    -- A database that has remembered every key goes on doing so until somebody sets a horizon.
    insert into onlyonce.rings (name, slots, closed, uses, horizon)
      values (ring, 10, case when filled then '{10}' else '{}' end::smallint[], array_fill(null::bigint, array[10]) || ('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint, case when filled then null else interval '7 days' end);
    insert into onlyonce.segments (ring, slot, use_no, opened_at, closed_at)
      select ring, s, case when s in (0, 10) then 1 else 0 end, case s when 0 then clock_timestamp() end, case when s = 10 and filled then clock_timestamp() end
        from generate_series(0, 10) s;
  end loop;
end $$;

-- ---------------------------------------------------------------- the view

do $$
begin
  execute 'create view onlyonce.inbox as select key, fingerprint, ''keys_old'' as segment from onlyonce.keys_old' || (
    select string_agg(format(' union all select key, fingerprint, %L from onlyonce.%I', ring || '_' || slot, ring || '_' || slot), '' order by ring, slot)
      from unnest(array['keys_log', 'keys_clock']) ring, generate_series(0, 9) slot);
end $$;
comment on view onlyonce.inbox is 'Keys that are remembered, of all segments. One that was claimed while a segment drained stands in two. Claim by the functions: a row alone excludes nobody.';

-- Who could use the table may use the segments and the view, so that nobody has to stand still until docs/roles.sql was run again.
do $$
declare
  has record;
begin
  for has in
    select case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee, a.privilege_type as privilege
      from pg_class c, aclexplode(c.relacl) a
     where c.oid = 'onlyonce.keys_old'::regclass and a.privilege_type in ('SELECT', 'INSERT', 'DELETE') and a.grantee <> c.relowner
  loop
    for slot in 0 .. 9 loop
      execute format('grant %s on onlyonce.keys_log_%s, onlyonce.keys_clock_%s to %s', has.privilege, slot, slot, has.grantee);
    end loop;
    execute format('grant %s on onlyonce.inbox to %s', has.privilege, has.grantee);
    execute format('grant select on onlyonce.rings to %s', has.grantee);
    execute format('grant select on sequence onlyonce.keys_log_version, onlyonce.keys_clock_version to %s', has.grantee);
  end loop;
end $$;

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
  if cardinality(keys) is distinct from cardinality(fingerprints) then
    raise exception 'onlyonce: claim: % keys and % fingerprints', cardinality(keys), cardinality(fingerprints);
  end if;
  if cardinality(keys) = 0 then
    return '{}';
  end if;
  ignored := pg_current_xact_id()::text;
  select r.cur, r.draining, r.closed, r.uses, r.version into cur, draining, closed, uses, version from onlyonce.rings r where r.name = 'keys_RING';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.keys_RING_version s) then
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
      EACH_CLOSED{when SLOT then select array_agg(s.key), array_agg(s.fingerprint) into got, gotten from onlyonce.SEGMENT s where s.key = any (probe);}
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
      EACH_OPEN{when SLOT then
        with claimed as (insert into onlyonce.SEGMENT (key, fingerprint) select unnest(rest), unnest(prints) on conflict do nothing returning key, fingerprint)
        select array_agg(c.key), array_agg(c.fingerprint) into rest, prints from claimed c;}
    end case;
    if cardinality(rest) is distinct from cardinality(probe) then
      -- A later statement: under READ COMMITTED it sees what the INSERT has waited for; above, that has raised 40001.
      select array_agg(p.k) into probe from unnest(probe) as p(k) where rest is null or p.k <> all (rest);
      case slot
        EACH_OPEN{when SLOT then select array_agg(s.key), array_agg(s.fingerprint) into got, gotten from onlyonce.SEGMENT s where s.key = any (probe);}
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
  select r.cur, r.draining, r.closed, r.uses, r.version into cur, draining, closed, uses, version from onlyonce.rings r where r.name = 'keys_RING';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.keys_RING_version s) then
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
        EACH_CLOSED{when SLOT then select exists (select from onlyonce.SEGMENT s where s.key = any (probe)) into duplicate;}
      end case;
      if duplicate then
        raise exception using errcode = '23505', message = 'onlyonce: one of these keys was claimed before', detail = format('It stands in slot %s of ring keys_RING.', slot);
      end if;
    end loop;
    ignored := set_config('enable_seqscan', seqscan, true);
  end if;
  if draining is not null then
    case draining
      EACH_OPEN{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}
    end case;
  end if;
  case cur
    EACH_OPEN{when SLOT then insert into onlyonce.SEGMENT (key, fingerprint) select unnest(keys), unnest(fingerprints) order by 1;}
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
  for body in select replace(x.f, 'RING', x.ring) from (values (claim, 'log'), (claim, 'clock'), (fresh, 'log')) as x(f, ring) loop
    -- EACH_OPEN{...} is repeated for slots 0 to 9, EACH_CLOSED{...} for slot 10 besides.
    for branch in select m from regexp_matches(body, '(EACH_(OPEN|CLOSED)\{([^}]*)\})', 'g') m loop
      body := replace(body, branch[1], (
        select string_agg(replace(replace(branch[3], 'SLOT', s::text), 'SEGMENT',
                 case s when 10 then 'keys_old' else substring(body from 'keys_(?:log|clock)') || '_' || s end), E'\n      ' order by s)
          from generate_series(0, case branch[2] when 'OPEN' then 9 else 10 end) s));
    end loop;
    execute body;
  end loop;
end $do$;
comment on function onlyonce.claim_log(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys of Kafka messages: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies. The last three: which closed segments the caller''s filters were asked of, and what they could not exclude.';
comment on function onlyonce.claim_clock(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys whose retention is by the clock: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies.';
comment on function onlyonce.claim_log_fresh(uuid[], bigint[], bigint[], bigint[], uuid[]) is
  'Claims keys of Kafka messages, or raises 23505 unless every one is new. So it may share a round trip with the effects and COMMIT.';

-- For everybody but the consumer's engine: by the clock. In a fenced transaction in both rings, the log's first, as everywhere: the engine of
-- the schema before calls this too, and must find the keys of this one's, and they its.
create or replace function onlyonce.claim(keys uuid[], fingerprints bigint[]) returns smallint[]
language plpgsql as $$
declare
  logged smallint[];
  timed  smallint[];
begin
  if current_setting('onlyonce.fenced', true) is distinct from pg_current_xact_id()::text then
    return onlyonce.claim_clock(keys, fingerprints);
  end if;
  logged := onlyonce.claim_log(keys, fingerprints);
  timed := onlyonce.claim_clock(keys, fingerprints);
  return array(select greatest(o.l, o.t) from unnest(logged, timed) with ordinality as o(l, t, n) order by o.n);
end $$;
comment on function onlyonce.claim(uuid[], bigint[]) is
  'Claims keys in the caller''s transaction: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for uncommitted copies. Keys are remembered by the database''s clock.';

create or replace function onlyonce.claim_fresh(keys uuid[], fingerprints bigint[]) returns void
language plpgsql as $$
begin
  perform onlyonce.claim_log_fresh(keys, fingerprints);
end $$;
comment on function onlyonce.claim_fresh(uuid[], bigint[]) is
  'onlyonce.claim_log_fresh for code of the schema before.';

-- As in version 2, and the key goes where claims of messages go.
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
    perform onlyonce.claim_log(array[settle.key], array[settle.fingerprint]);
  end if;
  perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;

-- A call of a transaction of the user's own (checks 2) is looked for in the log and among parked ones too: its key is forgotten when the horizon has
-- passed, and the call may stand there still, unsent, or with an outcome that nobody knows. The body is version 3's but for that.
do $$
declare
  before text := pg_get_functiondef('onlyonce.enqueue_calls'::regproc);
  body   text := replace(replace(before, $q$if checks && '{1,3}'::smallint[] then$q$, $q$if checks && '{1,2,3}'::smallint[] then$q$),
                   'where u.c in (1, 3)', 'where u.c > 0 and u.n <> all (skip)');
begin
  if body not like '%u.n <> all (skip)%' or before like '%if checks && ''{1,2,3}''::smallint[] then%if checks && ''{1,2,3}''::smallint[] then%' then
    raise exception 'onlyonce: onlyonce.enqueue_calls is not version 3''s';
  end if;
  execute body;
end $$;

comment on table onlyonce.webhook_ids is 'Which event a receiver claimed when. The key itself is in the ring keys_clock and remembered by its horizon; the row demands the seal, and tells operators.';

insert into onlyonce.schema_version (version) values (5);
