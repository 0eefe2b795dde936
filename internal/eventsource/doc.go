// Package eventsource is a log of events in the database, which consumers read as they read a topic
// of Kafka's.
//
// # Concept
//
// A stream (onlyonce.streams) is a topic with a number of partitions that is fixed for good.
// [Append] writes events to onlyonce.event_log in the transaction of whoever has something to tell:
// the webhook receiver with the claim of the event's id, for one. A [Source] is a consumer.Source
// over the same table: handler, failure policy, parked rows, redrive, replay and order by key are
// the consumer's, which cannot tell the two apart but in this: an event's id was claimed when it
// was appended, so it is not claimed again (consumer.EventSource).
//
// # Appending
//
// Offsets of a partition are dense, and rise in the order of commits, so that a position says what
// was read: onlyonce.append_events locks the partition until the transaction ends, reads the
// greatest offset, and inserts behind it. What it defends against:
//
//   - Commit order. With a sequence, P draws 1 and Q draws 2; Q commits; a reader sees 2, and moves its position behind it; P
//     commits, and 1 is never read. Here Q waits for P's end before it looks for an offset.
//   - A writer that rolls back. It leaves nothing: the next one takes the offset, which nobody has read.
//   - A look that is older than the lock. Under READ COMMITTED a statement sees what had committed when it began: had the one that
//     waits for the lock also read the offset, it would miss the row of the one that it waited for. So each step is a statement.
//   - Rotation. P reads that segment 0 is current, 1 is announced, Q appends offset 5 to 1, and P, who has had another partition's lock, appends
//     to 0: segments overlap, and a partition is read by offset from all of them. A segment that is emptied takes offsets with it: the floor
//     (onlyonce.stream_floors) is noted in that very transaction, or a partition that has nothing in younger segments would begin at 0
//     again, below the positions of its readers. The floor is read after the log was locked by reading it: whoever emptied a segment
//     before has committed his floor by then.
//   - A stale snapshot. Under REPEATABLE READ P's snapshot is taken, Q appends 5 and commits, P gets the lock, and sees 4 as the greatest: a
//     second 5. It is found by the unique index of the segment; and if the ring has moved on between the two, by trying the index of
//     the one before too; and if that was closed meanwhile, by the ring's sequence. P gets 40001 and runs again.
//   - A failover that loses commits. Log, positions and effects are in one database and go back together; offsets are given out again, for
//     events that nobody has read in this history. What was called outside is told by ids and not by offsets.
//
// The locks are taken in one sorted statement, and in a guarded transaction (guard.Tx.Late) right
// before the seal, so that they are held for a COMMIT. Two transactions that append twice each can
// deadlock: 40P01, run it again.
//
// # Reading
//
// A member of a group holds partitions by leases (events/<group>/<topic>/<partition>) and counts
// the members of each topic by theirs (member/events/...): each may hold the rounded share, and
// gives back what is more. It is not what makes effects single, which is the cursor's epoch; it
// keeps members out of each other's way. A commit of an offset holds the lease, and so proves
// membership.
//
// A read is one round trip: it locks the log against being emptied, and then takes one snapshot for
// where the partition begins and ends and for the rows. TRUNCATE does not go by snapshots: without
// the lock before, a log could seem to end below a position, which is what a lossy failover looks
// like. At the end of the log a fetch asks nothing: the member looks for all its partitions at
// once, each Config.PollInterval, and when [Source.Wake] says so.
//
// # Retention
//
// Segments are emptied whole (internal/ring) when Config.Retention has passed and every cursor of
// every scope has passed what is in them; a stream that nobody ever read is kept, and so is what an
// operator's replay still has before it. `onlyonce cursor retire` gives a cursor up. So there is no
// time at which an event that was not handled may be gone. What was parked has a copy of its own.
// Erased events keep their rows, and are passed over.
package eventsource
