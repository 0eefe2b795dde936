// Package onlyoncetest is for tests of code that uses onlyonce: a database, a handler's messages
// applied by the engine, and any program under faults, compared with a run without. It needs a
// Postgres server, and nothing else: topics are in memory.
//
// [Apply] runs a handler for some messages and returns what became of them:
//
//	func TestHold(t *testing.T) {
//		pool := onlyoncetest.Pool(t)
//		_, err := pool.Exec(t.Context(), schema)
//		...
//		got := onlyoncetest.Apply(t, pool, hold, consumer.Config{},
//			onlyoncetest.Message{ID: "1", Value: `{"sku":"a","qty":2}`})
//		// got.Applied, got.Skipped, got.Parked, got.Calls
//	}
//
// [FromMessage] makes a message of a stored webhook event, and [Send] sends requests to an HTTP
// handler.
//
// # Run
//
// [Run] proves that a program has each effect once. It asks for no assertion: after each history of
// faults the tables must be those of a run without a fault.
//
//	func TestHoldOnce(t *testing.T) {
//		onlyoncetest.Run(t, onlyoncetest.Case{
//			Migrate:  migrate,
//			Start:    onlyoncetest.Consume(hold, consumer.Config{}),
//			Messages: []onlyoncetest.Message{{ID: "1", Value: `{"sku":"a","qty":2}`}},
//		})
//	}
//
// A history is a list of faults, each at a point. A point is a statement that a process sends to
// Postgres, an HTTP request of its, or a call of the handler:
//
//	before:P     the process dies before the server gets the statement, or the remote the request
//	after:P      it dies after that was carried out, and before the answer comes
//	cut:P        the connection breaks before the server gets it, and the process goes on
//	lost:P       the connection breaks after that was carried out, and the process goes on
//	zombie:P     the process stops there until another one has done all work, and then goes on
//	rebalance:P  its partitions are given up there, and handed over again
//	40001:P      the handler's transaction fails there with a serialization failure
//	40P01:P      ... with a deadlock
//	failover:P   a standby without the COMMIT at P takes over, before the next batch or in the end
//	rewind:P     ... in the end in any case, so all commits from P on are lost
//	reset        when a process has died, the group's offsets are gone
//	copies       in the end each message comes again, at another offset
//	moved        ... in another partition
//	single       no fault: each message is a batch of its own, as with BatchSize 1
//
// When a process dies, all of its connections break and no new one is opened, its context ends, and
// a successor is started with Start and Serve. before and after strike at every statement, the
// engine's upkeep last; cut, lost, rebalance and reset at the fence and the COMMIT of a batch, or
// of an attempt at a parked message; zombie at the fence.
//
// Compared are the user's tables (not the schema onlyonce), the calls that were enqueued, the
// messages that were parked, the requests that no relay sends, what took effect at remotes, and the
// status of each HTTP answer. A request with a key is repeated in the end, and must get the same
// bytes. Columns that are drawn (identity, now(), random values) are found in the catalog and left
// out, and so are columns that refer to them; others are named in [Case].Volatile.
//
// A history is over when all messages are settled, all requests are answered, and all calls and
// stored events are too, if the program has a relay or a consumer for them. It has one if Start or
// Serve make it with [Process].Pool. How long it takes to begin does not count.
//
// # What Run does not do
//
//   - A failover loses commits of cases with Messages only: a request that was answered is not sent
//     again, so a lost one stays lost. It needs a role that is a superuser, and no DDL in handlers.
//     The processes live on, sequences go back as on a standby, and the server's timeline and its
//     transaction ids go on. All messages have the time at which Run began. So if a sink's
//     KeyWindow is shorter than the budget, a call that a failover has lost may be left for an
//     operator, as in production, and Run says that effects differ.
//   - A serialization failure is what the handler's call returns; the server has not raised it.
//   - The clock is real, and goroutines of the handler are not scheduled.
//   - Global variables outlive a process here, not in production. What Start makes anew for each
//     process is as in production.
//   - os.Exit and log.Fatal in a handler end the test without a word. With -onlyonce.exec, Run
//     plays in a child process, and the verdict names the history and the message. It cannot name
//     the line.
//   - Requests are seen if they go through [Process].HTTP, to an address from [Process.Reach], or
//     through http.DefaultClient with the handler's context. Others are not, for example those of
//     package httpsink to an address of your own.
//   - Calls of [Process].Tune are needed for 40001, 40P01, copies and single.
//   - The order of calls under one OrderingKey is compared if nothing is handled at the same time:
//     one partition of messages, or requests, and neither Concurrency nor stored events.
//
// # The server
//
// Tests use the server at ONLYONCE_POSTGRES_URL. This is the one library of onlyonce's that reads
// an environment variable. If it is not set, the first test starts a server of its own, with the
// newest programs in PATH or /usr/lib/postgresql, and that server ends with the test process,
// however it ends. For that, the test binary is executed once more, as the server's supervisor,
// which ends in an init function of package internal/supervise: no test runs in it. Docker is not
// used, and nothing is downloaded.
//
// On a server that is given, databases onlyoncetest_... are created, so the role needs
// CREATEDB. They stay there, for the next process to drop and make anew.
//
// # Decisions
//
// Databases belong to workers and are emptied between runs (internal/workerdb). To clone one for
// each run would take longer than most runs.
//
// Handlers run in this process, in the engine that runs them in production, on a scripted log
// (consumertest). Nothing of the engine is replaced.
//
// A failover is one database that forgets (failover.go has the interleaving). A second server would
// need a base backup for each history.
//
// Faults happen on the wire (internal/wire), between pgx and the server. So every statement is a
// point, the engine's and the handler's alike, and neither has failpoints or a build tag.
//
// The judge compares states and knows no invariants. That two clean runs agree is checked first,
// because nothing can be compared otherwise. A statement or a request counts as "past the
// transaction" if the user's code is the innermost caller: the stack is read when it is sent.
//
// test/adversary plays histories of the engine. Both have their faults and the names of points from
// internal/wire, their databases from internal/workerdb, and timelines and workers from
// internal/histories. They differ in what a history is. Run kills processes of any program,
// compares with a clean run, and ends with the shortest history that differs. The adversary lets a
// process live on after a fault, delivers messages late, checks invariants of guarantees.md by
// ledgers of its own, and reports each breach. Its scenes are no Cases: they have commands, several
// databases, and more work after a fault, for which users would have to read hooks that they never
// need.
package onlyoncetest
