// Package eventsource is a log of events in the database, which consumers read as they read a topic
// of Kafka's.
//
// # Concept
//
// A stream (onlyonce.streams) is a topic whose number of partitions never changes. [Append] writes
// events to onlyonce.event_log in the caller's transaction. For example, the webhook receiver
// appends an event in the transaction that claims the event's id. A [Source] is a consumer.Source
// over the same table: handler, failure policy, parked rows, redrive, replay and order by key are
// the consumer's. There is one difference to Kafka: an event's id was claimed when it was appended,
// so the consumer does not claim it again (claimed.Source).
//
// # Appending
//
// Offsets of a partition are dense, and rise in the order of commits, so a position is exactly what
// was read. onlyonce.append_events locks the partition until the transaction ends, reads the
// greatest offset, and inserts after it. What it defends against:
//
//   - Commit order. With a sequence, P draws 1 and Q draws 2; Q commits; a reader sees 2, and moves
//     its position past it; P commits, and 1 is never read. Here Q waits for P's end before it
//     looks for an offset.
//   - A writer that rolls back. It leaves nothing: the next one takes the offset, which no consumer
//     has read.
//   - A look that is older than the lock. Under READ COMMITTED a statement sees what had committed
//     when it began. If the statement that waits for the lock also read the offset, it would miss
//     the row of the transaction that it waited for. So each step is a statement.
//   - Rotation. P reads that segment 0 is current, 1 is announced, Q appends offset 5 to 1, and P,
//     which held another partition's lock, appends to 0. So segments overlap, and a partition is
//     read by offset from all of them.
//   - A segment that is emptied takes offsets with it. So the floor (onlyonce.stream_floors) is
//     noted in that very transaction. Otherwise a partition that has nothing in younger segments
//     would begin at 0 again, below the positions of its readers. The floor is read after the log
//     was locked by reading it, so a rotator that emptied a segment before has committed its floor
//     by then.
//   - A stale snapshot. Under REPEATABLE READ P's snapshot is taken, Q appends 5 and commits, P
//     gets the lock, and sees 4 as the greatest: a second 5. The unique index of the segment finds
//     it. If the ring has moved on between the two, trying the index of the segment before finds it
//     too. If that one was closed meanwhile, the ring's sequence shows it. P gets 40001 and runs
//     again.
//   - A failover that loses commits. Log, positions and effects are in one database and go back
//     together. Offsets are given out again, for events that no consumer has read in this history.
//     Remotes that were called recognise events by ids and not by offsets.
//
// The locks are taken in one sorted statement. In a guarded transaction (guard.Tx.Late) that comes
// right before the seal, so that they are held only for a COMMIT. Two transactions that append
// twice each can deadlock: 40P01, run it again.
//
// # Reading
//
// A member of a group holds partitions by leases (events/<group>/<topic>/<partition>) and counts
// the members of each topic by theirs (member/events/...). Each may hold the rounded share, and
// gives back any partitions above it. This only keeps members out of each other's way; the cursor's
// epoch is what makes effects single. A commit of an offset holds the lease, and so proves
// membership.
//
// A read is one round trip. It locks the log against being emptied, and then takes one snapshot for
// the rows and for the partition's first and next offsets. TRUNCATE ignores snapshots: without the
// lock before, a log could seem to end below a position, as after a lossy failover. At the end of
// the log a fetch asks nothing. The member looks for all its partitions at once, at least
// every Config.PollInterval, and when [Source.Wake] is called.
//
// # Retention
//
// Segments are emptied whole (internal/ring) when Config.Retention has passed and every cursor of
// every scope has passed what is in them. A stream that no consumer ever read is kept, and so is
// what an operator's replay has not read yet. `onlyonce cursor retire` gives a cursor up. So an
// event that was not handled is never gone because of its age. What was parked has a copy of its
// own. Erased events keep their rows, and are skipped.
package eventsource
