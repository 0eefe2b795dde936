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

-- receive_webhook is the first statement of a receiver's transaction, and claims the event. It
-- returns
--   0  fresh: only this claims the id
--   1  a copy
--   2  the id came before with another body
--   3  the body came within the window, under another id
-- With a digest, which is given if the sender does not sign the id, the caller of 2 and 3 sets the
-- event aside whole and commits: a digest is set aside once, and further ones are copies.
--
--   the body's row       the id                    result   the row afterwards
--   none, or too old     new                       0        (key, not aside)
--   none, or too old     known, same body          1        not committed
--   none, or too old     known, another body       2        (null, aside): the caller frees the body
--   (null, aside)        new                       0        (key, aside)
--   (null, aside)        known                     1        not committed
--   (this key, ...)      known, same body          1        not committed
--   (this key, ...)      known, another body       2, or 1 if aside: the digest is of what was signed, and not of the body
--   (another key, -)     any                       3        (another key, aside)
--   (another key, aside) any                       1        not committed
--
-- One body under two ids at once: the second waits for the first one's row, and finds it: 3. If the
-- first rolls back, the second is fresh. A body that came before never claims an id: when the sender
-- of that id comes again, its event is fresh. A body under the id of another event (2) leaves its
-- row without a key, so that it is fresh under its own id; but not a digest of what was signed
-- (PayPal), because then the row is what keeps other bodies out. If the window is
-- over, the id alone tells a copy, for as long as ids are remembered.
--
-- It waits for an uncommitted copy, at most `wait`, and then raises 55P03. It fences the
-- transaction, which needs onlyonce.seal() before COMMIT.
--
-- A body's row is always locked before an id, and the transaction that has claimed an id waits for
-- nothing: so no two of these deadlock (W7).
create function onlyonce.receive_webhook(
  endpoint text, key uuid, fingerprint bigint, digest bytea, body_window interval, wait text, lock_timeout text, statement_timeout text, idle_timeout text
) returns smallint
language plpgsql as $$
declare
  outcome smallint;
  body    onlyonce.webhook_bodies;
  forgotten timestamptz;
  ignored text;
begin
  ignored := set_config('lock_timeout', receive_webhook.wait, true)
          || set_config('statement_timeout', receive_webhook.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', receive_webhook.idle_timeout, true);
  if receive_webhook.digest is not null then
    forgotten := (select least(clock_timestamp(), w.at) from onlyonce.watched w) - receive_webhook.body_window;
    insert into onlyonce.webhook_bodies as b (endpoint, digest, key, seen_at)
      values (receive_webhook.endpoint, receive_webhook.digest, receive_webhook.key, onlyonce.steady_clock())
      on conflict on constraint webhook_bodies_pkey do update
        set key = case when b.seen_at < forgotten then excluded.key else coalesce(b.key, excluded.key) end,
            aside = b.aside and b.seen_at >= forgotten,
            seen_at = case when b.key is null or b.seen_at < forgotten then excluded.seen_at else b.seen_at end
      returning b.* into body;
  end if;
  if body.key <> receive_webhook.key then
    outcome := 3;
  else
    outcome := (onlyonce.claim(array[receive_webhook.key], array[receive_webhook.fingerprint], array['webhook/' || receive_webhook.endpoint]))[1];
  end if;
  if outcome = 0 then
    insert into onlyonce.webhook_ids (endpoint, key) values (receive_webhook.endpoint, receive_webhook.key);
  elsif outcome > 1 and receive_webhook.digest is not null then
    update onlyonce.webhook_bodies b set aside = true
     where b.endpoint = receive_webhook.endpoint and b.digest = receive_webhook.digest and not b.aside;
    if not found then
      outcome := 1;
    end if;
  end if;
  ignored := set_config('lock_timeout', receive_webhook.lock_timeout, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  return outcome;
end $$;
comment on function onlyonce.receive_webhook(text, uuid, bigint, bytea, interval, text, text, text, text) is
  'First statement of a webhook receiver''s transaction: 0 fresh, 1 copy, 2 same id with another body, 3 same body under another id.';

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
