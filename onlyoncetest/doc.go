// Package onlyoncetest is for tests of code that uses onlyonce. It needs a Postgres server, and
// nothing else: topics are in memory.
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
// # The server
//
// Tests use the server at ONLYONCE_POSTGRES_URL. This is the one library of onlyonce's that reads
// an environment variable. If it is not set, the first test starts a server of its own, with the
// newest programs in PATH or /usr/lib/postgresql, and that server ends with the test process,
// however it ends. For that, the test binary is executed once more, as the server's supervisor,
// which ends in an init function of package internal/supervise: no test runs in it. Docker is not
// used, and nothing is downloaded.
//
// On a server that is given, databases named onlyoncetest_N are created, so the role needs
// CREATEDB. They stay there, for the next process to drop and make anew.
//
// # Decisions
//
// Databases belong to workers and are emptied between runs (internal/workerdb). To clone one for
// each run would take longer than most runs.
//
// Handlers run in this process, in the engine that runs them in production, on a scripted log
// (consumertest). Nothing of the engine is replaced.
package onlyoncetest
