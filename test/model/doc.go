// Command model checks the protocols of onlyonce by visiting every state that they can reach.
//
// A model is a protocol as a transition system, small enough to be explored whole: a few processes,
// a few messages or keys, and each statement, crash, lost answer, take-over and failover as a step
// that may come at any time. Breadth-first search visits every reachable state, and states are
// compared whole. So "ok" means that no interleaving of this scope breaks a rule, and the trace of
// a breach is a shortest one. It says nothing of larger scopes, nor of what a model leaves out; the
// first comment of each file says what that is. The models run no SQL: the tests that a rule names
// in docs/faults.md, the storms and the adversary check the code itself.
//
//	fence    a consumer's fence, unknown COMMITs, take-over    F1 F2 T2 T4
//	slots    several transactions of a partition at once       C1 to C8, L1 to L10, T14
//	ring     claims of keys while segments are rotated         K1 K4 K5
//	parking  parked rows of an ordering key, and their copies  D4 K7
//	relay    a lane of the outbox: passes, batches, parking    O2 O4 O5
//	attempts attempts at parked calls, and what settles them   O3 O5 O6
//	window   ages of keys                                      O6
//	log      segments of the outbox's log                      O2 O8
//	history  a lane's cursor over a failover, and a restore    O3 O9
//	calls    calls that are looked for by their keys           O1
//	records  a request's record, its call, and open attempts   H31 O6
//
// The table has two kinds of entries. A scope must hold. A fault leaves one protection out, and
// must be found: a model that cannot fail proves nothing. The name of an entry begins with the
// model and the rule of docs/rules.
//
//	go run ./test/model                      # all, up to 20 minutes and 8 GiB
//	go run ./test/model -small               # what the package's test runs, up to a minute
//	go run ./test/model -only slots/C5 -v    # with the traces of the faults
//	go run ./test/model -list
//
// It prints a line for each entry. The last line begins with "model ok" (status 0) or "model
// BREACH" (status 1); the lines before it have the trace of each breach.
//
// READ COMMITTED is each statement's own snapshot. Above it a transaction has the snapshot of its
// begin: those scopes are called "old snapshots". A crash of a server is a rollback of its
// transactions. A lease may be taken over at any moment, so every paused process is covered.
package main
