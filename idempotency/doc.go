// Package idempotency makes an HTTP request that is sent twice take effect once: a [Layer] around the server's handlers answers the
// second one with the first one's answer, byte for byte. The client's half is package idempotency/client; each works with
// every other implementation of its counterpart.
//
//	layer, err := idempotency.New(pool, idempotency.Config{Scope: tenantOf, FingerprintKeys: keys, FingerprintKey: 1})
//	...
//	go layer.Run(ctx) // purges what has expired
//	mux.Handle("POST /v1/charges", layer.MustHandle(idempotency.Route{Pattern: "/v1/charges"}, http.HandlerFunc(charge)))
//
//	func charge(w http.ResponseWriter, r *http.Request) {
//		tx, err := idempotency.Tx(r) // commits with the record of this request, before a byte of the answer leaves
//		...
//	}
//
// # Concept
//
// A key means something within a [Scope], a method and a route. The first request under it runs; its answer is stored as a record. A
// later one with the same fingerprint gets that answer, one with another fingerprint 422, and one that comes while the first is under
// way 409, or it waits. 5xx answers and what may be otherwise the next time (401, 403, 408, 409, 421, 423, 425, 429) are not stored: their
// writes are undone and the key is free again; so is the key of an answer that comes after Route.MaxHandlerTime. Other 4xx are final: stored, and
// their writes undone.
//
//	Idempotency-Status   created, replayed, in-progress, mismatch, bypassed, rejected, or released: the handler's own answer, not stored
//
// # Transactional mode
//
// One transaction holds all of it:
//
//	begin
//	select onlyonce.http_begin(...)      -- tries the key's lock, and looks for a record behind it
//	savepoint                            -- travels with the handler's first statement
//	(the handler's statements, calls that it enqueues)
//	select onlyonce.http_complete(...)   -- the record, or OO010
//	select onlyonce.seal()               -- judges deferred constraints with the handler
//	commit
//	(only now the answer leaves)
//
// What it defends against:
//
//   - The process dies at any place: before COMMIT nothing stands, not even the claim, and the next request runs; after it the next
//     one gets the answer that was never sent.
//   - A duplicate while the first is open. It does not get the lock, and holds nothing while it is told to come back. The lock is given
//     back after the first one's record is visible, and the record is looked for in a statement behind the one that took the lock.
//   - A duplicate whose snapshot is older than the first one's COMMIT (REPEATABLE READ): it sees no record, and its own fails
//     on the primary key, before COMMIT.
//   - COMMIT without an answer: whoever gets the key's lock knows that the transaction has ended, and finds its record, told by a random
//     token, or none. Until somebody gets it, the answer is 503 commit-unknown, and asking again under the key is safe.
//   - A handler that ends the transaction, swallows a statement's error, or goes on after its time: see package guard's rules; the
//     record needs the seal, and what was answered about writes that are not there is not sent.
//
// # Lease mode
//
// For handlers that call somebody else half-way. The claim is a committed row with a lease (epoch, nonce, until) on the database's clock; all
// leases of a process are renewed in one statement. Each external call is a [Step]: noted before it is made, and kept with its result. Behind the
// last step [Tx] opens a transaction for writes, which commits with the record.
//
//   - A process that died: its lease ends, the next request takes it over with the next epoch, runs the handler again, and gets remembered
//     results where there are any. A step that was noted and has none may have had its effect: it is called again under the same provider's key,
//     which is made of the record and the step's name and of nothing that changes with the owner.
//   - A process that stood still and wakes: every statement of an owner compares (epoch, nonce), in its own transaction. Its provider's call and
//     that of its successor carry one key.
//   - A step that is older than the provider's memory: its request is set aside (reconcile), and no call is made. An operator finds out.
//   - A renewal that would wait for a transaction of the same owner: the lease is locked last before COMMIT, and not while the handler works;
//     and from then on it is not renewed.
//   - A handler that does not return: after its time its lease is not renewed any more, and its connection is cut.
//   - COMMIT without an answer: the lease is raised once more by its own owner, which waits for the old transaction if that has come as far as
//     the lease; behind that it either stands, and there is no lease, or can never come.
//
// # Operations
//
// Work that takes longer than a client waits is answered 202 ([Operations]): the operation's row and its work, an event of the database's log, commit
// with the request's record, so that a copy of the request gets the same Location. A consumer applies the event as it applies a message of Kafka's: its
// transaction holds the effects and the operation's end, and a process that is killed in the middle is followed by another one.
//
// # What it does not do
//
//   - It does not keep what a handler does outside of its transaction, but for steps. A handler may run more than once for a request.
//   - It does not stream: an answer is in memory until COMMIT. Flush and Hijack are not supported.
//   - It does not remember for ever. When a record has expired its key is a new one (Route.TTL); keys of calls are made of it, so
//     that remotes must have forgotten them by then (Route.KeyWindow).
//   - It does not make a provider honour keys. One that ignores the key of a [Step] may apply it twice after a crash.
//   - It does not order requests under different keys.
package idempotency
