// Package kafkasink sends the outbox's calls to Kafka, by means of segmentio/kafka-go: each call is one record.
//
//	events, err := kafkasink.New(kafkasink.Config{Name: "events", Brokers: []string{"localhost:9092"}, Topics: []string{"orders"}})
//	relay, err := outbox.NewRelay(pool, outbox.RelayConfig{Sinks: []outbox.Sink{events}})
//
// and in a handler or a transaction of your own
//
//	err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "events", Name: "order-placed", Target: "/orders?key=17", Body: event})
//
// # What a record is
//
// Target is a slash, a topic, and optionally ?key= with the record key, percent-encoded, by which the partition is chosen as
// Java's clients choose it (murmur2), so that other producers of the topic agree. The key is part of the target, and not one of
// the headers, because it may hold any byte there, headers only visible ASCII; and because it says where the record goes. The
// value is the body; an empty one is an empty value and no tombstone. Headers are the call's, their names in lower case
// (content-type, ce_id), and message-id, which is the call's derived key: the same at each attempt. Method must be POST: a record
// has none. The timestamp is the attempt's.
//
// A call without a record key gets its partition from the derived key, so that all its attempts land in one partition, one
// behind the other, and are never handled at once.
//
// # What it promises, and its limits
//
// A call is delivered when the brokers have acknowledged it with acks=all. How many replicas that means is
// the topic's min.insync.replicas: with 1 and an unclean election an acknowledged record can still be lost.
//
// Records are written at least once. An attempt whose answer was lost is made again, and there are two records then, under one
// message-id. A consumer that takes it for the message's id applies it once:
//
//	consumer.Config{Scope: "stock", Key: consumer.HeaderKey(kafkasink.MessageID)}
//
// Inboxes of onlyonce forget ids when their horizon has passed: after 7 days in a new database. A call that may have been written is not written again
// after Config.KeyWindow, 6 days by default: set it below the shortest horizon of all consumers of the topics.
//
// # What an answer means
//
//	acknowledged                                                 delivered
//	too large, refused by a policy or a validation, no rights    rejected: parked for an operator
//	a topic that is not among Config.Topics                      rejected, without a call
//	a topic that the brokers say, for 3 s, they do not know      rejected
//	all else: no leader, too few replicas, no connection,
//	no answer within Timeout, a login that fails                 tried again: it may have been written
//
// # How it sends
//
// One request at a time is under way for a partition; calls that come meanwhile travel together in the next one, so that
// batches grow with the load, without waiting, and records are not reordered. A batch that is refused for its contents is
// divided, and only a record that stands alone is judged: no neighbour is parked for it. Whether a call may still be made
// is asked when the connection is there and the request is about to be written.
//
// The relay hands the sink as many calls at once as RelayConfig.Concurrency allows. Its default, 8, is meant for remotes that are called one by one: for
// Kafka take hundreds, up to 1,000, or requests hold a few records each.
//
// Not used is kafka-go's Writer: it asks for no acknowledgement by default, tries again by itself (attempts that nobody has
// journaled), and goes on sending after its caller has given up. With brokers before 0.11, whose records have no headers,
// it would drop message-id without an error; this package refuses them.
package kafkasink
