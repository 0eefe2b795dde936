// Package rabbitqueue lends messages of a RabbitMQ quorum queue to package queue, by a consumer
// with explicit acknowledgements.
//
//	broker := rabbitqueue.New("amqps://stock:secret@rabbit/", rabbitqueue.Config{Queue: "orders"})
//	q, err := queue.New(pool, broker, queue.Config{Name: "orders", CopiesWithin: 7 * 24 * time.Hour})
//
// It connects by itself, and again after each failure.
//
// # Identity
//
// The id is the message's message-id. The producer sets it, so it survives the producer's retry. A
// message without one has nothing that its redelivery shares: it is parked, reason no-key, as often
// as it is delivered. To take an id from a header or the body, set queue.Config.Identify. It sets
// the ordering key too, for example to the header Amqp-Routing-Key.
//
// # Delivery
//
// A delivery is ours until its channel is closed. If the server's consumer_timeout passes (30
// minutes), for example because the database is away, the server closes the channel, and the
// message comes again and is a copy. An acknowledgement that comes after the end of its channel
// fails and acknowledges nothing; so the client's own recovery, which renews a channel in secret,
// is refused.
//
// The server counts deliveries, and drops a message, or moves it to the dead-letter exchange, when
// it has been delivered more often than the queue's limit. Each end of a session counts. So a queue
// with a limit is refused: x-delivery-limit must be -1, or before RabbitMQ 4 absent, where there is
// no limit. A client does not see a limit that a policy sets, which counts even if the argument is
// -1: see Config.NoLimitByPolicy.
//
// Acknowledgements are not confirmed. One that is lost has the message come again.
//
// A message that cannot be stored is parked, or stays with the server; it is never rejected.
//
// # Order
//
// Without queue.Config.Ordered there is none: the messages that a dead process held come again
// behind those that others have received meanwhile. With it, the queue must have a single active
// consumer. The server activates a receiver when the one before it is gone, and delivers first what
// that one had, in its order. So messages are stored in the queue's order. A process that is
// suspended, or cut off, is gone after two missed heartbeats (Config.Client, 10 s by default).
//
// No other program may consume the queue: one that gives messages back moves them behind others.
//
// # Headers
//
// The message's headers, sorted by name: numbers as text, tables and lists as JSON. Then
// Content-Type and Content-Encoding, and as Amqp-Type, Amqp-App-Id, Amqp-Correlation-Id,
// Amqp-Reply-To, Amqp-Exchange and Amqp-Routing-Key the properties that are set.
//
// # Rights
//
// Read and configure on the queue. The receiver declares the queue as it is, so that the server
// compares its type and its arguments, and changes nothing.
package rabbitqueue
