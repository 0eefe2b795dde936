// Package sqssink sends the outbox's calls to Amazon SQS, to standard and to FIFO queues. Each call
// becomes one message.
//
//	events, err := sqssink.New(sqs.NewFromConfig(cfg), sqssink.Config{
//		Name:      "events",
//		Queues:    []string{url},
//		KeyWindow: 6 * 24 * time.Hour,
//	})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
//
// and in a handler or a transaction of your own
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "events", Name: "order-placed", Target: "/orders.fifo", Body: event, OrderingKey: orderID,
//	})
//
// # Messages
//
// Target is a slash and the name of a queue. The message's body is the call's. Its attributes are
// the call's headers, in HTTP's canonical form, and [MessageID], which is the call's derived key
// and the same at each attempt. A body that is not text of the characters that SQS takes is sent as
// base64, with the attribute Content-Transfer-Encoding, which package sqsqueue decodes. A call must
// not have that header itself. Method must be POST, because a message has none.
//
// In a FIFO queue MessageDeduplicationId is the derived key too. MessageGroupId is derived from the
// call's ordering key, scope and tenant. A call without an ordering key is a group of its own.
//
// # Guarantees and limits
//
// A call is delivered when SQS has answered with a MessageId. If the answer is lost, the relay
// makes another attempt under the same id. A FIFO queue recognises it within five minutes. After
// that, and in a standard queue always, there are two messages, and a consumer recognises them by
// their id: package queue with sqsqueue does, for as long as its inbox remembers ids. Set
// Config.KeyWindow below the shortest horizon of all consumers, less the time for which a message
// may wait in a queue, or, if they have no inbox, to five minutes for FIFO queues.
//
// The relay sends calls of one ordering key one after another. Others share requests of up to 10.
// All queues of a sink share its slots (RelayConfig.Concurrency): give a queue that may not answer
// for long a sink of its own.
// A message has at most 10 attributes, and 1 MiB with them. The trace context is one or two of
// them, and left out if there is no room.
//
// # Answers
//
//	taken, as a copy too                                        delivered
//	a queue outside Config.Queues, a bad target, header or body rejected, without a call
//	refused: the queue's MaximumMessageSize, bad contents       rejected: parked for an operator
//	no connection, no queue, no right, throttled (4xx)          tried again: it was not stored
//	all else: no answer, 5xx                                    tried again: it may have been stored
//
// # Rights
//
// sqs:SendMessage on the queues, and kms:GenerateDataKey and kms:Decrypt on the key of an encrypted
// one.
package sqssink
