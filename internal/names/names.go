// Package names makes the names under which features keep things beside each other in one database:
// leases, and the streams and scopes of receivers. Each feature has a word of its own that no other
// one's begins with, and what a user has named is escaped. So two features never share a name, and
// a look for all names of one feature finds no other's (S5).
package names

import (
	"net/url"
	"strconv"
	"strings"
)

// These begin the names of leases. The statements of the migrations and docs/roles.sql that tell
// leases apart have the same words; a test compares them.
const (
	cursors    = "cursor/"  // who owns the position of a partition
	lanes      = "relay/"   // who sends the calls of a sink's lane
	relays     = "relays/"  // relays that list a sink
	partitions = "events/"  // who reads a partition of a stream
	readers    = "readers/" // members of a group that read a stream
	receivers  = "queue/"   // who receives from a queue in the broker's order
	backfills  = "webhook/" // who lists the events of an endpoint's sender
	rotators   = "ring/"    // who rotates a ring
	builders   = "filters/" // who builds the filters of a ring
	requests   = "http/"    // who handles a request in lease mode
	observers  = "observe"  // who reads the metrics of a database
)

// Lease is the name of a lease. Only the functions of this package make one, so no other code can
// give a lease the name of another feature's.
type Lease struct{ text string }

func (l Lease) String() string { return l.text }

// Leases are the leases of one thing that differ by a number.
type Leases struct{ begin string }

// Prefix begins the name of each of them, and of no other lease. The number follows. It ends with a
// slash, and names are in byte order. So they are those from the prefix up to `left(prefix, -1) ||
// '0'`, because 0 follows the slash: a range of the names' index. A statement with starts_with
// would read all leases, and requests may have millions (T13).
func (l Leases) Prefix() string { return l.begin }

// Lease is the lease of a number.
func (l Leases) Lease(n int) Lease { return Lease{l.begin + strconv.Itoa(n)} }

// List lists the names of the first n, for a statement.
func (l Leases) List(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = l.Lease(i).text
	}
	return all
}

// of joins a feature's word and the user's names. Escaped, none of these has a slash.
func of(feature string, named ...string) string {
	for i, name := range named {
		named[i] = url.PathEscape(name)
	}
	return feature + strings.Join(named, "/")
}

// Cursor is the lease of a consumer's position in a partition.
func Cursor(scope, topic string, partition int32) Lease {
	return Lease{of(cursors, scope, topic, strconv.Itoa(int(partition)))}
}

// Lanes are the leases of a sink's lanes.
func Lanes(sink string) Leases { return Leases{of(lanes, sink) + "/"} }

// Relays are the leases by which relays show each other that they list a sink.
func Relays(sink string) Leases { return Leases{of(relays, sink) + "/"} }

// AllRelays begins the names of [Relays] of any sink.
const AllRelays = relays

// Partitions are the leases of a stream's partitions in a group.
func Partitions(group, topic string) Leases { return Leases{of(partitions, group, topic) + "/"} }

// Readers are the leases by which the members of a group show each other that they read a stream.
func Readers(group, topic string) Leases { return Leases{of(readers, group, topic) + "/"} }

// Receiver is the lease of the one process that receives from a queue.
func Receiver(queue string) Lease { return Lease{of(receivers, queue)} }

// Backfill is the lease of the one process that lists an endpoint's events.
func Backfill(endpoint string) Lease { return Lease{of(backfills, endpoint, "backfill")} }

// Rotator is the lease of the one process that rotates a ring.
func Rotator(ring string) Lease { return Lease{of(rotators, ring)} }

// Builder is the lease of the one process that builds the filters of a ring.
func Builder(ring string) Lease { return Lease{of(builders, ring)} }

// Requests begins the name of a request's lease. Its id, a UUID, follows: only statements make
// these names.
const Requests = requests

// Observer is the lease of the one process that reads the metrics of a database.
func Observer() Lease { return Lease{observers} }
