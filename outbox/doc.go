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
// # A lane's life
//
// One goroutine works on a lane (laneOwner). It runs five clocks, one after the other: calls that
// are overdue, the cursor, promotions, parked calls, and the pass. Calls are made beside it. The
// pass:
//
//	        cursor read                  BEGIN hold; advance; COMMIT; read
//	unknown -----------> over, unread -------------------------------------> chunk
//	                       ^  ^   |                                          |  ^
//	  new rows: a poll or  |  |   | no rows       each call has returned, or |  | more rows
//	  a hint of Enqueue    |  |   v               takes longer than 250 ms   v  |
//	                     idle |<--+-------------- BEGIN hold; park; advance; COMMIT; read
//	                          |                                              |
//	                          +--- cut short by a pause, a rate or a drain --+
//
// A parked call:
//
//	blocked ---- the call before it is settled: promote ----+
//	rated ------ a permit ------------------------------+   |
//	scheduled -- its time ---------------------------+  |   |
//	                                                 v  v   v
//	      +------------------> due -- a slot --> BEGIN hold; settle; pick; COMMIT
//	      |                                                   |
//	      +--- retry, in the next such transaction <--- a call is made
//	                                                          |
//	             settled, by the next such transaction <------+
//
// A lane that is given back starts no call, settles those under way, and then releases its lease.
//
// # What it defends against
//
// The rules O1 to O19 of docs/rules have the interleavings that each part prevents: rows
// that commit late (O2), a snapshot or a server that is not the cursor's, and a COMMIT whose answer
// is lost (O3), ids that are not in the order of commits (O4), a relay that is suspended or
// replaced (O5), time that passes unseen (O6), a segment that is emptied while it is read (O8).
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
// claimed in the inbox (ring standard_keys or that of its scope's class, see onlyonce inbox
// horizon) and remembered at least while the call waits to be sent or is parked.
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
// [Relay.Wake] after the commit if the relay runs in the process that enqueues. The polls of other
// relays follow what they find: see RelayConfig.PollInterval.
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
