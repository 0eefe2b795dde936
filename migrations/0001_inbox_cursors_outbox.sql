-- onlyonce schema, version 1.
--
-- Plain SQL: run it with `psql -1 -v ON_ERROR_STOP=1 -f 0001_inbox_cursors_outbox.sql`,
-- through `onlyonce migrate`, or copy it into a migration tool of your own.
-- It holds no BEGIN and no COMMIT: the caller's transaction makes it atomic.

create schema onlyonce;
comment on schema onlyonce is
  'onlyonce: at-least-once delivery, effects applied once. Inbox of dedupe keys, consumer cursors, outbox of outbound calls, parked work.';

create table onlyonce.schema_version (
  version    integer     primary key,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table onlyonce.schema_version is 'One row for each migration that was applied. Code accepts its own version and the next one.';

-- ---------------------------------------------------------------- leases

create table onlyonce.leases (
  id         bigint generated always as identity primary key,
  name       text        not null unique,
  epoch      bigint      not null default 0,
  nonce      uuid,
  until      timestamptz
);
comment on table  onlyonce.leases is 'Who owns what: one row for each consumer cursor and each outbox relay. Every write of an owner compares (epoch, nonce) here.';
comment on column onlyonce.leases.name  is 'What is owned: cursor/<scope>/<topic>/<partition> or relay/<sink>.';
comment on column onlyonce.leases.epoch is 'Rises by one with each owner.';
comment on column onlyonce.leases.nonce is 'Random for each acquisition: after a failover that loses a raise, epochs repeat and nonces do not. Null: nobody owns it.';
comment on column onlyonce.leases.until is 'When a lease on time ends, by the database clock. Null: nobody owns it, or it ends only when the epoch is raised (cursors: Kafka''s group decides who may raise).';

-- Raises OO001 unless the lease is the caller's, and keeps it from being taken over until the transaction ends.
-- FOR SHARE, not FOR KEY SHARE: raising the epoch is a non-key UPDATE, which KEY SHARE would let through.
create function onlyonce.hold(lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform 1 from onlyonce.leases l
    where l.id = hold.lease and l.epoch = hold.epoch and l.nonce = hold.nonce
    for share;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: this owner was replaced',
      detail = format('lease %s is no longer held under epoch %s', hold.lease, hold.epoch);
  end if;
end $$;
comment on function onlyonce.hold(bigint, bigint, uuid) is
  'Raises OO001 unless (epoch, nonce) own the lease; blocks a take-over until the transaction ends.';

-- Takes over a lease: compare-and-set on the epoch the caller read before it proved that it may.
-- Returns the new epoch, or null when somebody else raised it first, or when a lease on time has not ended. That is
-- asked here although the caller has seen the end: a late renewal keeps the epoch, so the epoch alone would not show
--   A reads "ended", the owner's renewal arrives late and succeeds, A raises: two owners until A's is noticed.
-- No lease lasts for more than an hour. One that ends later was written while the clock was ahead, and is over.
create function onlyonce.raise_epoch(lease bigint, seen_epoch bigint, new_nonce uuid, ttl interval default null) returns bigint
language plpgsql as $$
declare
  raised bigint;
begin
  update onlyonce.leases l
    set epoch = l.epoch + 1, nonce = new_nonce, until = clock_timestamp() + ttl
    where l.id = raise_epoch.lease and l.epoch = seen_epoch
      and (l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour')
    returning l.epoch into raised;
  return raised;
end $$;
comment on function onlyonce.raise_epoch(bigint, bigint, uuid, interval) is
  'Takes a lease over if its epoch is still the one that was read and its time, if it has one, is over, or lies more than an hour ahead (written by a clock that was wrong); returns the new epoch or null.';

-- ---------------------------------------------------------------- cursors

create table onlyonce.cursors (
  id             bigint  primary key references onlyonce.leases (id) on delete cascade,
  scope          text    not null check (scope <> ''),
  topic          text    not null check (topic <> ''),
  partition      integer not null check (partition >= 0),
  group_id       text,
  cluster_id     text,
  topic_id       uuid,
  start_offset   bigint  not null,
  start_policy   text    not null,
  run            integer not null default 0,
  run_start      bigint  not null,
  run_epoch      integer,
  clean          boolean not null default true,
  attempt_offset bigint,
  attempts       integer not null default 0,
  answers        integer not null default 0,
  created_at     timestamptz not null default clock_timestamp(),
  unique (scope, topic, partition)
);
comment on table  onlyonce.cursors is 'One row for each (scope, topic, partition): Postgres, not Kafka, is the authority on the position. See the view onlyonce.positions.';
comment on column onlyonce.cursors.id             is 'Also the id of the lease that owns this cursor.';
comment on column onlyonce.cursors.group_id       is 'Kafka group that owns the cursor; another group is refused by name. Null: the next owner stamps its own (after `onlyonce cursor adopt`).';
comment on column onlyonce.cursors.cluster_id     is 'Kafka cluster of the topic, part of its incarnation.';
comment on column onlyonce.cursors.topic_id       is 'Topic id, part of its incarnation: a topic that was deleted and created again has another one. Null: not known yet.';
comment on column onlyonce.cursors.start_offset   is 'Where the partition started, decided once.';
comment on column onlyonce.cursors.start_policy   is 'Why it started there: committed (the group''s offset was taken over), earliest, or adopted by an operator.';
comment on column onlyonce.cursors.run            is 'Rises when an operator sets the position; progress rows of earlier runs no longer count.';
comment on column onlyonce.cursors.run_start      is 'Position at which the run began.';
comment on column onlyonce.cursors.run_epoch      is 'As progress.leader_epoch, of the position at which the run began; of a replay''s run: of the position that it interrupted, which lies above. Null: not known, for example after `onlyonce cursor adopt -at`.';
comment on column onlyonce.cursors.clean          is 'Cleared when an owner takes over, set when it lets go in order. An owner that finds it cleared handles the next messages one at a time.';
comment on column onlyonce.cursors.attempt_offset is 'Offset of the message that stands alone and whose attempts are counted.';
comment on column onlyonce.cursors.attempts       is 'Attempts at that offset, counted before each one runs, so that a message that kills its process is counted too.';
comment on column onlyonce.cursors.answers        is 'How many of those attempts are known to have ended with an error of the handler. The others took the process with them, or are under way.';

create table onlyonce.progress (
  cursor_id     bigint  not null,
  run           integer not null,
  from_offset   bigint  not null,
  next_offset   bigint  not null check (next_offset > from_offset),
  anchor_offset bigint,
  anchor_epoch  integer,
  anchor_hash   bytea,
  leader_epoch  integer,
  primary key (cursor_id, run, from_offset)
);
comment on table  onlyonce.progress is 'Insert-only: one row for each committed batch, inserted in the batch''s transaction. A second transaction from the same offset finds the first one''s row. Old rows are pruned by the owner. (One row updated in place slows down fourfold within seconds behind an old snapshot. No foreign key: the fence has just locked the owner''s row.)';
comment on column onlyonce.progress.from_offset   is 'Position before the batch.';
comment on column onlyonce.progress.next_offset   is 'Position after the batch: everything below it is applied, parked, or was never to be handed over (control, aborted and removed records).';
comment on column onlyonce.progress.anchor_offset is 'Offset of the last record seen below next_offset; null before the first.';
comment on column onlyonce.progress.anchor_epoch  is 'Leader epoch of that record''s batch.';
comment on column onlyonce.progress.anchor_hash   is 'SHA-256 of that record: tells a log that was truncated and written anew from the one that was read.';
comment on column onlyonce.progress.leader_epoch  is 'Leader epoch that no batch below next_offset exceeded when it was read; what is written there after an unclean election has a higher one. Null: the source has no leader epochs.';

create view onlyonce.positions as
  select c.id, c.scope, c.topic, c.partition, c.group_id, c.cluster_id, c.topic_id, c.run, c.clean,
         c.attempt_offset, c.attempts, c.start_offset, c.start_policy, l.epoch, l.nonce,
         coalesce(p.next_offset, c.run_start) as next_offset,
         p.anchor_offset, p.anchor_epoch, p.anchor_hash,
         case when p.next_offset is null then c.run_epoch else p.leader_epoch end as leader_epoch, c.run_epoch
    from onlyonce.cursors c
    join onlyonce.leases l on l.id = c.id
    left join lateral (
      select q.next_offset, q.anchor_offset, q.anchor_epoch, q.anchor_hash, q.leader_epoch from onlyonce.progress q
       where q.cursor_id = c.id and q.run = c.run
       order by q.from_offset desc limit 1) p on true;
comment on view onlyonce.positions is 'Where each cursor stands: next_offset is the next offset that will be handled.';

-- The fence. In one call, because each statement of a pipeline costs: bounds of this transaction, ownership, position.
-- It raises, because a statement that shares a round trip with COMMIT must raise where it does not hold:
-- an UPDATE that matches no row is no error, and the COMMIT behind it would go through.
-- The position is compared with what the database holds, which may be behind what its owner remembers: a failover may have
-- lost commits. The INSERT waits for another transaction from the same offset (an earlier attempt whose outcome is unknown), at
-- most lock_timeout, which the comparison cannot see.
create function onlyonce.fence(
  cursor_id bigint, epoch bigint, nonce uuid, run integer, expected bigint, next bigint,
  anchor_offset bigint, anchor_epoch integer, anchor_hash bytea, leader_epoch integer,
  lock_timeout text, statement_timeout text, idle_timeout text
) returns void
language plpgsql as $$
declare
  stands bigint;
  moved  boolean := false;
begin
  perform set_config('lock_timeout', fence.lock_timeout, true),
          set_config('statement_timeout', fence.statement_timeout, true),
          set_config('idle_in_transaction_session_timeout', fence.idle_timeout, true);
  perform onlyonce.hold(fence.cursor_id, fence.epoch, fence.nonce);
  stands := onlyonce.reached(fence.cursor_id, fence.run);
  if stands is null then
    select c.run_start into stands from onlyonce.cursors c where c.id = fence.cursor_id and c.run = fence.run;
  end if;
  if stands = fence.expected then
    insert into onlyonce.progress
      values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash, fence.leader_epoch)
      on conflict do nothing;
    moved := found;
  end if;
  if not moved then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the position has moved',
      detail = format('cursor %s stands at offset %s and not at %s', fence.cursor_id, stands, fence.expected);
  end if;
  perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;
comment on function onlyonce.fence(bigint, bigint, uuid, integer, bigint, bigint, bigint, integer, bytea, integer, text, text, text) is
  'First statement of a batch: moves the cursor from expected to next, or raises OO001. The transaction then needs onlyonce.seal() before COMMIT.';

-- The seal: last statement before COMMIT. It judges deferred constraints with the work that caused them, and it
-- raises unless the fence stands in this very transaction (a ROLLBACK slipped in between would have undone it).
create function onlyonce.seal() returns void
language plpgsql as $$
begin
  if current_setting('onlyonce.fenced', true) is distinct from pg_current_xact_id()::text then
    raise exception using errcode = 'OO002',
      message = 'onlyonce: not sealed: the fence was not taken in this transaction',
      hint = 'Something ended the transaction that the fence opened: no COMMIT, ROLLBACK or BEGIN between the two.';
  end if;
  perform set_config('onlyonce.sealed', pg_current_xact_id()::text, true);
  set constraints all immediate;
end $$;
comment on function onlyonce.seal() is
  'Last statement before COMMIT of a fenced transaction: checks deferred constraints, then allows the COMMIT.';

create function onlyonce.require_seal() returns trigger
language plpgsql as $$
begin
  if current_setting('onlyonce.sealed', true) is distinct from pg_current_xact_id()::text then
    raise exception using errcode = 'OO002',
      message = 'onlyonce: not sealed: COMMIT before the engine was done',
      hint = 'A handler must not COMMIT. If it ran SET CONSTRAINTS ALL IMMEDIATE, it must name its constraints instead.';
  end if;
  return null;
end $$;
comment on function onlyonce.require_seal() is 'Deferred trigger: refuses a COMMIT that onlyonce.seal() did not allow.';

create constraint trigger sealed after insert on onlyonce.progress
  deferrable initially deferred
  for each row execute function onlyonce.require_seal();

-- ---------------------------------------------------------------- inbox

-- The stored form of a key, the same as dedupe.Key.Hash in Go; dedupe/testdata/keys.json holds test vectors for both.
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
comment on function onlyonce.key(text, text, text) is 'Stored form of a key: what onlyonce.inbox.key holds for (tenant, scope, id).';

-- ---------------------------------------------------------------- parked

create table onlyonce.parked (
  id            bigint generated always as identity primary key,
  kind          text not null check (kind in ('message', 'call', 'event')),
  state         text not null default 'waiting'
                check (state in ('waiting', 'retrying', 'blocked', 'reconcile', 'resolved', 'discarded')),
  reason        text not null,
  error         text not null default '',
  attempts      integer not null default 0,
  tenant        text not null default '',
  scope         text not null,
  key           uuid,
  topic         text,
  partition     integer,
  "offset"      bigint,
  record_time   timestamptz,
  record_key    bytea,
  sink          text,
  call_name     text,
  method        text,
  target        text,
  header_names  bytea[] not null default '{}',
  header_values bytea[] not null default '{}',
  body          bytea,
  parked_at     timestamptz not null default clock_timestamp(),
  settled_at    timestamptz
);
comment on table  onlyonce.parked is 'Dead letters: messages and calls that were set aside, whole, so that nothing is lost. Never both applied and parked.';
comment on column onlyonce.parked.kind   is 'message: from Kafka. call: from the outbox. event: from a webhook.';
comment on column onlyonce.parked.state  is 'waiting for an operator; reconcile: a call whose outcome is unknown; resolved or discarded at the end.';
comment on column onlyonce.parked.reason is 'permanent, exhausted, crashed, conflict or no-key for messages; rejected or window for calls.';
comment on column onlyonce.parked.key    is 'Dedupe key of the message, or derived key of the call. Null: it had none.';
comment on column onlyonce.parked.body   is 'Value of the message or body of the call, byte for byte.';
create unique index parked_key_unresolved on onlyonce.parked (kind, key)
  where settled_at is null and reason <> 'conflict';
create index parked_position on onlyonce.parked (scope, topic, partition, "offset") where settled_at is null;

-- ---------------------------------------------------------------- audit

create table onlyonce.audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null default clock_timestamp(),
  actor  text not null default current_user,
  action text not null,
  reason text not null check (reason <> ''),
  detail jsonb not null default '{}'
);
comment on table onlyonce.audit is 'What operators changed by hand: who, when, why.';

insert into onlyonce.schema_version (version) values (1);
