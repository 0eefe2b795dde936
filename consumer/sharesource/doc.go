// Package sharesource reads Kafka topics as a member of a share group (KIP-932) for package
// consumer, using twmb/franz-go. The brokers need Kafka 4.2 or later.
//
//	source := sharesource.New(sharesource.Config{
//		Brokers: []string{"localhost:9092"}, GroupID: "mail", Topics: []string{"receipts"},
//	})
//	c, err := consumer.New(pool, source, handle, consumer.Config{
//		Scope: "mail", PositionsOnly: true, Concurrency: 8,
//	})
//
// In a share group no process owns a partition. The broker delivers each record to any member, so
// more members than partitions can work. Kafka promises at-least-once: a record comes again if the
// member that has it dies, is slow, or gives it back. Here each record takes effect once, because
// the transaction that applies it records its offset, in the same Postgres tables as consumers of
// package franzsource. It needs no message ids, and it keeps rows only for the offsets between the
// position and the newest delivered record.
//
// # Two memberships
//
// Each Run is a member of two groups:
//
//   - The share group, Config.GroupID. Its deliveries are applied at once, in up to
//     consumer.Config.Concurrency transactions of this process, and acknowledged after the COMMIT.
//   - A consumer group, Config.KeeperGroupID. It gives each partition to one process, its keeper.
//     The keeper reads the same log beside the share group, moves the position over done records,
//     and handles one by one the records that the broker has given up: the share group has archived
//     the record, or it was acknowledged and a failover of the database has lost its commit.
//
// So each record is read twice, the second time mostly from the broker's page cache.
//
//	member 1   delivered 7, 9     BEGIN  fence_slot(7, 9)   handlers  COMMIT   acknowledges 7, 9
//	member 2   delivered 8        the process dies
//	broker                        8 again, to member 1, ... 5 times: archived
//	keeper     reads 7, 8, 9; 7 and 9 are in onlyonce.done, and the share group has passed 8:
//	                              BEGIN  fence_slot(8)  handler or parks it  COMMIT
//	           moves the position to 10
//
// Rules G1 to G6 of docs/rules describe this, and the interleavings that they defend
// against.
//
// # Settings of the share group
//
// Set them once, before the first Run, with kafka-configs.sh --alter --entity-type groups
// --entity-name mail --add-config ...:
//
//   - share.isolation.level=read_committed is required: otherwise the broker also delivers records
//     of aborted transactions. Run refuses to start without it, and ends if it is changed.
//   - share.auto.offset.reset=earliest, if the topic has records already. With Kafka's default,
//     latest, the keeper handles those alone, and more slowly.
//   - share.record.lock.duration.ms (30 s by default) should be longer than a transaction takes.
//     After it, the broker delivers the record to another member too. That costs work, but never an
//     effect.
//
// Of the brokers' own settings, group.share.delivery.count.limit (5 by default) is the number of
// deliveries after which the broker gives a record up. Any value works: the database counts
// attempts, and the keeper continues from that count. group.share.partition.max.record.locks (2,000
// by default) bounds how many rows of onlyonce.done a partition has. The topic's retention must be
// longer than the keeper takes: if retention deletes a record before the position has passed it,
// the partition halts, as for every consumer.
//
// # Limits
//
// There is no order, not even of records with the same key. So consumer.Config refuses OrderingKey,
// ParkOrderingKey and BlockPartition. It refuses TimedKey and a shard.Set too. The member that has
// a failing message retries it until its attempts are used up or the record's lock ends. It is then
// parked for an operator. Choose package franzsource if messages of one key must stay in order, or
// if partitions are enough: it reads each record once.
//
// # Requirements
//
// The topics must exist, the brokers must support share groups, and share.isolation.level must be
// read_committed. The user needs the permissions Read and Describe on the topics and on both
// groups, and DescribeConfigs on the share group.
package sharesource
