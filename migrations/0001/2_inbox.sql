-- onlyonce schema, version 1: the inbox. It holds the keys that were claimed, in rings of segments.

-- key returns the stored form of a key. dedupe.Key.Hash does the same in Go;
-- dedupe/testdata/keys.json holds test vectors for both. For example, key('', 'orders', 'order-17')
-- is the first half of a SHA-256 (K1).
create function onlyonce.key(tenant text, scope text, id text) returns uuid
language plpgsql immutable strict parallel safe as $$
declare
  field  text;
  packed bytea := '';
  sum    bytea;
  ms     bigint := 0;
begin
  foreach field in array array['onlyonce/key/1', tenant, scope, id] loop
    packed := packed || int4send(octet_length(convert_to(field, 'UTF8'))) || convert_to(field, 'UTF8');
  end loop;
  sum := sha256(packed);
  if id ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$' then
    -- A UUIDv7 keeps its 48 bits of time in front.
    return encode(substr(uuid_send(id::uuid), 1, 6) || substr(sum, 1, 10), 'hex')::uuid;
  elsif id ~ '^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$' then
    -- So does a ULID.
    for i in 1..10 loop
      ms := ms * 32 + strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', upper(substr(id, i, 1))) - 1;
    end loop;
    return encode(substr(int8send(ms), 3, 6) || substr(sum, 1, 10), 'hex')::uuid;
  end if;
  return encode(substr(sum, 1, 16), 'hex')::uuid;
end $$;
comment on function onlyonce.key is 'Stored form of a key: what onlyonce.inbox.key holds for (tenant, scope, id).';

-- ---------------------------------------------------------------- claims and segments

-- claim_RING claims keys in one ring. Its steps, each in a statement of its own (the interleavings
-- are in the documentation of dedupe and internal/ring):
--   1. The transaction gets its id. A rotator that moves the ring after that waits for every id
--      that existed before.
--   2. The ring's row is read. Above READ COMMITTED the snapshot may be older than the row; then
--      the row's version differs from the sequence's, and the claim raises 40001.
--   3. Closed segments are searched for the keys. If the caller has asked a segment's filter
--      (`asked` has its use), only the keys that the filter could not exclude are searched for
--      (`hits`, each with its use in `hit_uses`). Filters of uses that are not closed here are
--      ignored.
--   4. The keys are inserted into the draining segment, and those that were fresh there into the
--      current one. A transaction that read the row before the announcement inserts into the
--      draining segment only; one that read it after the drain inserts into the current one only.
--      All insert in sorted order, the draining segment first, so that two claims cannot deadlock.
-- A key is fresh only if every segment says so. The claim waits for uncommitted copies.
--
-- SEGMENT statements are written out by slot, because a plan is kept only for a table that is
-- named. They are planned without sequential scans, because a segment may have been empty when its
-- plan was made.
--
-- Each ring has a claim of its own, made from one text. There is a ring for each class of horizon,
-- because a ring forgets as a whole: consumer_keys and standard_keys for the class standard, and
-- consumer_short_keys, standard_short_keys and so on. To add a class, add its rings to this loop,
-- to claim_class below, and to ring.Classes in Go.
do $do$
declare
  claim constant text := $f$
-- claim_RING claims keys, and waits for each that another transaction has claimed and not committed
-- (K2, K3, K4, K5, K7, W10).
create function onlyonce.claim_RING(
  keys uuid[],
  fingerprints bigint[],
  asked bigint[] default '{}',
  hit_uses bigint[] default '{}',
  hits uuid[] default '{}'
) returns smallint[]
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
  seen     uuid[]   := '{}';
  theirs   bigint[] := '{}';
  parked   uuid[];
  known    boolean;
  result   smallint[];
  seqscan  text     := current_setting('enable_seqscan');
  ignored  text;
begin
  if keys is null
     or fingerprints is null
     or array_position(keys, null) is not null
     or array_position(fingerprints, null) is not null then
    raise exception using errcode = '23502',
      message = 'onlyonce: claim: keys and fingerprints must not be null, nor hold a null';
  elsif cardinality(keys) <> cardinality(fingerprints) then
    raise exception using errcode = '22023',
      message = format('onlyonce: claim: %s keys and %s fingerprints', cardinality(keys), cardinality(fingerprints));
  end if;
  if cardinality(keys) = 0 then
    return '{}';
  end if;
  ignored := pg_current_xact_id()::text;
  select r.cur,
         r.draining,
         r.closed,
         r.uses,
         r.version
    into cur, draining, closed, uses, version
    from onlyonce.rings r
   where r.name = 'RING_keys';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.RING_keys_version s) then
    raise exception using errcode = '40001',
      message = 'onlyonce: the inbox changed its segments since this transaction began: run the transaction again';
  end if;

  ignored := set_config('enable_seqscan', 'off', true);

  -- One new key, which is what most transactions claim that are not a consumer's: the same without
  -- arrays. Any other answer is left to the statements below.
  if cardinality(keys) = 1 and cardinality(asked) = 0 and draining is null then
    known := exists (select from onlyonce.parked p
                      where p.key = keys[1] and p.kind <> 'call' and p.settled_at is null and p.reason <> 'conflict');
    foreach slot in array closed loop
      exit when known;
      case slot
        EACH_SLOT{when SLOT then known := exists (select from onlyonce_segments.SEGMENT s where s.key = keys[1]);}
      end case;
    end loop;
    if not known then
      case cur
        EACH_SLOT{when SLOT then insert into onlyonce_segments.SEGMENT (key, fingerprint)
                                   values (keys[1], fingerprints[1]) on conflict do nothing;}
      end case;
      if found then
        ignored := set_config('enable_seqscan', seqscan, true);
        return array[0::smallint];
      end if;
    end if;
  end if;

  select array_agg(u.k), array_agg(u.f) into rest, prints
    from (select distinct on (v.k) v.k, v.f
            from unnest(keys, fingerprints) with ordinality as v(k, f, n) order by v.k, v.n) u;

  foreach slot in array closed loop
    probe := rest;
    if uses[slot + 1] = any (asked) then
      select array_agg(h.k)
        into probe from unnest(hit_uses, hits) as h(u, k) where h.u = uses[slot + 1] and h.k = any (rest);
      continue when probe is null;
    end if;
    case slot
      EACH_SLOT{when SLOT then select array_agg(s.key), array_agg(s.fingerprint)
                                 into got, gotten from onlyonce_segments.SEGMENT s where s.key = any (probe);}
    end case;
    if got is not null then
      seen := seen || got;
      theirs := theirs || gotten;
      select array_agg(u.k), array_agg(u.f)
        into rest, prints from unnest(rest, prints) as u(k, f) where u.k <> all (got);
      exit when rest is null;
    end if;
  end loop;

  foreach slot in array array[draining, cur] loop
    continue when slot is null or rest is null;
    probe := rest;
    case slot
      EACH_SLOT{when SLOT then
        with claimed as (insert into onlyonce_segments.SEGMENT (key, fingerprint)
                           select unnest(rest), unnest(prints) on conflict do nothing returning key, fingerprint)
        select array_agg(c.key), array_agg(c.fingerprint) into rest, prints from claimed c;}
    end case;
    if cardinality(rest) is distinct from cardinality(probe) then
      -- A later statement: under READ COMMITTED it sees what the INSERT has waited for. Above that
      -- level the INSERT has raised 40001.
      select array_agg(p.k) into probe from unnest(probe) as p(k) where rest is null or p.k <> all (rest);
      case slot
        EACH_SLOT{when SLOT then select array_agg(s.key), array_agg(s.fingerprint)
                                   into got, gotten from onlyonce_segments.SEGMENT s where s.key = any (probe);}
      end case;
      seen := seen || coalesce(got, '{}');
      theirs := theirs || coalesce(gotten, '{}');
    end if;
  end loop;

  -- A copy of an unsettled parked message or event is a duplicate even if retention has removed its
  -- key. Only the keys themselves are looked up (parked_key_unresolved). A look for any parked
  -- message would read all that are settled, or all calls (T13).
  if rest is not null then
    select array_agg(p.key) into parked
      from onlyonce.parked p
     where p.key = any (rest) and p.kind <> 'call' and p.settled_at is null and p.reason <> 'conflict';
  end if;
  ignored := set_config('enable_seqscan', seqscan, true);
  if parked is null and cardinality(rest) = cardinality(keys) then
    return array_fill(0::smallint, array[cardinality(keys)]);
  end if;
  -- Neither fresh nor seen: another transaction has deleted the key in between.
  if coalesce(cardinality(rest), 0) + cardinality(seen) <> (select count(distinct k) from unnest(keys) k) then
    raise exception using errcode = '40001',
      message = 'onlyonce: a key was claimed and forgotten during this claim: run the transaction again';
  end if;
  select array_agg(case when u.first and i.fresh and not (u.k = any (coalesce(parked, '{}'))) then 0
                        when i.f = u.f or i.f = 0 or u.f = 0 then 1
                        else 2 end::smallint order by u.n)
    into result
    from (select k, f, n, row_number() over (partition by k order by n) = 1 as first
            from unnest(keys, fingerprints) with ordinality as v(k, f, n)) u
    join (select k, f, true as fresh
            from unnest(rest, prints) as r(k, f)
           union all select k, f, false from unnest(seen, theirs) as d(k, f)) i on i.k = u.k;
  return result;
end $$$f$;
  fresh constant text := $f$
-- claim_RING_fresh claims keys of which none should be known, and raises if one is (T2, K2, K3, K4,
-- K5, K7).
create function onlyonce.claim_RING_fresh(
  keys uuid[],
  fingerprints bigint[],
  asked bigint[] default '{}',
  hit_uses bigint[] default '{}',
  hits uuid[] default '{}'
) returns void
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
  select r.cur,
         r.draining,
         r.closed,
         r.uses,
         r.version
    into cur, draining, closed, uses, version
    from onlyonce.rings r
   where r.name = 'RING_keys';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
     and version <> (select s.last_value from onlyonce.RING_keys_version s) then
    raise exception using errcode = '40001',
      message = 'onlyonce: the inbox changed its segments since this transaction began: run the transaction again';
  end if;
  ignored := set_config('enable_seqscan', 'off', true);
  if cardinality(closed) > 0 then
    foreach slot in array closed loop
      probe := keys;
      if uses[slot + 1] = any (asked) then
        select array_agg(h.k) into probe from unnest(hit_uses, hits) as h(u, k) where h.u = uses[slot + 1];
        continue when probe is null;
      end if;
      case slot
        EACH_SLOT{when SLOT then select exists (select from onlyonce_segments.SEGMENT s where s.key = any (probe))
                                   into duplicate;}
      end case;
      if duplicate then
        raise exception using errcode = '23505',
          message = 'onlyonce: one of these keys was claimed before',
          detail = format('The key is in slot %s of ring RING_keys.', slot);
      end if;
    end loop;
  end if;
  if draining is not null then
    case draining
      EACH_SLOT{when SLOT then insert into onlyonce_segments.SEGMENT (key, fingerprint)
                                 select unnest(keys), unnest(fingerprints) order by 1;}
    end case;
  end if;
  case cur
    EACH_SLOT{when SLOT then insert into onlyonce_segments.SEGMENT (key, fingerprint)
                               select unnest(keys), unnest(fingerprints) order by 1;}
  end case;
  select exists (select from onlyonce.parked p
                  where p.key = any (keys) and p.kind <> 'call' and p.settled_at is null and p.reason <> 'conflict')
    into duplicate;
  if duplicate then
    raise exception using errcode = '23505', message = 'onlyonce: a copy of one of these messages is parked';
  end if;
  ignored := set_config('enable_seqscan', seqscan, true);
end $$$f$;
  body   text;
  branch text[];
  ring   text;
begin
  foreach ring in array array['consumer_keys',
                              'consumer_short_keys',
                              'consumer_long_keys',
                              'standard_keys',
                              'standard_short_keys',
                              'standard_long_keys'] loop
    for slot in 0 .. 9 loop
      execute format(
        'create table onlyonce_segments.%I (key uuid primary key, fingerprint bigint not null)',
        ring || '_' || slot
      );
      execute format(
        'comment on table onlyonce_segments.%I is %L',
        ring || '_' || slot,
        'Segment of ring ' || ring || ': keys that were claimed. onlyonce.rings says what it is used for.'
      );
    end loop;
    execute format('create sequence onlyonce.%I start 1 cache 1', ring || '_version');
    -- Use setval, never nextval: nextval logs 32 numbers ahead, so that the sequence would have a
    -- higher number after a crash and on a standby.
    perform setval(('onlyonce.' || ring || '_version')::regclass, 1);
    insert into onlyonce.rings (name, slots, horizon)
      values (ring, 10, case when ring like '%short%' then interval '1 day'
                             when ring like '%long%' then interval '30 days'
                             else interval '7 days' end);
    insert into onlyonce.segments (ring, slot, use_no, opened_at)
      select ring, s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end
        from generate_series(0, 9) s;

    foreach body in array case when ring like 'consumer%' then array[claim, fresh] else array[claim] end loop
      body := replace(body, 'RING', regexp_replace(ring, '_keys$', ''));
      -- EACH_SLOT{...} is repeated for each slot.
      for branch in select m from regexp_matches(body, '(EACH_SLOT\{([^}]*)\})', 'g') m loop
        body := replace(body, branch[1], (
          select string_agg(
            replace(replace(branch[2], 'SLOT', s::text), 'SEGMENT', ring || '_' || s),
            E'\n      ' order by s
          )
            from generate_series(0, 9) s));
      end loop;
      execute body;
    end loop;
  end loop;

  execute 'create view onlyonce.inbox as ' || (
    select string_agg(
      format(
        'select key, fingerprint, %L as segment from onlyonce_segments.%I',
        g.ring || '_' || g.slot,
        g.ring || '_' || g.slot
      ),
      ' union all ' order by g.ring, g.slot
    )
      from onlyonce.segments g);
end $do$;
comment on function onlyonce.claim_consumer is
  'Claims keys of Kafka messages: 0 fresh, 1 duplicate, 2 same key with another payload. Waits for '
  'uncommitted copies. The last three arguments: the closed segments whose filters the caller has '
  'tested, and the keys that these could not exclude.';
comment on function onlyonce.claim_standard is
  'Claims keys whose retention is by the clock: 0 fresh, 1 duplicate, 2 same key with another payload. '
  'Waits for uncommitted copies.';
comment on function onlyonce.claim_consumer_fresh is
  'Claims keys of Kafka messages, or raises 23505 unless every one is new. So it may share a round trip '
  'with the effects and COMMIT.';
comment on function onlyonce.claim_consumer_short is 'As claim_consumer, for scopes of the class short.';
comment on function onlyonce.claim_consumer_long is 'As claim_consumer, for scopes of the class long.';
comment on function onlyonce.claim_consumer_short_fresh is 'As claim_consumer_fresh, for scopes of the class short.';
comment on function onlyonce.claim_consumer_long_fresh is 'As claim_consumer_fresh, for scopes of the class long.';
comment on function onlyonce.claim_standard_short is 'As claim_standard, for scopes of the class short.';
comment on function onlyonce.claim_standard_long is 'As claim_standard, for scopes of the class long.';
comment on view onlyonce.inbox is
  'Keys that are remembered, of all segments. A key that was claimed while a segment drained is in two. '
  'Claim with the functions: a row that you insert yourself excludes no other claim.';
comment on column onlyonce.inbox.key         is '128-bit hash of (tenant, scope, key), see dedupe/testdata/keys.json.';
comment on column onlyonce.inbox.fingerprint is 'First 64 bits of SHA-256 over the payload; 0: not compared.';
comment on column onlyonce.inbox.segment     is 'Table that holds the key, in schema onlyonce_segments.';

-- ---------------------------------------------------------------- classes of horizon

create function onlyonce.class_ring(class text, whose text default 'consumer') returns text
language sql immutable strict parallel safe as $$
  select whose || case class when 'standard' then '_keys'
                             when 'short' then '_short_keys'
                             when 'long' then '_long_keys' end
$$;
comment on function onlyonce.class_ring is
  'The ring of a class of horizon (short, standard or long), of consumers'' keys or, with ''standard'', of all others.';

-- still_asked reports whether a ring has a segment that was open at a time. While it has, claims
-- must search it for the keys that were claimed in it until then. Times of segments may be a minute
-- apart from each other, because a clock that goes back by less does not halt the ring (K10).
create function onlyonce.still_asked(ring text, since timestamptz) returns boolean
language sql stable as $$
  select exists (select from onlyonce.rings r join onlyonce.segments g on g.ring = r.name
                  where r.name = still_asked.ring and (g.slot = r.cur or g.slot = r.draining or g.slot = any (r.closed))
                    and g.opened_at <= still_asked.since + interval '1 minute')
$$;
comment on function onlyonce.still_asked is 'Whether a ring has a segment that was open at a time.';

-- claim_class is the claim of a class that is known only when it runs. Each claim function names
-- its tables, so that their plans are kept.
create function onlyonce.claim_class(
  class text,
  keys uuid[],
  fingerprints bigint[],
  whose text default 'consumer'
) returns smallint[]
language plpgsql as $$
begin
  case onlyonce.class_ring(class, whose)
    when 'consumer_keys' then return onlyonce.claim_consumer(keys, fingerprints);
    when 'consumer_short_keys' then return onlyonce.claim_consumer_short(keys, fingerprints);
    when 'consumer_long_keys' then return onlyonce.claim_consumer_long(keys, fingerprints);
    when 'standard_keys' then return onlyonce.claim_standard(keys, fingerprints);
    when 'standard_short_keys' then return onlyonce.claim_standard_short(keys, fingerprints);
    when 'standard_long_keys' then return onlyonce.claim_standard_long(keys, fingerprints);
  end case;
end $$;
comment on function onlyonce.claim_class is
  'Claims keys in the ring of a class: as claim_consumer, or with ''standard'' as claim_standard.';

-- find_keys looks for keys in the segments of a ring that claims search. It inserts nothing and
-- waits for nothing, so what it does not find may be claimed at any moment.
create function onlyonce.find_keys(ring text, keys uuid[]) returns table (key uuid, fingerprint bigint)
language plpgsql as $$
declare
  slot smallint;
begin
  foreach slot in array (select r.closed || array_remove(array[r.draining, r.cur], null)
                           from onlyonce.rings r where r.name = find_keys.ring) loop
    return query
      execute format(
        'select s.key, s.fingerprint from onlyonce_segments.%I s where s.key = any ($1)',
        find_keys.ring || '_' || slot
      )
      using find_keys.keys;
  end loop;
end $$;
comment on function onlyonce.find_keys is 'Which of these keys a ring remembers.';

-- claim_both claims keys in the rings of two classes, for a scope that changes from one to the
-- other. A key is fresh only if both say so.
--
-- The order of the rings is fixed: standard, short, long. Otherwise two claims of the same keys
-- could deadlock. A key that the second ring remembers is not inserted into the first, and one that
-- the first remembers is not inserted into the second: the payload's fingerprint there would be
-- that of a copy, and if it is another one (a conflict), a later copy of the first message would be
-- a conflict too. Only a key that is claimed in the second ring between the look and the claim is
-- inserted into both.
--
-- A key that is a duplicate only because its message is parked is new in the rings, so it is
-- inserted into both. Otherwise it would be in the first alone, which may be the old one, and would
-- not be found when the change is over (K10).
create function onlyonce.claim_both(
  one text,
  other text,
  keys uuid[],
  fingerprints bigint[],
  whose text default 'consumer'
) returns smallint[]
language plpgsql as $$
declare
  ordered constant text[] := array['standard', 'short', 'long'];
  first   text       := case when array_position(ordered, one) < array_position(ordered, other) then one else other end;
  second  text       := case when first = one then other else one end;
  result  smallint[] := array_fill(0::smallint, array[cardinality(keys)]);
  known   uuid[];
  prints  bigint[];
  at      integer;
  asked   integer[];
  got     smallint[];
  parked  uuid[];
begin
  perform pg_current_xact_id(); -- as in claim_RING: before the ring's row is read
  select coalesce(array_agg(f.key), '{}'), coalesce(array_agg(f.fingerprint), '{}') into known, prints
    from onlyonce.find_keys(onlyonce.class_ring(second, whose), keys) f;
  asked := '{}';
  for n in 1 .. cardinality(keys) loop
    at := array_position(known, keys[n]);
    if at is null then
      asked := asked || n;
    else
      result[n] := case when prints[at] = fingerprints[n] or prints[at] = 0 or fingerprints[n] = 0 then 1 else 2 end;
    end if;
  end loop;
  foreach first in array array[first, second] loop
    got := onlyonce.claim_class(
      first,
      array(select keys[u.n] from unnest(asked) with ordinality u (n, o) order by u.o),
      array(select fingerprints[u.n] from unnest(asked) with ordinality u (n, o) order by u.o),
      whose
    );
    for n in 1 .. cardinality(asked) loop
      if result[asked[n]] = 0 then
        result[asked[n]] := got[n];
      end if;
    end loop;
    if 1 = any (got) then
      select array_agg(p.key) into parked from onlyonce.parked p
       where p.kind in ('message', 'event') and p.key = any (keys) and p.settled_at is null and p.reason <> 'conflict';
    end if;
    select coalesce(array_agg(u.n order by u.o), '{}') into asked
      from unnest(asked) with ordinality u (n, o) where got[u.o] = 0 or got[u.o] = 1 and keys[u.n] = any (parked);
  end loop;
  return result;
end $$;
comment on function onlyonce.claim_both is
  'Claims keys in the rings of two classes: fresh only if new in both. For a scope whose class changes.';

create table onlyonce.horizons (
  scope        text        primary key check (scope <> ''),
  class        text        not null check (class in ('short', 'standard', 'long')),
  class_before text        not null check (class_before in ('short', 'standard', 'long') and class_before <> class),
  changed_at   timestamptz not null,
  forgotten    timestamptz
);
comment on table  onlyonce.horizons is
  'Classes of horizon of scopes that no consumer claims in: of webhook endpoints, calls and loops. A '
  'scope without a row is of the class standard.';
comment on column onlyonce.horizons.class        is
  'In which ring its keys are claimed: onlyonce.class_ring(class, ''standard'').';
comment on column onlyonce.horizons.class_before is
  'Class before the last change. Claims search its ring too, as long as it may remember keys from before.';
comment on column onlyonce.horizons.changed_at   is
  'When the class was changed: the ring before announced no segment from then until COMMIT.';
comment on column onlyonce.horizons.forgotten    is
  'Until when keys were forgotten in rings before those of the last change. Null: there was one change.';

-- claim is for every transaction except the consumer engine's own. Its keys expire by the
-- database's clock. `scopes` has the scope of each key, whose class chooses the ring; null, or a
-- null in it: the class standard (K3, K10, W9).
--
-- The classes are read after the transaction has its id, so no lock is needed. A change locks the
-- row of the ring before, so that no segment of it is announced until the change has committed. A
-- claim that has read the former class therefore inserts into a segment that was open at the
-- change: into the one that drains, if another was announced since. Later claims search that
-- segment too, and it is not closed before this transaction has ended.
create function onlyonce.claim(keys uuid[], fingerprints bigint[], scopes text[] default null) returns smallint[]
language plpgsql as $$
declare
  result  smallint[];
  got     smallint[];
  part    record;
  ignored text;
begin
  if cardinality(scopes) <> cardinality(keys) then
    raise exception using errcode = '22023',
      message = format('onlyonce: claim: %s keys and %s scopes', cardinality(keys), cardinality(scopes));
  end if;
  ignored := pg_current_xact_id()::text;
  if scopes is null or not exists (select from onlyonce.horizons h where h.scope = any (scopes)) then
    return onlyonce.claim_standard(keys, fingerprints);
  end if;
  result := array_fill(0::smallint, array[cardinality(keys)]);
  for part in -- in one order, so that two claims do not deadlock
    select coalesce(h.class, 'standard') as class,
           case when onlyonce.still_asked(onlyonce.class_ring(h.class_before, 'standard'), h.changed_at)
                  then h.class_before end as before,
           array_agg(u.n::integer order by u.n) as at,
           array_agg(u.k order by u.n) as keys,
           array_agg(u.f order by u.n) as prints
      from unnest(keys, fingerprints, scopes) with ordinality as u(k, f, scope, n)
      left join onlyonce.horizons h on h.scope = u.scope
     group by 1, 2 order by 1, 2
  loop
    if part.before is null then
      got := onlyonce.claim_class(part.class, part.keys, part.prints, 'standard');
    else
      got := onlyonce.claim_both(
        part.class,
        part.before,
        part.keys,
        part.prints,
        'standard'
      );
    end if;
    for i in 1 .. cardinality(part.at) loop
      result[part.at[i]] := got[i];
    end loop;
  end loop;
  return result;
end $$;
comment on function onlyonce.claim is
  'Claims keys in the caller''s transaction: 0 fresh, 1 duplicate, 2 same key with another payload. '
  'Waits for uncommitted copies. Keys are remembered by the database''s clock, for the horizon of their '
  'scope''s class.';

-- forget_key lets an operator delete a key from the view: the next message with it is new.
create function onlyonce.forget_key() returns trigger
language plpgsql as $$
begin
  execute format('delete from onlyonce_segments.%I where key = $1', old.segment) using old.key;
  return old;
end $$;
comment on function onlyonce.forget_key is 'Trigger: DELETE on onlyonce.inbox deletes from the segment.';
create trigger forget instead of delete on onlyonce.inbox for each row execute function onlyonce.forget_key();

-- ---------------------------------------------------------------- filters

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
alter table onlyonce.filters alter column filter set storage external; -- CREATE TABLE can set it from PostgreSQL 16 on
comment on table  onlyonce.filters is
  'Filters of closed segments. For most keys that a segment does not hold, its filter says so; consumers '
  'load the filters, so that claims need no query for such keys.';
comment on column onlyonce.filters.use    is
  'The close of the segment that it was built for (onlyonce.rings.uses). A filter of another use is for other keys.';
comment on column onlyonce.filters.parts  is
  'How many parts the segment''s filter has. A part is for the keys whose last byte b has b * parts / '
  '256 = part; all parts together are the filter.';
comment on column onlyonce.filters.keys   is 'How many keys it was built from.';
comment on column onlyonce.filters.digest is 'SHA-256 of filter.';
