-- onlyonce schema, version 1: what webhook receivers remember.

-- webhook_ids has when an id was seen first; the ring has the id itself (W8).
create table onlyonce.webhook_ids (
  endpoint text        not null,
  key      uuid        not null,
  seen_at  timestamptz not null default onlyonce.steady_clock()
);
comment on table onlyonce.webhook_ids is 'When a receiver claimed an event. The key itself is in the ring of the endpoint''s class (onlyonce.horizons), and expires by that ring''s horizon. The row makes COMMIT need the seal, and is for operators to read.';
create index webhook_ids_age on onlyonce.webhook_ids (endpoint, seen_at);

-- The claim fences the receiver's transaction: if a handler commits by itself, that COMMIT is
-- refused.
create constraint trigger sealed after insert on onlyonce.webhook_ids
  deferrable initially deferred
  for each row execute function onlyonce.require_seal();

-- webhook_horizon returns the longest horizon of the rings in which ids of webhooks are claimed; null:
-- a ring of theirs forgets nothing (W21).
create function onlyonce.webhook_horizon() returns interval
language sql stable as $$
  select case when count(r.horizon) = count(*) then max(r.horizon) end from onlyonce.rings r
   where r.name = 'standard_keys' or exists (select from onlyonce.horizons h
          where starts_with(h.scope, 'webhook/') and r.name in (onlyonce.class_ring(h.class, 'standard'), onlyonce.class_ring(h.class_before, 'standard')))
$$;
comment on function onlyonce.webhook_horizon() is 'The longest horizon of the rings in which ids of webhooks are claimed; null: for ever.';

create table onlyonce.webhook_bodies (
  endpoint text        not null,
  digest   bytea       not null,
  key      uuid,
  seen_at  timestamptz not null,
  aside    boolean     not null default false,
  primary key (endpoint, digest)
);
comment on table onlyonce.webhook_bodies is 'SHA-256 of bodies that came lately to endpoints whose senders do not sign an event''s id.';
comment on column onlyonce.webhook_bodies.key   is 'The event that the body was accepted as: see webhook_ids.key. Null: it was only set aside.';
comment on column onlyonce.webhook_bodies.aside is 'It was set aside since then, whole: it is not set aside again.';
create index webhook_bodies_age on onlyonce.webhook_bodies (endpoint, seen_at);

create table onlyonce.webhook_objects (
  scope      text        not null,
  object     uuid        not null,
  version    bigint      not null,
  changed_at timestamptz not null default onlyonce.steady_clock(),
  primary key (scope, object)
) with (fillfactor = 70);
create index webhook_objects_age on onlyonce.webhook_objects (changed_at);
comment on table  onlyonce.webhook_objects is 'The greatest version of each object whose event was applied: events with a lower version are stale.';
comment on column onlyonce.webhook_objects.changed_at is 'When an event was applied to it last, up to a day earlier: it is set once a day, so that most updates change no indexed column.';
comment on column onlyonce.webhook_objects.object is 'Hash of (tenant, scope, object key).';

create table onlyonce.webhook_endpoints (
  endpoint      text        primary key,
  backfilled_at timestamptz,
  aside_on      date,
  aside         bigint
);
comment on table  onlyonce.webhook_endpoints is 'One row for each webhook endpoint: its reconciliations, and the bytes that it has set aside.';
comment on column onlyonce.webhook_endpoints.backfilled_at is 'When the last complete reconciliation with the provider began.';

comment on column onlyonce.webhook_endpoints.aside_on      is 'Day, in UTC, of the last event that was set aside for its id or its body.';
comment on column onlyonce.webhook_endpoints.aside         is 'Bytes of such events on that day.';

-- receive_webhooks is the first statement of a receiver's transaction, and claims a set of events. It
-- returns for each, in the order of the arrays,
--   0  fresh: only this claims the id
--   1  a copy
--   2  the id came before with another body
--   3  the body came within the window, under another id
-- A digest is given if the sender does not sign the id; no two events of a set have the same. The
-- caller sets events of 2 and 3 aside whole: a digest is set aside once, and further ones are copies.
--
--   the body's row       the id                    result   the row afterwards
--   none                 new                       0        (key, not aside)
--   none                 known, same body          1        (null, not aside)
--   none                 known, another body       2        (key, aside): the caller sets key to null
--   (null, aside or not) new                       0        (key, aside or not)
--   (null, not aside)    known                     as none
--   (null, aside)        known                     1        as it was
--   (this key, ...)      known, same body          1        as it was
--   (this key, ...)      known, another body       2, or 1 if aside: the digest is of what was signed, and not of the body
--   (another key, -)     any                       3        (another key, aside)
--   (another key, aside) any                       1        as it was
--
-- A row that is older than the window counts as none. So a copy changes no row, and keeps no body
-- known for longer.
--
-- One body under two ids at once: the second waits for the first one's row, and finds it: 3. If the
-- first rolls back, the second is fresh. A body that came before never claims an id: when the sender
-- of that id comes again, its event is fresh. A body under the id of another event (2) leaves its
-- row without a key, so that it is fresh under its own id; but not a digest of what was signed
-- (PayPal), because then the row is what keeps other bodies out. If the window is over, the id alone
-- tells a copy, for as long as ids are remembered.
--
-- It waits for an uncommitted copy, at most `wait`, and then raises 55P03. It fences the transaction,
-- which needs onlyonce.seal() before COMMIT. `places` are those that must live in this database; null
-- if there is one database (N2).
--
-- Rows of bodies are locked first, in their order, then ids, in theirs. For what else such a
-- transaction waits (the endpoint's row, partitions of the stream), it waits later, in one order. So
-- no two of these deadlock (W7).
create function onlyonce.receive_webhooks(
  endpoint          text,
  keys              uuid[],
  fingerprints      bigint[],
  digests           bytea[],
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
  owners    uuid[];    -- of each event, the key that its body has
  set_aside boolean[]; -- its body was set aside
  made      boolean[]; -- its body's row is new
  asked     integer[]; -- the events whose id decides
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
      insert into onlyonce.webhook_bodies as b (endpoint, digest, key, seen_at)
        select receive_webhooks.endpoint, u.digest, u.key, seen
          from unnest(digests, keys) u(digest, key) where u.digest is not null order by u.digest
        on conflict on constraint webhook_bodies_pkey do update set seen_at = b.seen_at
        returning b.digest, b.key, b.aside, b.seen_at)
    select array_agg(case when b.seen_at >= forgotten then b.key end order by u.at),
           array_agg(b.seen_at >= forgotten and b.aside order by u.at),
           array_agg(b.seen_at = seen and b.key = u.key order by u.at)
      into owners, set_aside, made
      from unnest(digests, keys) with ordinality u(digest, key, at) left join bodies b on b.digest = u.digest;
  end if;
  asked := array(select i from generate_series(1, n) i where owners[i] is null or owners[i] = keys[i]);
  if asked <> '{}' then
    claimed := onlyonce.claim(
      array(select keys[i] from unnest(asked) i),
      array(select fingerprints[i] from unnest(asked) i),
      array_fill('webhook/' || receive_webhooks.endpoint, array[cardinality(asked)]));
    for i in 1 .. cardinality(asked) loop
      result[asked[i]] := claimed[i];
    end loop;
  end if;
  insert into onlyonce.webhook_ids (endpoint, key)
    select receive_webhooks.endpoint, keys[i] from generate_series(1, n) i where result[i] = 0;
  for i in 1 .. coalesce(cardinality(digests), 0) loop
    if digests[i] is null then
      continue;
    elsif result[i] = 0 and (made[i] or owners[i] is not null) then
      continue;
    elsif result[i] = 0 then
      update onlyonce.webhook_bodies b set key = keys[i], seen_at = seen, aside = set_aside[i]
       where b.endpoint = receive_webhooks.endpoint and b.digest = digests[i];
    elsif result[i] = 1 and made[i] then
      update onlyonce.webhook_bodies b set key = null
       where b.endpoint = receive_webhooks.endpoint and b.digest = digests[i];
    elsif result[i] > 1 and set_aside[i] then
      result[i] := 1;
    elsif result[i] > 1 then
      update onlyonce.webhook_bodies b
         set key     = coalesce(owners[i], keys[i]),
             aside   = true,
             seen_at = case when owners[i] is null then seen else b.seen_at end
       where b.endpoint = receive_webhooks.endpoint and b.digest = digests[i];
    end if;
  end loop;
  ignored := set_config('lock_timeout', receive_webhooks.lock_timeout, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  return result;
end $$;
comment on function onlyonce.receive_webhooks(text, uuid[], bigint[], bytea[], interval, text[], text, text, text, text) is
  'First statement of a webhook receiver''s transaction; for each event: 0 fresh, 1 copy, 2 same id with another body, 3 same body under another id.';

-- newer reports whether an event is at least as new as the last one that was applied to its object,
-- and if so records its version. An equal version counts as newer, because times of events are
-- rarely finer than a second. It locks the object's row until the transaction ends.
create function onlyonce.newer(scope text, object uuid, version bigint) returns boolean
language plpgsql as $$
begin
  insert into onlyonce.webhook_objects as o (scope, object, version)
    values (newer.scope, newer.object, newer.version)
    on conflict on constraint webhook_objects_pkey do update set version = excluded.version,
        changed_at = case when o.changed_at < excluded.changed_at - interval '1 day' then excluded.changed_at else o.changed_at end
      where o.version <= excluded.version;
  return found;
end $$;
comment on function onlyonce.newer(text, uuid, bigint) is 'Records the version of an object, unless a greater one is recorded: then false.';
