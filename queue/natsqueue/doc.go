// Package natsqueue lends messages of NATS JetStream to package queue, by a durable pull consumer
// with explicit acknowledgements.
//
//	js, err := jetstream.New(nc)
//	broker := natsqueue.New(js, natsqueue.Config{Stream: "ORDERS", Durable: "stock"})
//	q, err := queue.New(pool, broker, queue.Config{Name: "orders", CopiesWithin: 7 * 24 * time.Hour})
//
// # Identity
//
// The id is the header Nats-Msg-Id. It survives a producer's retry, and its copies are found for as
// long as the inbox remembers ids, and not only within the stream's duplicate window. A message
// without the header gets an id of the stream's name, the time of its creation, the message's
// sequence and the time at which it was stored: that finds what the server delivers again, and not
// what a producer publishes a second time. The first such message is logged at WARN. To take an id
// from the body, set queue.Config.Identify.
//
// # Delivery
//
// A delivery is ours for the consumer's AckWait. Nothing extends it: if the database is away for
// longer, the message comes again, and is a copy. A late acknowledgement counts. The server counts
// deliveries; the consumer must have no MaxDeliver, or the server would drop messages while the
// database is away. It must have no BackOff, whose length is its limit of deliveries. It must have
// no InactiveThreshold, after which the server deletes it, and no MemoryStorage, which a restart
// forgets: a new consumer delivers all of the stream again, however old.
//
// Acknowledgements of a batch are sent together and confirmed by one round trip to the server that
// the client is connected to. One that is lost between servers has the message come again.
//
// A message that cannot be stored is parked, or stays with the server; it is never terminated.
//
// A receiver does not begin if queue.Config.CopiesWithin is shorter than the stream's MaxAge, nor
// if the consumer is missing and the stream's oldest message of Config.Subjects is older: the
// consumer that it would make delivers all of them. If that is what you want, make it yourself.
//
// # Order
//
// Without queue.Config.Ordered there is none: the messages that a dead process held come again
// after AckWait, behind later ones. With it, Begin waits AckWait if messages are outstanding, and
// then takes all of them, sorted by their sequence, before anything else is delivered. A delivery
// to somebody else shows as a gap in the consumer's sequence, and begins the session again. So
// messages are stored in the stream's order. It holds up to MaxAckPending messages in memory.
//
// # Headers
//
// The message's headers, sorted by name, and Nats-Subject with its subject.
//
// # Rights
//
// Publish on $JS.API.STREAM.INFO.STREAM, $JS.API.CONSUMER.INFO.STREAM.DURABLE,
// $JS.API.CONSUMER.MSG.NEXT.STREAM.DURABLE and $JS.ACK.STREAM.DURABLE.>, and subscribe to the
// client's inbox. To create the consumer: publish on $JS.API.CONSUMER.CREATE.STREAM.DURABLE and
// what is below it. If it is there, it is compared and never changed.
package natsqueue
