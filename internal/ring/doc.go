// Package ring rotates rings of tables: the outbox log, the event log, and the rings of the inbox's
// keys.
//
// # Concept
//
// A ring is a fixed number of tables of one shape, the segments. One segment is inserted into, and
// the closed ones are only read. When no reader needs the oldest one any more, it is emptied whole,
// by TRUNCATE. So old rows cost neither DELETE nor vacuum, and the table that is inserted into
// stays small. A segment has a slot, 0 to slots-1, and slots are used again and again.
//
// The state is one row of onlyonce.rings: cur, draining, closed (youngest first), retired, version.
// A slot that is in none of them is free. A [Rotator] takes one step after another. Any number of
// processes may have one, and the one that holds the lease ring/<name> works.
//
//	announce   draining = cur, cur = a free slot       when cur is too large or too old
//	(wait)     until every transaction that may have read the old cur has ended
//	close      draining goes to the front of closed
//	carry      what must outlast the oldest of         when its retention has passed and no
//	           closed is copied to cur                 reader needs it
//	retire     retired = the oldest of closed          when nothing is left to be copied
//	(wait)     until every transaction that may have read the old closed has ended
//	truncate   retired is emptied, and free
//
// # Protocol
//
// A writer assigns itself a transaction id, reads the row in a later statement, and inserts into
// cur (onlyonce.enqueue_batch, onlyonce.append_events). It takes no lock that a rotator takes
// before the TRUNCATE, and never waits for one.
//
// A claim of a key (for example onlyonce.claim_consumer) has to find the key in whichever segment
// holds it. A second claim that reads the row before or after it must not succeed too. So a claim
// asks the closed segments and inserts into draining first. What was new there, it inserts into
// cur. The later of two claims of one key then meets the earlier one in a table's unique index or
// in a closed segment, whatever each has read of the row:
//
//	one has read           the other has read       they meet
//	cur = 0                draining 0, cur = 1      in 0, where both insert
//	draining 0, cur = 1    closed [0], cur = 1      in 1, where both insert
//	cur = 0                closed [0], cur = 1      in 0: the first has ended before 0 was closed,
//	                                                so the second sees it
//
// Keys are inserted sorted, draining before cur, so that claims do not deadlock.
//
// A step is a transaction of its own, READ COMMITTED whatever the server's default. It holds the
// lease (onlyonce.hold, which raises for a rotator that was replaced) and advances the ring's
// sequence. Then it updates the row if its version is the one from which the step was derived. If
// no row matches, this rotator gives up the lease. The next step follows from the row alone, never
// from memory, so a rotator may die after any statement.
//
// To wait, a rotator reads the row, takes a transaction id of its own and ends that transaction.
// Then it waits until no transaction with a lower id is in progress. The goroutine does not block:
// [Rotator.Step] returns, and checks again next time. The rotator drops the wait when it loses the
// lease, after any error, and after every change of the row. That makes a wait longer, never
// shorter.
//
// The sequence (its last value, which is outside of MVCC) and the row's version are the same number
// when no step is under way. A writer above READ COMMITTED compares the two, because its snapshot
// may be older than the row.
//
// # What it defends against
//
//   - A late writer. P gets its transaction id and reads cur = 0; the rotator announces 1; P
//     inserts into 0, and is still open. If 0 were closed and found empty now, its TRUNCATE would
//     wait for P, go on when P commits, and delete P's row. Hence the wait before close. P must
//     have its id before it reads, because the rotator does not wait for a transaction that reads
//     first.
//   - A late writer that no snapshot shows. The rotator's announcement has transaction id 11; P
//     gets 12, and reads the old cur; the rotator commits. A snapshot taken now is 12:12:, because
//     11 is the last id that has *ended*: P's id is not below its xmax. So "xmin of a later
//     snapshot >= xmax of a snapshot taken after the announcement" holds while P is open. Hence the
//     rotator's own id, 13: it is above every id that was given out before. Once it has ended,
//     every snapshot covers it, and counts P as in progress.
//   - A writer with an old snapshot. Under REPEATABLE READ P's snapshot is taken, 0 is announced
//     away, closed, emptied; P gets its id, reads the row as it was, and inserts into 0. The
//     rotator cannot wait for its id, which came too late. The sequence shows P that its snapshot
//     is old: 40001.
//   - A rotator that died between the sequence and its COMMIT. All writers above READ COMMITTED are
//     then refused. So a rotator that finds the two numbers unequal makes them equal first.
//   - A rotator that wakes. r0 decides to announce, and is stopped; r1 takes over and announces; r0
//     announces again. Then slot 0, which has late writers, is neither draining nor closed, and is
//     never read again; or it is used again, and emptied. Hence the lease, held in the step's own
//     transaction, and the version.
//   - Announcing while a segment drains: the same, with one rotator.
//   - A decision to TRUNCATE that is out of date. The rotator decides again under the lock, by a
//     snapshot taken after the lock was granted. Every row that is in the segment then is committed
//     and seen.
//   - A rotator that stops while it holds that lock: the server ends its session
//     (idle_in_transaction_session_timeout).
//   - Sessions that queue for the segment while the rotator waits for that lock. The rotator asks
//     for it with a short lock_timeout, and less and less often while another session holds the
//     segment. For example, a transaction that has read a segment keeps it until it ends; so does
//     pg_dump.
//   - A clock that jumps back: rotation halts, because ages mean nothing ([ErrClock]).
//   - A clock that jumps forward: no segment is old before it is old by watched time too (package
//     watch).
//
// A transaction that stays open delays the next close, and with it the next announcement, so the
// segment that is inserted into grows. No writer waits, and nothing is lost.
//
// # Shutdown
//
// [Rotator.Run] ends with its context: the step under way is finished, bounded, and the lease is
// released. A caller of [Rotator.Step] calls [Rotator.Release] at the end.
package ring
