// Package franzsource reads Kafka topics for package consumer, by means of twmb/franz-go.
//
//	source := franzsource.New(franzsource.Config{Brokers: []string{"localhost:9092"}, GroupID: "stock", Topics: []string{"orders"}})
//	c, err := consumer.New(pool, source, handle, consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")})
//
// It does what package kafkasource does, and three things more: a rebalance leaves alone the partitions that stay (cooperative
// rebalancing, KIP-429), a process can restart without one (static members, KIP-345), and topics may be compacted. The members of one
// group must all use this package, or other cooperative-sticky consumers: a group with members of kafkasource is not joined.
//
// A Source decides which partitions this process works on. What may be done with their messages is decided in the database: a
// process that wrongly takes itself for an owner is fenced there, and costs work, never an effect.
//
// # Membership
//
// Each Run is a member of the group. It speaks the protocol itself, over a franz-go client that consumes nothing by itself: that client's own group
// consumer does not tell in which generation a partition is owned at the moment of a commit, and that is the proof that the consumer
// asks for. Only the sharing out of partitions is franz-go's (CooperativeStickyBalancer).
//
// In each JoinGroup a member claims what it has not let go of. The leader of the group takes a partition from one member in one
// generation, and gives it to another in the next:
//
//	process A                                        process B
//	generation 7: owns 0 and 1
//	                                                 joins
//	heartbeat: a rebalance is on; joins, claims 0, 1
//	  (own(0) and own(1) go on)
//	generation 8: keeps 0; 1 is nobody's             generation 8: owns nothing
//	own(1)'s context ends; it finishes its batch and
//	  commits, in generation 8: accepted, nobody
//	  else owns it yet; own(0) goes on
//	own(1) has returned: joins, claims 0
//	generation 9: keeps 0                            generation 9: owns 1
//	a commit for 1 of generation 8, late: refused
//	  (22), which is ErrOwnershipLost
//
// A partition that stays is owned in each generation that it has come through, and commits in the present one. What it guards against:
//
//   - A commit meets the moment between two generations. The coordinator has ended generation 7, and this process has not learned yet what it
//     owns in 8: refused in either. Taken for a loss, each rebalance would end the work on partitions that stay. So Commit waits
//     until the process knows, and repeats it in the new generation if the partition is still its own; otherwise it is lost.
//   - A process that was thrown out, and joins again, may be given the same partition, which was another's meanwhile. So a partition
//     follows its member only while the membership lasts. What was handed over before keeps its old generation and is refused for good.
//   - own does not let a partition go. It is claimed as long as own works, in rebalances too, so that nobody else gets it; but not longer
//     than Config.RebalanceTimeout. After that it is claimed no more, and its commits are refused in the next generation. This
//     process is not handed it again before that own has returned. What letting go may take is in docs/operations.md, "How long a stop takes".
//   - Heartbeats stop while something drains, and the member is thrown out. They go on, apart from all work, until own has returned.
//   - own returns ErrOwnershipLost: the database has another owner. The partition is claimed no more and, after a pause with
//     jitter that grows with each loss, the group is joined anew; only in another generation may the partition come back. Joining at once,
//     two processes that both believe in their ownership would fence each other in turns for ever. Others of its partitions are not touched.
//   - The coordinator cannot be reached for the session timeout. It will have given the partitions to others: their contexts end, and the group
//     is joined anew when it can be.
//   - Two processes with one InstanceID. The coordinator believes the one that joined last, and fences the other, whose Run returns
//     an error that says so: joining anew it would fence the first in turn.
//
// When Run is to end, a rebalance that is on is waited for only as long as somebody drains, so that what is committed last is accepted.
// A dynamic member then leaves the group, so that others have its partitions at once. A static one does not.
//
// New partitions are noticed by the leader within Config.PartitionWatchInterval and lead to a rebalance. Not those that are added while a
// static member that leads the group restarts: the next rebalance finds them.
//
// # Fetch
//
// What is read is read as in package kafkasource, by the same code (internal/kafkalog, internal/recordbatch): at isolation level read
// committed, with aborted transactions left out as Kafka's own client does it; the position passes over them, over control records and over
// holes; checksums are verified; topics are fetched by id, and one that was deleted and created again is consumer.ErrIncarnation
// (brokers before 3.1 fetch by name: see there for what remains); after a change of leader the new one is asked how far its log
// goes in the epoch of the record read last (KIP-320), and a log that was cut off is an OutOfRangeError, as is an offset which a broker
// that leads, of the same incarnation, confirms not to have.
//
// franz-go has one connection to a broker for fetches, on which the broker answers in order. So fetches from one broker are
// merged: one request names all partitions that wait, and ends when one of them has something. A partition whose batch is still worked on is not
// among them, and would have to wait behind the others' long poll when it asks; while such a one is about, that poll is 20 ms instead
// of Config.FetchMaxWait. No message waits longer than that for a poll that it is no part of.
//
// # Compacted topics
//
// Of a compacted topic every record that is left is handed over, once and in order. Records that were compacted away before they were read are
// not, and nobody can tell that they were there; where none are left up to the last stable offset the position passes over: that is what compaction means, and right where a message replaces those
// of the same key before it. It is wrong where each message is an order of its own: use cleanup.policy=delete there.
// Identity.Compacted tells the consumer that the record by which it knows the log again may be gone.
//
// # What is refused
//
// Topics that do not exist when Run begins: brokers may create topics that are asked for, and choose the number of partitions. Brokers
// before Kafka 0.11. The user needs the permissions Read and Describe on the topics and Read on the group; with
// DescribeConfigs on the topics Partition.Retained and Identity.Compacted know more.
package franzsource
