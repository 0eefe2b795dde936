-- onlyonce schema, version 1: the ground. Every other chapter uses these tables and functions:
-- leases, the seal, rings, audit.
--
-- The chapters of a version run in the order of their numbers, in one transaction. `onlyonce
-- migrate` runs them, and so does psql with the output of `onlyonce migrate -print`. No chapter
-- contains BEGIN or COMMIT.

create schema onlyonce;
comment on schema onlyonce is
  'onlyonce: at-least-once delivery, effects applied once. Inbox of dedupe keys, consumer cursors, '
  'outbox of outbound calls, parked work.';

-- Segments are the tables of rings, see onlyonce.rings: seventy-eight of few shapes. They are in a
-- schema of their own, so that a list of the tables of schema onlyonce shows only tables that mean
-- something each. A role that uses the engines needs USAGE on both schemas, because functions name
-- segments.
create schema onlyonce_segments;
comment on schema onlyonce_segments is
  'Segments of onlyonce''s rings: keys of onlyonce.inbox, and partitions of onlyonce.batches, '
  'onlyonce.call_keys and onlyonce.event_log. onlyonce.rings says what each is used for.';

create table onlyonce.schema_version (
  version    integer     primary key,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table onlyonce.schema_version is
  'One row for each migration that was applied. Code accepts its own version and the next one.';

-- ---------------------------------------------------------------- leases

create table onlyonce.leases (
  id         bigint generated always as identity primary key,
  name       text        not null unique collate "C", -- names with one prefix are a range of the index
  epoch      bigint      not null default 0,
  nonce      uuid,
  until      timestamptz,
  longest    interval,
  freed_at   timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.leases is
  'Owners: one row for each cursor, lane of a sink, ring and running request. Every write of an owner '
  'compares (epoch, nonce) here.';
comment on column onlyonce.leases.name  is
  'What is owned: for example cursor/<scope>/<topic>/<partition>, relay/<sink>/<lane> or ring/<name>, '
  'with escaped names (S5).';
comment on column onlyonce.leases.epoch is 'Rises by one with each owner.';
comment on column onlyonce.leases.nonce is
  'Random for each acquisition: after a failover that loses a raise, epochs repeat and nonces do not. '
  'Null: it has no owner.';
comment on column onlyonce.leases.longest is
  'How long a transaction of the owner may last, by its configuration. A process that has to wait for '
  'the owner waits as long (onlyonce.lock_owner). Null: the owner has declared no bound.';
comment on column onlyonce.leases.until is
  'When a lease on time ends, by the database clock. Null: the lease has no owner, or it ends only when '
  'the epoch is raised (cursors: Kafka''s group decides which process may raise it).';
comment on column onlyonce.leases.freed_at is
  'When its last owner gave it back, or when it was made. Reports compute from it how long a lane has had no '
  'owner; no decision depends on it.';

-- owner_lock is the advisory lock of a lease's owner. Transactions of the owner that may last share
-- it: those of a cursor's owner (onlyonce.enter), and attempts at parked rows (onlyonce.settle). A
-- process that raises the epoch holds it exclusively, from before the UPDATE until COMMIT. Unlike a
-- lock on the lease's row it writes nothing, any number of transactions may share it without a
-- multixact, and no renewal waits for it.
create function onlyonce.owner_lock(lease bigint) returns bigint
language sql immutable strict parallel safe as $$
  select hashint8extended(lease, 1869507695)
$$;
comment on function onlyonce.owner_lock is
  'The advisory lock that transactions of a lease''s owner share, and that a take-over has to itself.';

-- lock_holders describes the sessions that have an advisory lock, for people.
create function onlyonce.lock_holders(key bigint) returns text
language sql stable as $$
  select coalesce(
    string_agg(
      format('session %s (login %s, application %L)', a.pid, a.usename, a.application_name),
      ', ' order by a.pid
    ),
    'sessions that have ended'
  )
    from pg_locks k
    join pg_stat_activity a on a.pid = k.pid
   where k.locktype = 'advisory' and k.granted and k.objsubid = 1
     and k.database = (select d.oid from pg_database d where d.datname = current_database())
     and (k.classid::bigint << 32 | k.objid::bigint) = lock_holders.key
$$;
comment on function onlyonce.lock_holders is 'The sessions that have this advisory lock, in words.';

-- lock_owner has a lease to itself until the transaction ends: first the owner's lock, then the
-- lease's row, which statements of the owner lock for a moment. Every take-over and every command
-- that sets a cursor comes through here.
--
-- It waits as long as the owner has declared that a transaction of it may last, also if
-- lock_timeout is shorter. PostgreSQL grants the lock in the order of the requests: later
-- transactions of the owner wait behind it. So it gets the lock when the earlier ones have ended.
-- It names them in a notice when the wait begins, and in the error if the wait times out (C3, T14).
create function onlyonce.lock_owner(lease bigint) returns void
language plpgsql as $$
declare
  bound   text := current_setting('lock_timeout');
  longest interval;
  owned   text;
  others  text;
  ignored text;
begin
  select l.longest, l.name into longest, owned from onlyonce.leases l where l.id = lock_owner.lease;
  if longest > bound::interval and bound::interval > '0' then
    ignored := set_config('lock_timeout', (extract(epoch from longest) * 1000)::bigint::text, true);
  end if;
  if not pg_try_advisory_xact_lock(onlyonce.owner_lock(lock_owner.lease)) then
    others := onlyonce.lock_holders(onlyonce.owner_lock(lock_owner.lease));
    raise notice 'onlyonce: waiting up to % for transactions of the owner of %: %',
      current_setting('lock_timeout'), owned, others;
    begin
      perform pg_advisory_xact_lock(onlyonce.owner_lock(lock_owner.lease));
    exception when lock_not_available then
      raise exception using errcode = 'lock_not_available',
        message = format(
          'onlyonce: gave up after %s: transactions of the owner of %s still run: %s',
          current_setting('lock_timeout'),
          owned,
          others
        );
    end;
  end if;
  perform 1 from onlyonce.leases l where l.id = lock_owner.lease for no key update;
  ignored := set_config('lock_timeout', bound, true);
end $$;
comment on function onlyonce.lock_owner is
  'Waits for the transactions of a lease''s owner, as long as one may last, and keeps out later ones and '
  'take-overs until the transaction ends.';

-- hold raises OO001 unless the caller owns the lease, and prevents a take-over until the
-- transaction ends. It locks FOR SHARE, not FOR KEY SHARE: raising the epoch is a non-key UPDATE,
-- which KEY SHARE would not block (T2, O5).
create function onlyonce.hold(lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform 1 from onlyonce.leases l
    where l.id = hold.lease and l.epoch = hold.epoch and l.nonce = hold.nonce
    for share;
  if not found then
    raise exception using errcode = 'OO001',
      message = 'onlyonce: fence lost: this owner was replaced',
      detail = pg_catalog.format('lease %s is no longer held under epoch %s', hold.lease, hold.epoch);
  end if;
end $$;
comment on function onlyonce.hold is
  'Raises OO001 unless (epoch, nonce) own the lease; blocks a take-over until the transaction ends.';

-- hold_long is hold for a transaction in which a function of the user runs. It shares the owner's
-- lock in place of the row. A renewal updates the row, and would wait for such transactions:
-- PostgreSQL grants FOR SHARE past an UPDATE that waits, so beside several of them it would never
-- come to its turn (T14). Above READ COMMITTED the row is locked besides: see onlyonce.enter.
create function onlyonce.hold_long(lease bigint, epoch bigint, nonce uuid) returns void
language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(onlyonce.owner_lock(hold_long.lease));
  if current_setting('transaction_isolation') <> 'read committed'
     or not exists (select from onlyonce.leases l
                     where l.id = hold_long.lease and l.epoch = hold_long.epoch and l.nonce = hold_long.nonce)
    then
    perform onlyonce.hold(hold_long.lease, hold_long.epoch, hold_long.nonce);
  end if;
end $$;
comment on function onlyonce.hold_long is
  'Raises OO001 unless (epoch, nonce) own the lease; blocks a take-over until the transaction ends, and no renewal.';

-- raise_epoch takes over a lease. It compares and sets the epoch that the caller read before it
-- proved that it may take over. It returns the new epoch, or null if another process raised it
-- first or if a lease with an end has not ended.
--
-- The end is checked again here, although the caller has seen it pass, because a late renewal does
-- not change the epoch:
--   A reads "ended"; the owner's renewal arrives late and succeeds; A raises: for a while there are
--   two owners.
-- No lease lasts longer than an hour. If one ends later than that, it was written while the clock
-- was ahead, and counts as ended.
--
-- It waits for transactions of the owner, by onlyonce.lock_owner, in a statement before the UPDATE:
-- for those that share the owner's lock, and those that lock the lease's row by onlyonce.hold.
-- `longest` is how long a transaction of the new owner may last. `place` is a tenant that must live
-- in this database, see onlyonce.enter_place; null: none (T9, C3, O5, T14, N2).
create function onlyonce.raise_epoch(
  lease bigint,
  seen_epoch bigint,
  new_nonce uuid,
  ttl interval default null,
  longest interval default null,
  place text default null
) returns bigint
language plpgsql as $$
declare
  raised bigint;
begin
  if raise_epoch.place is not null then
    perform onlyonce.enter_place(raise_epoch.place);
  end if;
  perform onlyonce.lock_owner(raise_epoch.lease);
  update onlyonce.leases l
    set epoch = l.epoch + 1, nonce = new_nonce, until = clock_timestamp() + ttl, longest = raise_epoch.longest
    where l.id = raise_epoch.lease and l.epoch = seen_epoch
      and (l.until is null or l.until <= clock_timestamp() or l.until > clock_timestamp() + interval '1 hour')
    returning l.epoch into raised;
  return raised;
end $$;
comment on function onlyonce.raise_epoch is
  'Takes a lease over if its epoch is still the one that was read and its time, if it has one, is over, '
  'or lies more than an hour ahead (written by a clock that was wrong); returns the new epoch or null.';

-- ---------------------------------------------------------------- seal

-- seal is the last statement before COMMIT. It checks deferred constraints, although COMMIT would
-- raise the same errors in the same round trip, for two reasons. statement_timeout bounds a
-- deferred trigger here, and not in COMMIT: there, a trigger that does not end keeps its locks even
-- if the client is gone. And an error here belongs to the work that caused it, while COMMIT may
-- also fail for reasons of the server's, for example because the queue of NOTIFY is full.
--
-- It raises OO002 unless the fence was taken in this same transaction: for example, a handler's
-- ROLLBACK and BEGIN in between would have undone the fence (T6, T7).
create function onlyonce.seal() returns void
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
comment on function onlyonce.seal is
  'Last statement before COMMIT of a fenced transaction: checks deferred constraints, then allows the COMMIT.';

-- require_seal refuses a COMMIT that the engine has not allowed (T6).
create function onlyonce.require_seal() returns trigger
language plpgsql as $$
begin
  if current_setting('onlyonce.sealed', true) is distinct from pg_current_xact_id()::text then
    raise exception using errcode = 'OO002',
      message = 'onlyonce: not sealed: COMMIT before the engine was done',
      hint = 'A handler must not COMMIT. If it ran SET CONSTRAINTS ALL IMMEDIATE, it must name its '
             'constraints instead.';
  end if;
  return null;
end $$;
comment on function onlyonce.require_seal is 'Deferred trigger: refuses a COMMIT that onlyonce.seal() did not allow.';

-- ---------------------------------------------------------------- durations

-- count_hours stores a duration of so many days or months as hours: a day is 24, a month 30 days. A
-- day that is added to a time is one of the session's time zone, and has 23 hours when the clocks
-- go forward there (T15).
create function onlyonce.count_hours() returns trigger
language plpgsql as $$
begin
  if tg_table_name = 'rings' then
    new.horizon := make_interval(secs => extract(epoch from new.horizon)::float8);
  else
    new.keep := make_interval(secs => extract(epoch from new.keep)::float8);
  end if;
  return new;
end $$;
comment on function onlyonce.count_hours is 'Stores a duration of days or months as hours.';

-- ---------------------------------------------------------------- rings

create table onlyonce.rings (
  name     text       primary key,
  slots    smallint   not null check (slots >= 5),
  cur      smallint   not null default 0,
  draining smallint,
  closed   smallint[] not null default '{}',
  retired  smallint,
  version  bigint     not null default 1,
  uses     bigint[]   not null default '{}',
  horizon  interval   check (horizon > interval '0'),
  forgotten timestamptz,
  check (cur between 0 and slots - 1)
);
create trigger hours before insert or update of horizon on onlyonce.rings
  for each row execute function onlyonce.count_hours();
comment on table  onlyonce.rings is
  'A ring of tables of one shape (segments): one is inserted into, the closed ones are only read, and '
  'the oldest is emptied whole.';
comment on column onlyonce.rings.cur      is 'Slot that is inserted into.';
comment on column onlyonce.rings.draining is
  'Slot that was current before: transactions that began before the announcement may still insert into it.';
comment on column onlyonce.rings.closed   is 'Slots that are only read, youngest first.';
comment on column onlyonce.rings.retired  is 'Slot that is about to be emptied.';
comment on column onlyonce.rings.version  is
  'Rises with each step. A sequence of the ring holds the same number outside of MVCC: above READ '
  'COMMITTED a transaction whose snapshot is older than the last step sees the two differ.';
comment on column onlyonce.rings.uses     is
  'By slot (the first is slot 0): a random number of its last close. Slots are used again, and after a '
  'failover closed again; a use is not.';
comment on column onlyonce.rings.horizon  is
  'Rings of keys: how long a key is remembered at least, after its segment was closed. Null: for ever, '
  'and nothing is rotated.';
comment on column onlyonce.rings.forgotten is
  'When the youngest of the retired segments was closed: rows inserted until then may be gone. Null: '
  'nothing was retired.';

create table onlyonce.segments (
  ring      text     not null references onlyonce.rings (name),
  slot      smallint not null,
  use_no    bigint   not null default 0,
  opened_at timestamptz,
  closed_at timestamptz,
  bound     xid8,
  primary key (ring, slot)
);
comment on table  onlyonce.segments is 'Times and bounds of each slot of a ring; its state is in onlyonce.rings.';
comment on column onlyonce.segments.use_no is 'How often the slot was opened: a slot is used again and again.';
comment on column onlyonce.segments.bound  is
  'Every transaction that wrote into the segment is below, and has ended. Set when it is closed.';

-- ---------------------------------------------------------------- watched time

create table onlyonce.watched (
  id smallint    primary key default 1 check (id = 1),
  at timestamptz not null default clock_timestamp()
);
comment on table onlyonce.watched is
  'Watched time, in one row: it follows the clock, between half and twice as fast as the monotonic clocks of '
  'the processes that watch it. Nothing is forgotten before it is old by the clock and by watched time.';
insert into onlyonce.watched default values;

-- watch moves watched time on, and returns it. A process passes the watched time that its last call
-- returned, and how long ago that was by its own monotonic clock; at its first call, nulls. If
-- other processes have moved it nearly as far, it writes nothing. Package internal/watch has the
-- protocol (T11).
create function onlyonce.watch(seen timestamptz, elapsed interval) returns timestamptz
language plpgsql as $$
declare
  moved timestamptz;
begin
  if watch.seen is not null then
    moved := least(greatest(clock_timestamp(), watch.seen + watch.elapsed / 2), watch.seen + watch.elapsed * 2);
    update onlyonce.watched w set at = moved where w.at < moved - watch.elapsed / 10;
  end if;
  return (select w.at from onlyonce.watched w);
end $$;
comment on function onlyonce.watch is
  'Moves watched time on by the time that has passed for the caller since its last call, and returns it.';

-- steady_clock is the clock, but never before watched time. It dates rows that are kept for a time,
-- and gives the ages of keys that a remote forgets. So if the clock is back, these rows do not look
-- old when it is right again, and these keys do not look young. If watched time is infinity, as in
-- tests that age rows, it is the clock alone (T11).
create function onlyonce.steady_clock() returns timestamptz
language sql volatile as $$
  select greatest(clock_timestamp(), nullif(w.at, 'infinity')) from onlyonce.watched w where w.id = 1
$$;
comment on function onlyonce.steady_clock is 'The clock, but never before watched time.';

-- ---------------------------------------------------------------- retentions

create table onlyonce.retentions (
  kind text     primary key check (kind in ('parked', 'bodies', 'audit', 'webhook_objects')),
  keep interval check (case kind when 'bodies' then coalesce(keep, '0') = '0' else keep >= interval '1 day' end)
);
create trigger hours before insert or update of keep on onlyonce.retentions
  for each row execute function onlyonce.count_hours();
comment on table  onlyonce.retentions is 'How long rows that nothing needs are kept: see onlyonce retention.';
comment on column onlyonce.retentions.kind is
  'parked: settled messages and events. bodies: what settled parked rows hold. audit: rows of '
  'onlyonce.audit. webhook_objects: objects that no event touched.';
comment on column onlyonce.retentions.keep is
  'Null: for ever; of bodies: as long as their rows. 0, of bodies only: they are erased when their row is settled.';
insert into onlyonce.retentions
  values ('parked', '30 days'), ('bodies', null), ('audit', '400 days'), ('webhook_objects', '180 days');

-- ---------------------------------------------------------------- audit

create table onlyonce.audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null default onlyonce.steady_clock(),
  actor  text not null default current_user,
  action text not null,
  reason text not null check (reason <> ''),
  detail jsonb not null default '{}'
);
comment on table onlyonce.audit is 'What operators changed by hand: who, when, why.';
create index audit_age on onlyonce.audit (at);

-- keep_audit refuses to delete a row within its retention, so that the right to delete old rows is
-- no right to cover something up.
create function onlyonce.keep_audit() returns trigger
language plpgsql as $$
begin
  if old.at > clock_timestamp() - (select r.keep from onlyonce.retentions r where r.kind = 'audit') is not false then
    raise exception using errcode = '42501',
      message = 'onlyonce: an audit row must not be deleted before its retention has passed',
      hint = 'onlyonce retention says how long that is.';
  end if;
  return old;
end $$;
comment on function onlyonce.keep_audit is 'Refuses to delete an audit row within its retention.';
create trigger kept before delete on onlyonce.audit for each row execute function onlyonce.keep_audit();
