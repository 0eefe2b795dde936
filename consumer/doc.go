// Package consumer applies each message of a stream once.
//
// Streams deliver at least once: after a crash, a rebalance or a lost answer the same record is
// delivered again, and a retrying producer writes the same message to another offset. A [Consumer]
// runs a handler for each message in a database transaction. The handler's writes and the record
// that the message was processed commit together:
//
//	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
//		tx.Queue(`update stock set held = held + 1 where sku = $1`, string(m.Value))
//		return nil
//	}
//	c, err := consumer.New(pool, source, consumer.HandlerFunc(handle),
//		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
//	...
//	err = c.Run(ctx) // until ctx is done
//
// A [BatchHandler] gets all messages of a transaction at once, for writes of whole sets, for
// example with COPY.
//
// # Cursor and inbox
//
// The cursor holds the position in each partition. Each batch moves it, in its own transaction,
// from the position that its owner expects to the next one. The database's position counts, not
// Kafka's committed offset. The cursor alone makes redeliveries harmless, without a memory of old
// messages.
//
// The inbox holds the producers' message ids, as keys. It detects copies at other offsets for as
// long as it remembers the keys. Consumers have rings of their own in it, one for each class of
// horizon ([Config.Horizon]; consumer_keys by default). They do not see keys claimed with
// dedupe.Claim.
//
// # One batch
//
//	BEGIN
//	onlyonce.fence           moves the position from expected to next, or raises OO001
//	onlyonce.claim_consumer  returns which keys are new
//	                         (or, as claim_consumer_fresh, raises 23505 unless all are)
//	the handler's statements, and those that set messages aside
//	onlyonce.seal            judges deferred constraints, and allows the COMMIT
//	COMMIT
//	                         some time later: Kafka's offset, in this generation of the group only
//
// The batch is one pipeline with as few round trips as the handler allows; see package
// internal/guard. A statement that shares a round trip with COMMIT must raise if its condition does
// not hold. An UPDATE that matches no row, for example, is no error: the COMMIT sent with it would
// succeed.
//
// # What it defends against
//
// If the process is killed before COMMIT, the batch leaves no trace. The next owner reads the
// position and fetches the same messages.
//
// If it is killed after COMMIT, but before Kafka's offset is committed, the next owner continues
// from the database's position. It does the same if the group's offsets were reset or have expired.
//
// A zombie: process A is suspended in the middle of a batch, and its partition goes to B. B raises
// the epoch of the cursor's lease. The raise waits for a transaction of A that has passed the
// fence. After the raise, every fence of A fails. A batch that A had sent in one pipeline with its
// COMMIT then has no effect.
//
// Two members that both believe they own a partition: to raise an epoch, a process needs a proof of
// membership newer than its read of the epoch. The proof is an offset commit in the member's own
// generation, which only a member can make. A process raises at most once in a generation. If it is
// fenced after that, it leaves the generation.
//
// A COMMIT without an answer: the outcome is unknown, and reading the table does not reveal it,
// because the COMMIT may still arrive. So the consumer runs the batch again, through the fence. The
// fence waits for the old transaction, and raises if that one committed. Then the consumer reads
// the position. The batch had committed if this is the position that it would have set and the
// lease is still the consumer's.
//
// A failing handler: the consumer rolls the batch back and divides it until the failing message is
// alone in its transaction. Only then does the failure count, because in a batch the error of a
// queued statement can surface at a neighbour. The database counts each attempt at a message that
// is alone before the attempt runs, so a message that kills its process is found too. When the
// attempts are used up, the message is parked in the transaction that moves the position past it.
// [FailurePolicy] has two other choices. [ParkOrderingKey] sets aside the message at its first
// failure, and later ones with the same ordering key, and retries them from the database.
// [BlockPartition] never passes over a message.
//
// A handler that ends the transaction, swallows an error, panics or keeps the transaction: see
// package internal/guard. If a statement may fail by design, run it in [Tx].Savepoint.
//
// A slow handler: its context ends, which counts as a failure of its message. If it still does not
// return, the consumer cuts its connection, and the server rolls back. Its later statements are
// refused, and the partition continues on another connection. The handler's goroutine is lost until
// it returns; [Consumer.Healthy] reports it.
//
// Some faults need a decision: a database with a lost history, a topic created again, a log
// truncated or cut by retention, or a failing message under [BlockPartition]. The partition then
// halts with a [HaltError] that names the command to resolve it. Other partitions continue.
//
// # Parked messages
//
// Under [ParkOrderingKey] a failing message is parked, and so is every later message with the same
// ordering key. A second goroutine of the owner, the retrier, retries them through the same engine,
// beside the worker and under the same lease. Its transaction begins with onlyonce.settle, which
// settles the parked row as onlyonce.fence moves a position. An attempt that commits has settled
// its row. If the owner was replaced, settle raises. If the handler issues a COMMIT of its own, it
// is refused. The retrier takes a row only if its key has no earlier unsettled row.
//
// Worker and retrier do not lock ordering keys. Only the worker blocks a key, by parking a message,
// so a key that it finds free stays free until its transaction ends. Only the retrier frees one:
//
//	worker   reads "a-1 is not settled"                  parks a-2 behind it, COMMIT, promote(a)
//	retrier               applies a-1, COMMIT, promote(a)
//
// promote makes the first unsettled row of a key due. Of the two, the later to commit also calls
// promote later, and sees both rows. If the process dies in between, the next owner promotes every
// key when it begins.
//
// # Several transactions of a partition at once
//
// With Config.Concurrency several transactions of a partition run side by side, each in a slot.
// Each message done above the position has a row in onlyonce.done, inserted in the message's own
// transaction:
//
//	BEGIN
//	onlyonce.fence_slot      records these offsets as done, or raises OO001 or 23505
//	...                      as above
//	COMMIT
//	                         some time later: onlyonce.sweep moves the position over done messages
//
// The worker gives each slot the oldest messages whose ordering key is in no other slot. That is
// only a proposal; the database decides: two transactions with one offset do not both commit (the
// primary key), a message does not overtake an earlier one of its ordering key (the fence looks for
// it), and the position passes only done messages (the sweep compares). So a failover that loses
// the commits of one slot, a late attempt, or a deployment that changes the ordering key costs work
// or, at most, order within one window. The interleavings are in docs/rules, rules C1 to
// C8.
//
// # Several databases
//
// With a [shard.Set] each partition lives whole in one of several databases. The new danger is that
// two processes disagree about the database of a partition:
//
//	process 1 takes partition 3 for A's, process 2 for B's; Kafka has forgotten the offset
//	both decide a start; for a moment the group accepts both;
//	both apply the log from its beginning
//
// So before an owner first works on a partition, it writes its own cursor and then asks the other
// databases for a cursor of the partition. If one of them has it, the partition halts. See
// docs/scaling.md for the limits, and for how to move a partition.
//
// # Shutdown
//
// When ctx ends, Run takes no more messages and lets the current batch finish. The batch's context
// ends after Config.DrainTimeout; a handler that ignores its context gets HangTimeout more. Then
// Run commits the offsets, marks the cursors as cleanly released, leaves the group and returns nil.
// If an abandoned handler is still running, it returns [ErrHandlerHung]. See
// docs/operations/deploy.md, "How long a stop takes", for the sum of these bounds.
//
// Numbers in brackets, for example (D6), name rules of docs/rules: what each prevents, and
// the tests that fail without it.
package consumer
