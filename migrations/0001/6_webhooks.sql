-- onlyonce schema, version 1: what webhook receivers remember.

-- webhook_ids has when an id was seen first; the ring has the id itself (W8).
create table onlyonce.webhook_ids (
  endpoint text        not null,
  key      uuid        not null,
  seen_at  timestamptz not null default onlyonce.steady_clock()
);
comment on table onlyonce.webhook_ids is
  'When a receiver claimed an event. The key itself is in the ring of the endpoint''s class '
  '(onlyonce.horizons), and expires by that ring''s horizon. The row makes COMMIT need the seal, and is '
  'for operators to read.';
create index webhook_ids_age on onlyonce.webhook_ids (endpoint, seen_at);

-- The claim fences the receiver's transaction: if a handler commits by itself, that COMMIT is
-- refused.
create constraint trigger sealed after insert on onlyonce.webhook_ids
  deferrable initially deferred
  for each row execute function onlyonce.require_seal();

-- webhook_horizon returns the longest horizon of the rings in which ids of webhooks are claimed;
-- null: a ring of theirs forgets nothing (W21).
create function onlyonce.webhook_horizon() returns interval
language sql stable as $$
  select case when count(r.horizon) = count(*) then max(r.horizon) end from onlyonce.rings r
   where r.name = 'standard_keys' or exists (select from onlyonce.horizons h
          where starts_with(h.scope, 'webhook/')
            and r.name in (onlyonce.class_ring(h.class, 'standard'), onlyonce.class_ring(h.class_before, 'standard')))
$$;
comment on function onlyonce.webhook_horizon is
  'The longest horizon of the rings in which ids of webhooks are claimed; null: for ever.';

create table onlyonce.webhook_bodies (
  endpoint text        not null,
  digest   bytea       not null,
  key      uuid        not null,
  seen_at  timestamptz not null,
  named    boolean     not null default false,
  primary key (endpoint, digest)
);
comment on table onlyonce.webhook_bodies is
  'SHA-256 of bodies that came lately to endpoints whose senders do not sign an event''s id.';
comment on column onlyonce.webhook_bodies.key   is 'The event that the body was accepted as: see webhook_ids.key.';
comment on column onlyonce.webhook_bodies.named is 'No other event has this body: it names itself.';
create index webhook_bodies_age on onlyonce.webhook_bodies (endpoint, seen_at);

create table onlyonce.webhook_objects (
  scope      text        not null,
  object     uuid        not null,
  version    bigint      not null,
  changed_at timestamptz not null default onlyonce.steady_clock(),
  primary key (scope, object)
) with (fillfactor = 70);
create index webhook_objects_age on onlyonce.webhook_objects (changed_at);
comment on table  onlyonce.webhook_objects is
  'The greatest version of each object whose event was applied: events with a lower version are stale.';
comment on column onlyonce.webhook_objects.changed_at is
  'When an event was applied to it last, up to a day earlier: it is set once a day, so that most updates '
  'change no indexed column.';
comment on column onlyonce.webhook_objects.object is 'Hash of (tenant, scope, object key).';

create table onlyonce.webhook_endpoints (
  endpoint      text        primary key,
  backfilled_at timestamptz,
  aside_on      date,
  aside         bigint
);
comment on table  onlyonce.webhook_endpoints is
  'One row for each webhook endpoint: its reconciliations, and the bytes that it has set aside.';
comment on column onlyonce.webhook_endpoints.backfilled_at is
  'When the last complete reconciliation with the provider began.';

comment on column onlyonce.webhook_endpoints.aside_on      is
  'Day, in UTC, of the last event that was set aside for its id or its body.';
comment on column onlyonce.webhook_endpoints.aside         is 'Bytes of such events on that day.';

-- claim_received claims the keys in `asked` for an endpoint, in the ring of its ids.
create function onlyonce.claim_received(
  endpoint text,
  keys uuid[],
  fingerprints bigint[],
  asked integer[]
) returns smallint[]
language sql as $$
  select onlyonce.claim(
    array(select keys[a.i] from unnest(asked) with ordinality a(i, at) order by a.at),
    array(select fingerprints[a.i] from unnest(asked) with ordinality a(i, at) order by a.at),
    array_fill('webhook/' || endpoint, array[cardinality(asked)]))
$$;
comment on function onlyonce.claim_received is 'Claims the keys at these places, as onlyonce.claim, for an endpoint.';

-- receive_webhooks is the first statement of a receiver's transaction, and claims a set of events.
-- It returns for each, in the order of the arrays,
--   0  fresh: only this claims the id
--   1  a copy, also of what was set aside
--   2  the id came before with another body: the caller sets it aside whole
--   3  the body came within the window, under another id: likewise
--   4  fresh, under its other key: the id came before with another body
--   5  a copy whose body is known from now on: the caller commits
-- For each event, besides its key and its fingerprint (0: the id alone decides, as of an event that
-- a backfill lists):
--   digest   of what makes a body known; null: the id alone decides. No two of a set have the same
--   other    the key under which it counts if its id came with another body; null: it is set aside
--   aside    the key under which it is set aside once, in the inbox; null: 2 is set aside each time
--   named    no other event has this body
--   handled  it is an event although its body came under another id, unless that was a named one
--
--   the body's row     the id                     result    the row afterwards
--   none               new                        0         (this key)
--   none               known, same body           5         (this key), if named and not listed
--   none               the same, any other        1         none
--   none               known, another body        4         (its other key)
--   none               the other key too          5 or 1    (its other key), or none, as above
--   none               the same, without other    2         as above: named, the digest is of what was signed
--   (this key)         known, same body           1         as it was
--   (its other key)    known                      1         as it was
--   (this key)         known, another body        2         as it was: the digest is of what was signed
--   (another key)      any                        3         as it was
--   (another key)      any, and it is handled     by the id, as it was
--
-- What is 2 or 3 is claimed under its aside key: 1 if that was claimed before. A row that is older
-- than the window counts as none. What has no row of its own, and changes none, keeps no body known
-- for longer.
--
-- One body under two ids at once: the second waits for the first one's row, and finds it: 3. If the
-- first rolls back, the second is fresh. A body that came before never claims an id: when the
-- sender of that id comes again, its event is fresh. A body under the id of another event is an
-- event of its own (4) if its sender delivers an event in the same bytes each time. If it does not,
-- or that is not known, there is no other key, and the body stays free for its own id; but not if
-- the digest is of what was signed (PayPal): then anybody can make such a body. If the window is
-- over, the id alone tells a copy, for as long as ids are remembered.
--
-- It waits for an uncommitted copy, at most `wait`, and then raises 55P03. It fences the
-- transaction, which needs onlyonce.seal() before COMMIT. `places` are those that must live in this
-- database; null if there is one database (N2).
--
-- Rows of bodies are locked first, in their order, then ids, then other keys, then aside keys, each
-- in theirs. For what else such a transaction waits (the endpoint's row, partitions of the stream),
-- it waits later, in one order. So no two of these deadlock (W7).
create function onlyonce.receive_webhooks(
  endpoint          text,
  keys              uuid[],
  fingerprints      bigint[],
  digests           bytea[],
  others            uuid[],
  asides            uuid[],
  named             boolean[],
  handled           boolean[],
  body_window       interval,
  places            text[],
  wait              text,
  lock_timeout      text,
  statement_timeout text,
  idle_timeout      text
) returns smallint[]
language plpgsql as $$
declare
  n         constant integer := cardinality(keys);
  result    smallint[] := array_fill(3::smallint, array[n]);
  owners    uuid[];    -- of each event, the key that its body had before
  unique_to boolean[]; -- its body was accepted as one that names itself
  made      boolean[]; -- its body's row is new
  accepted  uuid[] := keys; -- under which key its body counts
  asked     integer[]; -- the events whose key of some kind decides
  claimed   smallint[];
  seen      timestamptz;
  forgotten timestamptz;
  ignored   text;
begin
  ignored := set_config('lock_timeout', receive_webhooks.wait, true)
          || set_config('statement_timeout', receive_webhooks.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', receive_webhooks.idle_timeout, true)
          || set_config('jit', 'off', true);
  if places is not null then
    perform onlyonce.enter_place(p.place) from (select distinct u.place from unnest(places) u(place) order by 1) p;
  end if;
  if digests is not null then
    seen := onlyonce.steady_clock();
    forgotten := (select least(clock_timestamp(), w.at) from onlyonce.watched w) - receive_webhooks.body_window;
    with bodies as (
      insert into onlyonce.webhook_bodies as b (
        endpoint,
        digest,
        key,
        seen_at,
        named
      )
        select receive_webhooks.endpoint,
               u.digest,
               u.key,
               seen,
               u.named
          from unnest(digests, keys, receive_webhooks.named) u(digest, key, named)
         where u.digest is not null order by u.digest
        on conflict on constraint webhook_bodies_pkey do update set seen_at = b.seen_at
        returning b.digest,
                  b.key,
                  b.named,
                  b.seen_at,
                  b.xmax = 0 as made)
    select array_agg(case when b.seen_at >= forgotten and not b.made then b.key end order by u.at),
           array_agg(b.named order by u.at),
           array_agg(b.made order by u.at)
      into owners, unique_to, made
      from unnest(digests) with ordinality u(digest, at) left join bodies b on b.digest = u.digest;
  end if;
  asked := array(select i from generate_series(1, n) i
                  where owners[i] is null or owners[i] = keys[i]
                     or owners[i] is distinct from others[i] and handled[i] and not unique_to[i]);
  if asked <> '{}' then
    claimed := onlyonce.claim_received(receive_webhooks.endpoint, keys, fingerprints, asked);
    for i in 1 .. cardinality(asked) loop
      result[asked[i]] := claimed[i];
    end loop;
  end if;
  asked := array(select i from generate_series(1, n) i
                  where others[i] is not null and (result[i] = 2 or owners[i] = others[i]));
  if asked <> '{}' then
    claimed := onlyonce.claim_received(receive_webhooks.endpoint, others, fingerprints, asked);
    for i in 1 .. cardinality(asked) loop
      result[asked[i]] := case claimed[i] when 0 then 4 else claimed[i] end;
      accepted[asked[i]] := others[asked[i]];
    end loop;
  end if;
  insert into onlyonce.webhook_ids (endpoint, key)
    select receive_webhooks.endpoint, accepted[i] from generate_series(1, n) i where result[i] in (0, 4);
  for i in 1 .. coalesce(cardinality(digests), 0) loop
    if digests[i] is null or owners[i] is not null then
      continue;
    elsif result[i] in (1, 2) and (not named[i] or fingerprints[i] = 0) then
      update onlyonce.webhook_bodies b set seen_at = '-infinity' -- as if there were none; the upkeep deletes it
       where b.endpoint = receive_webhooks.endpoint and b.digest = digests[i] and made[i];
      continue;
    elsif not made[i] or accepted[i] <> keys[i] then
      update onlyonce.webhook_bodies b set key = accepted[i], seen_at = seen, named = receive_webhooks.named[i]
       where b.endpoint = receive_webhooks.endpoint and b.digest = digests[i];
    end if;
    if result[i] = 1 then
      result[i] := 5;
    end if;
  end loop;
  asked := array(select i from generate_series(1, n) i where asides[i] is not null and result[i] in (2, 3));
  if asked <> '{}' then
    claimed := onlyonce.claim_received(receive_webhooks.endpoint, asides, array_fill(0::bigint, array[n]), asked);
    for i in 1 .. cardinality(asked) loop
      if claimed[i] <> 0 then
        result[asked[i]] := 1;
      end if;
    end loop;
  end if;
  ignored := set_config('lock_timeout', receive_webhooks.lock_timeout, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  return result;
end $$;
comment on function onlyonce.receive_webhooks is
  'First statement of a webhook receiver''s transaction; for each event: 0 fresh, 1 copy, 2 same id with '
  'another body, 3 same body under another id, 4 fresh under its other key, 5 a copy whose body is known '
  'from now on.';

-- newer reports whether an event is at least as new as the last one that was applied to its object,
-- and if so records its version. An equal version counts as newer, because times of events are
-- rarely finer than a second. It locks the object's row until the transaction ends.
create function onlyonce.newer(scope text, object uuid, version bigint) returns boolean
language plpgsql as $$
begin
  insert into onlyonce.webhook_objects as o (scope, object, version)
    values (newer.scope, newer.object, newer.version)
    on conflict on constraint webhook_objects_pkey do update set version = excluded.version,
        changed_at = case when o.changed_at < excluded.changed_at - interval '1 day' then excluded.changed_at
                          else o.changed_at end
      where o.version <= excluded.version;
  return found;
end $$;
comment on function onlyonce.newer is 'Records the version of an object, unless a greater one is recorded: then false.';
