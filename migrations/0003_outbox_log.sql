-- onlyonce schema, version 3: the outbox is an append-only log that is read by lanes and dropped by segments.

-- ---------------------------------------------------------------- rings

create table onlyonce.rings (
  name      text     primary key,
  slots     smallint not null check (slots >= 5),
  cur       smallint not null default 0,
  draining  smallint,
  closed    smallint[] not null default '{}',
  retired   smallint,
  version   bigint   not null default 1,
  check (cur between 0 and slots - 1)
);
comment on table  onlyonce.rings is 'A ring of tables of one shape (segments): one is inserted into, the closed ones are only read, and the oldest is emptied whole.';
comment on column onlyonce.rings.cur      is 'Slot that is inserted into.';
comment on column onlyonce.rings.draining is 'Slot that was current before: transactions that began before the announcement may still insert into it.';
comment on column onlyonce.rings.closed   is 'Slots that nobody inserts into any more, youngest first.';
comment on column onlyonce.rings.retired  is 'Slot that is about to be emptied.';
comment on column onlyonce.rings.version  is 'Rises with each step. A sequence of the ring holds the same number outside of MVCC: above READ COMMITTED a transaction whose snapshot is older than the last step sees the two differ.';

create table onlyonce.segments (
  ring      text     not null references onlyonce.rings (name),
  slot      smallint not null,
  use_no    bigint   not null default 0,
  opened_at timestamptz,
  closed_at timestamptz,
  bound     xid8,
  primary key (ring, slot)
);
comment on table  onlyonce.segments is 'What is known of each slot of a ring beside its state.';
comment on column onlyonce.segments.use_no is 'How often the slot was opened: a slot is used again and again.';
comment on column onlyonce.segments.bound  is 'Every transaction that wrote into the segment is below, and has ended. Set when it is closed.';

insert into onlyonce.rings (name, slots) values ('outbox', 6);
insert into onlyonce.segments (ring, slot, use_no, opened_at)
  select 'outbox', s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end from generate_series(0, 5) s;
create sequence onlyonce.outbox_version start 1 cache 1;
-- setval and never nextval: nextval logs 32 numbers ahead, so that after a crash, and on a standby, the sequence stands behind them.
select setval('onlyonce.outbox_version', 1);

-- ---------------------------------------------------------------- the log

-- One sequence for all segments, one number at a time: within an ordering key ids rise in the order of commits, because the
-- key's lock is held from before the number is drawn until the commit.
create sequence onlyonce.outbox_id cache 1;

create table onlyonce.outbox_log (
  slot        smallint    not null,
  lane        smallint    not null,
  id          bigint      not null default nextval('onlyonce.outbox_id'),
  xid         xid8        not null default pg_current_xact_id(),
  key         uuid        not null,
  order_key   uuid,
  created_at  timestamptz not null default clock_timestamp(),
  not_before  timestamptz,
  origin_time timestamptz,
  redo        boolean     not null default false,
  capture     boolean     not null default false,
  sealed      boolean     not null default false,
  sink        text        not null collate "C",
  tenant      text        not null,
  scope       text        not null,
  name        text        not null,
  method      text        not null,
  target      text        not null,
  headers     text        not null,
  trace       text,
  body        bytea       not null,
  erased_at   timestamptz
) partition by list (slot);
alter sequence onlyonce.outbox_id owned by onlyonce.outbox_log.id;
comment on table  onlyonce.outbox_log is 'Outbound calls, append-only: a row commits with the effects that ask for it. Relays read it with a snapshot cursor a lane, see onlyonce.lanes; what fails goes to onlyonce.parked.';
comment on column onlyonce.outbox_log.xid         is 'Transaction that wrote the row, also within savepoints.';
comment on column onlyonce.outbox_log.key         is 'Idempotency key that the remote sees: derived, the same on every replay.';
comment on column onlyonce.outbox_log.order_key   is 'Hash of (sink, tenant, scope, ordering key). Null: the call waits for no other.';
comment on column onlyonce.outbox_log.origin_time is 'When the message that asks for the call was appended to its log. Null: there is none.';
comment on column onlyonce.outbox_log.redo        is 'The message may have been handled before, in a history that the database has lost: the key''s age counts from origin_time.';
comment on column onlyonce.outbox_log.headers     is 'A line "Name: value" for each, sorted by name.';
comment on column onlyonce.outbox_log.trace       is 'W3C trace context of the transaction that asks: traceparent, and tracestate in a second line. No part of the frozen bytes.';
comment on column onlyonce.outbox_log.sealed      is 'The body is encrypted; see package seal.';
comment on column onlyonce.outbox_log.erased_at   is 'When the body was erased, after the call was settled.';

create table onlyonce.outbox_log_0 partition of onlyonce.outbox_log for values in (0);
create table onlyonce.outbox_log_1 partition of onlyonce.outbox_log for values in (1);
create table onlyonce.outbox_log_2 partition of onlyonce.outbox_log for values in (2);
create table onlyonce.outbox_log_3 partition of onlyonce.outbox_log for values in (3);
create table onlyonce.outbox_log_4 partition of onlyonce.outbox_log for values in (4);
create table onlyonce.outbox_log_5 partition of onlyonce.outbox_log for values in (5);
do $$
begin
  for slot in 0 .. 5 loop
    execute format('comment on table onlyonce.outbox_log_%s is %L', slot, 'Segment of onlyonce.outbox_log; onlyonce.rings says what it is used for.');
  end loop;
end $$;

-- What is new in a lane; and a call by its key: for replays, operators, erasure.
create index outbox_log_new on onlyonce.outbox_log (sink, lane, xid, id);
create index outbox_log_key on onlyonce.outbox_log (key);

-- ---------------------------------------------------------------- sinks and lanes

create table onlyonce.sinks (
  name         text        primary key collate "C",
  created_at   timestamptz not null default clock_timestamp(),
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text
);
comment on table  onlyonce.sinks is 'Sinks that a relay has listed.';
comment on column onlyonce.sinks.paused_at is 'Set by `onlyonce outbox pause`: no call is started until it is resumed. Null: not paused.';

create table onlyonce.lanes (
  id         bigint      primary key references onlyonce.leases (id) on delete cascade,
  sink       text        not null collate "C" references onlyonce.sinks (name) on delete cascade,
  lane       smallint    not null,
  prev       pg_snapshot not null default '1:1:',
  target     pg_snapshot,
  last_id    bigint      not null default 0,
  started_at timestamptz not null default clock_timestamp(),
  version    bigint      not null default 0,
  server     timestamptz,
  system_id  bigint,
  timeline   text,
  history_at timestamptz,
  unique (sink, lane)
) with (fillfactor = 50);
comment on table  onlyonce.lanes is 'How far a lane of a sink has been sent. Rows visible in prev are done. Of those that are visible in target and not in prev (the pass), those up to last_id are done.';
comment on column onlyonce.lanes.target     is 'Null: no pass was ever begun.';
comment on column onlyonce.lanes.started_at is 'Journal: of the pass only the first 1,024 rows above last_id can have been called, and none before this. Infinity: none was.';
comment on column onlyonce.lanes.version    is 'Rises with each change; every change compares it.';
comment on column onlyonce.lanes.server     is 'When the server started that the cursor was last moved on: where it is another one, system identifier, timeline and transaction ids are looked at again.';
comment on column onlyonce.lanes.history_at is 'When a relay first saw this system identifier and timeline: a failover or a restore may have lost what committed before.';

-- 16 lanes a sink, for good: a lane reads its rows by its own cursor, so rows cannot change lanes.
create function onlyonce.lane(key uuid) returns smallint
language sql immutable strict parallel safe as $$
  select (get_byte(uuid_send(key), 15) & 15)::smallint
$$;
comment on function onlyonce.lane(uuid) is 'Lane of an ordering key, or of a call that has none by its own key.';

-- ---------------------------------------------------------------- enqueue

-- 64 bits of SHA-256 over what is frozen. A sealed body is another one each time it is sealed, and left out.
create function onlyonce.call_fingerprint(method text, target text, headers text, body bytea, sealed boolean) returns bigint
language sql immutable strict parallel safe as $$
  select ('x' || encode(substr(sha256(convert_to(method || E'\n' || target || E'\n' || headers || E'\n\n', 'UTF8')
           || case when sealed then '' else body end), 1, 8), 'hex'))::bit(64)::bigint
$$;
comment on function onlyonce.call_fingerprint(text, text, text, bytea, boolean) is 'What onlyonce.inbox.fingerprint holds for a call that was enqueued outside of a consumer.';

create function onlyonce.header_lines(names text[], vals text[]) returns text
language sql immutable parallel safe as $$
  select coalesce(string_agg(n || ': ' || v, E'\n' order by i), '') from unnest(names, vals) with ordinality as h(n, v, i)
$$;
create function onlyonce.header_lines(names bytea[], vals bytea[]) returns text
language sql stable parallel safe as $$
  select coalesce(string_agg(convert_from(n, 'UTF8') || ': ' || convert_from(v, 'UTF8'), E'\n' order by i), '') from unnest(names, vals) with ordinality as h(n, v, i)
$$;
comment on function onlyonce.header_lines(bytea[], bytea[]) is 'Headers of onlyonce.parked as onlyonce.outbox_log holds them.';
comment on function onlyonce.header_lines(text[], text[]) is 'Headers as onlyonce.outbox_log holds them.';

-- ---------------------------------------------------------------- passes

-- Moves a lane's cursor: the relay's one write on the way of a call that succeeds. Compares the version, so that a COMMIT whose
-- answer was lost is not done a second time, and raises when it does not fit, because it shares a round trip with COMMIT.
--   freeze false: rows of the pass up to last_id are done.
-- On a server that the cursor has not been on (a promotion, a restore, a restart) it is first compared with what the server knows (O3): no
-- session goes from one server to another.
--   freeze true:  the pass is done; the next one begins, and its target is the snapshot of this UPDATE. The transaction has an xid
--                 by then, which the snapshot counts as ended: it writes no row of the log.
-- keep_started: of the rows that may have been called since started_at some are not done yet.
-- quiet: no row above last_id has been called, nor will be before the cursor is moved again.
create function onlyonce.advance(lane_id bigint, seen bigint, last_id bigint, freeze boolean, keep_started boolean, quiet boolean default false) returns void
language plpgsql as $$
declare
  l    onlyonce.lanes;
  sys  bigint;
  line text;
begin
  select * into l from onlyonce.lanes x where x.id = advance.lane_id;
  if l.server is distinct from pg_postmaster_start_time() then
    select c.system_identifier into sys from pg_control_system() c;
    line := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8); -- pg_control_checkpoint() lags behind a promotion
    if l.system_id <> sys
       or pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(coalesce(l.target, l.prev))
       or exists (select 1 from onlyonce.outbox_log r
                   where r.sink = l.sink and r.lane = l.lane and r.xid >= pg_snapshot_xmax(pg_current_snapshot())) then
      raise exception using errcode = 'OO007',
        message = format('onlyonce: lane %s of sink %L was written by another database cluster: its transaction ids mean nothing here', l.lane, l.sink),
        hint = 'After a restore from a dump or a move to another cluster run: onlyonce outbox rebase';
    end if;
  end if;
  update onlyonce.lanes x set
      prev       = case when advance.freeze then coalesce(x.target, x.prev) else x.prev end,
      target     = case when advance.freeze then pg_current_snapshot() else x.target end,
      last_id    = case when advance.freeze then 0 else advance.last_id end,
      started_at = case when advance.keep_started then x.started_at when advance.quiet then 'infinity' else clock_timestamp() end,
      version    = x.version + 1,
      server     = pg_postmaster_start_time(),
      system_id  = coalesce(x.system_id, sys),
      timeline   = coalesce(line, x.timeline),
      history_at = case when line <> x.timeline then clock_timestamp() else x.history_at end
    where x.id = advance.lane_id and x.version = advance.seen;
  if not found then
    raise exception using errcode = 'OO008',
      message = 'onlyonce: the lane has moved', detail = format('lane %s is not at version %s', advance.lane_id, advance.seen);
  end if;
end $$;
comment on function onlyonce.advance(bigint, bigint, bigint, boolean, boolean, boolean) is
  'Moves a lane''s cursor from the version that its owner knows; raises OO008 if it has moved, OO007 where the log is of another cluster.';

-- ---------------------------------------------------------------- parked calls

alter table onlyonce.parked
  add column row_id           bigint,
  add column lane             smallint,
  add column first_attempt_at timestamptz,
  add column capture          boolean not null default false,
  add column sealed           boolean not null default false,
  add column sealed_as        uuid,
  add column trace            text,
  add column response_status  integer,
  add column response_headers text,
  add column response_body    bytea,
  add column erased_at        timestamptz;
comment on column onlyonce.parked.row_id           is 'Id of the call in onlyonce.outbox_log; with lane as partition and this as offset calls of an ordering key are sorted.';
comment on column onlyonce.parked.first_attempt_at is 'Written before the first call under this key can have been made: the remote''s key window counts from here. Null: no call was made.';
comment on column onlyonce.parked.sealed_as        is 'Key that the body was sealed under, if an operator has given the call another key since. Null: the row''s key.';
comment on column onlyonce.parked.next_attempt_at  is 'In state retrying: when it is due. In state reconcile: when it is asked about again.';
comment on column onlyonce.parked.response_status  is 'The remote has accepted the call and answered this; what is left is to complete it.';
comment on column onlyonce.parked.reason is 'failed, permanent, exhausted, crashed, behind, conflict or no-key for messages; failed, scheduled, behind, cut, completion, rejected, unopened or window for calls.';

-- A row of the log is parked once.
create unique index parked_row on onlyonce.parked (row_id) where row_id is not null;
-- Which calls of a lane are due.
create index parked_calls_due on onlyonce.parked (sink, lane, next_attempt_at) where kind = 'call' and next_attempt_at is not null;

-- Which settled calls may be deleted.
create index parked_settled on onlyonce.parked (sink, settled_at) where kind = 'call' and settled_at is not null;

-- Calls are settled by relays, whose transactions have no seal.
drop trigger sealed on onlyonce.parked;
create constraint trigger sealed after update on onlyonce.parked
  deferrable initially deferred
  for each row when (old.state = 'retrying' and new.state = 'resolved' and new.kind = 'message') execute function onlyonce.require_seal();

-- What became of each call, for people and for tests; not for hot paths.
create view onlyonce.calls as
  select r.id, r.key, r.tenant, r.scope, r.sink, r.lane, r.name, r.order_key, r.created_at, r.not_before, r.erased_at, p.id as parked_id,
         p.attempts, p.error, p.settled_at,
         case when p.state = 'resolved' then 'delivered'
              when p.state is not null then p.state
              when l.id is null then 'pending'
              when pg_visible_in_snapshot(r.xid, l.prev) then 'delivered'
              when l.target is not null and pg_visible_in_snapshot(r.xid, l.target) and r.id <= l.last_id then 'delivered'
              else 'pending' end as state
    from onlyonce.outbox_log r
    left join onlyonce.lanes l on l.sink = r.sink and l.lane = r.lane
    left join onlyonce.parked p on p.row_id = r.id;
comment on view onlyonce.calls is 'Each call of the log: pending, delivered, or as onlyonce.parked has it (retrying, blocked, waiting, reconcile, discarded).';

insert into onlyonce.schema_version (version) values (3);
