-- onlyonce schema, version 1: places, for tenants and other places that live in one of several
-- databases (package shard). A program that has one database does not use this chapter.

create table onlyonce.places (
  place      text        primary key,
  state      text        not null,
  moves      bigint      not null default 0,
  nonce      uuid,
  other      text,
  changed_at timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.places is
  'Places, for example tenants, that live in this database, or did. A place''s keys, records and effects '
  'are in one of several databases, its shard.';
comment on column onlyonce.places.state is
  'claimed: a process asks the other databases whether the place lives there. here: it lives in this '
  'database. leaving: nothing new begins, and work under way ends. left: nothing of the place changes '
  'here any more.';
comment on column onlyonce.places.moves is
  'How often the place had moved when the row was written. A database whose number is lower has an older '
  'state of the place.';
comment on column onlyonce.places.nonce is 'While claimed: the process that asks.';
comment on column onlyonce.places.other is
  'Of leaving and left: where the place goes. Of here, after a move: where it came from. Names are the operator''s.';

-- enter_place raises OO012 unless a place lives in this database, and OO011 if this database does
-- not know the place. It keeps the place here until the transaction ends: onlyonce.leave_place
-- waits.
--
-- The lock is taken before the row is read, in an earlier statement. So under READ COMMITTED the
-- row is as it was when the lock was granted, or newer. Above that level the snapshot may be from
-- before the place left; then FOR SHARE raises 40001, because the row was changed since (N2).
create function onlyonce.enter_place(place text) returns void
language plpgsql as $$
declare
  known onlyonce.places;
begin
  perform pg_advisory_xact_lock_shared(1869507688, hashtext(enter_place.place));
  if current_setting('transaction_isolation') = 'read committed' then
    select * into known from onlyonce.places h where h.place = enter_place.place;
  else
    select * into known from onlyonce.places h where h.place = enter_place.place for share;
  end if;
  if known.state is null or known.state = 'claimed' then
    raise exception using errcode = 'OO011',
      message = format('onlyonce: %L is not known to live in this database', enter_place.place);
  elsif known.state <> 'here' then
    raise exception using errcode = 'OO012',
      message = format('onlyonce: %L has left this database for %s', enter_place.place, known.other);
  end if;
end $$;
comment on function onlyonce.enter_place is
  'Raises OO012 unless the place lives in this database, OO011 if it is not known; keeps it here until '
  'the transaction ends.';

-- leave_place begins to move a place to another database, or ends that. It waits for transactions
-- that have called onlyonce.enter_place. It returns the place's new state. `ready` says that
-- nothing that was begun for the place is still to end here; otherwise the state is leaving.
--
-- Requests in lease mode are cut off as by a crash: their leases are raised, so that no step and no
-- answer of theirs commits here any more. They go on in the other database, under the same key
-- (N2).
create function onlyonce.leave_place(place text, ready boolean, other text) returns text
language plpgsql as $$
declare
  result text := case when leave_place.ready then 'left' else 'leaving' end;
begin
  perform pg_advisory_xact_lock(1869507688, hashtext(leave_place.place));
  update onlyonce.places h
     set state = result,
         other = leave_place.other,
         changed_at = clock_timestamp(),
         moves = h.moves + case h.state when 'here' then 1 else 0 end
   where h.place = leave_place.place and h.state in ('here', 'leaving');
  if not found then
    raise exception using errcode = 'OO012',
      message = format('onlyonce: %L does not live in this database', leave_place.place);
  end if;
  if leave_place.ready then
    update onlyonce.leases l set epoch = l.epoch + 1, nonce = null, until = clock_timestamp()
      from onlyonce.http_records r
     where r.tenant = leave_place.place and r.expires_at is null and l.id = r.lease_id;
  end if;
  return result;
end $$;
comment on function onlyonce.leave_place is
  'Takes a place out of this database: waits for what keeps it here, and refuses what comes later.';
