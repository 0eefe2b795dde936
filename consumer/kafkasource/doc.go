// Package kafkasource reads Kafka topics for package consumer, by means of segmentio/kafka-go.
//
//	source := kafkasource.New(kafkasource.Config{Brokers: []string{"localhost:9092"}, GroupID: "stock", Topics: []string{"orders"}})
//	c, err := consumer.New(pool, source, handle, consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
//
// A Source decides which partitions this process works on. What may be done with their messages is decided in the database: a
// process that wrongly takes itself for an owner is fenced there, and costs work, never an effect.
//
// # Membership
//
// Each Run is a member of the consumer group, and lives through generations (kafka-go's ConsumerGroup and Generation). In a
// generation each assigned partition is handed over; when the generation ends, by a rebalance, by own's word or because Run
// is to end, every own is given time to finish, and only when all have returned is the group joined again or left.
//
//	process A                                        process B
//	generation 7: owns 0 and 1
//	                                                 joins
//	heartbeat: a rebalance is on; contexts end
//	own(0), own(1) finish their batch and commit,
//	  in generation 7: still accepted, because
//	  nobody else owns the partitions yet
//	  (heartbeats go on meanwhile)
//	joins; generation 8: owns 0                      generation 8: owns 1
//	a commit of generation 7, late: refused (22),
//	  which is ErrOwnershipLost
//
// kafka-go stops its heartbeats when a generation ends. This package sends its own until every own has
// returned, so that a drain may take longer than the session timeout; but not longer than the rebalance timeout, after
// which the coordinator goes on without the member. What a drain may take is in docs/operations.md, "How long a
// stop takes". Run itself waits as long as own takes. A JoinGroup, in which kafka-go may hang for as long as another member
// drains, is interrupted when Run is to end.
//
// Offsets are committed in the generation to which the partition belongs, never in another, and with metadata. A commit is
// repeated while the coordinator moves, so it may be accepted twice.
//
// When own returns ErrOwnershipLost (the database has another owner), the generation ends after a pause with
// jitter that grows with each loss, and the group is joined anew. Joining at once, two processes that both
// believe in their ownership would fence each other in turns for ever.
//
// New partitions are noticed within Config.PartitionWatchInterval and lead to a rebalance.
//
// # Fetch
//
// Fetches are sent one at a time and partition, with a long poll of Config.FetchMaxWait, at isolation level read committed: brokers stop
// at the last stable offset and list the aborted transactions, whose batches are left out as Kafka's own client does it. The
// position passes over them, over control records, and over holes. Checksums are verified. An empty answer from a broker
// that has more (a quota is used up) is asked again, and then an error, never the end of the log.
//
// Positions are meaningful in one incarnation of a topic only. A topic that is deleted and created again between two
// fetches, and written to beyond the position, would be read on from there, with no error and its first records
// skipped:
//
//	position 5; the topic is deleted, created and gets 8 records; fetch at 5 returns 5, 6, 7
//
// So fetches name the topic by its id (Fetch v13, brokers since 3.1), and such a fetch fails, with consumer.ErrIncarnation.
// Brokers since 2.8 have ids but fetch by name: there the id is compared before the first fetch, after every error, and when more
// than a second has passed since the last fetch of the partition. What remains is a topic that is deleted, created and written
// to beyond the position within that second, between two fetches that both succeed. Older brokers have no ids:
// Identity then returns a zero one, and nothing notices. Brokers before 0.11 are refused.
//
// When the leadership of a partition changes, the new leader is asked how far its log goes in the leader epoch of the record
// read last (KIP-320). If an unclean election has cut it off below the position, Fetch returns an OutOfRangeError with
// the end of what is left, also where others have written beyond the position since. Whoever takes a partition over asks the same with the
// leader epoch that is stored with the position (Partition.Verify). Out of range is reported only after a
// broker that knows itself to be the leader, of the same incarnation, has confirmed it.
//
// # What is refused
//
// Topics that do not exist when Run begins: brokers may create topics that are asked for, and choose the number of
// partitions. Topics with cleanup.policy=compact, because compaction deletes records that were not handled yet, and nothing tells a
// reader that they were there: package franzsource reads what is left of such a topic. That takes the permission DescribeConfigs on the topic, beside Read and Describe; without it Run
// fails and says so, since an assumption would be a silent choice of a weaker guarantee. A policy changed while Run runs is not
// noticed; records that are left are still read right.
//
// # What of kafka-go is used, and what not
//
// Used: ConsumerGroup and Generation; Transport, with its connections, TLS and SASL, for all other requests; Client for
// OffsetCommit and OffsetFetch. Requests that kafka-go has not, or in versions that are too old,
// are written and read with kmsg, a description of Kafka's protocol without a client, and travel through the
// same Transport (protocol.RawExchanger). What they say about a partition's log is read as in package franzsource, by the same code
// (internal/kafkalog, internal/recordbatch). Not used, because:
//
//   - the group Reader commits offsets after a rebalance in the next generation, and loses its place on errors (issues 1308, 1398), and
//     ReadCommitted does not filter aborted records (issue 1332);
//   - Generation.CommitOffsets cannot send metadata;
//   - Client.Heartbeat reads its response's fields in the wrong order: error 22 arrives as a throttle of 22 ms;
//   - protocol/fetch ends at v11, without topic ids, and its record batches hide the last offset, so that a batch whose end was
//     removed is returned again and again, and the largest timestamp, so that a topic with
//     message.timestamp.type=LogAppendTime gets its producers' times; and decoding stops without an error in the middle of a
//     response;
//   - WatchPartitionChanges asks for metadata with auto-creation on, and so revives a topic that was just deleted, on brokers
//     that allow it; and where a topic is missing it ends each generation as soon as it begins. (The leader of a group
//     still asks that way, once in each rebalance.)
package kafkasource
