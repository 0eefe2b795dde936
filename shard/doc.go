// Package shard routes tenants, endpoints and other places to one of several databases, for HTTP
// requests, webhooks and loops of your own. Each place lives whole in one database, its shard: its
// keys, its records and the effects of its work. So each guarantee for one database holds for each
// place, and no transaction spans two databases.
//
//	shards, err := shard.New(shard.Config{Pools: pools, OfPlace: func(place string) string { return shardOf[place] }})
//	layer, err := idempotency.New(shards, cfg) // a request's place is its tenant
//	endpoint, err := webhook.New(shards, cfg)  // an event's place is its tenant, or the endpoint
//	db, err := shards.Find(ctx, "acme")        // your own loop: db.Pool, and Enter in each transaction
//
// # What it defends against
//
// A key is searched in one database only. So a place that two processes send to two databases would
// take effect in both. The function that chooses may differ from one process to another, for
// example during a deployment, or because of a mistake. So each database records which places live
// in it (onlyonce.places), and each transaction checks that its place does (onlyonce.enter_place).
//
//   - Two processes meet a new place, and send it to A and to B. Each writes its row before it
//     looks into the other databases, so at least one of them sees the other's row, and refuses
//     (N1). A process that sees a row of another one deletes its own. It confirms its row only if
//     that is still the one that it wrote before it looked: otherwise a row that was deleted and
//     written again meanwhile would be confirmed, although the other process saw none.
//   - A transaction that began before a place left, and commits after that. It holds a shared lock
//     on the place from before it reads the row, and leaving takes the exclusive lock (N2). A
//     transaction above READ COMMITTED may have a snapshot from before the place left: it locks the
//     row, which fails because the row was changed.
//   - A request in lease mode, which works in several transactions. Leaving raises its lease, so
//     that it is cut off as by a crash; it goes on in the other database, under the same key (N2).
//   - A move that is repeated after the place has moved on. Each move has a number, and a database
//     takes a place over only under a higher number than its own (N3).
//   - A failover that loses what was committed. It brings the earlier state back, and two databases
//     may then have the place. See docs/scaling.md for what to wait for.
package shard
