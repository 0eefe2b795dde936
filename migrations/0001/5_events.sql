-- onlyonce schema, version 1: a log of events in the database, which consumers read like a topic.

-- ---------------------------------------------------------------- streams

create table onlyonce.streams (
  id          integer generated always as identity primary key,
  topic       text        not null unique collate "C" check (topic ~ '^[A-Za-z0-9._-]{1,249}$'),
  incarnation uuid        not null default gen_random_uuid(),
  partitions  smallint    not null check (partitions between 1 and 1024),
  created_at  timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.streams is 'Topics of onlyonce.event_log.';
comment on column onlyonce.streams.incarnation is
  'The topic_id in onlyonce.cursors: a stream that is deleted and made again has another one.';
comment on column onlyonce.streams.partitions  is
  'Never changes, because it decides which partition an event belongs to.';

create table onlyonce.event_log (
  slot          smallint    not null,
  stream        integer     not null,
  partition     smallint    not null,
  "offset"      bigint      not null,
  tenant        text        not null,
  id            text        not null,
  order_key     bytea,
  header_names  text[]      not null,
  header_values bytea[]     not null,
  body          bytea,
  appended_at   timestamptz not null default clock_timestamp(),
  erased_at     timestamptz
) partition by list (slot);
comment on table  onlyonce.event_log is
  'Events, append-only: see onlyonce.append_events. Offsets of a partition are dense, and rise in the '
  'order of commits. A segment is emptied when every cursor has passed it.';
comment on column onlyonce.event_log.id        is
  'The appending program makes it unique; consumers do not claim it again.';
comment on column onlyonce.event_log.order_key is
  'What the event is about. It decided the partition. Null: the id did.';
comment on column onlyonce.event_log.erased_at is 'When headers and body were erased, after the event was handled.';

-- The index is unique within a segment. It is not on the parent, whose unique indexes would have to
-- begin with the slot.
do $$
begin
  for slot in 0 .. 5 loop
    execute format(
      'create table onlyonce_segments.event_log_%s partition of onlyonce.event_log for values in (%s)',
      slot,
      slot
    );
    execute format(
      'create unique index event_log_%s_position on onlyonce_segments.event_log_%s (stream, partition, "offset")',
      slot,
      slot
    );
    execute format(
      'comment on table onlyonce_segments.event_log_%s is %L',
      slot,
      'Segment of onlyonce.event_log; onlyonce.rings says what it is used for.'
    );
  end loop;
end $$;

insert into onlyonce.rings (name, slots) values ('events', 6);
insert into onlyonce.segments (ring, slot, use_no, opened_at)
  select 'events', s, case s when 0 then 1 else 0 end, case s when 0 then clock_timestamp() end
    from generate_series(0, 5) s;
create sequence onlyonce.events_version start 1 cache 1;
select setval('onlyonce.events_version', 1); -- never nextval, see onlyonce.outbox_version

create table onlyonce.stream_floors (
  stream      integer  not null,
  partition   smallint not null,
  next_offset bigint   not null,
  primary key (stream, partition)
);
comment on table onlyonce.stream_floors is
  'The next offset of a partition is at least next_offset. Written when a segment is emptied, because '
  'the partition may have no event in the others.';

create table onlyonce.stream_offsets (
  group_id     text        not null,
  stream       integer     not null references onlyonce.streams (id) on delete cascade,
  partition    smallint    not null,
  "offset"     bigint      not null,
  metadata     text        not null,
  committed_at timestamptz not null default clock_timestamp(),
  primary key (group_id, stream, partition)
) with (fillfactor = 50);
comment on table onlyonce.stream_offsets is
  'The offsets that a group has committed, as in Kafka: for lag, and as a proof of membership. The '
  'position is in onlyonce.cursors.';

-- stream_partition returns the partition of an event, by its ordering key or its id.
create function onlyonce.stream_partition(key bytea, partitions smallint) returns smallint
language sql immutable strict parallel safe as $$
  select (('x' || encode(substr(sha256(key), 1, 3), 'hex'))::bit(24)::integer % partitions)::smallint
$$;
comment on function onlyonce.stream_partition is
  'Partition of an ordering key, or of an event that has none by its id.';

-- append_events appends events in the caller's transaction. The arrays have one length, with an
-- element for each event, in their order. `parts` has a partition if the key is not to choose it.
-- The headers of all events are in one array: those of event n are from header_ends[n-1] + 1 to
-- header_ends[n].
--
-- Offsets rise in the order of commits: a partition's lock is held from before its greatest offset
-- is read until the transaction ends. So call this late, and once: two transactions that each call
-- it twice can deadlock.
--
-- Each step is a statement of its own, because under READ COMMITTED a statement sees what had
-- committed when it began:
--   1. The locks, in sorted order.
--   2. The greatest offset of each partition: the transaction that had the lock before has
--      committed, or left nothing. This locks all segments against being emptied until the
--      transaction ends.
--   3. The floors. If a segment was emptied before step 2 locked it, its floor is visible here, and
--      its rows were not needed.
--   4. The segment to insert into, after the transaction id: see onlyonce.enqueue_calls.
-- Above READ COMMITTED all statements see the database as it was when the transaction began.
-- Appends of other transactions since then are found by the unique indexes, which ignore snapshots:
-- the function tries the first offset of each partition in the current segment, and in the draining
-- one, which late transactions still insert into. A segment that was announced or emptied since is
-- found by the ring's sequence. In both cases it raises 40001: run the transaction again (E1).
create function onlyonce.append_events(
  topics text[],
  parts smallint[],
  tenants text[],
  ids text[],
  order_keys bytea[],
  header_ends integer[],
  header_names text[],
  header_values bytea[],
  bodies bytea[]
) returns void
language plpgsql as $$
declare
  found_in onlyonce.streams;
  of       integer[];  -- the stream of each event
  at       smallint[]; -- its partition
  nth      integer[];  -- the index of both in pairs
  pairs    bigint[];   -- each stream and partition, in one number
  nexts    bigint[];   -- the next offset of each pair
  keys     integer[];  -- of the locks
  key      integer;
  pair     bigint;
  top      bigint;
  floor    bigint;
  ring     onlyonce.rings;
  seqscan  text := current_setting('enable_seqscan');
  sort     text := current_setting('enable_sort');
  ignored  text;
begin
  -- Loops of small statements, without joins of arrays: mostly there is one event, and to start a
  -- plan of joins costs more than all the rest.
  for n in 1 .. cardinality(topics) loop
    if found_in.topic is distinct from topics[n] then
      select * into found_in from onlyonce.streams s where s.topic = topics[n];
      if not found then
        raise exception using errcode = 'OO009', message = format('onlyonce: there is no stream %L', topics[n]);
      end if;
    end if;
    of[n] := found_in.id;
    at[n] := coalesce(
      parts[n],
      onlyonce.stream_partition(coalesce(order_keys[n], convert_to(ids[n], 'UTF8')), found_in.partitions)
    );
    keys[n] := (of[n] & 65535) << 15 | at[n];
  end loop;

  if cardinality(keys) > 1 then
    select array_agg(distinct u.k order by u.k) into keys from unnest(keys) u(k);
  end if;
  foreach key in array keys loop
    perform pg_advisory_xact_lock(1702260340, key);
  end loop;

  perform pg_current_xact_id();
  ignored := set_config('enable_seqscan', 'off', true) || set_config('enable_sort', 'off', true);
  for n in 1 .. cardinality(topics) loop
    pair := (of[n]::bigint << 16) | at[n];
    nth[n] := array_position(pairs, pair);
    if nth[n] is null then
      select l."offset"
        into top
        from onlyonce.event_log l where l.stream = of[n] and l.partition = at[n] order by l."offset" desc limit 1;
      select f.next_offset into floor from onlyonce.stream_floors f where f.stream = of[n] and f.partition = at[n];
      pairs := pairs || pair;
      nexts := nexts || greatest(coalesce(top + 1, 0), coalesce(floor, 0));
      nth[n] := cardinality(pairs);
    end if;
  end loop;
  ignored := set_config('enable_seqscan', seqscan, true) || set_config('enable_sort', sort, true);

  select * into ring from onlyonce.rings r where r.name = 'events';
  if current_setting('transaction_isolation') <> 'read committed' then
    begin
      insert into onlyonce.event_log (
        slot,
        stream,
        partition,
        "offset",
        tenant,
        id,
        header_names,
        header_values
      )
        select v,
               (h.pair >> 16)::integer,
               (h.pair & 65535)::smallint,
               h.next,
               '',
               '',
               '{}',
               '{}'
          from unnest(pairs, nexts) h(pair, next), unnest(array_remove(array[ring.cur, ring.draining], null)) v;
      raise exception using errcode = 'OO000';
    exception
      when sqlstate 'OO000' then null;
      when unique_violation then
        raise exception using errcode = '40001',
          message = 'onlyonce: another transaction has appended to the stream since this one began: run this one again';
    end;
    if ring.version <> (select last_value from onlyonce.events_version) then
      raise exception using errcode = '40001',
        message = 'onlyonce: the event log changed its segment since this transaction began: run the transaction again';
    end if;
  end if;

  if cardinality(topics) = 1 then
    insert into onlyonce.event_log (
      slot,
      stream,
      partition,
      "offset",
      tenant,
      id,
      order_key,
      header_names,
      header_values,
      body
    )
      values (
        ring.cur,
        of[1],
        at[1],
        nexts[1],
        tenants[1],
        ids[1],
        order_keys[1],
        header_names,
        header_values,
        bodies[1]
      );
  else
    insert into onlyonce.event_log (
      slot,
      stream,
      partition,
      "offset",
      tenant,
      id,
      order_key,
      header_names,
      header_values,
      body
    )
      select ring.cur,
             u.stream,
             u.partition,
             nexts[u.pair] + row_number() over (partition by u.pair order by u.n) - 1,
             u.tenant,
             u.id,
             u.order_key,
             header_names[1 + lag(u.header_end, 1, 0) over (order by u.n) : u.header_end],
             header_values[1 + lag(u.header_end, 1, 0) over (order by u.n) : u.header_end],
             u.body
        from unnest(
          of,
          at,
          nth,
          tenants,
          ids,
          order_keys,
          header_ends,
          bodies
        ) with ordinality u(stream, partition, pair, tenant, id, order_key, header_end, body, n);
  end if;
end $$;
comment on function onlyonce.append_events is
  'Appends events to streams in the caller''s transaction; consumers read them after COMMIT, in the '
  'order of their offsets.';

-- stream_bounds returns the first offset that a partition has, and the next one that it will give
-- out. The caller must have locked onlyonce.event_log before its snapshot was taken, because
-- snapshots do not delay the emptying of a segment.
create function onlyonce.stream_bounds(
  stream integer,
  partition smallint,
  out first_offset bigint,
  out next_offset bigint
)
language plpgsql stable as $$
begin
  select greatest(coalesce((select l."offset" + 1
                              from onlyonce.event_log l
                             where l.stream = stream_bounds.stream and l.partition = stream_bounds.partition
                             order by l."offset" desc limit 1), 0),
                  coalesce((select f.next_offset from onlyonce.stream_floors f
                             where f.stream = stream_bounds.stream and f.partition = stream_bounds.partition), 0))
    into next_offset;
  select coalesce(
    (select l."offset" from onlyonce.event_log l
      where l.stream = stream_bounds.stream and l.partition = stream_bounds.partition order by l."offset" limit 1),
    next_offset
  )
    into first_offset;
end $$;
comment on function onlyonce.stream_bounds is 'First and next offset of a partition of the event log.';

-- commit_stream_offset commits a group's offset if the caller holds the partition's lease;
-- otherwise it raises OO001 (E3).
create function onlyonce.commit_stream_offset(
  lease bigint,
  epoch bigint,
  nonce uuid,
  group_id text,
  stream integer,
  partition smallint,
  "offset" bigint,
  metadata text
) returns void
language plpgsql as $$
begin
  perform onlyonce.hold(commit_stream_offset.lease, commit_stream_offset.epoch, commit_stream_offset.nonce);
  insert into onlyonce.stream_offsets as o (
    group_id,
    stream,
    partition,
    "offset",
    metadata
  )
    values (
      commit_stream_offset.group_id,
      commit_stream_offset.stream,
      commit_stream_offset.partition,
      commit_stream_offset."offset",
      commit_stream_offset.metadata
    )
    on conflict on constraint stream_offsets_pkey
    do update set "offset" = excluded."offset", metadata = excluded.metadata, committed_at = excluded.committed_at;
end $$;
comment on function onlyonce.commit_stream_offset is
  'Commits a group''s offset in a partition of the event log, while the caller owns it; raises OO001 otherwise.';

-- queue_too_old returns until when a broker must have stored a message for its key to be one that
-- may be forgotten: a key is claimed after its message was stored. The broker's clock may be ahead
-- by a tenth of the horizon, and an hour at most. It is null if nothing was forgotten since the
-- queue began, which is when its stream was made (K9).
create function onlyonce.queue_too_old(scope text, topic text) returns timestamptz
language sql stable as $$
  select greatest(
      case when h.forgotten > s.created_at then h.forgotten end,
      (select r.forgotten from onlyonce.rings r
        where r.name = onlyonce.class_ring(coalesce(h.class, 'standard'), 'standard')
          and r.forgotten > greatest(s.created_at, h.changed_at)),
      (select least(r.forgotten, h.changed_at + interval '1 minute') from onlyonce.rings r
        where r.name = onlyonce.class_ring(h.class_before, 'standard') and r.forgotten > s.created_at))
      + (select least(coalesce(r.horizon, interval '0') * 0.1, interval '1 hour') from onlyonce.rings r
          where r.name = onlyonce.class_ring(coalesce(h.class, 'standard'), 'standard'))
    from onlyonce.streams s left join onlyonce.horizons h on h.scope = queue_too_old.scope
   where s.topic = queue_too_old.topic
$$;
comment on function onlyonce.queue_too_old is
  'Messages of a queue that its broker stored until this time may be copies whose key is forgotten; null: none.';

-- ---------------------------------------------------------------- parked events

-- append_parked appends events that a receiver has set aside and never appended, which are
-- rows without an offset. It returns how many.
--
-- It claims their keys again, as settle does for what a consumer has parked (K7): a row that was
-- parked for longer than a horizon has a key that is forgotten, and nothing looks at a settled row.
-- So a later copy would be appended a second time.
create function onlyonce.append_parked(ids bigint[]) returns bigint
language plpgsql as $$
declare
  r onlyonce.parked;
  n bigint := 0;
begin
  perform onlyonce.claim(k.keys, array_fill(0::bigint, array[cardinality(k.keys)]), k.scopes)
     from (select array_agg(p.key order by p.key) as keys, array_agg(p.scope order by p.key) as scopes
             from onlyonce.parked p
            where p.id = any (ids) and p.kind = 'event' and p.state = 'waiting' and p."offset" is null
              and p.key is not null and p.reason not in ('conflict', 'no-key')
           having count(*) > 0) k;
  for r in select *
             from onlyonce.parked p
            where p.id = any (ids) and p.kind = 'event' and p.state = 'waiting' and p."offset" is null
            order by p.id for update loop
    perform onlyonce.append_events(
      array[r.topic],
      array[null::smallint],
      array[r.tenant],
      array[r.event_id],
      array[r.record_key],
      array[cardinality(r.header_names)],
      array(select convert_from(h, 'UTF8') from unnest(r.header_names) with ordinality u(h, i) order by i),
      r.header_values,
      array[r.body]
    );
    update onlyonce.parked p set state = 'resolved', settled_at = onlyonce.steady_clock() where p.id = r.id;
    n := n + 1;
  end loop;
  return n;
end $$;
comment on function onlyonce.append_parked is 'Appends to their streams events that a receiver had set aside.';
