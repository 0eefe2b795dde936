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
// passed over; no call is started after the remote may have forgotten its key; and for each row exactly one final state is
// written, by the relay that holds the sink's lease.
//
// Not promised: that a call arrives once (a remote that ignores keys may apply it more than once); an order among calls;
// anything about a process that is stopped for longer than the margin between the last check of the key's age and the
// write behind it. With an asynchronous standby a failover may undo work whose calls went out. A
// clock of the database that is set back by hours makes keys look younger than they are.
//
// # Protocol
//
// Each sink has a lease, a row of onlyonce.leases on the database's clock; of all relays that list the sink, in whichever
// process, the one that holds it sends. Owners are told apart by an epoch and a random nonce. The holder works in turns, each
// one short transaction:
//
//	BEGIN
//	select onlyonce.hold(lease, epoch, nonce)   -- raises OO001 unless the lease is ours; blocks a take-over till COMMIT
//	settle the calls that have returned         -- delivered, due again later, or parked
//	pick rows that are due, and journal them    -- attempts + 1; first_attempt_at, if this is the first
//	COMMIT                                      -- detached from the caller's context, with its own timeout
//	make the calls                              -- no transaction is open
//
// A call is delivered (2xx, over HTTP), put off (no answer, or one that is not final: with exponential backoff, or as long as
// the remote asks for), or parked in onlyonce.parked: rejected by the remote for good, or for reconciliation
// when the remote may have forgotten the key before it gave a final answer.
//
// The lease is renewed at a third of its time. A holder that cannot renew stops by its own monotonic clock, at nine tenths
// counted from when its last renewal was sent: before anybody else may take over. The database has the last word all
// the same: each write of a relay that was replaced raises.
//
// # What it defends against
//
// Rows that commit late. Ids and times are drawn when a row is written, and become visible when its transaction commits, so
// a position in ids or times passes over the row of a transaction that was open for long. There is no position here:
// a row is found by its state. Each poll sees every row that is committed by then, however low its id, and it stays pending
// until it is settled.
//
// A relay that dies after the remote has accepted the call:
//
//	A journals attempt 1, calls; the remote applies it; A dies
//	the lease ends; B takes over; the row is still pending, and due again when A's lease has ended
//	B journals attempt 2, sends the same key and bytes; the remote answers as it did the first time
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
// A COMMIT whose answer is lost. The turn counts for nothing: what was to be settled is settled in the next one (the
// statements may run twice), and rows that were journaled without being called are due again after LeaseTTL. An
// attempt in the journal therefore means "may have been called".
//
// A commit that is not flushed. With synchronous_commit = off a row is visible before it is on disk, and a crash would
// forget it after its call was made. The relay's own transaction always waits for its flush, and so for the rows
// written before it; with a synchronous standby, for the standby.
//
// Time that passes unseen. The age of a key counts from first_attempt_at, which is committed before the first call can
// have been made, by the database's clock; it is checked when the row is picked, before the call, and at the
// connection's first write (see package httpsink).
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
// Rows live on until their retention has passed (RelayConfig.Retention). For that long a call that is enqueued again is
// recognised and its bytes compared; after that it is a new row, and would be sent again under its old key.
//
// A relay runs in any process, and in as many as you like:
//
//	payments, err := httpsink.New(httpsink.Config{Name: "payments", BaseURL: "https://api.example.com/v1", KeyWindow: 24 * time.Hour})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{payments}})
//	err = relay.Run(ctx)
//
// A row whose sink no running relay lists waits, pending; it is not an error, because during a deployment it is ordinary.
// In the process that enqueues, [Relay.Wake] after the commit saves the wait for the next poll.
//
// Watch, in onlyonce.outbox, the age of the oldest row with state = 'pending' by sink, and its last_error; and in
// onlyonce.parked the rows of kind 'call' that are not settled. Hooks tell the same as it happens.
//
// # Shutdown
//
// Run returns nil after its context has ended: it picks nothing more, gives the calls under way DrainTimeout to
// return, settles them, and releases its leases so that another relay takes over at once. What is cut off is settled as a call to be
// made again, under the same key. After a kill, the same happens once the leases have ended by themselves.
package outbox
