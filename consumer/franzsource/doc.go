// Package franzsource reads Kafka topics for package consumer, using twmb/franz-go.
//
//	source := franzsource.New(franzsource.Config{
//		Brokers: []string{"localhost:9092"}, GroupID: "stock", Topics: []string{"orders"},
//	})
//	c, err := consumer.New(pool, source, consumer.HandlerFunc(handle), consumer.Config{
//		Scope: "stock", Key: consumer.HeaderKey("message-id"),
//	})
//
// It has three features that package kafkasource does not have. A rebalance does not interrupt the
// partitions that stay (cooperative rebalancing, KIP-429). A process can restart without a
// rebalance (static members, KIP-345). Topics may be compacted. All members of a group must use
// this package or other cooperative-sticky consumers: it does not join a group with members of
// kafkasource.
//
// A Source decides which partitions this process works on, and the database decides which process
// may commit. If a process wrongly believes that it owns a partition, the database fences it: that
// costs work, never an effect.
//
// # Membership
//
// Each Run is a member of the group. It speaks the group's protocol itself, over a franz-go client
// that does not consume. franz-go's own group consumer does not report in which generation a
// partition is owned at the moment of a commit, and the consumer needs that as a proof. Only the
// distribution of partitions is franz-go's (CooperativeStickyBalancer).
//
// In each JoinGroup a member claims the partitions that it has not released. The leader of the
// group takes a partition from one member in one generation and gives it to another in the next:
//
//	process A                                        process B
//	generation 7: owns 0 and 1
//	                                                 joins
//	heartbeat: a rebalance is on; joins, claims 0, 1
//	  (own(0) and own(1) go on)
//	generation 8: keeps 0; 1 has no owner            generation 8: owns nothing
//	own(1)'s context ends; it finishes its batch and
//	  commits, in generation 8: accepted, because no
//	  other member owns it yet; own(0) goes on
//	own(1) has returned: joins, claims 0
//	generation 9: keeps 0                            generation 9: owns 1
//	a commit for 1 of generation 8, late: refused
//	  (22), which is ErrOwnershipLost
//
// A partition that stays is owned in each generation since, and commits in the present one. The
// package guards against these interleavings:
//
//   - A commit arrives between two generations. The coordinator has ended generation 7, and this
//     process has not learned yet which partitions it owns in 8: the commit is refused in both. If
//     that counted as a loss, each rebalance would end the work on partitions that stay. So Commit
//     waits until the process has learned it. If the partition is still its own, Commit repeats the
//     commit in the new generation; otherwise the partition is lost.
//   - A process that the group removed joins again and gets the same partition, which another
//     member owned meanwhile. So a partition follows its member only while the membership lasts. A
//     partition handed over before keeps its old generation, and its commits are refused for good.
//   - own does not return. The process claims the partition in rebalances while own works, for at
//     most Config.RebalanceTimeout, so that no other member gets it. After that the process no
//     longer claims it, and its commits are refused in the next generation. The process does not
//     get the partition again before that own has returned. See docs/operations/deploy.md, "How
//     long a stop takes".
//   - Heartbeats stop while a partition drains, and the group removes the member. So heartbeats are
//     independent of all work and continue until own has returned.
//   - own returns ErrOwnershipLost, because the database has another owner. The process stops
//     claiming the partition and joins again after a pause with jitter, which grows with each loss.
//     The partition may come back only in another generation. If it joined at once, two processes
//     that both believe that they own the partition would fence each other in turn for ever. Its
//     other partitions are not affected.
//   - The coordinator cannot be reached for the session timeout. It will have given the partitions
//     to others, so their contexts end, and the process joins again when it can.
//   - Two processes have one InstanceID. The coordinator accepts the one that joined last and
//     fences the other, whose Run returns an error that says so. If it joined again, it would fence
//     the first.
//
// When Run is to end during a rebalance, it waits for the rebalance only while a partition drains,
// so that the last commit is accepted. A dynamic member then leaves the group, so that others get
// its partitions at once. A static member does not leave.
//
// The leader notices new partitions within 5 s, and they cause a rebalance. If the leader is a
// static member, the next rebalance finds partitions that were added while it restarted.
//
// # Fetch
//
// Partitions are read as in package kafkasource, by the same code (internal/kafkalog,
// internal/recordbatch). Fetches use isolation level read committed and leave out aborted
// transactions like Kafka's own client. The position passes over them, over control records and
// over holes. Checksums are verified. Topics are fetched by id, and a topic that was deleted and
// created again is source.ErrIncarnation. Brokers before 3.1 fetch by name: see kafkasource for the
// changes that then go unnoticed. After a change of leader the source asks the new one how far its
// log goes in the epoch of the last record read (KIP-320). The error is an OutOfRangeError if the
// log was cut off, or if a leader of the same incarnation confirms that it does not have the
// offset.
//
// franz-go has one connection to a broker for fetches, on which the broker answers in order. So the
// package merges fetches from one broker: one request names all partitions that wait, and ends when
// one of them has records. A partition whose batch is still being handled is not in the request,
// and would have to wait for the others' long poll. While there is such a partition, the long poll
// is 20 ms instead of Config.FetchMaxWait, so no message waits longer than that for a poll of
// others.
//
// # Compacted topics
//
// The source hands over every remaining record of a compacted topic, once and in order. A reader
// cannot notice records that were compacted away before it read them. If no record is left up to
// the last stable offset, the position moves there. This is right if a message replaces earlier
// ones with the same key, for example a customer's address. It is wrong if each message is an order
// of its own: use cleanup.policy=delete then. Identity.Compacted informs the consumer that the
// record by which it recognises the log may be gone.
//
// # Requirements
//
// Topics must exist when Run begins: otherwise brokers might create them and choose the number of
// partitions. Brokers must have Kafka 0.11 or later. The user needs the permissions Read and
// Describe on the topics and Read on the group. With DescribeConfigs on the topics,
// Partition.Retained and Identity.Compacted return more.
package franzsource
