// Package kafkasource reads Kafka topics for package consumer, using segmentio/kafka-go.
//
//	source := kafkasource.New(kafkasource.Config{
//		Brokers: []string{"localhost:9092"}, GroupID: "stock", Topics: []string{"orders"},
//	})
//	c, err := consumer.New(pool, source, consumer.HandlerFunc(handle), consumer.Config{
//		Scope: "stock", Key: consumer.HeaderKey("message-id"),
//	})
//
// A Source decides which partitions this process works on, and the database decides which process
// may commit. If a process wrongly believes that it owns a partition, the database fences it: that
// costs work, never an effect.
//
// # Membership
//
// Each Run is a member of the consumer group and lives through generations (kafka-go's
// ConsumerGroup and Generation). In a generation each assigned partition is handed over. A
// generation ends by a rebalance, because own returned, or because Run is to end. Every own then
// gets time to finish. Only when all have returned does the process join again or leave.
//
//	process A                                        process B
//	generation 7: owns 0 and 1
//	                                                 joins
//	heartbeat: a rebalance is on; contexts end
//	own(0), own(1) finish their batch and commit,
//	  in generation 7: still accepted, because no
//	  other member owns the partitions yet
//	  (heartbeats go on meanwhile)
//	joins; generation 8: owns 0                      generation 8: owns 1
//	a commit of generation 7, late: refused (22),
//	  which is ErrOwnershipLost
//
// kafka-go stops its heartbeats when a generation ends. This package sends its own until every own
// has returned, so that a drain may take longer than the session timeout. It may not take longer
// than the rebalance timeout, after which the coordinator continues without the member. See
// docs/operations/deploy.md, "How long a stop takes". Run itself waits as long as own takes. In a
// JoinGroup kafka-go may hang for as long as another member drains; Run interrupts it when it is to
// end.
//
// Offsets are committed, with metadata, in the generation to which the partition belongs and in no
// other. A commit is repeated while the coordinator moves, so it may be accepted twice.
//
// When own returns ErrOwnershipLost, because the database has another owner, the generation ends.
// The process joins the group again after a pause with jitter, which grows with each loss. If it
// joined at once, two processes that both believe that they own the partition would fence each
// other in turn for ever.
//
// New partitions are noticed within 5 s and cause a rebalance.
//
// # Fetch
//
// The source sends one fetch at a time for each partition, with a long poll of Config.FetchMaxWait,
// at isolation level read committed. Brokers stop at the last stable offset and list the aborted
// transactions, whose batches the source leaves out like Kafka's own client. The position passes
// over them, over control records and over holes. Checksums are verified. If a broker that has more
// returns an empty answer, for example because a quota is used up, the source asks again. If that
// does not help, it returns an error, never the end of the log.
//
// Positions have a meaning in one incarnation of a topic only. Suppose that a topic is deleted,
// created again, and written to beyond the position, all between two fetches. A reader would
// continue from its position without an error and skip the first records:
//
//	position 5; the topic is deleted, created and gets 8 records; fetch at 5 returns 5, 6, 7
//
// So fetches name the topic by its id (Fetch v13, brokers since 3.1), and such a fetch fails with
// source.ErrIncarnation. Brokers since 2.8 have ids but fetch by name. For them the source
// compares the id before the first fetch, after every error, and if more than a second has passed
// since the partition's last fetch. A topic that is deleted, created and written to beyond the
// position within that second, between two fetches that both succeed, is not noticed. Older brokers
// have no ids: Identity then returns a zero id, and the change is never noticed. Brokers before
// 0.11 are refused.
//
// When the leadership of a partition changes, the source asks the new leader how far its log goes
// in the leader epoch of the last record read (KIP-320). If an unclean election has cut off the log
// below the position, Fetch returns an OutOfRangeError with the end of the remaining log, even if
// other records were written beyond the position since. A process that takes a partition over asks
// the same with the leader epoch stored with the position (Partition.Verify). Out of range is
// reported only after it was confirmed by a broker that knows itself to be the leader, of the same
// incarnation.
//
// # Requirements
//
// Topics must exist when Run begins: otherwise brokers might create them and choose the number of
// partitions.
//
// Topics with cleanup.policy=compact are refused: compaction deletes unhandled records, and a
// reader cannot notice it. Package franzsource reads the remaining records of such a topic. The
// check needs the permission DescribeConfigs on the topic, besides Read and Describe. Without it
// Run fails with an error that says so, because an assumption would silently weaken the guarantee.
// A policy that changes during Run is not noticed; the remaining records are still read correctly.
//
// # Use of kafka-go
//
// The package uses ConsumerGroup and Generation; Transport, with its connections, TLS and SASL, for
// all other requests; and Client for OffsetCommit and OffsetFetch. kafka-go does not have some
// requests, or only in versions that are too old. The package writes and reads those with kmsg, a
// description of Kafka's protocol without a client, and sends them through the same Transport
// (protocol.RawExchanger). It reads answers about a partition's log with the same code as package
// franzsource (internal/kafkalog, internal/recordbatch). It does not use the rest, because:
//
//   - the group Reader commits offsets after a rebalance in the next generation, and loses its
//     place on errors (issues 1308, 1398), and ReadCommitted does not filter aborted records (issue
//     1332);
//   - Generation.CommitOffsets cannot send metadata;
//   - Client.Heartbeat reads its response's fields in the wrong order: error 22 arrives as a
//     throttle of 22 ms;
//   - protocol/fetch ends at v11, without topic ids. Its record batches hide the last offset, so
//     that a batch whose end was removed is returned again and again. They also hide the largest
//     timestamp, so that a topic with message.timestamp.type=LogAppendTime gets its producers'
//     times. And decoding stops without an error in the middle of a response;
//   - WatchPartitionChanges asks for metadata with auto-creation on, and so revives a topic just
//     deleted, on brokers that allow it. If a topic is missing it also ends each generation as soon
//     as it begins. (The leader of a group still asks that way, once in each rebalance.)
package kafkasource
