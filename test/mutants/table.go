package main

import "slices"

// schema is the directory of the schema's chapters.
const schema = "migrations/0001"

const (
	// fenceLock begins all that stops an owner that was replaced. fenceOpen lets it through.
	fenceLock = "stands := onlyonce.enter("
	fenceOpen = `perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
  insert into onlyonce.progress
    values (fence.cursor_id, fence.run, fence.expected, fence.next, fence.anchor_offset, fence.anchor_epoch, fence.anchor_hash,
            fence.leader_epoch)
    on conflict do nothing;
  return;
  stands := onlyonce.enter(`
	// enterOwner is the comparison with the owner, enterShared the lock that comes in a statement
	// before it, enterRow the lock of the lease's row above READ COMMITTED, and enterRead the begin
	// of the statement that compares.
	enterOwner  = "l.epoch = enter.epoch and l.nonce = enter.nonce"
	enterShared = "ignored := pg_advisory_xact_lock_shared(onlyonce.owner_lock(enter.cursor_id))::text;"
	enterRow    = " if current_setting('transaction_isolation') <> 'read committed' then perform 1 from " +
		"onlyonce.leases l where l.id = enter.cursor_id for share; end if;"
	enterRead = ` select coalesce((select p.next_offset from onlyonce.progress p
                    where p.cursor_id = l.id and p.run = enter.run order by p.from_offset desc limit 1),
                  (select c.run_start from onlyonce.cursors c where c.id = l.id and c.run = enter.run))
    into stands
    from onlyonce.leases l `
	// settleHold stops a replaced owner that tries a parked row. settleOpen lets it through, and
	// makes the row one that its attempt fits.
	settleHold = "perform onlyonce.hold_long(settle.cursor_id, settle.epoch, settle.nonce);"
	settleOpen = `update onlyonce.parked p
     set state = 'retrying', attempts = settle.attempts, settled_at = null, next_attempt_at = clock_timestamp()
   where p.id = settle.parked_id;`
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
var table = slices.Concat(
	adversaryRules, seamsRules, kitRules, consumerRules, slotRules, guardRules, kafkaLogRules,
	inboxRules, outboxRules, eventsRules, webhooksRules, intakeRules, queueRules, httpRules,
	httpClientRules, httpCacheRules, placesRules, sealRules, loginRules, consoleRules, nightRules,
)
