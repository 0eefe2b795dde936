// Package shard routes tenants, endpoints and other places to one of several databases, for HTTP
// requests, webhooks and loops of your own. Each place lives whole in one database, its shard: its
// keys, its records and the effects of its work. So each guarantee for one database holds for each
// place, and no transaction spans two databases.
//
//	shards, err := shard.New(shard.Config{Pools: pools, OfPlace: func(place string) string { return shardOf[place] }})
//	layer, err := idempotency.NewSharded(shards, cfg) // a request's place is its tenant
//	endpoint, err := webhook.NewSharded(shards, cfg)  // an event's place is its tenant, or the endpoint
//	db, err := shards.Find(ctx, "acme")               // your own loop: db.Pool, and Enter in each transaction
//
// # What it defends against
//
// A key is looked up in one database only. If two processes sent work of one place to two
// databases, it would take effect in both. Their functions may differ, for example during a
// deployment or because of a mistake. So each database records which places live in it
// (onlyonce.places), and each transaction checks that its place does (onlyonce.enter_place).
//
//   - Two processes meet a new place, and send it to A and to B. Each writes its row before it
//     looks into the other databases, so at least one of them sees the other's row, and refuses
//     (N1). A process that sees a row of another one deletes its own. It confirms its row only if
//     the row is still the one written before it looked: otherwise it would confirm a row deleted
//     and written again meanwhile, although the other process saw none.
//   - A transaction that began before a place left, and commits afterwards. It holds a shared lock
//     on the place from before it reads the row, and leaving takes the exclusive lock (N2). A
//     transaction above READ COMMITTED may have a snapshot from before the place left: it locks the
//     row, which fails because the row was changed.
//   - A request in lease mode, which works in several transactions. Leaving raises its lease, so
//     that it is cut off as by a crash; it continues in the other database, under the same key
//     (N2).
//   - A move that is repeated after the place has moved on. Each move has a number, and a database
//     takes a place over only under a higher number than its own (N3).
//   - A failover that loses commits. It restores an earlier state, and two databases may then have
//     the place. So a move waits for standbys: see docs/scaling.md.
//
// Numbers in brackets, for example (N1), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package shard
