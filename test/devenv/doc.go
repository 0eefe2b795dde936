// Package devenv finds or starts Postgres and Kafka for the examples, the tests and CI. Public
// packages must not import it: it links container and fake-broker libraries.
//
// # Order
//
// The first way that works is taken; Options.Log gets one line for it and one for each way that was
// passed over, with the reason.
//
//	Postgres  url       ONLYONCE_POSTGRES_URL
//	          local     server binaries in PATH or /usr/lib/postgresql/*/bin:
//	                    a temporary cluster on a free loopback port
//	          embedded  PostgreSQL 18, fetched once by embedded-postgres
//	          docker    testcontainers-go
//	Kafka     brokers   ONLYONCE_KAFKA_BROKERS, separated by commas
//	          local     Apache Kafka 4.3.0 on a local JVM (Java 17 or later), from
//	                    KAFKA_HOME, or from Maven Central, fetched once by mvn
//	          docker    testcontainers-go
//	          embedded  franz-go's kfake in this process, only with
//	                    Options.AllowFake: it is not a broker, and a test that
//	                    needs one must not pass on it unnoticed
//
// ONLYONCE_ENV (local, embedded, docker) forces one way for both, and an error if that way is not
// possible; an explicit address is taken all the same. An address that does not answer is an error
// too, because that server was asked for. ONLYONCE_POSTGRES_VERSION (a major version) asks for the
// embedded server of that version and for no other. ONLYONCE_KAFKA_VERSION (for example 4.0.1) asks
// for that version from Maven Central.
//
// # Servers to be killed
//
// Servers that devenv started on this machine can be killed with SIGKILL and restarted on the same
// data, and suspended (SIGSTOP) and continued. Options.Brokers starts three brokers, which keep
// three replicas of everything, any one of which may go. [Postgres.Standby] starts a streaming
// standby, which can be detached, so that it lacks the last commits, and promoted.
//
// # Nothing is left over
//
// Servers of the kinds local and embedded run below a supervisor, which stops them and removes
// their directory when this process ends, however it ends: package supervise describes how. It also
// executes this program once more with ONLYONCE_DEVENV_SUPERVISOR set, which an init function
// recognises. Containers are removed by testcontainers' reaper.
//
// # Root
//
// initdb and postgres refuse to run as root. Under root they run as the user postgres, or as nobody
// if there is no such user, in a directory that this user owns.
//
// # Durability
//
// Postgres keeps its own defaults (fsync on, synchronous_commit on): a test of crashes on a server
// without them would prove nothing. Options.PostgresSettings changes what a measurement needs
// changed.
package devenv
