// Package queue applies messages of any broker once: NATS, RabbitMQ and others, which remember
// message ids only briefly or not at all.
//
// # Concept
//
// A queue is a sender whose 200 is an acknowledgement. A receiver takes messages from a [Broker],
// stores each once in the event log, and acknowledges them after COMMIT. A consumer applies the
// stored messages, with everything that it has for Kafka: one transaction with the handler's
// effects, order by key, parking, retries, halts, replays and the console.
//
//	receive up to Config.Batch deliveries   the broker lends them
//	BEGIN
//	onlyonce.claim            claims all ids, and waits for uncommitted copies
//	the fresh ones into the log; messages without an id, or with the id of another body, are parked
//	onlyonce.seal             allows the COMMIT
//	COMMIT
//	acknowledge
//	consumer                  the handler's transaction, as with Kafka
//
// So no deadline and no delivery count of the broker depends on how long a handler takes, and a
// broker that is away stops nothing that is stored. It costs one more write of each message. To run
// a handler in the receiving transaction, use dedupe.Do in a loop of your own.
//
// # Use
//
//	q, err := queue.New(pool, broker, queue.Config{Name: "orders", CopiesWithin: 72 * time.Hour})
//	c, err := consumer.New(pool, q, consumer.HandlerFunc(handle), consumer.Config{Scope: "stock"})
//	err = c.Run(ctx) // receives and applies
//
// A process that only receives calls [Queue.Receive]. One that only applies gives [New] no broker.
//
// A handler finds the id in [consumer.Message.ID], and the tenant, the ordering key, the headers
// and the body as the broker had them. Partition and offset are those of the event log.
//
// # Identity
//
// The one thing to decide is [Delivery].ID: is it the same when the producer sends again? The
// adapter's documentation says what it takes by default. Config.Identify chooses another one. A
// message without an id cannot be told from its copies: it is parked whole, as often as it is
// delivered. The id of another body is a conflict; each such body is parked once.
//
// # What goes wrong
//
// An acknowledgement is lost: the broker delivers again, and the receiver finds the id (Q2). An
// answer to COMMIT is lost: the receiver claims the ids again on another connection, which shows
// whether they are stored (Q1).
//
// The database is away: the receiver holds what it has received and takes no more. It does not give
// messages back, because each delivery counts against the limit after which some brokers drop a
// message (Q3). Only with Config.Ordered it does so once, when its lease has ended, because another
// process may have the place. If the broker's ack deadline passes meanwhile, the message comes
// again, and is a copy.
//
// The broker is away, or its queue is gone: the receiver begins again with growing waits, up to 30
// s. [Queue.Healthy] says so. Stored messages are applied meanwhile.
//
// A failover loses commits: messages that were acknowledged after such a commit are lost, because
// the broker has forgotten them. Use a synchronous standby. If it is away for longer than 30 s,
// COMMIT ends without it, and the messages are acknowledged.
//
// The broker acknowledges nothing: every message comes again for ever. Batches of nothing but
// copies are followed by a wait of up to 250 ms.
//
// The database does not take a message, for example because a trigger of yours raises an error: it
// is parked. If it cannot be parked either, it is not acknowledged: the other messages of its batch
// are, Healthy names the error, and the message comes again (Q4). With Config.Ordered it holds up
// the later ones until the database takes it.
//
// # One database
//
// A Queue stores in one database. With several (package shard), each needs a queue of its own at
// the broker, and a Queue for that: all copies of a message must come to the same database.
//
// # Order
//
// Messages of one key are handled in the order in which they were stored. With Config.Ordered that
// is the broker's order; without it, receivers that work side by side, and messages that come
// again, mix it (Q5).
package queue
