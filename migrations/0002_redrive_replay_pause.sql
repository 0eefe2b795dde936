-- onlyonce schema, version 2: parked messages are tried again from the database, ordering keys, replay, pauses.

-- ---------------------------------------------------------------- cursors

alter table onlyonce.cursors
  add column retired_at    timestamptz,
  add column replay_no     integer not null default 0,
  add column replay_until  bigint,
  add column replay_resume bigint,
  add column replay_resend boolean not null default false;
comment on column onlyonce.cursors.retired_at    is 'Set by `onlyonce cursor retire`: nobody works on this cursor, and it holds back no retention. Null: in use.';
comment on column onlyonce.cursors.replay_no     is 'Rises with each replay. Below replay_until it is part of what a message''s key is, so that what was handled once is handled again.';
comment on column onlyonce.cursors.replay_until  is 'Where the replay ends. Null: none is under way.';
comment on column onlyonce.cursors.replay_resume is 'Position that the replay interrupted: behind replay_until the cursor goes on there.';
comment on column onlyonce.cursors.replay_resend is 'Whether calls that are enqueued during the replay get keys of their own, so that the remote applies them again.';

create or replace view onlyonce.positions as
  select c.id, c.scope, c.topic, c.partition, c.group_id, c.cluster_id, c.topic_id, c.run, c.clean,
         c.attempt_offset, c.attempts, c.start_offset, c.start_policy, l.epoch, l.nonce,
         coalesce(p.next_offset, c.run_start) as next_offset,
         p.anchor_offset, p.anchor_epoch, p.anchor_hash,
         case when p.next_offset is null then c.run_epoch else p.leader_epoch end as leader_epoch, c.run_epoch,
         c.retired_at, c.replay_no, c.replay_until, c.replay_resume, c.replay_resend
    from onlyonce.cursors c
    join onlyonce.leases l on l.id = c.id
    left join lateral (
      select q.next_offset, q.anchor_offset, q.anchor_epoch, q.anchor_hash, q.leader_epoch from onlyonce.progress q
       where q.cursor_id = c.id and q.run = c.run
       order by q.from_offset desc limit 1) p on true;

-- Takes a cursor over: raises its lease's epoch if it is still the one that was read, stamps the owner, and clears `clean`.
create function onlyonce.take_cursor(
  cursor_id bigint, seen_epoch bigint, new_nonce uuid, group_id text, cluster_id text, topic_id uuid, lock_timeout text
) returns bigint
language plpgsql as $$
declare
  raised bigint;
begin
  perform set_config('lock_timeout', take_cursor.lock_timeout, true);
  raised := onlyonce.raise_epoch(take_cursor.cursor_id, seen_epoch, new_nonce);
  if raised is not null then
    update onlyonce.cursors c
      set group_id = take_cursor.group_id, cluster_id = take_cursor.cluster_id,
          topic_id = coalesce(take_cursor.topic_id, c.topic_id), clean = false
      where c.id = take_cursor.cursor_id;
  end if;
  return raised;
end $$;
comment on function onlyonce.take_cursor(bigint, bigint, uuid, text, text, uuid, text) is
  'Takes a cursor over if its epoch is still the one that was read; returns the new epoch or null.';

create table onlyonce.topics (
  scope      text    not null,
  topic      text    not null,
  partitions integer not null check (partitions > 0),
  changed_at timestamptz not null default clock_timestamp(),
  primary key (scope, topic)
);
comment on table  onlyonce.topics is 'How many partitions a topic had when a scope first read it, or when somebody accepted that it has more: later ones start at the log''s start, and order by key holds for a number of partitions.';

create table onlyonce.pauses (
  scope     text        not null,
  topic     text        not null default '',
  partition integer     not null default -1,
  paused_at timestamptz not null default clock_timestamp(),
  actor     text        not null default current_user,
  reason    text        not null,
  primary key (scope, topic, partition),
  check ((topic = '') = (partition = -1))
);
comment on table  onlyonce.pauses is 'What stands still because somebody said so, until somebody says otherwise, across restarts.';
comment on column onlyonce.pauses.topic     is 'Empty: the whole scope.';
comment on column onlyonce.pauses.partition is '-1: the whole scope.';

-- ---------------------------------------------------------------- fence and seal

-- The fence and the seal for less of the server's time. Signatures stay, so code of version 1 calls the new bodies, and what is locked,
-- compared and raised stays the same, with one exception: a transaction that lost a race from the same position gets 23505 on
-- onlyonce.progress, where it got OO001.
--
-- hold and reached are not called any more: a nested call costs as much as the query inside. plpgsql runs an assignment of one expression without a query, and PERFORM as a query: hence the assignments.
--
-- enable_seqscan is off while the position is looked up, and no longer: the plan is made while the table is tiny, is kept, and
-- would go on reading the whole table when it has grown behind an old snapshot. A SET clause of the function would do the same
-- for more, because it ends with a walk over all settings. An error in between ends the transaction, and the setting with it.
create or replace function onlyonce.fence(
  cursor_id bigint, epoch bigint, nonce uuid, run integer, expected bigint, next bigint,
  anchor_offset bigint, anchor_epoch integer, anchor_hash bytea, leader_epoch integer,
  lock_timeout text, statement_timeout text, idle_timeout text
) returns void
language plpgsql as $$
declare
  stands  bigint;
  seqscan text := current_setting('enable_seqscan');
  ignored text;
begin
  ignored := set_config('lock_timeout', fence.lock_timeout, true)
          || set_config('statement_timeout', fence.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', fence.idle_timeout, true)
          || set_config('enable_seqscan', 'off', true);

  -- The lock goes first, in a statement of its own: what is read behind it was committed before it was granted, and who
  -- takes over waits for it. FOR SHARE, not FOR KEY SHARE: see onlyonce.hold.
  perform 1 from onlyonce.leases l
    where l.id = fence.cursor_id and l.epoch = fence.epoch and l.nonce = fence.nonce
    for share;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: this owner was replaced',
      detail = format('lease %s is no longer held under epoch %s', fence.cursor_id, fence.epoch);
  end if;

  select p.next_offset into stands from onlyonce.progress p
    where p.cursor_id = fence.cursor_id and p.run = fence.run
    order by p.from_offset desc limit 1;
  if not found then
    select c.run_start into stands from onlyonce.cursors c where c.id = fence.cursor_id and c.run = fence.run;
  end if;
  if stands is distinct from fence.expected then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the position has moved',
      detail = format('cursor %s stands at offset %s and not at %s', fence.cursor_id, stands, fence.expected);
  end if;
  if fence.next <= fence.expected then
    raise exception using errcode = 'check_violation',
      message = format('onlyonce: fence: the position would go from %s to %s', fence.expected, fence.next);
  end if;

  ignored := set_config('enable_seqscan', seqscan, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);

  -- Without ON CONFLICT, which writes a second record for the row: where another transaction from the same position
  -- has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash, fence.leader_epoch);
end $$;

-- The fence compares next with expected. As a CHECK, the same is parsed and planned anew for each batch.
alter table onlyonce.progress drop constraint progress_check;

create or replace function onlyonce.seal() returns void
language plpgsql as $$
declare
  ignored text;
begin
  if current_setting('onlyonce.fenced', true) is distinct from pg_current_xact_id()::text then
    raise exception using errcode = 'OO002',
      message = 'onlyonce: not sealed: the fence was not taken in this transaction',
      hint = 'Something ended the transaction that the fence opened: no COMMIT, ROLLBACK or BEGIN between the two.';
  end if;
  ignored := set_config('onlyonce.sealed', pg_current_xact_id()::text, true);
  set constraints all immediate;
end $$;

-- ---------------------------------------------------------------- parked

alter table onlyonce.parked
  add column order_key       uuid,
  add column next_attempt_at timestamptz,
  add column cluster_id      text,
  add column topic_id        uuid,
  add column log_append_time boolean not null default false,
  add column replay_no       integer not null default 0,
  add column replay_resend   boolean not null default false;
comment on column onlyonce.parked.order_key       is 'Hash of (tenant, scope, topic, ordering key): while a row of it is not settled, later messages of that key are parked behind it. Null: nothing waits for this row.';
comment on column onlyonce.parked.next_attempt_at is 'In state retrying: when it is due.';
comment on column onlyonce.parked.cluster_id      is 'Kafka cluster of the record: with topic_id and offset the identity of a message without an id.';
comment on column onlyonce.parked.replay_no       is 'Replay in which it was parked, 0 for none.';
comment on column onlyonce.parked.state  is 'retrying: tried again when it is due. blocked: behind another row of its ordering key. waiting: for an operator. reconcile: a call whose outcome is unknown. resolved, discarded: the end.';
comment on column onlyonce.parked.reason is 'failed, permanent, exhausted, crashed, behind, conflict or no-key for messages; rejected or window for calls.';

-- Which rows are due, of one partition.
create index parked_due on onlyonce.parked (scope, topic, partition, next_attempt_at) where state = 'retrying';
-- Whether a key is blocked, and which row of it comes first.
create index parked_order on onlyonce.parked (order_key, partition, "offset") where settled_at is null and order_key is not null;

-- A row that is tried again is settled by the first statement of its transaction, as a batch moves the cursor by its
-- first: so a COMMIT that the engine did not allow fails here too.
create constraint trigger sealed after update on onlyonce.parked
  deferrable initially deferred
  for each row when (old.state = 'retrying' and new.state = 'resolved') execute function onlyonce.require_seal();

-- The fence of one attempt at a parked row: bounds of this transaction, ownership, and that the row is still to be tried.
-- A copy of the message stays a duplicate: its key is claimed again should retention have removed it. That it is there
-- is no duplicate here; the row itself is what makes this the first application.
create function onlyonce.settle(
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
    insert into onlyonce.inbox (key, fingerprint) values (settle.key, settle.fingerprint) on conflict do nothing;
  end if;
  perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;
comment on function onlyonce.settle(bigint, bigint, uuid, bigint, integer, uuid, bigint, text, text, text) is
  'First statement of an attempt at a parked row: settles it, or raises OO001. The transaction then needs onlyonce.seal() before COMMIT.';

-- Lets the first row of an ordering key be tried, if it is one that waited behind another. Idempotent. Call it in a
-- transaction of its own after every commit that settled a row of the key, or parked one behind: whichever of
-- the two committed later sees both. No lock is needed, because nothing is decided here but who is first:
-- a row is never applied while an unsettled one of its key stands before it.
create function onlyonce.promote(order_key uuid) returns bigint
language plpgsql as $$
declare
  first onlyonce.parked;
begin
  select * into first from onlyonce.parked p
   where p.order_key = promote.order_key and p.settled_at is null
   order by p.partition, p."offset" limit 1;
  if first.state is distinct from 'blocked' then
    return null;
  end if;
  update onlyonce.parked p set state = 'retrying', next_attempt_at = clock_timestamp()
   where p.id = first.id and p.state = 'blocked';
  return first.id;
end $$;
comment on function onlyonce.promote(uuid) is 'Makes the first unsettled row of an ordering key due if it was blocked; returns its id or null.';

-- Raises OO006 if one of these ordering keys is blocked, so it may share a round trip with the effects and COMMIT.
create function onlyonce.pass(order_keys uuid[]) returns void
language plpgsql as $$
begin
  if exists (select 1 from onlyonce.parked p where p.order_key = any (order_keys) and p.settled_at is null) then
    raise exception using errcode = 'OO006', message = 'onlyonce: an ordering key is blocked by a parked message';
  end if;
end $$;
comment on function onlyonce.pass(uuid[]) is 'Raises OO006 if an unsettled parked row stands before one of these ordering keys.';

create function onlyonce.blocked(order_keys uuid[]) returns boolean[]
language sql stable as $$
  select coalesce(array_agg(exists (select 1 from onlyonce.parked p where p.order_key = u.k and p.settled_at is null) order by u.n), '{}')
    from unnest(order_keys) with ordinality as u(k, n)
$$;
comment on function onlyonce.blocked(uuid[]) is 'Whether an unsettled parked row stands before each of these ordering keys.';

insert into onlyonce.schema_version (version) values (2);
