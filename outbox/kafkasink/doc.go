// Package kafkasink sends the outbox's calls to Kafka, using segmentio/kafka-go. Each call becomes
// one record.
//
//	events, err := kafkasink.New(kafkasink.Config{
//		Name: "events", Brokers: []string{"localhost:9092"}, Topics: []string{"orders"},
//		KeyWindow: 6 * 24 * time.Hour,
//	})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
//
// and in a handler or a transaction of your own
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{
//		Sink: "events", Name: "order-placed", Target: "/orders?key=17", Body: event,
//	})
//
// # Records
//
// Target is a slash, a topic, and optionally ?key= with the record key, percent-encoded. The key
// chooses the partition as Java's clients choose it (murmur2), so that other producers of the topic
// agree. The key is in the target because it says where the record goes, and because it may hold
// any byte there; headers hold visible ASCII only.
//
// The value is the body. An empty body is an empty value and not a tombstone. Headers are the
// call's, with names in lower case (for example content-type, ce_id), and message-id, which is the
// call's derived key and the same at each attempt. Method must be POST, because a record has none.
// The timestamp is the attempt's.
//
// A call without a record key gets its partition from the derived key. All its attempts then land
// in one partition, in order, and a consumer never handles two of them at once.
//
// # Guarantees and limits
//
// A call is delivered when the brokers have acknowledged it with acks=all. The topic's
// min.insync.replicas decides how many replicas that means: with 1 and an unclean election, an
// acknowledged record can still be lost.
//
// Records are written at least once. If an answer is lost, the relay makes another attempt, and
// there are two records with one message-id. A consumer that uses it as the message's id applies
// the message once:
//
//	consumer.Config{Scope: "stock", Key: consumer.HeaderKey(kafkasink.MessageID)}
//
// Inboxes of onlyonce forget ids after their horizon, which is 7 days in a new database. A call
// that may have been written is not written again after Config.KeyWindow: set it below the shortest
// horizon of all consumers of the topics.
//
// # Answers
//
//	acknowledged                                                 delivered
//	too large, refused by a policy or a validation, no rights    rejected: parked for an operator
//	a topic that is not among Config.Topics                      rejected, without a call
//	a topic that the brokers do not know for 3 s                 rejected
//	no connection, a login that fails, too few replicas          tried again: it was not written
//	all else: no leader, no answer within Timeout                tried again: it may have been written
//
// # Sending
//
// The sink sends one request at a time for a partition. Calls that arrive meanwhile travel together
// in the next request. Batches therefore grow with the load, without waiting, and records are not
// reordered. If the broker refuses a batch for its contents, the sink sends its records one by one,
// so that no record is parked because of another. The sink checks whether a call may still be sent
// once the connection exists, right before it writes the request.
//
// The relay gives the sink as many calls at once as RelayConfig.Concurrency allows. Its default, 8,
// is meant for remotes that take calls one by one. For Kafka use hundreds, up to 1,000: otherwise
// each request holds only a few records.
//
// The sink does not use kafka-go's Writer. By default the Writer asks for no acknowledgement,
// repeats attempts that the journal does not know, and continues to send after its caller has given
// up. It would also drop message-id without an error with brokers before 0.11, whose records have
// no headers; this package refuses such brokers. Nor does it use franz-go's producer, which does
// not let a caller check, right before a request is written, whether its calls may still be sent.
package kafkasink
