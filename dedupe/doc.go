// Package dedupe remembers which messages have been applied, in the transaction that applies them.
//
// A message may be delivered more than once: the broker redelivers after a crash, and a producer that did not get an answer
// sends again. [Claim] writes the message's key into the inbox inside the caller's
// transaction. The key and the effects commit together or not at all, so a later copy finds the key and does
// nothing, and a copy of a message whose transaction rolled back finds none and is applied.
//
//	tx, err := pool.Begin(ctx)
//	...
//	defer tx.Rollback(ctx)
//	outcome, err := dedupe.Claim(ctx, tx, dedupe.Key{
//		Scope: "stock", ID: messageID, Fingerprint: dedupe.FingerprintOf(payload),
//	})
//	switch {
//	case err != nil:
//		return err // nothing is acknowledged; deliver again
//	case outcome == dedupe.Conflict:
//		... // another payload under the same id: set it aside in tx, never skip it
//	case outcome == dedupe.Fresh:
//		... // the effects, in tx
//	}
//	return tx.Commit(ctx) // and only then acknowledge
//
// # Two copies at once
//
// A claims k and writes; B claims k. B must not call itself a duplicate: A may still roll back, and then nobody would have
// applied the message. So B waits at the primary key of the segment until A ends, and is then a duplicate or fresh. B
// reads A's fingerprint in a later statement than the one that waited, because under READ COMMITTED only that one
// sees what A committed. Under REPEATABLE READ and above PostgreSQL ends B with SQLSTATE 40001 instead.
//
// # What a key is
//
// An id alone is not enough: two tenants choose the same one, two consumers each apply a message once. The stored key is a
// 128-bit hash over tenant, scope and id; [Key.Hash] gives the codec, testdata/keys.json its vectors. Beside
// it stands a fingerprint of the payload, so that an id used twice for different messages is a [Conflict] that
// somebody hears of, and not a message lost.
//
// # Where keys stand
//
// Keys are in rings of small tables, the segments: one is inserted into, the closed ones are only asked, and the oldest is emptied when the ring's
// horizon has passed. Claim writes to the ring standard_keys, whose horizon is by the database's clock (`onlyonce inbox horizon`); consumers write to
// consumer_keys, by the time of their log. A scope belongs to one of the two.
//
// A claim has its transaction id before it reads which segment is current, in a later statement; it asks the closed segments, and inserts
// into the one that drains, if there is one, before the current one: a key is fresh only if all say so. Package internal/ring says how the
// ring moves, and docs/guarantees.md (K3 to K6) what goes wrong otherwise. Above READ COMMITTED a claim may find that the ring has moved since the
// transaction's snapshot: SQLSTATE 40001, as for an uncommitted copy. Run the transaction again.
//
// Package consumer does all this and more for Kafka; this package is for loops of your own, and for other stacks.
package dedupe
