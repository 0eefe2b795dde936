// Command adversary plays every history in which one message to Postgres goes wrong.
//
// A scene is a small workload of one part of onlyonce: for example a consumer at an isolation
// level, a relay, or a server of the HTTP layer. It is played once without a fault, through
// internal/rig/wire, and each message that its process sends is a point. A history is a scene with
// one fault at one point:
//
//	before  the connection breaks, and the server never gets the message
//	after   the server carries it out, and the connection breaks before the answer
//	silent  the server carries it out, no answer comes, and nothing breaks
//	late    no answer comes and nothing breaks, while the process goes on elsewhere, past that point and past a pruning;
//	        then the server gets the message, and all that the client has sent after it
//
// After the fault the process gets more work. In the end another process takes over and does some
// work as well. Then the checker of the part decides: nothing is lost, nothing is doubled, nothing
// waits beyond its bound.
//
//	go run ./test/adversary                       # all
//	go run ./test/adversary -sample 500 -seed x   # 500 of them, drawn by a seed
//	go run ./test/adversary -only consumer/*/events,relay
//	go run ./test/adversary -list
//
// It ends with a line that begins with "adversary ok" (status 0) or "adversary BREACH" (status 1).
// A history whose message does not come any more, in three tries, is printed as never struck; more
// than one in twenty of them is a BREACH of the rig.
// A history that breached is printed as a timeline, with the command that plays it again.
//
// The points are the messages that make a server do something: a start-up, a Parse, a Bind (with
// its Execute), a simple Query, and a Sync. An answer belongs to a round trip, so after and silent
// have one history for each Sync, Query and start-up. A point is played if every clean run has it.
// A history that is equal to another one by construction is not played: equal.go has the argument.
// The program prints how many are left out for that reason, and how many because only some runs
// have their message.
//
// What it has in common with onlyoncetest, the kit for users, is in internal/rig/wire, workerdb and
// histories; onlyoncetest's documentation says what differs.
package main
