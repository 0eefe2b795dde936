package main

import (
	"fmt"
	"strings"
)

// doctorCheck is one line of the list to go through before a deployment.
type doctorCheck struct {
	names []string // of the findings
	must  string   // what must be so
}

// doctorChecks are all checks of doctor. Its help lists them, and so does
// docs/guide/deployment.md (TestDoctorChecks).
var doctorChecks = []doctorCheck{
	{[]string{"schema"}, "The schema has the version of the programs, or the next one."},
	{
		[]string{"server"},
		"The server is PostgreSQL, flushes what it has committed, and has the functions and settings that " +
			"the engines need. With `track_commit_timestamp = on`, `onlyonce explain` tells when a key was claimed.",
	},
	{
		[]string{"address"},
		"The address has `target_session_attrs=read-write`, so that after a switchover no connection leads " +
			"to a standby. Give the programs the same.",
	},
	{
		[]string{"connections"},
		"The server has connections to spare. `onlyonce plan connections` says how many the programs need.",
	},
	{
		[]string{"roles"},
		"The roles of [roles.sql](../roles.sql) have their rights. A program whose login lacks one names it " +
			"when it starts.",
	},
	{
		[]string{"clocks"},
		"The clocks of the database and of this machine agree, and no lease or retry was written while the " +
			"clock was ahead.",
	},
	{
		[]string{"copies", "relay-retries", "webhooks"},
		"Keys are remembered for longer than copies come. Only you know how long that is: " +
			"`-copies-within`, `-relay-retries`, `-webhook-retention`.",
	},
	{
		[]string{"consumer_keys", "standard_keys"},
		"A process rotates each ring of keys. Every consumer, relay and receiver does in turn; if none " +
			"works on a database, run `onlyonce inbox rotate`.",
	},
	{
		[]string{"frontiers", "transactions", "slots"},
		"Nothing holds up rotation and vacuum: no cursor far behind, no transaction open for long, no " +
			"abandoned replication slot.",
	},
	{
		[]string{"locks"},
		"No login without rights holds an advisory lock of onlyonce: PostgreSQL lets every login take one.",
	},
	{
		[]string{"sequences", "publications"},
		"No sequence was left behind by a move, and no publication keeps rows from being deleted.",
	},
	{
		[]string{"history", "replication"},
		"Cursors of the outbox belong to this database cluster, and a failover loses no commit.",
	},
	{[]string{"restore"}, "Kafka keeps each topic for longer than `-restore-within`, how far back a restore may go."},
	{[]string{"outbox", "events"}, "A relay serves each sink, and a consumer reads each stream."},
	{[]string{"faults"}, "No process reports a fault that keeps it from its work."},
	{[]string{"fingerprint-keys"}, "Processes of the HTTP layer have the fingerprint secrets that they had before."},
	{[]string{"places"}, "No tenant is between two databases."},
	{
		[]string{"parked", "requests", "pauses"},
		"No message, call or request waits for an operator, and nothing is paused.",
	},
}

// checkList is the list for the help of doctor.
func checkList() string {
	var b strings.Builder
	for _, c := range doctorChecks {
		must := strings.NewReplacer("`", "", "[roles.sql](../roles.sql)", "docs/roles.sql").Replace(c.must)
		_, _ = fmt.Fprintf(&b, "  %s: %s\n", strings.Join(c.names, ", "), must)
	}
	return b.String()
}
