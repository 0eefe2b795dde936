-- onlyonce schema, version 2: the fence and the seal for less of the server's time. Signatures stay, so code of version 1
-- calls the new bodies, and what is locked, compared and raised stays the same, with one exception: a transaction
-- that lost a race from the same position gets 23505 on onlyonce.progress, where it got OO001.

-- Not called by the fence any more, which asks for the same itself: a nested call costs as much as the query inside.
-- plpgsql runs an assignment of one expression without a query, and PERFORM as a query: hence the assignments.
--
-- enable_seqscan is off while the position is looked up, and no longer: the plan is made while the table is tiny, is kept, and
-- would go on reading the whole table when it has grown behind an old snapshot. A SET clause of the function would do the same
-- for more, because it ends with a walk over all settings. An error in between ends the transaction, and the setting with it.
create or replace function onlyonce.fence(
  cursor_id bigint, epoch bigint, nonce uuid, run integer, expected bigint, next bigint,
  anchor_offset bigint, anchor_epoch integer, anchor_hash bytea,
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
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash);
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

-- Two unnest in one target list go through in step, for less than a join of the two as a table.
create or replace function onlyonce.claim_fresh(keys uuid[], fingerprints bigint[]) returns void
language plpgsql as $$ -- and not sql: only plpgsql keeps its plan from call to call
begin
  insert into onlyonce.inbox (key, fingerprint)
    select unnest(keys), unnest(fingerprints) order by 1;
end $$;

-- Rows of the inbox are never updated: room for that in each page is 5 bytes a key wasted. Holds for pages to come.
alter table onlyonce.inbox set (fillfactor = 100);

insert into onlyonce.schema_version (version) values (2);
