-- onlyonce schema, version 1: homes, for tenants and other places that live in one of several
-- databases (package shard). A program that has one database does not use this chapter.

create table onlyonce.homes (
  place      text        primary key,
  state      text        not null,
  moves      bigint      not null default 0,
  nonce      uuid,
  other      text,
  changed_at timestamptz not null default clock_timestamp()
);
comment on table  onlyonce.homes is 'Places, for example tenants, that live in this database, or did. A place''s keys, records and effects are in one of several databases, its home.';
comment on column onlyonce.homes.state is 'claimed: a process asks the other databases whether the place lives there. here. leaving: nothing new begins, and what was begun ends. left: nothing of the place changes here any more.';
comment on column onlyonce.homes.moves is 'How often the place had moved when the row was written. A database whose number is lower has an older state of the place.';
comment on column onlyonce.homes.nonce is 'While claimed: the process that asks.';
comment on column onlyonce.homes.other is 'Of leaving and left: where the place goes. Of here, after a move: where it came from. Names are the operator''s.';

-- at_home raises OO012 unless a place lives in this database, and OO011 if this database does not
-- know the place. It keeps the place here until the transaction ends: onlyonce.leave_home waits.
--
-- The lock is taken before the row is read, in an earlier statement. So under READ COMMITTED the
-- row is as it was when the lock was granted, or newer. Above that level the snapshot may be from
-- before the place left; then FOR SHARE raises 40001, because the row was changed since.
create function onlyonce.at_home(place text) returns void
language plpgsql as $$
declare
  home onlyonce.homes;
begin
  perform pg_advisory_xact_lock_shared(1869507688, hashtext(at_home.place));
  if current_setting('transaction_isolation') = 'read committed' then
    select * into home from onlyonce.homes h where h.place = at_home.place;
  else
    select * into home from onlyonce.homes h where h.place = at_home.place for share;
  end if;
  if home.state is null or home.state = 'claimed' then
    raise exception using errcode = 'OO011', message = format('onlyonce: %L is not known to live in this database', at_home.place);
  elsif home.state <> 'here' then
    raise exception using errcode = 'OO012', message = format('onlyonce: %L has left this database for %s', at_home.place, home.other);
  end if;
end $$;
comment on function onlyonce.at_home(text) is 'Raises OO012 unless the place lives in this database, OO011 if it is not known; keeps it here until the transaction ends.';

-- leave_home begins to move a place to another database, or ends that. It waits for transactions
-- that have called onlyonce.at_home. It returns the place's new state. `ready` says that nothing
-- that was begun for the place is still to end here; otherwise the state is leaving.
--
-- Requests in lease mode are cut off as by a crash: their leases are raised, so that no step and no
-- answer of theirs commits here any more. They go on in the other database, under the same key.
create function onlyonce.leave_home(place text, ready boolean, other text) returns text
language plpgsql as $$
declare
  result text := case when leave_home.ready then 'left' else 'leaving' end;
begin
  perform pg_advisory_xact_lock(1869507688, hashtext(leave_home.place));
  update onlyonce.homes h
     set state = result, other = leave_home.other, changed_at = clock_timestamp(), moves = h.moves + case h.state when 'here' then 1 else 0 end
   where h.place = leave_home.place and h.state in ('here', 'leaving');
  if not found then
    raise exception using errcode = 'OO012', message = format('onlyonce: %L does not live in this database', leave_home.place);
  end if;
  if leave_home.ready then
    update onlyonce.leases l set epoch = l.epoch + 1, nonce = null, until = clock_timestamp()
      from onlyonce.http_records r
     where r.tenant = leave_home.place and r.expires_at is null and l.id = r.lease_id;
  end if;
  return result;
end $$;
comment on function onlyonce.leave_home(text, boolean, text) is 'Takes a place out of this database: waits for what keeps it here, and refuses what comes later.';

-- The following are functions of other chapters, for a place: each is refused if the place does not
-- live here.

create function onlyonce.http_open_at(place text, lock_timeout text, statement_timeout text, idle_timeout text) returns void
language plpgsql as $$
begin
  perform onlyonce.http_open(http_open_at.lock_timeout, http_open_at.statement_timeout, http_open_at.idle_timeout);
  perform onlyonce.at_home(http_open_at.place);
end $$;
comment on function onlyonce.http_open_at(text, text, text, text) is 'onlyonce.http_open for a tenant that must live here.';

create function onlyonce.http_begin_at(place text, id uuid, lock_timeout text, statement_timeout text, idle_timeout text) returns integer
language plpgsql as $$
begin
  perform onlyonce.http_open_at(http_begin_at.place, http_begin_at.lock_timeout, http_begin_at.statement_timeout, http_begin_at.idle_timeout);
  return onlyonce.http_begin(http_begin_at.id, http_begin_at.lock_timeout, http_begin_at.statement_timeout, http_begin_at.idle_timeout);
end $$;
comment on function onlyonce.http_begin_at(text, uuid, text, text, text) is 'onlyonce.http_begin for a tenant that must live here.';

create function onlyonce.http_claim_at(id uuid, tenant text, scope text, fingerprint bytea, token uuid, keep interval, ttl interval)
returns table (lease bigint, epoch bigint)
language plpgsql as $$
begin
  perform onlyonce.at_home(http_claim_at.tenant);
  return query select c.lease, c.epoch
    from onlyonce.http_claim(http_claim_at.id, http_claim_at.tenant, http_claim_at.scope, http_claim_at.fingerprint, http_claim_at.token, http_claim_at.keep, http_claim_at.ttl) c;
end $$;
comment on function onlyonce.http_claim_at(uuid, text, text, bytea, uuid, interval, interval) is 'onlyonce.http_claim for a tenant that must live here.';

create function onlyonce.raise_epoch_at(place text, lease bigint, seen_epoch bigint, new_nonce uuid, ttl interval) returns bigint
language plpgsql as $$
begin
  perform onlyonce.at_home(raise_epoch_at.place);
  return onlyonce.raise_epoch(raise_epoch_at.lease, raise_epoch_at.seen_epoch, raise_epoch_at.new_nonce, raise_epoch_at.ttl);
end $$;
comment on function onlyonce.raise_epoch_at(text, bigint, bigint, uuid, interval) is 'onlyonce.raise_epoch for a request of a tenant that must live here.';

create function onlyonce.receive_webhook_at(
  place text, endpoint text, key uuid, fingerprint bigint, digest bytea, body_window interval, wait text, lock_timeout text, statement_timeout text, idle_timeout text
) returns smallint
language plpgsql as $$
declare
  ignored text := set_config('lock_timeout', receive_webhook_at.wait, true);
begin
  perform onlyonce.at_home(receive_webhook_at.place);
  return onlyonce.receive_webhook(receive_webhook_at.endpoint, receive_webhook_at.key, receive_webhook_at.fingerprint, receive_webhook_at.digest,
    receive_webhook_at.body_window, receive_webhook_at.wait, receive_webhook_at.lock_timeout, receive_webhook_at.statement_timeout, receive_webhook_at.idle_timeout);
end $$;
comment on function onlyonce.receive_webhook_at(text, text, uuid, bigint, bytea, interval, text, text, text, text) is 'onlyonce.receive_webhook for a tenant or an endpoint that must live here.';
