// Package sqsqueue lends messages of Amazon SQS to package queue, of standard and of FIFO queues.
//
//	broker := sqsqueue.New(sqs.NewFromConfig(cfg), sqsqueue.Config{QueueURL: url, ID: "message-id"})
//	q, err := queue.New(pool, broker, queue.Config{Name: "orders", CopiesWithin: 4 * 24 * time.Hour})
//
// # Identity
//
// Config.ID names what is the id: an attribute that the producer sets, or [DeduplicationID] of a
// FIFO queue. Both survive the producer's retry, and copies are found for as long as the inbox
// remembers ids, and not only within SQS's five minutes. To take an id from the body, set
// queue.Config.Identify. A message without an id is parked.
//
// [DeliveryID] finds what SQS delivers again, and not what a producer sends a second time, nor what
// comes back from a dead-letter queue: SQS gives each send a MessageId of its own.
//
// A queue with ContentBasedDeduplication is refused with [DeduplicationID], because SQS computes
// that from the body: the second of two messages with the same body would be skipped, days later
// too. If DeduplicationScope is messageGroup, the id is the group, a space and the deduplication
// id: do not change the scope while copies may come.
//
// # Delivery
//
// A delivery is ours for the queue's VisibilityTimeout. Nothing extends it: if the database is away
// for longer, the message comes again, and is a copy. A late delete of a FIFO queue's message
// fails, and one of a standard queue may delete nothing: in both cases the message comes again. A
// delete that failed begins the session again, with a growing wait, and [queue.Queue.Healthy] says
// so.
//
// SQS counts deliveries. A queue with a redrive policy must have a maxReceiveCount of 1,000, the
// most that SQS takes: while the database is away, each process may receive a message once, and SQS
// would move it to the dead-letter queue unstored. A message that cannot be stored is parked, or
// stays with SQS.
//
// A copy may come for as long as the queue keeps a message: a receiver does not begin if
// queue.Config.CopiesWithin is shorter than MessageRetentionPeriod, 4 days by default and 14 at
// most. A message that is moved back from a dead-letter queue is kept anew.
//
// # Order
//
// A delivery of a FIFO queue has its MessageGroupId as ordering key. While SQS has a message of a
// group outstanding it delivers no later one, and what is not deleted comes again first. So the
// order of a group is kept with any number of receivers. queue.Config.Ordered adds a lease, and
// that a message which can be neither stored nor parked holds up the later ones of its batch. A
// standard queue has no order, and is refused with queue.Config.Ordered; to apply its messages by
// key in the order of storing, set the key in queue.Config.Identify.
//
// # Headers and body
//
// The message's attributes, sorted by name, then [DeduplicationID], [GroupID] and [DeliveryID]. SQS
// takes only text: a body with the attribute Content-Transfer-Encoding: base64 is decoded, and the
// attribute left out.
//
// # Rights
//
// sqs:GetQueueAttributes, sqs:ReceiveMessage and sqs:DeleteMessage on the queue, and kms:Decrypt on
// the key of an encrypted one.
package sqsqueue
