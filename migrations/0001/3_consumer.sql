-- onlyonce schema, version 1: consumers. The position of each in its log, the messages that it has
-- parked, and what its processes report about themselves.

-- ---------------------------------------------------------------- cursors

create table onlyonce.cursors (
  id             bigint  primary key references onlyonce.leases (id) on delete cascade,
  scope          text    not null check (scope <> ''),
  topic          text    not null collate "C" check (topic <> ''),
  partition      integer not null check (partition >= 0),
  group_id       text,
  cluster_id     text,
  topic_id       uuid,
  start_offset   bigint  not null,
  start_policy   text    not null,
  run            integer not null default 0,
  run_start      bigint  not null,
  run_epoch      integer,
  released_at    timestamptz default clock_timestamp(),
  created_at     timestamptz not null default clock_timestamp(),
  retired_at     timestamptz,
  replay_no      integer not null default 0,
  replay_until   bigint,
  replay_resume  bigint,
  replay_resend  boolean not null default false,
  redo_until     bigint,
  redo_topic_id  uuid,
  unique (scope, topic, partition)
);
comment on table  onlyonce.cursors is
  'One row for each (scope, topic, partition): Postgres, not Kafka, is the authority on the position. '
  'See the view onlyonce.positions.';
comment on column onlyonce.cursors.id             is 'Also the id of the lease that owns this cursor.';
comment on column onlyonce.cursors.group_id       is
  'Kafka group that owns the cursor; another group is refused by name. Null: the next owner stamps its '
  'own (after `onlyonce cursor adopt`).';
comment on column onlyonce.cursors.cluster_id     is 'Kafka cluster of the topic, part of its incarnation.';
comment on column onlyonce.cursors.topic_id       is
  'Topic id, part of its incarnation: a topic that was deleted and created again has another one. Null: not known yet.';
comment on column onlyonce.cursors.start_offset   is 'Where the partition started, decided once.';
comment on column onlyonce.cursors.start_policy   is
  'Why it started there: committed (the group''s offset was taken over), earliest, latest, time '
  '(Config.Start), or adopted by an operator.';
comment on column onlyonce.cursors.run            is
  'Rises when an operator sets the position; progress rows of earlier runs no longer count.';
comment on column onlyonce.cursors.run_start      is 'Position at which the run began.';
comment on column onlyonce.cursors.run_epoch      is
  'As progress.leader_epoch, of the position at which the run began; of a replay''s run: of the position '
  'that it interrupted, which lies above. Null: not known, for example after `onlyonce cursor adopt -at`.';
comment on column onlyonce.cursors.released_at    is
  'When the last owner released the cursor in order; null from its take-over until then. An owner that '
  'finds null handles the next messages one at a time.';
comment on column onlyonce.cursors.retired_at     is
  'Set by `onlyonce cursor retire`: no process works on this cursor, and it holds back no retention. Null: in use.';
comment on column onlyonce.cursors.replay_no      is
  'Rises with each replay. Below replay_until it is part of each message''s key, so that messages which '
  'were handled are handled again.';
comment on column onlyonce.cursors.replay_until   is 'Where the replay ends. Null: none is under way.';
comment on column onlyonce.cursors.replay_resume  is
  'Position that the replay interrupted: when the replay has ended, the cursor goes on there.';
comment on column onlyonce.cursors.replay_resend  is
  'Whether calls that are enqueued during the replay get keys of their own, so that the remote applies them again.';
comment on column onlyonce.cursors.redo_topic_id  is
  'In which topic redo_until lies: it means nothing in one that was made anew. Null: not known.';
comment on column onlyonce.cursors.redo_until     is
  'Messages below it may have been handled in a history that this database has lost, or that an operator '
  'has set back. Calls under their keys may have been made. Null: none.';

create table onlyonce.progress (
  cursor_id     bigint  not null,
  run           integer not null,
  from_offset   bigint  not null,
  next_offset   bigint  not null, -- > from_offset. Not a CHECK: it would be planned for each batch
  anchor_offset bigint,
  anchor_epoch  integer,
  anchor_hash   bytea,
  leader_epoch  integer,
  primary key (cursor_id, run, from_offset)
);
comment on table  onlyonce.progress is
  'Insert-only: one row for each committed batch, inserted in the batch''s transaction. A second '
  'transaction from the same offset finds the first one''s row. Old rows are pruned by the owner. (One '
  'row updated in place slows down fourfold within seconds while an old snapshot is open. No foreign '
  'key: the fence has just locked the owner''s row.)';
comment on column onlyonce.progress.from_offset   is 'Position before the batch.';
comment on column onlyonce.progress.next_offset   is
  'Position after the batch: everything below it is applied, parked, or was never to be handed over '
  '(control, aborted and removed records).';
comment on column onlyonce.progress.anchor_offset is
  'Offset of the last record seen below next_offset; null before the first.';
comment on column onlyonce.progress.anchor_epoch  is 'Leader epoch of that record''s batch.';
comment on column onlyonce.progress.anchor_hash   is
  'SHA-256 of that record: it distinguishes a log that was truncated and written anew from the one that was read.';
comment on column onlyonce.progress.leader_epoch  is
  'Leader epoch that no batch below next_offset exceeded when it was read; records written there after '
  'an unclean election have a higher one. Null: the source has no leader epochs.';

create table onlyonce.done (
  cursor_id bigint  not null,
  "offset"  bigint  not null,
  hash      bigint  not null,
  run       integer not null,
  last      boolean not null,
  unproven  boolean not null default false,
  primary key (cursor_id, run, "offset")
);
comment on table  onlyonce.done is
  'Messages that are done although the position is still below them, for consumers with several '
  'transactions in a partition. One row each, inserted in the transaction that applied or parked the '
  'message: so no second transaction commits the same offset. The position moves over them by '
  'onlyonce.sweep; the owner prunes what is below it. (No foreign key: the fence has just locked the '
  'owner''s row.)';
comment on column onlyonce.done.hash is
  'Of the record, the first 8 bytes of what progress.anchor_hash has: it distinguishes a log that was '
  'truncated and written anew from the one that was read.';
comment on column onlyonce.done.run  is
  'The cursor''s run. During a replay, the rows of the run that it interrupts have that run''s number, '
  'and get the replay''s when it ends.';
comment on column onlyonce.done.last is 'The last row of its transaction, for which the seal is checked.';
comment on column onlyonce.done.unproven is
  'An operator has set the position since: the row holds only if the log still has its record.';

create table onlyonce.attempts (
  cursor_id bigint  not null,
  "offset"  bigint  not null,
  attempts  integer not null,
  answers   integer not null,
  primary key (cursor_id, "offset")
);
comment on table  onlyonce.attempts is
  'Messages that are handled alone, and whose attempts are counted. A row below the position means '
  'nothing, and is deleted when the next attempt is counted.';
comment on column onlyonce.attempts.attempts is
  'Attempts at that offset, counted before each one runs, so that a message that kills its process is counted too.';
comment on column onlyonce.attempts.answers  is
  'How many of those attempts are known to have ended with an error of the handler. The others took the '
  'process with them, or are under way.';

-- positions has the position of each cursor (F1).
create view onlyonce.positions as
  select c.id,
         c.scope,
         c.topic,
         c.partition,
         c.group_id,
         c.cluster_id,
         c.topic_id,
         c.run,
         c.released_at,
         c.released_at is not null as clean,
         c.start_offset,
         c.start_policy,
         l.epoch,
         l.nonce,
         coalesce(p.next_offset, c.run_start) as next_offset,
         p.anchor_offset,
         p.anchor_epoch,
         p.anchor_hash,
         case when p.next_offset is null then c.run_epoch else p.leader_epoch end as leader_epoch,
         c.run_epoch,
         c.retired_at,
         l.longest,
         c.replay_no,
         c.replay_until,
         c.replay_resume,
         c.replay_resend,
         c.redo_until,
         c.redo_topic_id,
         (select max(d."offset") + 1 from onlyonce.done d
           where d.cursor_id = c.id
             and d.run = c.run
             and d."offset" >= coalesce(p.next_offset, c.run_start)) as done_until
    from onlyonce.cursors c
    join onlyonce.leases l on l.id = c.id
    left join lateral (
      select q.next_offset,
             q.anchor_offset,
             q.anchor_epoch,
             q.anchor_hash,
             q.leader_epoch
        from onlyonce.progress q
       where q.cursor_id = c.id and q.run = c.run
       order by q.from_offset desc limit 1) p on true;
comment on view onlyonce.positions is
  'The position of each cursor: everything below next_offset is done. done_until is the end of what is '
  'done above it (see onlyonce.done), null if nothing is: in between some messages are done and some are '
  'not.';

-- take_cursor takes over a cursor. If the lease's epoch is still the one that the caller read, it
-- raises it, writes the owner's group and topic and how long a transaction of it may last, and
-- clears released_at (C3).
create function onlyonce.take_cursor(
  cursor_id bigint,
  seen_epoch bigint,
  new_nonce uuid,
  group_id text,
  cluster_id text,
  topic_id uuid,
  longest interval,
  lock_timeout text
) returns bigint
language plpgsql as $$
declare
  raised bigint;
begin
  perform set_config('lock_timeout', take_cursor.lock_timeout, true);
  raised := onlyonce.raise_epoch(take_cursor.cursor_id, seen_epoch, new_nonce, longest => take_cursor.longest);
  if raised is not null then
    update onlyonce.cursors c
      set group_id = take_cursor.group_id, cluster_id = take_cursor.cluster_id,
          topic_id = coalesce(take_cursor.topic_id, c.topic_id), released_at = null
      where c.id = take_cursor.cursor_id;
  end if;
  return raised;
end $$;
comment on function onlyonce.take_cursor is
  'Takes a cursor over if its epoch is still the one that was read; returns the new epoch or null.';

create table onlyonce.frontiers (
  cursor_id bigint      primary key references onlyonce.cursors (id) on delete cascade,
  run       integer     not null,
  frontier  timestamptz not null
) with (fillfactor = 50);
comment on table  onlyonce.frontiers is
  'How far each cursor is in the time of its log, by the database''s clock: everything that was appended '
  'before the frontier is handled.';
comment on column onlyonce.frontiers.run      is
  'The cursor''s run that the frontier is for. In another run nothing is known.';
comment on column onlyonce.frontiers.frontier is
  'The latest time t for which the cursor has passed the end of the log as it was after t.';

-- ---------------------------------------------------------------- scopes, topics, pauses, owners

create table onlyonce.scopes (
  scope      text        primary key check (scope <> ''),
  topics     text[]      not null,
  copies     text        check (copies in ('within', 'across')),
  first_topic text       not null,
  class      text        not null default 'standard' check (class in ('short', 'standard', 'long')),
  class_before     text  check (class_before in ('short', 'standard', 'long') and class_before <> class),
  class_changed_at timestamptz,
  forgotten  timestamptz,
  too_old    timestamptz,
  created_at timestamptz not null default clock_timestamp(),
  check ((class_before is null) = (class_changed_at is null))
);
comment on table  onlyonce.scopes is
  'What ids mean in a scope that reads messages by id: its consumers agree on this row, or halt.';
comment on column onlyonce.scopes.topics is 'Topics that its consumers have read.';
comment on column onlyonce.scopes.copies is
  'Whether an id counts within its topic or across the topics of the scope. Null: the scope has one '
  'topic, and no choice was made.';
comment on column onlyonce.scopes.first_topic is
  'Topic whose keys never hold a topic: the one that the scope began with. Empty: it began with several.';
comment on column onlyonce.scopes.class  is
  'Class of horizon: in which ring its keys are claimed (onlyonce.class_ring).';
comment on column onlyonce.scopes.class_before is
  'Class before the last change. Claims search its ring too, as long as it may remember keys from '
  'before: see onlyonce.class_before. Null: never changed.';
comment on column onlyonce.scopes.class_changed_at is
  'When the class was changed: every claim of an earlier owner had ended by then.';
comment on column onlyonce.scopes.forgotten is
  'Until when keys were forgotten in the databases from which partitions of the scope were moved here, '
  'and in rings in which the scope claimed before its last two changes of class. Null: none were.';
comment on column onlyonce.scopes.too_old is
  'As forgotten, but until when ids of such keys may have been made. Also written when the horizon of a '
  'ring of the scope is changed.';

-- class_before returns the class that a scope had before, as long as that class's ring remembers
-- keys which were claimed before the change. Claims of the scope are made in both rings until then.
-- It is null if the scope's ring suffices (K10).
create function onlyonce.class_before(scope text) returns text
language sql stable as $$
  select s.class_before from onlyonce.scopes s
   where s.scope = class_before.scope
     and s.class_before is not null
     and onlyonce.still_asked(onlyonce.class_ring(s.class_before), s.class_changed_at)
$$;
comment on function onlyonce.class_before is
  'The class of horizon that a scope had before, while claims have to search its ring too. Null: they need not.';

-- claim_scope claims keys in the rings of a scope, for transactions that do not own a cursor. The
-- lock on the scope's row excludes a change of its class until the transaction ends; owners are
-- fenced out by that change instead (K10).
create function onlyonce.claim_scope(scope text, keys uuid[], fingerprints bigint[]) returns smallint[]
language plpgsql as $$
declare
  now_in text;
  was_in text;
begin
  perform 1 from onlyonce.scopes s where s.scope = claim_scope.scope for share;
  select coalesce((select s.class from onlyonce.scopes s where s.scope = claim_scope.scope), 'standard'),
         onlyonce.class_before(claim_scope.scope)
    into now_in, was_in;
  if was_in is null then
    return onlyonce.claim_class(now_in, claim_scope.keys, claim_scope.fingerprints);
  end if;
  return onlyonce.claim_both(now_in, was_in, claim_scope.keys, claim_scope.fingerprints);
end $$;
comment on function onlyonce.claim_scope is
  'Claims keys of Kafka messages in the ring of their scope''s class, and of the class before, while '
  'claims have to search that ring too.';

-- forgotten returns the time until which keys of the scope may have been forgotten, here or in a
-- database from which a partition was moved here. A key that was claimed later is remembered. It is
-- null if nothing was forgotten since the scope began. The ring of the class before holds the keys
-- that were claimed until the change; those of later claims are in the other ring too.
--
-- With `ahead` it returns the latest time at which the id of such a key may have been made, by a
-- clock that is ahead by that part of its ring's horizon; see onlyonce.too_old (K9).
create function onlyonce.forgotten(scope text, ahead double precision default 0) returns timestamptz
language sql stable as $$
  select greatest(case when ahead = 0 then s.forgotten else s.too_old end,
      (select r.forgotten + coalesce(r.horizon * ahead, interval '0')
         from onlyonce.rings r
        where r.name = onlyonce.class_ring(s.class) and r.forgotten > greatest(s.created_at, s.class_changed_at)),
      (select least(r.forgotten, s.class_changed_at + interval '1 minute') + coalesce(r.horizon * ahead, interval '0')
         from onlyonce.rings r where r.name = onlyonce.class_ring(s.class_before) and r.forgotten > s.created_at))
    from onlyonce.scopes s where s.scope = forgotten.scope
$$;
comment on function onlyonce.forgotten is 'Until when keys of a scope may have been forgotten; null: none was.';

-- too_old returns the latest time at which an id may have been made whose key may be forgotten.
-- Producers' clocks may be ahead by a tenth of the horizon: a key is claimed after its id was made,
-- but by the database's clock. What was forgotten under another horizon keeps the tenth of that
-- one: scopes.too_old has it (K9).
create function onlyonce.too_old(scope text) returns timestamptz
language sql stable as $$
  select onlyonce.forgotten(too_old.scope, 0.1)
$$;
comment on function onlyonce.too_old is
  'Ids of a scope that were made until this time may be copies whose key is forgotten; null: none.';

-- refuse_too_old raises OO003 if the oldest id of a batch is too old. Call it after the claim: what
-- the claim did not search has been forgotten by then. So it may share a round trip with the
-- effects and COMMIT (K9).
create function onlyonce.refuse_too_old(scope text, oldest timestamptz) returns void
language plpgsql as $$
begin
  if oldest <= onlyonce.too_old(scope) then
    raise exception using errcode = 'OO003',
      message = 'onlyonce: one of these messages is too old for its key to be remembered';
  end if;
end $$;
comment on function onlyonce.refuse_too_old is
  'Raises OO003 if an id that was made at this time may be a copy whose key is forgotten.';

create table onlyonce.topics (
  scope      text    not null,
  topic      text    not null collate "C",
  partitions integer not null check (partitions > 0),
  changed_at timestamptz not null default clock_timestamp(),
  primary key (scope, topic)
);
comment on table  onlyonce.topics is
  'How many partitions a topic had when a scope first read it, or when an operator accepted that it has '
  'more. Partitions that come later start at the log''s start, and order by key holds only while the '
  'number stays.';

create table onlyonce.pauses (
  scope     text        not null,
  topic     text        not null collate "C" default '',
  partition integer     not null default -1,
  paused_at timestamptz not null default clock_timestamp(),
  actor     text        not null default current_user,
  reason    text        not null,
  primary key (scope, topic, partition),
  check (partition >= -1 and (topic <> '' or partition = -1))
);
comment on table  onlyonce.pauses is 'What operators have paused, until they resume it, also across restarts.';
comment on column onlyonce.pauses.topic     is 'Empty: the whole scope.';
comment on column onlyonce.pauses.partition is '-1: the whole topic, or the whole scope.';

create table onlyonce.owners (
  id         uuid        primary key,
  part       text        not null default 'consumer' 
             check (part in ('consumer', 'relay', 'receiver', 'endpoint', 'layer')),
  scope      text        not null,
  host       text        not null,
  pid        integer     not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at    timestamptz not null default clock_timestamp(),
  partitions jsonb       not null,
  faults     jsonb       not null default '[]'
) with (fillfactor = 50);
create index owners_scope on onlyonce.owners (scope);
comment on table  onlyonce.owners is
  'What each part of a process reports about itself, for people and tools; a consumer also the '
  'partitions that it owns. The engine does not read it to decide.';
comment on column onlyonce.owners.id         is 'Random, new for each Run.';
comment on column onlyonce.owners.part       is
  'What it is: a consumer, a relay, the receiver of a queue, an endpoint of webhooks, or a layer of the HTTP package.';
comment on column onlyonce.owners.scope      is
  'A consumer''s scope; a relay''s sink, which has a row of its own; a receiver''s or an '
  'endpoint''s name; empty for a layer.';
comment on column onlyonce.owners.seen_at    is
  'When the process wrote the row: at once when a state changes, every 10 seconds otherwise. A process '
  'that stops in order deletes its row.';
comment on column onlyonce.owners.partitions is
  'A list of objects: topic, partition, epoch, position, high_watermark, lag, last_stable, paused, '
  'halted (reason), detail, and ages in seconds at seen_at: halted_for, last_batch_age, waiting_for (an '
  'open Kafka transaction holds back what lies above last_stable), blocked_by (the message that holds up '
  'the position: offset, key, for, done).';
comment on column onlyonce.owners.faults     is
  'What keeps the part from its work now, a list of objects: kind (of a consumer group, read, topic, '
  'apply or handler; of a relay remote, refused, halted, stuck or database; of a receiver receive or '
  'full; of an endpoint store), topic, partitions (how many), for (seconds at seen_at), text (no '
  'payload, no key, and nothing that a handler said).';

-- ---------------------------------------------------------------- fence

-- enter begins each transaction of a cursor's owner. It sets the bounds of the transaction, checks
-- the ownership, and returns the position in a run: null if the cursor has another run. It raises
-- if the ownership is lost, because it may share a round trip with COMMIT: an UPDATE that matches
-- no row is no error, and the COMMIT after it would succeed.
--
-- Its statements have an order:
--
-- the id The transaction gets its id before it reads the position. A process that prunes rows waits
--             for each transaction that may have read an older position (T4, C5).
--   the lock  Shared, and in a statement of its own: a later statement sees everything that
--             committed before the lock was granted. In one statement with the read, the snapshot
--             would be older than the lock, and an owner that was replaced meanwhile would pass.
--             Above READ COMMITTED no later statement sees more, so there it locks the lease's row
--             besides: that raises 40001 if it has changed since the snapshot. FOR SHARE, not FOR
--             KEY SHARE: see onlyonce.hold. Not instead: PostgreSQL grants FOR SHARE past a raise
--             that waits, which would never come to its turn beside several slots (T14).
--   the read  Owner and position, in one statement.
--
-- It uses assignments and not PERFORM, because plpgsql runs an assignment of one expression without
-- a query.
--
-- enable_seqscan is off only while the position is looked up. The plan is made while the table is
-- tiny, and is kept; it would go on reading the whole table when that has grown, for example while
-- an old snapshot prevents vacuum. A SET clause of the function would do the same at a higher cost,
-- because it ends with a walk over all settings. An error in between ends the transaction, and the
-- setting with it (T2, T7, F1, C3, T14).
--
-- jit stays off until the transaction ends, as in each transaction of an engine: a server that is
-- told to compile early (jit_above_cost) takes longer to compile one statement than a batch takes.
create function onlyonce.enter(
  cursor_id bigint,
  epoch bigint,
  nonce uuid,
  run integer,
  lock_timeout text,
  statement_timeout text,
  idle_timeout text
) returns bigint
language plpgsql as $$
declare
  stands  bigint;
  seqscan text := current_setting('enable_seqscan');
  ignored text;
begin
  ignored := set_config('lock_timeout', enter.lock_timeout, true)
          || set_config('statement_timeout', enter.statement_timeout, true)
          || set_config('idle_in_transaction_session_timeout', enter.idle_timeout, true)
          || set_config('jit', 'off', true)
          || set_config('enable_seqscan', 'off', true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  ignored := pg_advisory_xact_lock_shared(onlyonce.owner_lock(enter.cursor_id))::text;
  if current_setting('transaction_isolation') <> 'read committed' then
    perform 1 from onlyonce.leases l where l.id = enter.cursor_id for share;
  end if;
  select coalesce((select p.next_offset
                     from onlyonce.progress p
                    where p.cursor_id = l.id and p.run = enter.run order by p.from_offset desc limit 1),
                  (select c.run_start from onlyonce.cursors c where c.id = l.id and c.run = enter.run))
    into stands
    from onlyonce.leases l where l.id = enter.cursor_id and l.epoch = enter.epoch and l.nonce = enter.nonce;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: this owner was replaced',
      detail = format('lease %s is no longer held under epoch %s', enter.cursor_id, enter.epoch);
  end if;
  ignored := set_config('enable_seqscan', seqscan, true);
  return stands;
end $$;
comment on function onlyonce.enter is
  'Begins a transaction of a cursor''s owner: sets its bounds, raises OO001 unless (epoch, nonce) own '
  'the cursor, excludes a take-over until the transaction ends, and returns the position.';

-- fence is the first statement of a batch: one call enters the transaction and moves the position,
-- because each statement of a pipeline costs.
--
-- The position is compared with the one in the database, which may be lower than the owner
-- remembers: a failover may have lost commits. The INSERT waits, at most lock_timeout, for another
-- transaction from the same offset, for example an earlier attempt whose outcome is unknown. The
-- comparison cannot see that transaction. If it commits, the INSERT raises 23505 on
-- onlyonce.progress (T2, F1).
create function onlyonce.fence(
  cursor_id bigint,
  epoch bigint,
  nonce uuid,
  run integer,
  expected bigint,
  next bigint,
  anchor_offset bigint,
  anchor_epoch integer,
  anchor_hash bytea,
  leader_epoch integer,
  lock_timeout text,
  statement_timeout text,
  idle_timeout text
) returns void
language plpgsql as $$
declare
  stands bigint;
begin
  stands := onlyonce.enter(
    fence.cursor_id,
    fence.epoch,
    fence.nonce,
    fence.run,
    fence.lock_timeout,
    fence.statement_timeout,
    fence.idle_timeout
  );
  if stands is distinct from fence.expected then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the position has moved',
      detail = format('cursor %s is at offset %s and not at %s', fence.cursor_id, stands, fence.expected);
  end if;
  if fence.next <= fence.expected then
    raise exception using errcode = 'check_violation',
      message = format('onlyonce: fence: the position would go from %s to %s', fence.expected, fence.next);
  end if;
  -- Without ON CONFLICT, which would write a second WAL record for the row. If another transaction
  -- from the same position has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (
      fence.cursor_id,
      fence.run,
      fence.expected,
      fence.next,
      fence.anchor_offset,
      fence.anchor_epoch,
      fence.anchor_hash,
      fence.leader_epoch
    );
end $$;
comment on function onlyonce.fence is
  'First statement of a batch: moves the cursor from expected to next, or raises OO001. The transaction '
  'then needs onlyonce.seal() before COMMIT.';

create constraint trigger sealed after insert on onlyonce.progress
  deferrable initially deferred
  for each row execute function onlyonce.require_seal();

-- fence_slot is the first statement of a slot's transaction, which runs beside others of its
-- partition. It takes the place of onlyonce.fence: it enters the transaction, and records that the
-- messages at the given offsets are done. It does not move the position; onlyonce.sweep does.
--
-- Each check is a statement of its own, after the one that may wait:
--
--   the position not below low: the owner's memory is not ahead of the database, which may have
--                lost commits; and not above any of the offsets, which would be done already
--   after        offsets of the messages that come before these by their ordering keys, and are not
--                among them. Each is below the position or in onlyonce.done, or this transaction
--                would overtake it. For example a failover has lost that message
--   the insert   waits for another transaction that has one of the offsets. If that one commits,
--                this raises 23505 on onlyonce.done, at every isolation level
--
-- The lateral join with its limit makes the predecessors index probes, whatever the plan was made
-- for. See onlyonce.enter for enable_seqscan (C1, C2, C3).
create function onlyonce.fence_slot(
  cursor_id bigint,
  epoch bigint,
  nonce uuid,
  run integer,
  low bigint,
  offsets bigint[],
  hashes bigint[],
  after bigint[],
  lock_timeout text,
  statement_timeout text,
  idle_timeout text
) returns void
language plpgsql as $$
declare
  stands  bigint;
  missing bigint;
  seqscan text := current_setting('enable_seqscan');
  ignored text;
begin
  stands := onlyonce.enter(
    fence_slot.cursor_id,
    fence_slot.epoch,
    fence_slot.nonce,
    fence_slot.run,
    fence_slot.lock_timeout,
    fence_slot.statement_timeout,
    fence_slot.idle_timeout
  );
  if stands is null or stands < fence_slot.low or stands > (select min(u.o) from unnest(fence_slot.offsets) u (o)) then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: the position has moved',
      detail = format(
        'cursor %s is at offset %s, was seen at %s, and this transaction begins at %s',
        fence_slot.cursor_id,
        stands,
        fence_slot.low,
        fence_slot.offsets[1]
      );
  end if;
  if cardinality(fence_slot.after) > 0 then
    ignored := set_config('enable_seqscan', 'off', true);
    select min(a.o) into missing
      from unnest(fence_slot.after) a (o)
      left join lateral (
        select true as found from onlyonce.done d
         where d.cursor_id = fence_slot.cursor_id and d.run = fence_slot.run and d."offset" = a.o limit 1) d on true
     where a.o >= stands and d.found is null;
    ignored := set_config('enable_seqscan', seqscan, true);
    if missing is not null then
      raise exception using errcode = 'OO001',
        message = 'onlyonce: fence lost: an earlier message of an ordering key is not done',
        detail = format('cursor %s: offset %s is not done', fence_slot.cursor_id, missing);
    end if;
  end if;
  insert into onlyonce.done (
    cursor_id,
    "offset",
    hash,
    run,
    last
  )
    select fence_slot.cursor_id,
           u.o,
           u.h,
           fence_slot.run,
           u.n = cardinality(fence_slot.offsets)
      from unnest(fence_slot.offsets, fence_slot.hashes) with ordinality u (o, h, n) order by u.o;
end $$;
comment on function onlyonce.fence_slot is
  'First statement of a transaction beside others of its partition: records that these offsets are done, '
  'or raises OO001 or 23505. The transaction then needs onlyonce.seal() before COMMIT.';

create constraint trigger sealed after insert on onlyonce.done
  deferrable initially deferred
  for each row when (new.last) execute function onlyonce.require_seal();

-- sweep moves the position over what onlyonce.done has. The caller proposes how far; the database
-- decides. Each offset in between is in onlyonce.done, or in a range that the caller's fetch has
-- shown to hold no message, or this raises OO001: a failover may have lost what the caller
-- remembers. Ranges are half open. It runs at READ COMMITTED, in a transaction of its own (C4).
create function onlyonce.sweep(
  cursor_id bigint,
  epoch bigint,
  nonce uuid,
  run integer,
  expected bigint,
  next bigint,
  anchor_offset bigint,
  anchor_epoch integer,
  anchor_hash bytea,
  leader_epoch integer,
  empty_from bigint[],
  empty_until bigint[],
  lock_timeout text,
  statement_timeout text,
  idle_timeout text
) returns void
language plpgsql as $$
declare
  covered boolean;
begin
  perform onlyonce.fence(
    sweep.cursor_id,
    sweep.epoch,
    sweep.nonce,
    sweep.run,
    sweep.expected,
    sweep.next,
    sweep.anchor_offset,
    sweep.anchor_epoch,
    sweep.anchor_hash,
    sweep.leader_epoch,
    sweep.lock_timeout,
    sweep.statement_timeout,
    sweep.idle_timeout
  );
  select range_agg(r.covers) @> int8range(sweep.expected, sweep.next) into covered from (
    select int8range(d."offset", d."offset" + 1) from onlyonce.done d
     where d.cursor_id = sweep.cursor_id
       and d.run = sweep.run
       and d."offset" >= sweep.expected
       and d."offset" < sweep.next
    union all
    select int8range(e.f, e.u) from unnest(sweep.empty_from, sweep.empty_until) e (f, u)) r (covers);
  if covered is distinct from true then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: not everything below the new position is done',
      detail = format('cursor %s: from %s to %s', sweep.cursor_id, sweep.expected, sweep.next);
  end if;
  perform onlyonce.seal();
end $$;
comment on function onlyonce.sweep is
  'Moves the cursor from expected to next over messages that are done, or raises OO001. It is the whole transaction.';

-- ---------------------------------------------------------------- parked

create table onlyonce.parked (
  id               bigint generated always as identity primary key,
  kind             text not null check (kind in ('message', 'call', 'event')),
  state            text not null default 'waiting'
                   check (state in ('waiting', 'retrying', 'blocked', 'reconcile', 'resolved', 'discarded')),
  reason           text not null,
  error            text not null default '',
  attempts         integer not null default 0,
  next_attempt_at  timestamptz,
  timed_at         timestamptz,
  parked_at        timestamptz not null default clock_timestamp(),
  settled_at       timestamptz,
  redrives         integer not null default 0,
  redriven_at      timestamptz,
  erased_at        timestamptz,
  tenant           text not null default '',
  scope            text not null,
  key              uuid,
  order_key        uuid,
  header_names     bytea[] not null default '{}',
  header_values    bytea[] not null default '{}',
  body             bytea,
  -- messages and events
  topic            text collate "C",
  partition        integer,
  "offset"         bigint,
  cluster_id       text,
  topic_id         uuid,
  record_time      timestamptz,
  log_append_time  boolean not null default false,
  record_key       bytea,
  replay_no        integer not null default 0,
  replay_resend    boolean not null default false,
  event_id         text,
  -- calls
  sink             text collate "C",
  lane             smallint,
  row_id           bigint,
  call_name        text,
  method           text,
  target           text,
  trace            text,
  capture          boolean not null default false,
  sealed           boolean not null default false,
  first_key        uuid,
  not_before       timestamptz,
  first_attempt_at timestamptz,
  open             boolean not null default false,
  picks            integer not null default 0,
  order_prefix     bigint,
  waits_for        text collate "C",
  waits_since      timestamptz,
  response_status  integer,
  response_headers text,
  response_body    bytea
);
comment on table  onlyonce.parked is
  'Dead letters: messages and calls that were set aside, whole, so that nothing is lost. Never both '
  'applied and parked. Also calls that were delivered, with their captured answers (state resolved, '
  'reason completion).';
comment on column onlyonce.parked.kind             is
  'message: from Kafka. call: from the outbox. event: from onlyonce.event_log, or set aside by a webhook receiver.';
comment on column onlyonce.parked.state            is
  'retrying: tried again when it is due. blocked: waits for an earlier row of its ordering key. waiting: '
  'for an operator. reconcile: a call whose outcome is unknown. resolved, discarded: the end.';
comment on column onlyonce.parked.reason           is
  'failed, permanent, exhausted, crashed, behind, conflict, no-key or too-old for messages and events; '
  'same-body, divergent, stale or forward for events that a webhook receiver has set aside; failed, '
  'postponed, scheduled, behind, cut, under-way, completion, rejected, unopened, window, unsafe or rate '
  'for calls.';
comment on column onlyonce.parked.next_attempt_at  is
  'In state retrying: when it is due. In state reconcile: when the relay asks the remote about it again.';
comment on column onlyonce.parked.timed_at         is
  'When next_attempt_at was written, by the same clock. Null: nothing is due, or the program has scheduled the call.';
comment on column onlyonce.parked.redrives         is
  'How often operators have redriven it. The audit rows of action parked redrive have the id.';
comment on column onlyonce.parked.key              is
  'Dedupe key of the message, or derived key of the call. Null: it had none.';
comment on column onlyonce.parked.order_key        is
  'Hash of (tenant, scope, topic, ordering key): while a row with it is not settled, later messages of '
  'that key are parked too. Null: no message waits for this row.';
comment on column onlyonce.parked.body             is 'Value of the message or body of the call, byte for byte.';
comment on column onlyonce.parked.cluster_id       is
  'Kafka cluster of the record: with topic_id and offset the identity of a message without an id.';
comment on column onlyonce.parked.replay_no        is 'Replay in which it was parked, 0 for none.';
comment on column onlyonce.parked.event_id         is 'Id of an event, as onlyonce.event_log has it.';
comment on column onlyonce.parked.row_id           is
  'Id of the call in the log, see onlyonce.batches; with lane as partition and this as offset calls of '
  'an ordering key are sorted.';
comment on column onlyonce.parked.first_key        is
  'Key that the call was enqueued under, if an operator has given it another one since: the call is '
  'recognised by it, and a sealed body opens under it. Null: the row''s key.';
comment on column onlyonce.parked.record_time      is 'The record''s timestamp; of a call: when it was enqueued.';
comment on column onlyonce.parked.not_before       is
  'Of a call: when it may be made at the earliest, as the program has enqueued it. An operator who '
  'redrives it has it made at once.';
comment on column onlyonce.parked.first_attempt_at is
  'Of a call: since when the remote may have seen its key, whatever it has answered; written before that '
  'attempt is made. The remote''s key window counts from here. Null: no attempt can have reached it.';
comment on column onlyonce.parked.open             is
  'Of a call: whether an attempt is open, so that the remote may have applied it; written before that attempt is made.';
comment on column onlyonce.parked.picks            is
  'How often a relay has picked the call. A settlement names the pick that it settles. Unlike attempts '
  'it is never set back.';
comment on column onlyonce.parked.order_prefix     is
  'Of a call: hash of (sink, prefix of the ordering key), see onlyonce.rates.';
comment on column onlyonce.parked.waits_for        is
  'Of a call in state retrying without next_attempt_at: whose rate it waits for, as onlyonce.rates.calls_of has it.';
comment on column onlyonce.parked.waits_since      is 'Its place among those that wait for the same rate.';
comment on column onlyonce.parked.response_status  is
  'The remote has accepted the call with this status. The relay still has to complete it.';

create unique index parked_key_unresolved on onlyonce.parked (key, kind)
  where settled_at is null and reason <> 'conflict' and kind <> 'call';
-- Calls that are not settled, by their keys. Not unique: parking drops no call, whatever else has
-- its key (O1).
create index parked_calls_key on onlyonce.parked (key) where kind = 'call' and settled_at is null and key is not null;
-- What a key became, settled or not.
create index parked_key on onlyonce.parked (key) where key is not null;
-- Calls that go out under another key than the one that they are recognised by.
create index parked_first_key on onlyonce.parked (first_key) where first_key is not null;
-- The unsettled rows, oldest first, and by position. A session keeps the plan of a statement that
-- it prepared while the table was empty, when a scan of a whole index looks as cheap as any. So the
-- conditions of these and of the next indexes name a column of the index as not null. The planner
-- then uses them only for a statement that compares this column: one that looks for a key (a claim)
-- reads the index of keys. A statement that reads all unsettled rows says id > 0 (T13).
create index parked_open on onlyonce.parked (id) where settled_at is null and id is not null;
create index parked_position on onlyonce.parked (scope, topic, partition, "offset")
  where settled_at is null and scope is not null;
-- Finds the rows of one partition that are due.
create index parked_due on onlyonce.parked (scope, topic, partition, next_attempt_at, "offset")
  where state = 'retrying' and topic is not null;
-- Finds the rows whose due time was written while the clock was ahead: the last ones.
create index parked_timed on onlyonce.parked (timed_at) where timed_at is not null;
-- Finds the ordering keys of a partition, or of a lane, that have blocked rows.
create index parked_blocked on onlyonce.parked (scope, topic, partition, order_key)
  where state = 'blocked' and kind <> 'call' and topic is not null;
create index parked_calls_blocked on onlyonce.parked (sink, lane, order_key)
  where state = 'blocked' and kind = 'call' and sink is not null;
-- Finds the calls of a sink that are not delivered yet, the oldest first, and counts them. Those
-- that the remote has accepted and those that the program has scheduled are not among them.
create index parked_unsent on onlyonce.parked (sink, state, record_time)
  where kind = 'call'
    and state in ('retrying', 'blocked')
    and reason not in ('completion', 'scheduled')
    and sink is not null;
-- Finds the events that are parked or set aside under an id, whatever their key.
create index parked_event on onlyonce.parked (event_id) where event_id is not null;
-- Finds out whether an ordering key is blocked, and which of its rows is first.
create index parked_order on onlyonce.parked (order_key, partition, "offset")
  where settled_at is null and order_key is not null;
-- A row of the outbox's log is parked once.
create unique index parked_row on onlyonce.parked (row_id) where row_id is not null;
-- due_ahead says that a due time was written while the clock was ahead: no relay puts a call off
-- for more than a day (RelayConfig.Backoff.Max), unless the program has scheduled it. is_due counts
-- such a time as past (T9).
create function onlyonce.due_ahead(at timestamptz, reason text, now timestamptz) returns boolean
language sql stable as $$
  select due_ahead.at > due_ahead.now + interval '2 days' and due_ahead.reason <> 'scheduled'
$$;
comment on function onlyonce.due_ahead is
  'Whether a due time of onlyonce.parked was written while the clock was ahead.';
create function onlyonce.is_due(at timestamptz, reason text, now timestamptz) returns boolean
language sql stable as $$
  select is_due.at <= is_due.now or onlyonce.due_ahead(is_due.at, is_due.reason, is_due.now)
$$;
comment on function onlyonce.is_due is 'Whether a row of onlyonce.parked with this due time is due now.';
-- attempt_may_be_lost is for a call without an open attempt here. It reports whether an attempt may
-- have been made in a history that the database has lost since the call was parked
-- (onlyonce.lane_cursors.history_at). It is false if a person has closed the call (reason failed) (O6).
create function onlyonce.attempt_may_be_lost(
  open boolean,
  reason text,
  parked_at timestamptz,
  history timestamptz
) returns boolean
language sql immutable as $$
  select not attempt_may_be_lost.open and attempt_may_be_lost.reason <> 'failed'
         and coalesce(attempt_may_be_lost.parked_at < attempt_may_be_lost.history, false)
$$;
comment on function onlyonce.attempt_may_be_lost is
  'Whether an attempt at a parked call may have been made in a history that the database has lost.';
-- Finds the calls of a lane that are due. Those that are asked about, and those that the program
-- has scheduled, are apart: a relay may leave the former alone, and the latter alone may be due in
-- years.
create index parked_calls_due on onlyonce.parked (
  sink,
  lane,
  (case when state = 'reconcile' then 2 when reason = 'scheduled' then 1 else 0 end),
  next_attempt_at,
  id
)
  where kind = 'call' and next_attempt_at is not null and sink is not null;
-- Finds the calls that wait for a rate. They are not in parked_calls_due, so that no relay passes
-- over them when it looks for what is due.
create index parked_waits on onlyonce.parked (sink, waits_for, lane, waits_since, id)
  where waits_for is not null and state = 'retrying' and next_attempt_at is null;
-- Finds the settled calls that may be deleted. Those that went out under another key are kept
-- longer.
create index parked_settled on onlyonce.parked (sink, (first_key is null), settled_at)
  where kind = 'call' and settled_at is not null;
-- The settled rows that were in trouble. All others are calls that were delivered, with their
-- captured answers: a million a day if each call captures. See parked_open for the condition on id.
create index parked_troubled on onlyonce.parked (id)
  where settled_at is not null
    and id is not null
    and not (kind = 'call' and state = 'resolved' and reason = 'completion');
-- Counts the calls that were delivered with a captured answer, which are not among those.
create index parked_captured on onlyonce.parked (id)
  where kind = 'call' and state = 'resolved' and reason = 'completion' and settled_at is not null and id is not null;
-- Finds the settled messages and events that may be deleted.
create index parked_settled_messages on onlyonce.parked (settled_at) where kind <> 'call' and settled_at is not null;

-- erase_parked erases a row when erased_at is set, and sets it when the row is settled if bodies
-- are kept no longer. Keys and the origin stay, because they make copies duplicates. So do target
-- and headers of a call, which are compared if it is enqueued again (O1).
create function onlyonce.erase_parked() returns trigger
language plpgsql as $$
begin
  if new.erased_at is null
     and exists (select from onlyonce.retentions r where r.kind = 'bodies' and r.keep is not null) then
    new.erased_at := clock_timestamp();
  end if;
  if new.erased_at is not null then
    new.error := '';
    new.response_headers := null;
    new.response_body := null;
    new.body := case when new.kind = 'call' then ''::bytea end;
    if new.kind <> 'call' then
      new.header_names := '{}';
      new.header_values := '{}';
    end if;
  end if;
  return new;
end $$;
comment on function onlyonce.erase_parked is
  'Erases the content of a settled parked row, on request or if bodies are kept no longer.';
create trigger erased before update on onlyonce.parked
  for each row when (new.settled_at is not null
                     and (old.settled_at is null or old.erased_at is null and new.erased_at is not null))
  execute function onlyonce.erase_parked();

-- time_parked notes when a due time was written, by any writer. So a row shows how long it was to
-- wait, and whether that was counted from a time that is still to come (T9).
create function onlyonce.time_parked() returns trigger
language plpgsql as $$
begin
  new.timed_at := case when new.next_attempt_at is not null and new.reason <> 'scheduled' then clock_timestamp() end;
  return new;
end $$;
comment on function onlyonce.time_parked is 'Notes when next_attempt_at was written.';
create trigger timed before insert or update of next_attempt_at on onlyonce.parked
  for each row execute function onlyonce.time_parked();

-- The first statement of a retry settles the row, as the first statement of a batch moves the
-- cursor: so a COMMIT that the engine did not allow fails here too. Relays settle calls, and their
-- transactions have no seal.
create constraint trigger sealed after update on onlyonce.parked
  deferrable initially deferred
  for each row when (old.state = 'retrying'
                     and new.state = 'resolved'
                     and new.kind <> 'call') execute function onlyonce.require_seal();

-- settle is the fence of one attempt at a parked row. It sets the bounds of the transaction, checks
-- the ownership, and settles the row if it is still to be tried. Relays complete calls with it too
-- (T14).
--
-- It also claims the message's key again, in case retention has removed it, so that a copy of the
-- message stays a duplicate. A key that is already there does not make this attempt a duplicate:
-- the row itself ensures that this is the first application (K7).
create function onlyonce.settle(
  cursor_id bigint,
  epoch bigint,
  nonce uuid,
  parked_id bigint,
  attempts integer,
  key uuid,
  fingerprint bigint,
  lock_timeout text,
  statement_timeout text,
  idle_timeout text
) returns void
language plpgsql as $$
begin
  perform set_config('lock_timeout', settle.lock_timeout, true),
          set_config('statement_timeout', settle.statement_timeout, true),
          set_config('idle_in_transaction_session_timeout', settle.idle_timeout, true), set_config('jit', 'off', true);
  perform onlyonce.hold_long(settle.cursor_id, settle.epoch, settle.nonce);
  update onlyonce.parked p set state = 'resolved', settled_at = onlyonce.steady_clock(), next_attempt_at = null
   where p.id = settle.parked_id and p.state = 'retrying' and p.attempts = settle.attempts;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: another process settled or changed the parked row',
      detail = pg_catalog.format('parked row %s, attempt %s', settle.parked_id, settle.attempts);
  end if;
  if settle.key is not null then
    perform onlyonce.claim_consumer(array[settle.key], array[settle.fingerprint]);
  end if;
  perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
end $$;
comment on function onlyonce.settle is
  'First statement of an attempt at a parked row: settles it, or raises OO001. The transaction then '
  'needs onlyonce.seal() before COMMIT.';

-- promote makes the first row of an ordering key due, if it was blocked by another row: a call
-- whose time has not come is due then, and is scheduled until then. It is idempotent. Call it in a
-- transaction of its own after every commit that settled a row of the key, or that parked a row
-- after another one: whichever of two such transactions commits later sees both. It needs no lock,
-- because it only decides which row is first: a row is never applied while an unsettled row of its
-- key precedes it (D4, O4).
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
  update onlyonce.parked p
     set state = 'retrying', next_attempt_at = greatest(clock_timestamp(), p.not_before),
         reason = case when p.not_before > clock_timestamp() then 'scheduled' else p.reason end
   where p.id = first.id and p.state = 'blocked';
  return first.id;
end $$;
comment on function onlyonce.promote is
  'Makes the first unsettled row of an ordering key due if it was blocked; returns its id or null.';

-- pass raises OO006 if one of the ordering keys is blocked. So it may share a round trip with the
-- effects and COMMIT (D4).
create function onlyonce.pass(order_keys uuid[]) returns void
language plpgsql as $$
begin
  if exists (select from unnest(order_keys) as u(k)
              where (select true from onlyonce.parked p where p.order_key = u.k and p.settled_at is null
                      order by p.order_key, p.partition, p."offset" limit 1)) then
    raise exception using errcode = 'OO006', message = 'onlyonce: an ordering key is blocked by a parked message';
  end if;
end $$;
comment on function onlyonce.pass is 'Raises OO006 if one of these ordering keys has an unsettled parked row.';

-- blocked is in PL/pgSQL, because a function in SQL is planned anew in each statement that calls
-- it, which takes four times as long as the look itself (D4). Both look for the first row of a key,
-- in the order of the index parked_order. A look for any row of a key, which is to find none, reads
-- the whole table if the planner expects to find one soon: most rows may be of one key (T13).
create function onlyonce.blocked(order_keys uuid[]) returns boolean[]
language plpgsql stable as $$
declare
  result boolean[];
begin
  select array_agg((select true from onlyonce.parked p where p.order_key = u.k and p.settled_at is null
                     order by p.order_key, p.partition, p."offset" limit 1) is not null order by u.n) into result
    from unnest(order_keys) with ordinality as u(k, n);
  return coalesce(result, '{}');
end $$;
comment on function onlyonce.blocked is 'For each of these ordering keys: whether it has an unsettled parked row.';
