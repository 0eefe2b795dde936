// Package ring rotates rings of tables: the outbox log, the event log, and the rings of the inbox's keys.
//
// # Concept
//
// A ring is a fixed number of tables of one shape, the segments. One is inserted into, the closed ones are only read, and the oldest is
// emptied whole, by TRUNCATE, when nobody needs what is in it. So what is old costs neither DELETE nor vacuum, and the table
// that is inserted into stays small. A segment stands in a slot, 0 to slots-1, and slots are used again and again.
//
// The state is one row of onlyonce.rings: cur, draining, closed (youngest first), retired, version. What is in none of them is free. A
// [Rotator] takes one step after another; any number of processes may have one, and the one that holds the lease ring/<name> works.
//
//	announce   draining = cur, cur = a free slot       when cur is too large or too old
//	(wait)     until every transaction that may have read the old cur has ended
//	close      draining goes to the front of closed
//	retire     retired = the oldest of closed          when its retention has passed and nobody needs it
//	(wait)     until every transaction that may have read the old closed has ended
//	truncate   retired is emptied, and free
//
// # Protocol
//
// A writer assigns itself a transaction id, reads the row in a later statement, and inserts into cur (onlyonce.enqueue_calls, onlyonce.append_events). It takes no
// lock that a rotator takes before the TRUNCATE, and never waits for one.
//
// A claim of a key (onlyonce.claim_consumer and its like) has to find the key in whichever segment it stands, and must not be doubled by one that reads
// the row before or behind it. So it asks the closed segments, and inserts into draining first, and what was new there into cur. Of two
// claims of one key, whatever of the row they have read, the later one then meets the earlier one in a table's unique index or in a closed segment:
//
//	one has read           the other has read       they meet
//	cur = 0                draining 0, cur = 1      in 0, where both insert
//	draining 0, cur = 1    closed [0], cur = 1      in 1, where both insert
//	cur = 0                closed [0], cur = 1      in 0: the first has ended before 0 was closed, so the second sees it
//
// Keys are inserted sorted, draining before cur, so that claims do not deadlock.
//
// A step is a transaction of its own, READ COMMITTED whatever the server's default: it holds the lease (onlyonce.hold, which
// raises for a rotator that was replaced), advances the ring's sequence, and updates the row where its version is the one from which the
// step was derived. No row: this rotator gives up the lease. What is done next follows from the row alone, never from memory, so a
// rotator may die after any statement.
//
// A wait is: having read the row, take a transaction id of our own and end that transaction; then wait until no transaction with a
// lower id is in progress. The goroutine does not wait: [Rotator.Step] returns, and asks again next time. What it waits for is forgotten with
// the lease, with any error, and with every change of the row; forgetting makes a wait longer, never shorter.
//
// The sequence (its last value, which is outside of MVCC) and the row's version are the same number when no step is under way.
// A writer above READ COMMITTED compares the two, because its snapshot may be older than the row.
//
// # What it defends against
//
//   - A late writer. P gets its transaction id and reads cur = 0; the rotator announces 1; P inserts into 0, and is still open. Were 0
//     closed and found empty now, its TRUNCATE would wait for P, go on when P commits, and delete P's row. Hence the wait before
//     close. It needs P's id to be there before P reads: one that reads first is not waited for.
//   - A late writer that no snapshot shows. The rotator's announcement has transaction id 11; P gets 12, and reads the old cur; the
//     rotator commits. A snapshot taken now is 12:12:, because 11 is the last id that has *ended*: P's id is not below its xmax. So
//     "xmin of a later snapshot >= xmax of a snapshot taken after the announcement" holds while P is open. Hence an id of our own, 13: it
//     is above every id that was given out before, and once it has ended every snapshot covers it, and counts P as in progress.
//   - A writer with an old snapshot. Under REPEATABLE READ P's snapshot is taken, 0 is announced away, closed, emptied; P gets its
//     id, reads the row as it was, and inserts into 0. Its id is too late to be waited for. It is told by the sequence: 40001.
//   - A rotator that died between the sequence and its COMMIT. Writers above READ COMMITTED are then refused, all of them. So a
//     rotator that finds the two numbers unequal makes them equal first.
//   - A rotator that wakes. r0 decides to announce, and is stopped; r1 takes over and announces; r0 announces again: slot 0, which has
//     late writers, is neither draining nor closed, and is never read again; or it is handed out, and emptied. Hence the lease, held in
//     the step's own transaction, and the version.
//   - Announcing while a segment drains: the same, with one rotator.
//   - A TRUNCATE that was decided on before. It is decided again under the lock, by a snapshot taken after the lock was granted:
//     whatever is in the segment then is committed and seen.
//   - A rotator that stops while it holds that lock: the server ends its session (idle_in_transaction_session_timeout).
//   - A queue behind that lock: it is asked for with a short lock_timeout, and less and less often while somebody keeps it from us.
//     (A transaction that has read a segment keeps it until it ends; so does pg_dump.)
//   - A clock that jumps back: rotation halts, because ages mean nothing ([ErrClock]). In rings that forget by a horizon a jump forward
//     halts it too ([ErrJump]).
//
// A transaction that stays open holds up the next close, and with it the next announcement: the segment that is inserted into grows.
// Nobody waits, and nothing is lost.
//
// # Shutdown
//
// [Rotator.Run] ends with its context: the step under way is finished, bounded, and the lease is released. Whoever calls
// [Rotator.Step] calls [Rotator.Release] at the end.
package ring
