// Package consumer applies each message of a stream once.
//
// Messages are delivered at least once: after a crash, a rebalance or a lost answer the same record comes again, and a
// producer that retries writes the same message to another offset. A [Consumer] runs a handler for each message in a
// database transaction, and commits with the handler's writes the record that the message was processed:
//
//	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
//		tx.Queue(`update stock set held = held + 1 where sku = $1`, string(m.Value))
//		return nil
//	}
//	c, err := consumer.New(pool, source, handle, consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
//	...
//	err = c.Run(ctx) // until ctx is done
//
// A [BatchHandler] gets all messages of a transaction at once, for writes that are made of sets.
//
// # Two records of what was processed
//
// The cursor holds the position in each partition. A batch moves it from the position that its owner knows to the next, in the
// batch's own transaction; the database, and not Kafka's committed offset, says where a partition stands. That alone makes
// redeliveries harmless, and needs no memory of old messages. The inbox holds keys that producers gave to their messages, and finds copies at
// other offsets for as long as they are remembered. Consumers have a ring of it for themselves (consumer_keys): what dedupe.Claim has claimed is not known here.
//
// # One batch
//
//	BEGIN
//	onlyonce.fence      moves the position from expected to next, or raises OO001
//	onlyonce.claim_consumer  tells which keys are new (or, as claim_consumer_fresh, raises 23505 unless all are)
//	the handler's statements, and those that set messages aside
//	onlyonce.seal       judges deferred constraints, and allows the COMMIT
//	COMMIT
//	                  and, some time later, Kafka's offset, in this generation of the group only
//
// All of it is one pipeline with as few round trips as the handler allows; see package internal/guard. Whatever shares a round
// trip with COMMIT raises where it does not hold. An UPDATE that matches no row is no error, and the COMMIT behind it,
// which is on its way already, would go through.
//
// # What it defends against
//
// Killed before COMMIT: nothing happened. The next owner reads the position and fetches the same messages.
//
// Killed after COMMIT, before Kafka's offset is committed: the next owner goes on from the database's position. The same
// when the group's offsets were reset, or have expired.
//
// A zombie: process A is stopped in mid-batch, its partition goes to B. B raises the epoch of the cursor's lease; the raise
// waits for a transaction of A's that has passed the fence, and when it is through, every fence of A's raises. A batch that A
// had pipelined with its COMMIT commits nothing.
//
// Two members that both believe to own a partition: a raise needs proof of membership that is newer than the read of the
// epoch it raises. The proof is an offset commit in the member's own generation: only a member can make one. A process
// raises once in a generation; when it is fenced after that, it leaves the generation.
//
// An answer to COMMIT that never comes: nobody knows the outcome, and a look at the table proves nothing, because the old
// transaction may still arrive. So the batch is run again, through the fence: it waits for the old transaction and
// raises if that one committed. Then the position is read: where the attempt was to bring it, and still mine, means success.
//
// A handler that fails: the batch is rolled back and divided, until the message that fails stands alone, and only then
// is it judged. In a batch, a queued statement's error surfaces at a neighbour. Attempts at a message that stands
// alone are counted in the database before they run, so that a message which kills its process is found too; when
// they are used up, the message is parked in the transaction that moves the position over it. [FailurePolicy] has the other
// choices: to set aside at once what comes behind it by the same ordering key, and try both again from the database, or to
// pass over nothing.
//
// A handler that ends the transaction, swallows an error, panics, keeps the transaction: see package internal/guard. What may
// fail by design goes into [Tx].Savepoint.
//
// A handler that is slow: its context ends, which counts as a failure of its message. One that does not return even then is
// left behind: its connection is cut, so that the server rolls back, and whatever it still tries with its transaction
// is refused; the work goes on with another. Its goroutine is lost until it returns, and [Consumer.Healthy] tells.
//
// A database that lost its history, a topic that was created again, a log that was truncated or cut by retention, a message that
// cannot be applied where none may be passed over: the partition halts with a [HaltError] that names the command which resolves it, and others go on.
//
// # What is parked
//
// Under [ParkOrderingKey] a message that fails is parked, and every later one of its ordering key behind it. A second goroutine
// of the owner, the retrier, tries them again through the same engine, beside the worker and under the same lease. Its
// transaction begins with onlyonce.settle, which settles the row as onlyonce.fence moves a position: so an attempt that commits has
// settled its row, one of an owner that was replaced raises, and a COMMIT of the handler's own is refused. A row is
// taken only while no unsettled one of its key stands before it.
//
// Worker and retrier do not lock ordering keys. What blocks a key is what the worker parks, so a key that it finds free
// stays free until its transaction ends. What frees one is the retrier:
//
//	worker   reads "a-1 is not settled"                  parks a-2 behind it, COMMIT, promote(a)
//	retrier               applies a-1, COMMIT, promote(a)
//
// promote makes the first unsettled row of a key due. Whichever of the two commits later calls it later, and sees both. A process
// that dies in between leaves it to the next owner, which promotes every key when it begins.
//
// # Several databases
//
// With [Shards] each partition lives in one of several databases, and is whole there; a [NewSharded] consumer is otherwise the one described
// here. What is new is that two processes may have different ideas of where a partition lives:
//
//	process 1 takes partition 3 for A's, process 2 for B's; Kafka has forgotten the offset
//	both decide a start; both are believed by the group, for a moment; both apply the log from its beginning
//
// So before a partition is first worked on, its owner asks the other databases for a cursor of it, after its own is written, and halts if
// there is one. docs/scaling.md has the limits, and how a partition moves.
//
// # Shutdown
//
// When ctx ends, Run takes no more messages, lets the batch in hand finish (its context ends after Config.DrainTimeout; HangTimeout more for
// a handler that does not look at it), commits the offsets, marks the cursors as let go in order, leaves the
// group and returns nil, or [ErrHandlerStuck] where a handler that was left behind is still running. docs/operations.md, "How long a stop
// takes", has the sum of its bounds.
package consumer
