// Package outbox sends outbound calls that belong to a transaction. A call is sent if and only if
// the transaction commits, always under one idempotency key, until the remote has given a final
// answer.
//
// # Concept
//
// A process that writes to the database and then calls a remote can die at two moments. If it dies
// before the call, the call is never sent. If it dies after the call, there is no record of it. An
// outbox removes the first danger: [Enqueue] writes the call, in the transaction of the effects
// that ask for it, and a [Relay] sends committed calls afterwards. The second remains, so calls are
// sent *at least once*. Each attempt carries the same idempotency key and the same bytes, so a
// remote that honours keys applies the call once.
//
// The key derives from the call's origin: the inbound message in a consumer's handler, or
// Call.Scope and Call.ID in a transaction of your own. The sink, the call's name and its ID are
// added. The key holds no payload, no time and no random part. So a message that is handled again
// asks for the same call again.
//
// # Guarantees and limits
//
// The relay sends only committed calls, always under the key and with the bytes that were written.
// It never skips a committed call. Calls of one ordering key arrive in the order of their commits,
// each after the one before it was delivered. No call is started after the remote may have
// forgotten its key. A relay that was replaced writes no state.
//
// Not promised:
//
//   - That a call arrives once. A remote that ignores keys may apply it more than once.
//   - An order among calls without an ordering key, or of different sinks.
//   - Anything about a process that is stopped for longer than the margin, between the last check
//     of the key's age and the write that follows it.
//   - With an asynchronous standby, that a failover keeps work whose calls went out, unless the
//     relay waits for the standby (RelayConfig.WaitFor).
//   - The age of keys while the database's clock is back for a time d: they may look up to d/2
//     younger than they are.
//
// # Protocol
//
// The log, onlyonce.batches, is append-only. A row is a batch: calls of one transaction, of one
// sink and lane. Common values are in columns, the others in arrays with an element for each call.
// A batch has at most 1,024 calls, and at most 256 kB of bodies if it has more than one. Its calls
// have consecutive ids, in a block of 1,024 that belongs to the batch.
//
// Each sink has 16 lanes, and their number never changes. An ordering key belongs to one lane. A
// call without one belongs to any: a transaction writes its calls to a lane that it chooses at
// random, and continues in the next lane after 128 of them. A lane has a cursor (onlyonce.lanes)
// and a lease (onlyonce.leases, on the database's clock). An epoch and a random nonce identify the
// lease's owner. Relays that list a sink share its lanes evenly, and take over those of a dead
// relay.
//
// A relay reads a lane in passes. A pass is the calls that became visible between two snapshots,
// prev and target:
//
//	BEGIN
//	select onlyonce.hold(lease, epoch, nonce)   -- raises OO001 unless the lane is ours;
//	                                            -- blocks a take-over till COMMIT
//	insert into onlyonce.parked ...             -- undelivered calls of the chunk before
//	select onlyonce.advance(...)                -- last_id; or, when the pass is done,
//	                                            -- prev := target, target := this snapshot
//	COMMIT
//	select the next chunk                       -- calls of the pass above last_id, by id,
//	                                            -- at most 1,024
//	make the calls                              -- no transaction is open
//
// All but the last line is one round trip. The cursor is the journal: of the pass, only the first
// 1,024 calls above last_id can have been sent, and not before started_at. A relay that stops may
// leave last_id in the middle of a batch; the next one reads the batch again and sends the others.
// A delivered call needs no write of its own, because last_id moves past it.
//
// An undelivered call is copied into onlyonce.parked, and so is every later call of its ordering
// key. From there the relay tries it again, with exponential backoff or after the time that the
// remote asks for. Each attempt is counted and committed before it begins. This ends when the call
// is delivered, when the remote rejects it for good, or when the remote may have forgotten the key
// before it gave a final answer. In the last case the call is left for reconciliation. A slow call
// does not hold up its lane: it is parked while it is under way, and settled there.
//
// The log is dropped by segments (package internal/ring) once their retention has passed and every
// lane has read past them.
//
// # What it defends against
//
// Rows that commit late. Ids and times are drawn when a row is written, and become visible when its
// transaction commits. So a position in ids or times skips the row of a long transaction, and a
// position below the oldest open transaction does not move while that one is open. A pass reads
// exactly the transactions that ended between its snapshots: target counts them as committed, and
// prev counts them as in progress or has not seen them. For example:
//
//	P (xid 7) writes row 1 and stays open; Q (xid 8) writes row 2 and commits
//	pass 1, target 7:9:7: row 2. P commits
//	pass 2, prev 7:9:7: xid 7 was in progress then and is visible now: row 1
//
// A snapshot that is not the cursor's. The relay reads prev from its row in the session that reads
// the log, and never carries it over. After a promotion, the transaction ids that a relay remembers
// are used again for other transactions, which would look already seen. The lane halts (SQLSTATE
// OO007) if its cursor or rows of the log are ahead of the server, or if the system identifier is
// another one. Then a dump was restored, and its transaction ids have no meaning until `onlyonce
// outbox rebase`.
//
// Ids that are not in the order of commits. A key's lock is taken in a statement before the INSERT
// that draws the id, and held until the commit. In a consumer's handler the locks for all calls of
// the batch are taken together, sorted, right before the commit.
//
// A relay dies after the remote has accepted the call:
//
//	A's cursor has last_id 10; A calls row 11; the remote applies it; A dies
//	the lease ends; B takes over, reads the pass above 10, and sends row 11 with the same key and
//	bytes; the remote answers as it did
//
// A relay is suspended, and resumes:
//
//	A calls, and is suspended; the lease ends; B takes over, sends the row again (same key),
//	gets "rejected", parks it
//	A resumes: its call returned 2xx; its transaction raises OO001 at hold; the row stays as B
//	left it
//
// A take-over between two reads:
//
//	B reads "the lease has ended"; A's late renewal arrives; B raises the epoch: raise_epoch asks
//	for the end again
//	after a failover that lost a take-over, epochs repeat: the nonce differs, and hold compares it
//	too
//
// A COMMIT whose answer is lost. Every change of a cursor compares its version. The relay repeats
// the turn. If the first one has arrived, the version has moved (OO008), and the relay reads the
// cursor anew. If prev := target ran twice, it would skip a whole pass.
//
// A segment that is emptied while a relay reads it. Batches are read again from where they lie
// (ctid), so their ids are compared. If one is missing, its place is read once more, because the
// erasure of a settled call moves its batch. If it is still missing, the relay ends, because other
// calls may be at its place.
//
// A failed call, while later calls of its key arrive. Parking it and moving the cursor are one
// transaction, and only the lane's owner parks. So a relay that reads the next chunk sees that the
// key is blocked. A relay may park a call of the key while an operator settles the one before it.
// The later of the two to commit calls onlyonce.promote, so that no call waits for a settled one.
//
// A commit that is not flushed. With synchronous_commit = off a row is visible before it is on
// disk, and a crash would lose it after its call was sent. The relay's own transaction always waits
// for its flush, and so for the rows written before it. With a synchronous standby, it waits for
// the standby too.
//
// Time that passes unseen. The age of a key counts from started_at, by the database's clock, and by
// watched time (package internal/watch) if the clock is back. If started_at is in the future, the
// clock was ahead: the age is unknown, and the call is not sent. started_at is committed before the
// first call can have been sent. The relay checks the age before the call, and again at the
// connection's first write (see package httpsink). The database may have lost a history in which
// the message was handled: after a replay, a failover or a restore. Then the age counts from the
// time of the message. If the call was in the log already when that history was lost, it counts
// from the time of the row.
//
// Too many calls at once. A relay needs a permit to start a call. All relays together get as many
// permits a second as the rates allow: the sink's, and that of the call's tenant or of its ordering
// key's prefix (RelayConfig.Rates). A call over one of the latter two is copied into
// onlyonce.parked too, and waits there, without a due time, for a permit. Relays divide the number
// of calls under way at once among themselves in the database.
//
// # Using it
//
// In a consumer's handler:
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "payments", Name: "charge", Target: "/charges", Body: order.ChargeJSON(),
//	})
//
// In a transaction of your own, Scope and ID take the place of the message:
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "payments", Name: "charge", Scope: "checkout", ID: order.ID,
//		Target: "/charges", Body: order.ChargeJSON(),
//	})
//
// Calls are kept until their retention has passed (RelayConfig.Retention), for operators and for
// replays. A call that your own transaction enqueues again is recognised by its key, which is
// claimed in the inbox (ring standard_keys, see onlyonce inbox horizon) and remembered at least
// while the call waits to be sent or is parked.
//
// A relay runs in any process, and in as many as you like:
//
//	payments, err := httpsink.New(httpsink.Config{
//		Name: "payments", BaseURL: "https://api.example.com/v1", KeyWindow: 24 * time.Hour,
//	})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
//	err = relay.Run(ctx)
//
// If no running relay lists a row's sink, the row waits and its segment is not dropped. That is not
// an error, because it is ordinary during a deployment. To save the wait for the next poll, call
// [Relay.Wake] after the commit in the process that enqueues, or use a [Notifier] from another one.
//
// Watch the age of the oldest pending call (`onlyonce outbox status`, or the view onlyonce.calls),
// and the rows in onlyonce.parked of kind 'call' that are not settled. Hooks report the same as it
// happens.
//
// # Shutdown
//
// Run returns nil after its context has ended. It starts no more calls, gives those under way
// DrainTimeout to return, settles them, and releases its lanes so that another relay takes over at
// once. A call that is cut off is parked, and sent again under the same key. After a kill, the same
// happens once the leases have run out.
package outbox
