package outbox

import (
	"time"

	"github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/outcome"
)

// Statements are all SQL constants of the package by name.
var Statements = map[string]string{
	"make lanes":      makeLanesSQL,
	"poll lanes":      pollLanesSQL,
	"poll work":       pollWorkSQL,
	"load":            loadCursorSQL,
	"fence":           fenceSQL,
	"advance":         advanceSQL,
	"first batches":   firstBatchesSQL,
	"collect":         collectRefsSQL,
	"fetch":           fetchBatchesSQL,
	"park":            parkSQL.sql,
	"all parked":      allParkedSQL,
	"wal position":    walPositionSQL,
	"standbys":        standbysSQL,
	"replicas":        replicasSQL,
	"pick":            pickSQL.sql,
	"next":            nextDueSQL.sql,
	"settle":          settleSQL.sql,
	"sweep":           sweepSQL,
	"complete":        completeSQL.sql,
	"purge":           purgeSQL,
	"configure rates": configureRatesSQL,
	"rates":           ratesSQL,
	"take permits":    takePermitsSQL.sql,
	"hold":            holdSQL,
	"forget rates":    forgetRatesSQL,
	"waiting":         waitingSQL,
	"set aside":       setAsideSQL.sql,
}

// Identity is identity as a string.
func Identity(o origin.Origin, inbound bool, c Call) string { return callKey(o, inbound, c).String() }

// SetJoinGrace shortens the wait for sinks that do not return.
func (r *Relay) SetJoinGrace(d time.Duration) {
	for _, w := range r.senders {
		w.returnGrace = d
	}
}

// RetryDelay is the wait after an attempt.
func (r *Relay) RetryDelay(attempt int, after time.Duration) time.Duration {
	return r.senders[0].retryDelay(attempt, after)
}

// Answer is what an outcome says.
func (o AttemptOutcome) Answer() outcome.Answer { return o.answer() }
