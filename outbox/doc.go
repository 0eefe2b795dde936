// Package outbox makes outbound calls that belong to a transaction: they are made if and only if it commits, each under
// one idempotency key, until the remote has given a final answer.
//
// # Concept
//
// Code that writes to the database and then calls a remote has two moments to die in: before the call, which is then
// never made, and after it, when nobody knows that it was. An outbox removes the first: the call is written as a row, in
// the transaction of the effects that ask for it ([Enqueue]), and a [Relay] sends committed rows afterwards. The second
// cannot be removed, so calls are made *at least once*, and each attempt carries the same idempotency key
// and the same bytes, by which a remote that honours keys applies the call once.
//
// The key derives from what asks for the call: the inbound message of a consumer's handler, or Call.Scope and Call.ID in a
// transaction of your own; with the sink, the call's name and its ID. It holds no payload, no time and no random
// part. So a message that is handled again asks for the same call again, and not for another one.
//
// # Promise, and its limits
//
// What is sent is always a committed row, always under the row's key and with the row's bytes; no committed row is ever
// passed over; calls of one ordering key arrive in the order of their commits, each after the one before it was delivered; no call
// is started after the remote may have forgotten its key; and no state is written by a relay that was replaced.
//
// Not promised: that a call arrives once (a remote that ignores keys may apply it more than once); an order among calls without an
// ordering key, or of different sinks; anything about a process that is stopped for longer than the margin between the last check of the key's age
// and the write behind it. With an asynchronous standby a failover may undo work whose calls went out, unless the relay
// waits for that standby (RelayConfig.WaitFor). A clock of the database that is set back by hours makes keys look
// younger than they are.
//
// # Protocol
//
// The log, onlyonce.outbox_log, is append-only. Each sink has 16 lanes, for good; an ordering key belongs to one of them, a call without one
// to the lane of its own key. A lane has a lease (onlyonce.leases, on the database's clock; owners are told apart by an epoch and a random
// nonce) and a cursor (onlyonce.lanes). Relays that list a sink share its lanes out evenly, and take over those of one that died.
//
// A lane is read in passes. A pass is what became visible between two snapshots, prev and target:
//
//	BEGIN
//	select onlyonce.hold(lease, epoch, nonce)   -- raises OO001 unless the lane is ours; blocks a take-over till COMMIT
//	insert into onlyonce.parked ...             -- of the chunk before: what was not delivered
//	select onlyonce.advance(...)                -- last_id; or, when the pass is done, prev := target, target := this snapshot
//	COMMIT
//	select the next chunk                       -- rows of the pass above last_id, by id, at most 1,024
//	make the calls                              -- no transaction is open
//
// all but the last in one round trip. The cursor is the journal: of the pass, only the first 1,024 rows above last_id can have been
// called, and none before started_at. A call that is delivered writes nothing of its own: last_id passes it. A call that is not is
// copied into onlyonce.parked, with every later one of its ordering key behind it; from there it is tried again (with exponential backoff, or as
// long as the remote asks for), each attempt counted and committed before it is made, until it is delivered, rejected by the remote for
// good, or left for reconciliation because the remote may have forgotten the key before it gave a final answer.
// A call that takes long does not hold up its lane: it is parked while it is under way, and settled there.
//
// The log is dropped by segments (package internal/ring) once their retention has passed and every lane is beyond them.
//
// # What it defends against
//
// Rows that commit late. Ids and times are drawn when a row is written, and become visible when its transaction commits, so a position in
// ids or times passes over the row of a transaction that was open for long; and a position below the oldest open transaction
// stands still as long as that is open. A pass reads exactly the transactions that ended between its snapshots: those that prev counts as in
// progress or has not seen, and target counts as committed.
//
//	P (xid 7) writes row 1 and stays open; Q (xid 8) writes row 2 and commits
//	pass 1, target 7:9:7: row 2. P commits. Pass 2, prev 7:9:7: xid 7 was in progress then and is visible now: row 1
//
// A snapshot that is not the cursor's. prev is read from its row in the session that reads the log, never carried over: after a promotion the
// transaction ids that a relay remembers are used again for others, and would look already seen. A cursor that is
// ahead of the server, rows that are, or another system identifier halt the lane (SQLSTATE OO007): a dump was restored, and
// transaction ids mean nothing there until `onlyonce outbox rebase`.
//
// Ids that are not in the order of commits. A key's lock is taken in a statement before the INSERT that draws the id, and held until
// the commit; in a consumer's handler for all calls of the batch together, sorted, right before the commit.
//
// A relay that dies after the remote has accepted the call:
//
//	A's cursor stands, with last_id 10; A calls row 11; the remote applies it; A dies
//	the lease ends; B takes over, reads the pass above 10, and sends row 11 with the same key and bytes; the remote answers as it did
//
// A relay that was paused, and goes on as if nothing had happened:
//
//	A calls, and is stopped; the lease ends; B takes over, sends the row again (same key), is told "rejected", parks it
//	A goes on: its call returned 2xx; its transaction raises OO001 at hold; the row stays as B left it
//
// A take-over between two reads:
//
//	B reads "the lease has ended"; A's late renewal arrives; B raises the epoch: raise_epoch asks for the end again
//	after a failover that lost a take-over epochs repeat: the nonce differs, and hold compares it too
//
// A COMMIT whose answer is lost. Every change of a cursor compares its version. The same turn is made again; if the first has arrived, the
// version has moved (OO008), and the cursor is read anew. prev := target twice would pass over a whole pass.
//
// A segment that is emptied under a relay. Rows are read again from where they lie (ctid), so their ids are compared: one that is missing
// ends the relay, because the place may hold another call by now.
//
// A head that fails while later calls of its key arrive. Parking it and moving the cursor are one transaction, and only the lane's
// owner parks: whoever reads the next chunk sees that the key is blocked. Whichever of "parked behind" and "settled by an operator" commits
// later calls onlyonce.promote, so that nobody waits behind nothing.
//
// A commit that is not flushed. With synchronous_commit = off a row is visible before it is on disk, and a crash would
// forget it after its call was made. The relay's own transaction always waits for its flush, and so for the rows
// written before it; with a synchronous standby, for the standby.
//
// Time that passes unseen. The age of a key counts from started_at, which is committed before the first call can have been made, by the
// database's clock; it is checked before the call, and at the connection's first write (see package httpsink). Where the message may have been
// handled in a history that the database has lost (a replay, a failover, a restore), it counts from the time of the message; and where the call stood already
// when that was lost, from the time of the row.
//
// # Using it
//
// In a consumer's handler:
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "payments", Name: "charge", Target: "/charges", Body: order.ChargeJSON(),
//	})
//
// In a transaction of your own say what stands for the message:
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "payments", Name: "charge", Scope: "checkout", ID: order.ID, Target: "/charges", Body: order.ChargeJSON(),
//	})
//
// Rows live on until their retention has passed (RelayConfig.Retention), for operators and for replays. A call of your own transaction that is
// enqueued again is recognised by its key, which is claimed in the inbox (ring standard_keys, see onlyonce inbox horizon), or by its row or parked row.
//
// A relay runs in any process, and in as many as you like:
//
//	payments, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: "https://api.example.com/v1", KeyWindow: 24 * time.Hour})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
//	err = relay.Run(ctx)
//
// A row whose sink no running relay lists waits; it is not an error, because during a deployment it is ordinary, and its segment is not
// dropped. In the process that enqueues, [Relay.Wake] after the commit saves the wait for the next poll; in another one, [Notifier].
//
// Watch the age of the oldest pending call (`onlyonce outbox status`, or the view onlyonce.calls), and in onlyonce.parked the rows of kind 'call' that
// are not settled. Hooks tell the same as it happens.
//
// # Shutdown
//
// Run returns nil after its context has ended: it begins nothing more, gives the calls under way DrainTimeout to
// return, settles them, and releases its lanes so that another relay takes over at once. What is cut off is parked as a call to be
// made again, under the same key. After a kill, the same happens once the leases have ended by themselves.
package outbox
