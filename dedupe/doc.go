// Package dedupe remembers which messages have been applied, in the transaction that applies them.
//
// A message may be delivered more than once. For example the broker redelivers it after a crash, or
// a producer that did not get an answer sends it again. [Claim] writes the message's key into the
// inbox inside the caller's transaction. The key and the effects commit together or not at all. So
// a later copy finds the key and is skipped. If the transaction rolled back, a copy finds no key
// and is applied.
//
// [Do] is the whole loop around that: the transaction with its bounds, the claim, your function,
// COMMIT, and another attempt if the database asks for one or the answer to COMMIT was lost. In a
// transaction of your own:
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
// A claims k and writes; B claims k. B must not report a duplicate yet: if A rolls back, the
// message would never be applied. So B waits at the primary key of the segment until A ends, and is
// then a duplicate or fresh. B reads A's fingerprint in a later statement than the one that waited,
// because under READ COMMITTED only the later one sees A's writes. Under REPEATABLE READ and above
// PostgreSQL ends B with SQLSTATE 40001 instead.
//
// # Keys
//
// An id alone is not enough: two tenants may choose the same one, and two consumers each apply a
// message once. The stored key is a 128-bit hash over tenant, scope and id; [Key.Hash] documents
// the codec, and testdata/keys.json has its vectors. A fingerprint of the payload is stored with
// it. If an id is used twice for different messages, the claim is a [Conflict] that your program
// must handle, and no message is lost.
//
// # Where keys are stored
//
// Keys are in rings of small tables, the segments. One segment takes inserts, closed ones are only
// read, and the oldest is emptied when the ring's horizon has passed. Claim writes to the ring
// standard_keys, whose horizon is by the database's clock (`onlyonce inbox horizon`). Consumers
// write to consumer_keys, whose horizon is by the time of their log. A scope belongs to one of the
// two, or to the ring of another class of it (`onlyonce inbox class`).
//
// A claim gets its transaction id first, and reads in a later statement which segment is current.
// It reads the closed segments. If a segment is draining, the claim inserts into that before it
// inserts into the current one. A key is fresh only if it is new in all of them. Package
// internal/ring describes how the ring moves, and docs/rules, rules K3 to K6, the failures
// that this prevents. Above READ COMMITTED a claim may find that the ring has moved since the
// transaction's snapshot: it fails with SQLSTATE 40001, as for an uncommitted copy. Run the
// transaction again.
//
// Package consumer does all this and more for Kafka; this package is for loops of your own, and for
// other stacks.
package dedupe
