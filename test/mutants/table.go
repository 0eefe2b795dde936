package main

import "slices"

// The chapters of the schema.
const (
	schemaGround   = "migrations/0001/1_ground.sql"
	schemaInbox    = "migrations/0001/2_inbox.sql"
	schemaConsumer = "migrations/0001/3_consumer.sql"
	schemaOutbox   = "migrations/0001/4_outbox.sql"
	schemaEvents   = "migrations/0001/5_events.sql"
	schemaWebhooks = "migrations/0001/6_webhooks.sql"
	schemaHTTP     = "migrations/0001/7_http.sql"
	schemaHomes    = "migrations/0001/8_homes.sql"
)

// claimReads is the part of the claim that reads the ring, up to the comparison with the sequence.
const claimReads = `    return '{}';
  end if;
  ignored := pg_current_xact_id()::text;
  select r.cur, r.draining, r.closed, r.uses, r.version into cur, draining, closed, uses, version from onlyonce.rings r where r.name = 'RING_keys';
  if cur is null or current_setting('transaction_isolation') <> 'read committed'
`

const (
	// fence is all that stops an owner that was replaced, and open lets it through.
	fence = `  perform 1 from onlyonce.leases l
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

  -- Without ON CONFLICT, which would write a second WAL record for the row. If another transaction
  -- from the same position has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash, fence.leader_epoch);
`
	open = `  ignored := set_config('enable_seqscan', seqscan, true)
          || set_config('onlyonce.fenced', pg_current_xact_id()::text, true);

  -- Without ON CONFLICT, which would write a second WAL record for the row. If another transaction
  -- from the same position has committed meanwhile, this raises by itself.
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash, fence.leader_epoch)
    on conflict do nothing;
`
	// settle is what stops a replaced owner that tries a parked row: the lease, and the attempt's
	// number.
	settle = `  perform onlyonce.hold(settle.cursor_id, settle.epoch, settle.nonce);
  update onlyonce.parked p set state = 'resolved', settled_at = clock_timestamp(), next_attempt_at = null
   where p.id = settle.parked_id and p.state = 'retrying' and p.attempts = settle.attempts;
  if not found then`
	settleOpen = `  update onlyonce.parked p set state = 'resolved', settled_at = clock_timestamp(), next_attempt_at = null
   where p.id = settle.parked_id;
  if false then`
)

// table has a mutant for each rule that this version enforces. Some rules have none, or fewer than
// one for each place:
//
//   - T10 (no remote call inside a transaction) is a shape of the code.
//   - K2 (wait for an uncommitted copy) is enforced by the primary keys: one mutant removes them,
//     one replaces the wait by what many programs do.
//   - T5 has one for the consumer only: in the relay two layers detach a COMMIT, in two files.
//   - S2 (rights) is a file that its tests read when they run, out of an overlay's reach. The
//     comparison of that file with the server has one.
//   - H7's comparison of fingerprints in constant time is checked in the source.
var table = slices.Concat(adversaryRules, kitRules, consumerRules, slotRules, shareRules, guardRules, kafkaLogRules, inboxRules, outboxRules, eventsRules, webhooksRules, httpRules, httpClientRules, httpCacheRules, homesRules, sealRules, consoleRules)
