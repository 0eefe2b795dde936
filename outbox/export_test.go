package outbox

import (
	"time"

	"github.com/onlyonce/onlyonce/dedupe"
)

// Statements are all SQL constants of the package by name.
var Statements = map[string]string{
	"enqueue":    enqueueSQL,
	"make lease": makeLeaseSQL, "read lease": readLeaseSQL, "raise lease": raiseLeaseSQL, "renew lease": renewLeaseSQL, "release lease": releaseLeaseSQL,
	"fence": fenceSQL, "pick": pickSQL, "delivered": deliveredSQL, "retry": retrySQL, "park": parkSQL, "purge": purgeSQL,
}

// Identity is identity as a string.
func Identity(o dedupe.Origin, inbound bool, c Call) string { return identity(o, inbound, c).String() }

// Stored is stored.
func Stored(s string) string { return stored(s) }

// SetJoinGrace shortens the wait for sinks that do not return.
func (r *Relay) SetJoinGrace(d time.Duration) {
	for _, w := range r.workers {
		w.joinGrace = d
	}
}

// RetryDelay is the wait after an attempt.
func (r *Relay) RetryDelay(attempt int, after time.Duration) time.Duration {
	return r.workers[0].retryDelay(attempt, after)
}
