// Package rabbitsink sends the outbox's calls to an exchange of RabbitMQ. Each call becomes one
// message.
//
//	events, err := rabbitsink.New("amqps://shop:secret@rabbit/", rabbitsink.Config{
//		Name:      "events",
//		Exchange:  "orders",
//		KeyWindow: 6 * 24 * time.Hour,
//	})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
//
// and in a handler or a transaction of your own
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "events", Name: "order-placed", Target: "/placed.eu", Body: event,
//	})
//
// # Messages
//
// Target is a slash and a routing key, percent-encoded. The payload is the body. The message is
// persistent, and its message-id is the call's derived key, the same at each attempt. Headers are
// the call's, in HTTP's canonical form; Content-Type and Content-Encoding are properties. Method
// must be POST, because a message has none.
//
// # Guarantees and limits
//
// A call is delivered when the server has confirmed it, which for a quorum queue is once a majority
// of its replicas has it. A message that no queue takes is no success: it is published as
// mandatory, and the server returns it.
//
// If a confirmation is lost, the relay makes another attempt under the same message-id. RabbitMQ
// recognises no copies: a consumer does by the id, for example package queue with rabbitqueue, for
// as long as its inbox remembers ids. Set Config.KeyWindow below the shortest horizon of all
// consumers, less the time for which a message may wait in a queue.
//
// Messages of one ordering key are published one after another.
//
// # Answers
//
//	confirmed                                          delivered
//	a bad target or header                             rejected, without a call
//	larger than the server's max_message_size          rejected: parked for an operator
//	no connection, exchange or right; no queue is bound   tried again: it was not stored
//	all else: a queue is full and refuses it, no answer   tried again: it may have been stored
//
// While the server blocks publishers, because it has no memory or disk left, no call is made.
//
// # Rights
//
// Write on the exchange.
package rabbitsink
