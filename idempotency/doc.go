// Package idempotency makes an HTTP request that is sent twice take effect once. A [Layer] wraps
// the server's handlers and answers the second request with the first one's answer, byte for byte.
// The client's half is package idempotency/client; each half also works with other implementations
// of its counterpart.
//
//	layer, err := idempotency.New(pool, idempotency.Config{Scope: tenantOf, FingerprintKeys: keys})
//	...
//	go layer.Run(ctx) // purges expired records
//	route := idempotency.Route{Pattern: "/v1/charges", KeyWindow: 24 * time.Hour}
//	mux.Handle("POST /v1/charges", layer.MustHandle(route, http.HandlerFunc(charge)))
//
//	func charge(w http.ResponseWriter, r *http.Request) {
//		tx, err := idempotency.TxOf(r) // commits with the record of this request, before a byte of the answer is sent
//		...
//	}
//
// # Concept
//
// The layer looks a key up within a [Scope], a method and a route. The first request under a key
// runs, and the layer stores its answer as a record. The answer to a later request depends on its
// fingerprint, a hash of the request:
//
//   - The same fingerprint: the stored answer.
//   - Another fingerprint: 422, because the client has used the key for two different requests.
//   - The first request is still running: 409. With Route.Wait the copy waits for it first.
//
// Some answers are not stored: the layer undoes their writes, and the next request with the key
// runs again. These are 5xx, answers that may differ the next time (401, 403, 408, 409, 421, 423,
// 425, 429), and answers after Route.HandlerTimeout. All other 4xx are final: the layer stores them
// and undoes their writes.
//
// A header of each answer gives the layer's outcome:
//
//	Idempotency-Status   created, replayed, in-progress, mismatch, derived, bypassed, rejected,
//	                     or released: the handler's own answer, not stored
//
// # Transactional mode
//
// The handler's writes and the record are one transaction:
//
//	begin
//	select onlyonce.http_begin(...)      -- tries the key's lock, and then looks for a record
//	savepoint                            -- sent with the handler's first statement
//	(the handler's statements, calls that it enqueues)
//	select onlyonce.http_complete(...)   -- the record and the seal
//	commit
//	(only now the answer is sent)
//
// What it defends against:
//
//   - The process dies. Before COMMIT, the database rolls back everything, the claim included, and
//     the next request runs. After COMMIT, the next request gets the answer that was never sent.
//   - A copy arrives while the first request runs. It does not get the lock, and holds no resource
//     while the client waits to retry. The lock is released after the first one's record is
//     visible, and a copy looks for the record in a statement after the one that took the lock.
//   - A copy whose snapshot is older than the first one's COMMIT (REPEATABLE READ). It sees no
//     record, runs the handler, and its own record fails on the primary key, before COMMIT.
//   - COMMIT gets no answer. The layer takes the key's lock again. Once it has the lock, the old
//     transaction has ended, and the record, identified by a random token, shows whether it
//     committed. Until then the answer is 503 (commit-unknown), and a retry under the key is safe.
//   - A handler ends the transaction itself, ignores a statement's error, or continues after its
//     time. Package guard detects the first two; the record needs the seal. The layer never sends
//     an answer about writes that were rolled back.
//
// # Lease mode
//
// This mode is for handlers that call another service half-way. The claim is a committed row with a
// lease (epoch, nonce, until) on the database's clock; a process renews all its leases in one
// statement. Each external call is a [Step]: the layer records it before the call, and stores its
// result afterwards. After the last step, [TxOf] opens a transaction for writes, which commits with
// the record.
//
//   - The process dies. Its lease ends, and the next request takes it over with the next epoch. The
//     handler runs again and gets the results of its completed steps. A step that was recorded
//     without a result may have had its effect. The layer calls it again under the same provider's
//     key, which depends on the record and the step's name but not on the owner.
//   - A process stalls and wakes up. Every statement of an owner compares (epoch, nonce) in its own
//     transaction, so a former owner's statements fail. Its call to the provider carries the same
//     key as its successor's.
//   - A step is older than the provider's memory. The layer sets its request aside (reconcile)
//     without a call, and an operator finds out what happened.
//   - A renewal could wait for a transaction of the same owner. So the layer locks the lease as the
//     last step before COMMIT, not while the handler works, and does not renew it from then on.
//   - A handler does not return. After its time, the layer stops renewing its lease, and cuts its
//     connection.
//   - COMMIT gets no answer. The owner raises its own lease once more, which waits for the old
//     transaction if that has locked the lease already. After that, either the old transaction has
//     committed and the lease is gone, or it can never commit.
//
// # Operations
//
// For work that takes longer than a client waits, the handler answers 202 ([Operations]). The
// operation's row and its work, an event in the database's log, commit with the request's record,
// so a copy of the request gets the same Location. A consumer applies the event as it applies a
// message from Kafka: its transaction holds the effects and the operation's end. If a process is
// killed in the middle, another one takes over.
//
// # Limits
//
//   - It does not undo a handler's effects outside of its transaction, for example a direct HTTP
//     call. Only a [Step] is remembered. A handler may run more than once for a request.
//   - It does not stream: an answer is in memory until COMMIT. Flush and Hijack are not supported.
//   - It does not remember for ever. After Route.TTL, a key is a new key, once the calls and
//     operations of its request are settled. The keys of calls derive from it, so the remotes must
//     have forgotten those by then (Route.KeyWindow).
//   - It does not make a provider honour keys. A provider that ignores the key of a [Step] may
//     apply it twice after a crash.
//   - It does not order requests under different keys.
//
// Numbers in brackets, for example (H5), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package idempotency
