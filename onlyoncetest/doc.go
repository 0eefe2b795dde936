// Package onlyoncetest is for tests of code that uses onlyonce: it provides a database, applies
// messages to a handler with the engine, and compares any program under faults with a run without.
// It only needs a Postgres server: topics are in memory.
//
// [Apply] runs a handler for some messages and returns their outcomes:
//
//	func TestHold(t *testing.T) {
//		pool := onlyoncetest.Pool(t)
//		_, err := pool.Exec(t.Context(), schema)
//		...
//		got := onlyoncetest.Apply(t, pool, consumer.HandlerFunc(hold), consumer.Config{},
//			onlyoncetest.Message{ID: "1", Value: `{"sku":"a","qty":2}`})
//		// got.Applied, got.Skipped, got.Parked, got.Calls
//	}
//
// [FromMessage] makes a message of a stored webhook event, and [Send] sends requests to an HTTP
// handler.
//
// # Run
//
// [Run] proves that a program has each effect once. It needs no assertions: after each history of
// faults the tables must equal those of a run without a fault.
//
//	func TestHoldOnce(t *testing.T) {
//		onlyoncetest.Run(t, onlyoncetest.Case{
//			Migrate:  migrate,
//			Start:    onlyoncetest.Consume(consumer.HandlerFunc(hold), consumer.Config{}),
//			Messages: []onlyoncetest.Message{{ID: "1", Value: `{"sku":"a","qty":2}`}},
//		})
//	}
//
// A history is a list of faults, each at a point. A point is a statement that a process sends to
// Postgres, one of its HTTP requests, or a call of the handler:
//
//	before:P     the process dies before the server gets the statement, or the remote the request
//	after:P      it dies after the statement or request was carried out, before the answer arrives
//	cut:P        the connection breaks before the server gets it, and the process continues
//	lost:P       the connection breaks after it was carried out, and the process continues
//	zombie:P     the process stops there until another one has done all work, and then continues
//	rebalance:P  it gives up its partitions there, and gets them again
//	40001:P      the handler's transaction fails there with a serialization failure
//	40P01:P      ... with a deadlock
//	failover:P   a standby without the COMMIT at P takes over, before the next batch or in the end
//	rewind:P     ... in the end in any case, so all commits from P on are lost
//	reset        when a process has died, the group's offsets are gone
//	copies       in the end each message arrives again, at another offset, or from a queue's producer
//	moved        ... in another partition
//	single       no fault: each message is a batch of its own, as with BatchSize 1
//
// When a process dies, all of its connections break, it cannot open new ones, its context ends,
// and Run starts a successor with Start and Serve. before and after strike at every statement;
// cut, lost, rebalance and reset at the fence and the COMMIT of a batch, or of an attempt at a
// parked message; zombie at the fence.
//
// Run compares the user's tables (not the schema onlyonce), the enqueued calls, the parked
// messages, the requests that a relay does not send, the effects at remotes, and the status of each
// HTTP answer. It repeats each request with a key in the end, which must get the same bytes. It
// finds generated columns (identity, now(), random values) in the catalog, leaves them out and
// names them in [Report].LeftOut; name others in [Case].Volatile. A foreign key to such a column is
// compared by what it leads to. In a column of type timestamp or timestamptz each time of the run
// equals any other: when a row was written may differ, and whether it has such a time may not.
//
// Faults are played in the order in which they matter: each point has one before any has a second.
// Calls of the handler and requests come first, then the program's own statements, then those of
// the engine around a batch, then its upkeep. A test says which share of the faults it has played.
//
// A history is over when all messages are settled and all requests answered. If the program has a
// relay or a consumer of stored events, its calls and events must be settled too. It has one if
// Start or Serve make it with [Process].Pool. The time until it begins does not count.
//
// # Limits of Run
//
//   - A failover only loses commits of cases with Messages, and without a broker: neither an
//     answered request nor an acknowledged message comes again, so a lost one would stay lost. It
//     needs a role that is a superuser, and handlers without DDL. The processes survive, sequences
//     go back as on a standby, and the server's timeline and transaction ids continue. All messages
//     have the time of a minute before Run began. So if a sink's KeyWindow is shorter than the
//     budget and that minute, a call that a failover has lost may be left for an operator, as in
//     production, and Run reports that effects differ.
//   - A serialization failure is an error of the handler's call; the server has not raised it.
//   - The clock is real, and goroutines of the handler are not scheduled.
//   - Global variables outlive a process here, not in production. Values that Start makes anew for
//     each process behave as in production.
//   - os.Exit and log.Fatal in a handler end the test silently. With -onlyonce.exec, Run plays in a
//     child process, and the verdict names the history and the message, but not the line.
//   - Run sees requests through [Process].HTTP, to an address from [Process.Reach], or through
//     http.DefaultClient with the handler's context. It does not see others, for example those of
//     package httpsink to an address of your own.
//   - The faults 40001, 40P01, copies and single need a call of [Process].Tune.
//   - Run compares the order of calls under one OrderingKey only if the program works sequentially:
//     one partition of messages, or requests, and neither Concurrency nor stored events.
//
// # The server
//
// Tests use the server at ONLYONCE_POSTGRES_URL. This is onlyonce's only library that reads an
// environment variable. If it is not set, the first test starts a server of its own, with the
// newest programs in PATH or /usr/lib/postgresql, and that server ends with the test process,
// however it ends. For that, the test binary runs once more, as the server's supervisor, which ends
// in an init function of package internal/rig/supervise: it runs no tests. The server needs no
// Docker and no download.
//
// On a given server, tests create databases onlyoncetest_..., so the role needs CREATEDB. The
// databases stay there until the next process drops and creates them again.
//
// # Decisions
//
// Databases belong to workers and are emptied between runs (internal/rig/workerdb). Cloning one for
// each run would take longer than most runs.
//
// Handlers run in this process, in the unchanged production engine, on a scripted log
// (internal/rig/memlog).
//
// A failover is one database that forgets (failover.go has the interleaving). A second server would
// need a base backup for each history.
//
// Faults happen on the wire (internal/rig/wire), between pgx and the server. So every statement of
// the engine and the handler is a point, without failpoints or build tags.
//
// The judge compares states and knows no invariants. It first checks that two clean runs agree,
// which any comparison requires. They can agree by chance, so it checks four more before it blames
// a fault: a program that is not deterministic is then called that, in nearly all cases. A
// statement or a request counts as "past the transaction" if the user's code is the innermost
// caller: the judge reads the stack when it is sent.
//
// test/adversary plays histories of the engine. Both have their faults and the names of points from
// internal/rig/wire, their databases from workerdb, and timelines and workers from histories, all
// in internal/rig. They differ in their histories. Run kills processes of any program, compares
// with a clean run, and ends with the shortest history that differs. The adversary lets a process
// survive a fault, delivers messages late, checks invariants of docs/faults.md by ledgers of its
// own, and reports each breach. Its scenes are not Cases: they have commands, several databases,
// and more work after a fault, which would add hooks that users never need.
package onlyoncetest
