// Package consumer applies each message of a stream once.
//
// Streams deliver at least once. After a crash, a rebalance or a lost answer, the same record comes
// again. A producer that retries writes the same message to another offset. A [Consumer] runs a
// handler for each message in a database transaction. The record that the message was processed
// commits in the same transaction as the handler's writes:
//
//	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
//		tx.Queue(`update stock set held = held + 1 where sku = $1`, string(m.Value))
//		return nil
//	}
//	c, err := consumer.New(pool, source, handle,
//		consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
//	...
//	err = c.Run(ctx) // until ctx is done
//
// A [BatchHandler] gets all messages of a transaction at once, for writes of whole sets, for
// example with COPY.
//
// # Two records of what was processed
//
// The cursor holds the position in each partition. A batch moves it from the position that its
// owner knows to the next one, in the batch's own transaction. The database decides which position
// counts, not Kafka's committed offset. That alone makes redeliveries harmless, and needs no memory
// of old messages.
//
// The inbox holds the keys that producers gave to their messages. It finds copies at other offsets
// for as long as the keys are remembered. Consumers have their own rings of it, one for each class
// of horizon ([Config.Horizon]; by default consumer_keys), so a key that dedupe.Claim has claimed
// is unknown here.
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
// All of it is one pipeline with as few round trips as the handler allows; see package
// internal/guard. A statement that shares a round trip with COMMIT must raise if its condition does
// not hold. For example, an UPDATE that matches no row is no error: the COMMIT that was sent with
// it would go through.
//
// # What it defends against
//
// If the process is killed before COMMIT, nothing has happened. The next owner reads the position
// and fetches the same messages.
//
// If it is killed after COMMIT, but before Kafka's offset is committed, the next owner continues
// from the database's position. It does the same if the group's offsets were reset or have expired.
//
// A zombie: process A is suspended in the middle of a batch, and its partition goes to B. B raises
// the epoch of the cursor's lease. The raise waits for a transaction of A's that has passed the
// fence. After the raise, each fence of A's raises an error. If A had sent a batch in one pipeline
// with its COMMIT, the batch commits nothing.
//
// Two members that both believe they own a partition: to raise an epoch, a process needs a proof of
// membership that is newer than its read of that epoch. The proof is an offset commit in the
// member's own generation, which only a member can make. A process raises at most once in a
// generation. If it is fenced after that, it leaves the generation.
//
// An answer to COMMIT that never comes: the outcome is unknown, and reading the table proves
// nothing, because the old transaction may still arrive. So the consumer runs the batch again,
// through the fence. The fence waits for the old transaction, and raises if that one committed.
// Then the consumer reads the position. If it is the one that the attempt would have set, and the
// lease is still its own, the batch had committed.
//
// A handler that fails: the consumer rolls the batch back and divides it until the failing message
// is alone in its transaction. Only then does the failure count, because in a batch the error of a
// queued statement can surface at a neighbour. Attempts at a message that is alone are counted in
// the database before they run, so that a message that kills its process is found too. When the
// attempts are used up, the message is parked in the transaction that moves the position past it.
// [FailurePolicy] has two other choices. One sets aside, from the first failure, the message and
// later ones with the same ordering key, and retries them from the database. The other never passes
// over a message.
//
// A handler that ends the transaction, swallows an error, panics or keeps the transaction: see
// package internal/guard. If a statement may fail by design, run it in [Tx].Savepoint.
//
// A handler that is slow: its context ends, which counts as a failure of its message. If it does
// not return even then, the consumer cuts its connection, so that the server rolls back. Anything
// that it still tries with its transaction is refused, and the partition continues on another
// connection. The handler's goroutine is lost until it returns; [Consumer.Healthy] reports it.
//
// Some faults need a decision: a database that lost its history, a topic that was created again, a
// log that was truncated or cut by retention, or a message that fails if no message may be passed
// over. The partition then halts with a [HaltError] that names the command to resolve it. Other
// partitions continue.
//
// # What is parked
//
// Under [ParkOrderingKey] a message that fails is parked, and so is every later message with the
// same ordering key. A second goroutine of the owner, the retrier, tries them again through the
// same engine, beside the worker and under the same lease. Its transaction begins with
// onlyonce.settle, which settles the parked row in the way that onlyonce.fence moves a position. If
// the attempt commits, it has settled its row. If the owner was replaced, settle raises. If the
// handler issues a COMMIT of its own, it is refused. The retrier takes a row only if its key has no
// earlier row that is unsettled.
//
// Worker and retrier do not lock ordering keys. Only the worker blocks a key, by parking a message,
// so a key that it finds free stays free until its transaction ends. Only the retrier frees one:
//
//	worker   reads "a-1 is not settled"                  parks a-2 behind it, COMMIT, promote(a)
//	retrier               applies a-1, COMMIT, promote(a)
//
// promote makes the first unsettled row of a key due. Whichever of the two commits later also calls
// promote later, and sees both rows. If the process dies in between, the next owner promotes every
// key when it begins.
//
// # Several transactions of a partition at once
//
// With Config.Concurrency several transactions of a partition run side by side, each in a slot.
// What they have done above the position is in onlyonce.done, a row for each message, inserted in
// the message's own transaction:
//
//	BEGIN
//	onlyonce.fence_slot      records these offsets as done, or raises OO001 or 23505
//	...                      as above
//	COMMIT
//	                         some time later: onlyonce.sweep moves the position over what is done
//
// The worker's goroutine gives each slot the oldest messages whose ordering key no other slot has
// in its hands. That is a proposal, like everything that a process remembers. The database decides:
// two transactions with one offset do not both commit (the primary key), a message does not
// overtake an earlier one of its ordering key (the fence looks for it), and the position passes
// nothing that is not done (the sweep compares). So a failover that loses the commits of one slot,
// an attempt that arrives late, or another ordering key after a deployment cost work or, at most,
// order within one window. The interleavings are in docs/guarantees.md, rules C1 to C8.
//
// # Several databases
//
// With a [shard.Set] each partition lives in one of several databases, and all of it is there. The
// consumer is otherwise the one described here. The new danger is that two processes
// disagree about the database of a partition:
//
//	process 1 takes partition 3 for A's, process 2 for B's; Kafka has forgotten the offset
//	both decide a start; both are believed by the group, for a moment;
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
// If an abandoned handler is still running, it returns [ErrHandlerHung]. See docs/operations.md,
// "How long a stop takes", for the sum of these bounds.
package consumer
